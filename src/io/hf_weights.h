// Weights on disk as a WeightStore, and the check that they are those of a configuration. Private
// to src/io.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/file.h"
#include "model/model.h"
#include "model/weights.h"

namespace npu {

// Every weight of the geometry with its shape, in model order, under Hugging Face names. The head
// is missing where it is tied to the embedding.
std::vector<std::pair<std::string, Shape>> expected_weights(const ModelConfig& config);

// What a file says about a tensor, without reading it.
struct StoredTensor {
  std::string file;   // for messages
  std::string dtype;  // as the file spells it
  bool readable = true;
  Shape shape;
};
using WeightListing = std::map<std::string, StoredTensor, std::less<>>;

// UserError naming file and tensor when a weight is missing, has another shape or dtype, or is not
// part of the model (all but leftovers that readers ignore: rotary inv_freq, a tied lm_head).
void check_weights(const WeightListing& stored, const ModelConfig& config,
                   const std::string& where);

// A store that knows what it holds.
struct ListedWeights {
  std::unique_ptr<WeightStore> store;
  WeightListing listing;
};

// model.safetensors, or the shards that model.safetensors.index.json names (plain file names only).
ListedWeights open_safetensors_weights(const fs::path& directory);
bool has_safetensors_weights(const fs::path& directory);

// The file of each tensor from the text of an index; names that could leave the directory are
// refused.
std::map<std::string, std::string> parse_weight_index(std::string_view text,
                                                      std::string_view where);

}  // namespace npu
