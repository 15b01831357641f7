// Plain descriptions of a model, its adapters and its batches, and the pure functions that build
// its graphs. No weights, no device, no files.
//
// Legend: B sequences, S tokens a sequence (seq_len), M = B·S rows, R rows that carry loss, H
// hidden, F intermediate, NH heads, KV key/value heads, D head_dim, V vocabulary, C vocabulary
// chunk, r rank.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ir/graph.h"

namespace npu {

struct RopeScaling {  // "llama3" scaling; other kinds are refused when the config is read
  double factor = 1;
  double low_freq_factor = 1;
  double high_freq_factor = 4;
  int64_t original_max_position_embeddings = 8192;
};

struct ModelConfig {
  std::string model_type = "llama";
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t num_hidden_layers = 0;
  int64_t num_attention_heads = 0;
  int64_t num_key_value_heads = 0;
  int64_t head_dim = 0;
  int64_t vocab_size = 0;
  int64_t max_position_embeddings = 0;
  double rms_norm_eps = 1e-5;
  double rope_theta = 10000;
  std::optional<RopeScaling> rope_scaling;
  double initializer_range = 0.02;
  bool tie_word_embeddings = false;
  bool attention_bias = false;        // q,k,v,o
  bool mlp_bias = false;              // gate,up,down
  DType storage_dtype = DType::kF32;  // of the weights on disk ("dtype" or "torch_dtype")
};

// Where activations round (docs/numerics.md). With f32 activations all are the same.
//   kHf    after each op, as transformers does in bf16
//   kVllm  RoPE, SwiGLU, and the residual sum with its norm stay in f32 until their one output;
//          all else as kHf
//   kFp32  nowhere
enum class Numerics { kHf, kVllm, kFp32 };
inline constexpr Numerics kAllNumerics[] = {Numerics::kHf, Numerics::kVllm, Numerics::kFp32};
std::string_view numerics_name(Numerics numerics);  // "hf", "vllm", "fp32"
std::optional<Numerics> parse_numerics(std::string_view name);

struct LoraSpec {
  int64_t rank = 16;
  double alpha = 32;
  bool rslora = false;
  std::vector<std::string> targets = {"q_proj", "v_proj"};  // in kLinears order

  double scale() const;  // alpha / r, or alpha / sqrt(r)
  bool has(std::string_view linear) const;
};

// The seven linears of a decoder layer, in the order in which they run.
struct Linear {
  std::string_view name;    // "q_proj"
  std::string_view module;  // "self_attn.q_proj"
  std::string_view letter;  // "q": how --targets spells it
  int64_t (*in)(const ModelConfig&);
  int64_t (*out)(const ModelConfig&);
};
const std::vector<Linear>& linears();

// "q,v" or "all" → names in kLinears order; unknown names are a kUsage error.
std::vector<std::string> parse_targets(std::string_view text);

struct LayerOptions {
  int64_t batch = 1;
  int64_t seq_len = 512;
  DType activation_dtype = DType::kF32;
  DType weight_dtype = DType::kF32;  // of frozen weights, as they lie in device buffers
  Numerics numerics = Numerics::kHf;
  LoraSpec lora;
  bool head_logits = false;  // ce_stats and ce_grad also output their logits
  // final_norm, ce_stats and ce_grad without gather, iota, compare and select: the same values, by
  // products and arithmetic.
  bool arithmetic_head = false;

  // Dtype of activations in the graphs: f32 under Numerics::kFp32, else activation_dtype.
  DType compute_dtype() const {
    return numerics == Numerics::kFp32 ? DType::kF32 : activation_dtype;
  }
  // Dtype of x and y, the residual stream between layers. vLLM adds a layer's output to it inside
  // the next norm, which sees the unrounded sum: so the sum crosses layers in f32.
  DType stream_dtype() const { return numerics == Numerics::kHf ? activation_dtype : DType::kF32; }
};

// What "mask" holds where a row may not look: far below any score, finite in `dtype`.
double mask_value(DType dtype);

// One decoder layer. Inputs: "x" [M,H]; "cos","sin" [B,1,S,D]; "mask" [B,1,S,S] (0 or mask_value(),
// added to scores); the layer's weights under their Hugging Face names without the
// "model.layers.N." prefix ("self_attn.q_proj.weight" [out,in], "input_layernorm.weight" [1,H],
// biases [1,out] where the config has them); for each target "self_attn.q_proj.lora_A" [r,in] and
// ".lora_B" [out,r] in f32; "lora_scale" f32 [1,1]. Output: "y" [M,H]. Formulas: transformers'
// modeling_llama and PEFT's lora.Linear; x and y have the stream dtype, cos, sin, mask and norm
// weights the compute dtype, linears weight_dtype.
Graph layer_forward(const ModelConfig& config, const LayerOptions& options);
// Names of the trained inputs of layer_forward, in order (A then B for each target).
std::vector<std::string> trained_inputs(const LoraSpec& lora);

// Rows that carry loss, picked and normalised. Inputs: "x" [M,H], "rows" i32 [R], "norm.weight"
// [1,H]. Output: "h" [R,H]. With arithmetic_head all rows are normalised and then picked by a
// product: "rows" is of the compute dtype, [R,M], with a 1 at each row's place.
Graph final_norm(const ModelConfig& config, const LayerOptions& options, int64_t loss_rows);

// Cross-entropy over one vocabulary chunk in a single pass (docs/decisions/003-one-pass-head.md).
// Inputs: "h" [R,H], "head.weight" [C,H], "target" i32 [R,1] (relative to the chunk; outside [0,C)
// when the target lies in another chunk).
// ce_stats outputs, f32 [R,1]: "max" of the chunk's logits, "sum" of exp(logit - max) over columns
// that are not the target, "target_logit" (0 when the target is elsewhere). ce_stats also outputs
// "argmax" f32 [R,1], the first column that reaches the maximum. ce_grad outputs the first three
// and "u" f32 [R,H] = Σ_{j≠target} exp(logit_j − max)·W_j. With head_logits both output "logits"
// f32 [R,C] too: where the device's f32 sums are good for 16 bits only, the host sums for the loss.
// With arithmetic_head "u" is of the compute dtype, "target" is f32, and "column" f32 [1,C] has the
// numbers of the columns, or kNoColumn where the chunk goes beyond the vocabulary: such a column
// has no share in anything.
Graph ce_stats(const ModelConfig& config, const LayerOptions& options, int64_t loss_rows,
               int64_t chunk);
Graph ce_grad(const ModelConfig& config, const LayerOptions& options, int64_t loss_rows,
              int64_t chunk);

// In f32 exact, like every column's number, and far from any target.
inline constexpr float kNoColumn = -16777216.0f;

// Sizes of the vocabulary chunks: the fewest equal chunks of at most `limit` columns, the last one
// smaller where V does not divide. With `padded` it is as long as the others, and all are of a
// length that divides well.
std::vector<int64_t> vocabulary_chunks(int64_t vocab_size, int64_t limit, bool padded = false);

// cos and sin of positions [n] → two f32 tensors [n, D] (both halves filled, as transformers does),
// computed in f32 from the inverse frequencies (with llama3 scaling where configured).
struct RopeTables {
  Tensor cos, sin;
};
RopeTables rope_tables(const ModelConfig& config, const std::vector<int32_t>& positions);

}  // namespace npu
