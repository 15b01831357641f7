// The host's half of the one-pass cross-entropy: joins what ce_grad / ce_stats give for each
// vocabulary chunk into losses and the gradient of the hidden rows.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tensor/tensor.h"

namespace npu {

// R, the rows with loss that pass the head at a time, at which it costs least over micro-batches
// with `counts` such rows: padding against further calls, each of which reads the head's weights
// again. One of 8, 12, 16, 24, 32, 48, …, so that few heads are compiled; at most `all` (B·S).
int64_t choose_loss_rows(std::span<const int64_t> counts, int64_t all);

// For each row, over the chunks seen so far: the running maximum m of the logits,
// others = Σ_{j≠target} exp(logit_j − m), the target's logit, and acc = Σ_{j≠target} exp(logit_j −
// m)·W_j. Rows are independent; a chunk with a higher maximum rescales what came before.
class HeadJoin {
 public:
  HeadJoin(int64_t rows, int64_t hidden, bool gradient);
  void reset();
  // max, sum, target_logit: f32 [R,1]; u: f32 [R,H], null when no gradient will be asked for.
  void add(const Tensor& max, const Tensor& sum, const Tensor& target_logit, const Tensor* u);

  // The same statistics of the chunk, summed here in f64: logits f32 [R,C], target i32 [R,1] as
  // ce_stats takes it.
  void add(const Tensor& logits_RC, const Tensor& target_R1);

  // log p(target) of a row, in nats.
  double log_prob(int64_t row) const;
  // d(−w·log p)/dh of a row: w·(acc/Z − others/Z·W[target]), Z = others + exp(target_logit − m).
  // No term cancels when p is near 1.
  void gradient(int64_t row, double w, std::span<const float> target_weight_H,
                std::span<float> dh_H) const;

 private:
  int64_t hidden_;
  std::vector<double> max_, others_, target_;
  std::vector<float> acc_;
};

}  // namespace npu
