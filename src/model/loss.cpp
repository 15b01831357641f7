// Cross-entropy over the vocabulary in one pass of chunks: each chunk gives its part of the
// softmax's denominator and of the gradient, relative to its own maximum; the host joins them
// (train/head.h). No logits outlive their chunk, and no logit is computed twice.
#include "model/model.h"
#include "ops/ops.h"

namespace npu {
namespace {

struct ChunkTerms {
  Value logits_RC;
  Value max_R1;
  Value column_1C;
  Value others_RC;  // exp(logit − max), 0 at the target
  Value weight_CH;
};

ChunkTerms chunk_terms(Builder& builder, const ModelConfig& config, const LayerOptions& options,
                       int64_t loss_rows, int64_t chunk) {
  const DType compute = options.compute_dtype();
  const Value h_RH = builder.input("h", {compute, {loss_rows, config.hidden_size}});
  const Value weight_CH = ops::convert(
      builder.input("head.weight", {options.weight_dtype, {chunk, config.hidden_size}}), compute);
  const Value target_R1 = builder.input("target", {DType::kI32, {loss_rows, 1}});

  const Value logits_RC =
      ops::convert(ops::matmul(h_RH, weight_CH, {.transpose_rhs = true}), DType::kF32);
  const Value column_1C = ops::iota(builder, {DType::kI32, {1, chunk}}, 1);
  const Value is_target_RC = ops::compare(target_R1, column_1C, "eq");
  const Value zero_11 = ops::constant(builder, {DType::kF32, {1, 1}}, 0.0);

  const Value max_R1 = ops::reduce_max(logits_RC, {1});
  const Value exp_RC = ops::exp(ops::sub(logits_RC, max_R1));
  // The target's own term stays out of the sums: 1 − p would cancel when the model is sure.
  const Value others_RC = ops::select(is_target_RC, zero_11, exp_RC);
  builder.output("max", max_R1);
  builder.output("sum", ops::reduce_sum(others_RC, {1}));
  builder.output("target_logit",
                 ops::reduce_sum(ops::select(is_target_RC, logits_RC, zero_11), {1}));
  if (options.head_logits) builder.output("logits", logits_RC);
  return {logits_RC, max_R1, column_1C, others_RC, weight_CH};
}

}  // namespace

Graph ce_stats(const ModelConfig& config, const LayerOptions& options, int64_t loss_rows,
               int64_t chunk) {
  Builder builder("ce_stats");
  const ChunkTerms terms = chunk_terms(builder, config, options, loss_rows, chunk);
  // The lowest column that reaches the maximum, as the highest of the negated ones.
  const Value negated = ops::neg(ops::convert(terms.column_1C, DType::kF32));
  const Value none = ops::constant(builder, {DType::kF32, {1, 1}}, -static_cast<double>(chunk));
  const Value reached = ops::compare(terms.logits_RC, terms.max_R1, "eq");
  builder.output("argmax", ops::neg(ops::reduce_max(ops::select(reached, negated, none), {1})));
  return std::move(builder).build();
}

Graph ce_grad(const ModelConfig& config, const LayerOptions& options, int64_t loss_rows,
              int64_t chunk) {
  Builder builder("ce_grad");
  const ChunkTerms terms = chunk_terms(builder, config, options, loss_rows, chunk);
  const Value others = ops::convert(terms.others_RC, options.compute_dtype());
  builder.output("u", ops::convert(ops::matmul(others, terms.weight_CH), DType::kF32));
  return std::move(builder).build();
}

}  // namespace npu
