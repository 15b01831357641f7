// A linear of the decoder layer with its optional bias and LoRA adapter.
#include "model/lora.h"

namespace npu {

Value lora_linear(Builder& builder, const ModelConfig& config, const LayerOptions& options,
                  const Linear& linear, Value x_MI) {
  const DType compute = options.compute_dtype();
  const int64_t in = linear.in(config), out = linear.out(config), rank = options.lora.rank;
  const std::string module(linear.module);

  const Value w_OI = builder.input(module + ".weight", {options.weight_dtype, {out, in}});
  Value y_MO = ops::matmul(x_MI, ops::convert(w_OI, compute), {.transpose_rhs = true});

  const bool attention = linear.module.starts_with("self_attn");
  if (attention ? config.attention_bias : config.mlp_bias) {
    y_MO = ops::add(y_MO, builder.input(module + ".bias", {compute, {1, out}}));
  }
  if (!options.lora.has(linear.name)) return y_MO;

  const Value a_RI = builder.input(module + ".lora_A", {DType::kF32, {rank, in}});
  const Value b_OR = builder.input(module + ".lora_B", {DType::kF32, {out, rank}});
  const Value scale = builder.input("lora_scale", {DType::kF32, {1, 1}});
  const Value t_MR = ops::matmul(ops::convert(x_MI, DType::kF32), a_RI, {.transpose_rhs = true});
  // Scaling the rank-sized factor costs r/out of scaling the product.
  const Value delta_MO = ops::matmul(ops::mul(t_MR, scale), b_OR, {.transpose_rhs = true});
  return ops::convert(ops::add(ops::convert(y_MO, DType::kF32), delta_MO), compute);
}

}  // namespace npu
