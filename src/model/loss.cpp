// Cross-entropy over the vocabulary in one pass of chunks: each chunk gives its part of the
// softmax's denominator and of the gradient, relative to its own maximum; the host joins them
// (train/head.h). No logits outlive their chunk, and no logit is computed twice.
#include <cmath>

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

// 1 where the two are equal and 0 elsewhere, of whole numbers below 2^24.
Value equal_number(Value a, Value b) {
  const Value distance = ops::sub(a, b);
  return ops::max(ops::sub(ops::constant_like(distance, 1), ops::mul(distance, distance)),
                  ops::constant_like(distance, 0));
}

// What there is of a chunk besides its logits: where the target is, as a factor.
struct ArithmeticChunk {
  Value column_1C, is_target_RC;
};

ArithmeticChunk arithmetic_chunk(Builder& builder, int64_t loss_rows, int64_t chunk) {
  const Value target_R1 = builder.input("target", {DType::kF32, {loss_rows, 1}});
  const Value column_1C = builder.input("column", {DType::kF32, {1, chunk}});
  return {column_1C, equal_number(column_1C, target_R1)};
}

// Far below any logit in the columns beyond the vocabulary, else 0.
Value beyond_vocabulary(Value column_1C) {
  const Value below = ops::min(ops::add_scalar(column_1C, 1), ops::constant_like(column_1C, 0));
  return ops::scale(below, std::exp2(100.0));  // kNoColumn + 1 → −1.3 · 2^124
}

ChunkTerms chunk_terms(Builder& builder, const ModelConfig& config, const LayerOptions& options,
                       int64_t loss_rows, int64_t chunk) {
  const DType compute = options.compute_dtype();
  const Value h_RH = builder.input("h", {compute, {loss_rows, config.hidden_size}});
  const Value weight_CH = ops::convert(
      builder.input("head.weight", {options.weight_dtype, {chunk, config.hidden_size}}), compute);
  Value logits_RC =
      ops::convert(ops::matmul(h_RH, weight_CH, {.transpose_rhs = true}), DType::kF32);
  const Value zero_11 = ops::constant(builder, {DType::kF32, {1, 1}}, 0.0);
  const auto max_and_exp = [&] {
    const Value max_R1 = ops::reduce_max(logits_RC, {1});
    return std::pair(max_R1, ops::exp(ops::sub(logits_RC, max_R1)));
  };

  // The target's own term stays out of the sums: 1 − p would cancel when the model is sure.
  ChunkTerms terms;
  Value target_logits_RC;
  if (options.arithmetic_head) {
    const ArithmeticChunk columns = arithmetic_chunk(builder, loss_rows, chunk);
    if (config.vocab_size % chunk != 0) {
      logits_RC = ops::add(logits_RC, beyond_vocabulary(columns.column_1C));
    }
    const auto [max_R1, exp_RC] = max_and_exp();
    const Value not_target_RC = ops::sub(ops::constant_like(zero_11, 1), columns.is_target_RC);
    terms = {logits_RC, max_R1, columns.column_1C, ops::mul(exp_RC, not_target_RC), weight_CH};
    target_logits_RC = ops::mul(logits_RC, columns.is_target_RC);
  } else {
    const Value target_R1 = builder.input("target", {DType::kI32, {loss_rows, 1}});
    const Value column_1C = ops::iota(builder, {DType::kI32, {1, chunk}}, 1);
    const Value is_target_RC = ops::compare(target_R1, column_1C, "eq");
    const auto [max_R1, exp_RC] = max_and_exp();
    terms = {logits_RC, max_R1, column_1C, ops::select(is_target_RC, zero_11, exp_RC), weight_CH};
    target_logits_RC = ops::select(is_target_RC, logits_RC, zero_11);
  }
  builder.output("max", terms.max_R1);
  builder.output("sum", ops::reduce_sum(terms.others_RC, {1}));
  builder.output("target_logit", ops::reduce_sum(target_logits_RC, {1}));
  if (options.head_logits) builder.output("logits", logits_RC);
  return terms;
}

// The lowest column that reaches the maximum.
Value first_highest(Builder& builder, const ChunkTerms& terms, int64_t chunk) {
  const auto columns = static_cast<double>(chunk);
  const Value none = ops::constant(builder, {DType::kF32, {1, 1}}, -columns);
  const Value negated = ops::neg(ops::convert(terms.column_1C, DType::kF32));
  const Value reached = ops::compare(terms.logits_RC, terms.max_R1, "eq");
  return ops::neg(ops::reduce_max(ops::select(reached, negated, none), {1}));
}

// The same by arithmetic: 1 where the maximum is reached, times what lies behind the column.
Value first_highest_by_arithmetic(const ChunkTerms& terms, int64_t chunk) {
  const auto number = [&](double value) { return ops::constant_like(terms.max_R1, value); };
  // Two logits that differ do so by 2^-126 at least, or are taken for equal.
  const Value distance = ops::min(ops::sub(terms.max_R1, terms.logits_RC), number(1));
  const Value reached =
      ops::max(ops::sub(number(1), ops::scale(distance, std::exp2(126.0))), number(0));
  const Value behind_1C = ops::sub(number(static_cast<double>(chunk)), terms.column_1C);
  const Value best_R1 = ops::reduce_max(ops::mul(reached, behind_1C), {1});
  return ops::sub(number(static_cast<double>(chunk)), best_R1);
}

}  // namespace

Graph ce_stats(const ModelConfig& config, const LayerOptions& options, int64_t loss_rows,
               int64_t chunk) {
  Builder builder("ce_stats");
  const ChunkTerms terms = chunk_terms(builder, config, options, loss_rows, chunk);
  builder.output("argmax", options.arithmetic_head ? first_highest_by_arithmetic(terms, chunk)
                                                   : first_highest(builder, terms, chunk));
  return std::move(builder).build();
}

Graph ce_grad(const ModelConfig& config, const LayerOptions& options, int64_t loss_rows,
              int64_t chunk) {
  Builder builder("ce_grad");
  const ChunkTerms terms = chunk_terms(builder, config, options, loss_rows, chunk);
  const Value others = ops::convert(terms.others_RC, options.compute_dtype());
  const Value u_RH = ops::matmul(others, terms.weight_CH);
  builder.output("u", options.arithmetic_head ? u_RH : ops::convert(u_RH, DType::kF32));
  return std::move(builder).build();
}

}  // namespace npu
