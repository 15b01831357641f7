#include "llama_layer.h"

#include <algorithm>
#include <cmath>

#include "ops/ops.h"

namespace npu {
namespace {

using namespace ops;  // NOLINT: the formulas read better

class LayerBuilder {
 public:
  explicit LayerBuilder(const LayerSizes& sizes) : s_(sizes), b_("layer_fwd") {}

  Graph build() && {
    const Value x_SH = input("x", {s_.seq_len, s_.hidden});
    const Value attended_SH = add(x_SH, attention(norm(x_SH, "norm1")));
    const Value normed_SH = norm(attended_SH, "norm2");
    const Value gate_SF = linear(normed_SH, "gate", s_.intermediate);
    const Value up_SF = linear(normed_SH, "up", s_.intermediate);
    const Value down_SH = linear(mul(silu(gate_SF), up_SF), "down", s_.hidden);
    b_.output("y", add(attended_SH, down_SH));
    return std::move(b_).build();
  }

 private:
  Value input(const std::string& name, Shape shape) { return b_.input(name, {s_.dtype, shape}); }

  Value norm(Value x_SH, const std::string& weight) {
    const Value x = convert(x_SH, DType::kF32);
    const Value variance_S1 = mean(mul(x, x), 1);
    const Value normed = mul(x, rsqrt(add_scalar(variance_S1, 1e-5)));
    return mul(convert(normed, s_.dtype), input(weight, {1, s_.hidden}));
  }

  Value linear(Value x_SI, const std::string& name, int64_t out) {
    const int64_t in = x_SI.shape()[1];
    const Value y = matmul(x_SI, input(name, {out, in}), {.transpose_rhs = true});
    if (std::find(s_.targets.begin(), s_.targets.end(), name) == s_.targets.end()) return y;
    const Value down_Sr = matmul(x_SI, input(name + ".A", {s_.rank, in}), {.transpose_rhs = true});
    const Value up = matmul(down_Sr, input(name + ".B", {out, s_.rank}), {.transpose_rhs = true});
    return add(y, scale(up, 2.0));
  }

  // [S, heads·D] → [heads, S, D]
  Value split_heads(Value x, int64_t heads) {
    return transpose(reshape(x, {s_.seq_len, heads, s_.head_dim}), {1, 0, 2});
  }

  Value rope(Value x) {
    const Shape table = {1, s_.seq_len, s_.head_dim};
    return add(mul(x, input("cos", table)), mul(rotate_half(x), input("sin", table)));
  }

  // Each key/value head serves heads / kv_heads query heads.
  Value repeat_heads(Value x) {
    const int64_t repeats = s_.heads / s_.kv_heads;
    const Value wide = broadcast(reshape(x, {s_.kv_heads, 1, s_.seq_len, s_.head_dim}),
                                 {s_.kv_heads, repeats, s_.seq_len, s_.head_dim});
    return reshape(wide, {s_.heads, s_.seq_len, s_.head_dim});
  }

  Value attention(Value x_SH) {
    const Value q = rope(split_heads(linear(x_SH, "q", s_.heads * s_.head_dim), s_.heads));
    const int64_t kv_width = s_.kv_heads * s_.head_dim;
    const Value k = rope(split_heads(linear(x_SH, "k", kv_width), s_.kv_heads));
    const Value v = split_heads(linear(x_SH, "v", kv_width), s_.kv_heads);
    const Value raw = matmul(q, repeat_heads(k), {.transpose_rhs = true});
    const Value scores = add(scale(raw, 1.0 / std::sqrt(static_cast<double>(s_.head_dim))),
                             input("mask", {1, s_.seq_len, s_.seq_len}));
    const Value probs = convert(softmax(convert(scores, DType::kF32)), s_.dtype);
    const Value context = matmul(probs, repeat_heads(v));
    const Value joined =
        reshape(transpose(context, {1, 0, 2}), {s_.seq_len, s_.heads * s_.head_dim});
    return linear(joined, "o", s_.hidden);
  }

  const LayerSizes& s_;
  Builder b_;
};

}  // namespace

Graph llama_layer(const LayerSizes& sizes) { return LayerBuilder(sizes).build(); }

std::vector<std::string> trained_inputs(const LayerSizes& sizes) {
  std::vector<std::string> names = {"x"};
  for (const std::string& target : sizes.targets) {
    names.push_back(target + ".A");
    names.push_back(target + ".B");
  }
  return names;
}

}  // namespace npu
