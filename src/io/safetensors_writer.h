// Writing models that are larger than memory: tensors one after another, in shards with an index.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/file.h"
#include "tensor/tensor.h"

namespace npu {

struct TensorSpec {
  std::string name;
  DType dtype = DType::kF32;
  Shape shape;
  size_t bytes() const { return static_cast<size_t>(num_elements(shape)) * dtype_bytes(dtype); }
};

using TensorSource = std::function<Tensor(const TensorSpec&)>;

// Fills a new directory (a staged one: nothing is renamed here) with model.safetensors, or with
// shards of at most `shard_bytes` and model.safetensors.index.json. Shards take tensors in the
// order of `specs`; a tensor larger than the limit gets a shard of its own. `source` is asked for
// each tensor once and must answer with the dtype and shape of the spec. A full disk is kRetriable.
void write_model_files(const fs::path& directory, const std::vector<TensorSpec>& specs,
                       const TensorSource& source, size_t shard_bytes);

// transformers' former default, which every reader takes.
inline constexpr size_t kDefaultShardBytes = 5'000'000'000;

}  // namespace npu
