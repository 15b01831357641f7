// The Llama family's decoder layer and final norm, as functions that build graphs.
// Shape legend in model.h: B, S, M = B·S, R, H, F, NH, KV, D.
#include <cmath>

#include "model/lora.h"
#include "model/model.h"
#include "ops/ops.h"

namespace npu {
namespace {

// Normalised in f32. hf (transformers' LlamaRMSNorm): rounded, then times the weight in the compute
// dtype. vllm: times the weight in f32, rounded once. x_MH is of the stream dtype.
Value rms_norm(Value x_MH, Value weight_1H, const LayerOptions& o, double eps) {
  const Value x = ops::convert(x_MH, DType::kF32);
  const Value variance = ops::mean(ops::mul(x, x), 1);
  const Value normal = ops::mul(x, ops::rsqrt(ops::add_scalar(variance, eps)));
  if (o.numerics == Numerics::kVllm) {
    return ops::convert(ops::mul(ops::convert(weight_1H, DType::kF32), normal), o.compute_dtype());
  }
  return ops::mul(weight_1H, ops::convert(normal, o.compute_dtype()));
}

// stream + branch. vllm: the sum is in f32 and so is what the norm reads, but what later sums start
// from is the rounded residual.
Value add_residual(Value stream_MH, Value branch_MH, const LayerOptions& o) {
  if (o.numerics != Numerics::kVllm) return ops::add(stream_MH, branch_MH);
  const Value residual_MH = ops::convert(stream_MH, o.compute_dtype());
  return ops::add(ops::convert(residual_MH, DType::kF32), ops::convert(branch_MH, DType::kF32));
}

// silu(gate) · up. hf: silu is one op of torch, so it rounds once itself, and the product again.
Value swiglu(Value gate_MF, Value up_MF, const LayerOptions& o) {
  const Value activated_MF = ops::silu(ops::convert(gate_MF, DType::kF32));
  if (o.numerics == Numerics::kVllm) {
    return ops::convert(ops::mul(activated_MF, ops::convert(up_MF, DType::kF32)),
                        o.compute_dtype());
  }
  return ops::mul(ops::convert(activated_MF, o.compute_dtype()), up_MF);
}

// [M, heads·D] → [B, heads, S, D]
Value split_heads(Value x, const LayerOptions& o, int64_t heads, int64_t head_dim) {
  return ops::transpose(ops::reshape(x, {o.batch, o.seq_len, heads, head_dim}), {0, 2, 1, 3});
}

// RoPE. vllm: the tables hold rounded values, as vLLM's cache does, but all products and sums are
// in f32.
Value rotate(Value x_BNSD, Value cos_B1SD, Value sin_B1SD, const LayerOptions& o) {
  const DType dtype = o.numerics == Numerics::kVllm ? DType::kF32 : o.compute_dtype();
  const Value x = ops::convert(x_BNSD, dtype);
  const Value turned = ops::add(ops::mul(x, ops::convert(cos_B1SD, dtype)),
                                ops::mul(ops::rotate_half(x), ops::convert(sin_B1SD, dtype)));
  return ops::convert(turned, o.compute_dtype());
}

// What the query is scaled by before the product with the keys, so that f16 scores do not overflow:
// the power of two in 1/√D, which moves no rounding. The rest is applied to the scores.
double early_scale(DType compute, double scale) {
  return compute == DType::kF16 ? std::exp2(std::floor(std::log2(scale) + 0.5)) : 1.0;
}

// Grouped-query attention: the queries of one key head are stacked along rows, so that each key
// head is one matmul and keys are never repeated.
Value attention(Builder& builder, const ModelConfig& config, const LayerOptions& o, Value q_MO,
                Value k_MO, Value v_MO) {
  const int64_t b = o.batch, s = o.seq_len, d = config.head_dim;
  const int64_t heads = config.num_attention_heads, kv = config.num_key_value_heads;
  const int64_t stacked = heads / kv * s;
  const DType compute = o.compute_dtype();
  const Value cos = builder.input("cos", {compute, {b, 1, s, d}});
  const Value sin = builder.input("sin", {compute, {b, 1, s, d}});
  const Value mask = builder.input("mask", {compute, {b, 1, s, s}});

  const double scale = 1.0 / std::sqrt(static_cast<double>(d)), early = early_scale(compute, scale);
  Value q = rotate(split_heads(q_MO, o, heads, d), cos, sin, o);
  if (early != 1.0) q = ops::scale(q, early);
  const Value k = rotate(split_heads(k_MO, o, kv, d), cos, sin, o);
  const Value v = split_heads(v_MO, o, kv, d);

  const Value products =
      ops::matmul(ops::reshape(q, {b, kv, stacked, d}), k, {.transpose_rhs = true});
  Value scores = ops::reshape(products, {b, heads, s, s});
  if (scale != early) scores = ops::scale(scores, scale / early);
  const Value probs =
      ops::convert(ops::softmax(ops::convert(ops::add(scores, mask), DType::kF32)), compute);
  const Value mixed = ops::matmul(ops::reshape(probs, {b, kv, stacked, s}), v);
  const Value merged = ops::transpose(ops::reshape(mixed, {b, heads, s, d}), {0, 2, 1, 3});
  return ops::reshape(merged, {b * s, heads * d});
}

}  // namespace

Graph layer_forward(const ModelConfig& config, const LayerOptions& options) {
  Builder builder("layer_fwd");
  const DType compute = options.compute_dtype();
  const int64_t h = config.hidden_size;
  const Value x_MH =
      builder.input("x", {options.stream_dtype(), {options.batch * options.seq_len, h}});
  const auto norm_weight = [&](const char* name) { return builder.input(name, {compute, {1, h}}); };
  const auto linear = [&](std::string_view name, Value in) {
    for (const Linear& l : linears()) {
      if (l.name == name) return lora_linear(builder, config, options, l, in);
    }
    NPU_CHECK(false, std::string(name));
    return Value{};
  };

  const double eps = config.rms_norm_eps;
  const Value n_MH = rms_norm(x_MH, norm_weight("input_layernorm.weight"), options, eps);
  const Value mixed = attention(builder, config, options, linear("q_proj", n_MH),
                                linear("k_proj", n_MH), linear("v_proj", n_MH));
  const Value mid_MH = add_residual(x_MH, linear("o_proj", mixed), options);

  const Value m_MH = rms_norm(mid_MH, norm_weight("post_attention_layernorm.weight"), options, eps);
  const Value gate_MF = linear("gate_proj", m_MH);
  const Value inner_MF = swiglu(gate_MF, linear("up_proj", m_MH), options);
  builder.output("y", add_residual(mid_MH, linear("down_proj", inner_MF), options));
  return std::move(builder).build();
}

Graph final_norm(const ModelConfig& config, const LayerOptions& options, int64_t loss_rows) {
  Builder builder("final_norm");
  const DType compute = options.compute_dtype();
  const int64_t h = config.hidden_size;
  const Value x_MH =
      builder.input("x", {options.stream_dtype(), {options.batch * options.seq_len, h}});
  const auto normalised = [&](Value rows) {
    const Value weight = builder.input("norm.weight", {compute, {1, h}});
    return rms_norm(rows, weight, options, config.rms_norm_eps);
  };
  if (options.arithmetic_head) {
    const Value rows_RM =
        builder.input("rows", {compute, {loss_rows, options.batch * options.seq_len}});
    builder.output("h", ops::matmul(rows_RM, normalised(x_MH)));
  } else {
    const Value rows_R = builder.input("rows", {DType::kI32, {loss_rows}});
    builder.output("h", normalised(ops::gather(x_MH, rows_R)));
  }
  return std::move(builder).build();
}

}  // namespace npu
