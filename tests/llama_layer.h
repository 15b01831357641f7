// A Llama decoder layer with LoRA, written with ops.h: the graph that the tests of src/transform
// take their realistic cases from.
#pragma once

#include <string>
#include <vector>

#include "ir/graph.h"

namespace npu {

struct LayerSizes {
  int64_t seq_len = 6, hidden = 12, intermediate = 20, heads = 3, kv_heads = 1, head_dim = 4;
  int64_t rank = 2;
  std::vector<std::string> targets = {"q", "v"};  // of q k v o gate up down
  DType dtype = DType::kF32;                      // of activations; softmax and norms are f32
};

// SmolLM2-135M at 512 tokens.
inline LayerSizes smollm2_sizes() {
  return {512, 576, 1536, 9, 3, 64, 16, {"q", "v"}, DType::kF32};
}

// Inputs "x" [S,H], "cos", "sin" [1,S,D], "mask" [1,S,S], weights "q" [out,in], …, "norm1", "norm2"
// [1,H], adapters "q.A" [r,in], "q.B" [out,r]; output "y" [S,H].
Graph llama_layer(const LayerSizes& sizes);
// "x" and the adapters' matrices.
std::vector<std::string> trained_inputs(const LayerSizes& sizes);

}  // namespace npu
