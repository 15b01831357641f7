// A GGUF file as a Llama model: its keys as a config.json, its tensors under Hugging Face names,
// its tokenizer as tokenizer.json. Private to src/io.
#pragma once

#include <string>
#include <string_view>

#include "io/gguf.h"
#include "io/hf_model.h"
#include "io/hf_weights.h"
#include "io/json.h"

namespace npu {

struct GgufModel {
  std::shared_ptr<const FileBytes> file;
  Gguf gguf;
};
GgufModel open_gguf(const fs::path& path);  // throws UserError

// "blk.3.attn_q.weight" → "model.layers.3.self_attn.q_proj.weight"; "" for a name that is not of a
// Llama.
std::string hf_name_of_gguf(std::string_view name);

// config.json without torch_dtype. Llama 3's rope scaling is not in the metadata but in the tensor
// rope_freqs: it is recognised by its values or refused.
Json gguf_config(const GgufModel& model);

// Tensors stay where they are until get(): F32, F16 and BF16 as views, quantised ones as new f32
// tensors. Query and key rows come back in Hugging Face's order (GGUF interleaves the halves of
// each head).
ListedWeights gguf_weights(const GgufModel& model, const ModelConfig& config);

// The ids that metadata gives to special tokens; -1 where there is none.
struct SpecialIds {
  int64_t bos = -1, eos = -1, unk = -1, pad = -1;
};
SpecialIds gguf_special_ids(const Gguf& gguf);

TokenizerFiles gguf_tokenizer(const Gguf& gguf);

}  // namespace npu
