// The host's half of the one-pass cross-entropy.
#include "train/head.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace npu {

int64_t choose_loss_rows(std::span<const int64_t> counts, int64_t all) {
  // What a call costs beside its rows, in rows (docs/decisions/003-one-pass-head.md).
  constexpr int64_t kCallRows = 64, kFewest = 8;
  std::vector<int64_t> sizes = {all};
  for (int64_t power = kFewest; power < all; power *= 2) {
    sizes.push_back(power);
    if (power + power / 2 < all) sizes.push_back(power + power / 2);
  }
  std::sort(sizes.begin(), sizes.end());
  int64_t best = sizes.front(), least = std::numeric_limits<int64_t>::max();
  for (const int64_t size : sizes) {
    int64_t cost = 0;
    for (const int64_t count : counts) cost += (count + size - 1) / size * (size + kCallRows);
    if (cost >= least) continue;
    least = cost;
    best = size;
  }
  return best;
}

HeadJoin::HeadJoin(int64_t rows, int64_t hidden, bool gradient)
    : hidden_(hidden),
      max_(static_cast<size_t>(rows)),
      others_(static_cast<size_t>(rows)),
      target_(static_cast<size_t>(rows)),
      acc_(gradient ? static_cast<size_t>(rows * hidden) : 0) {
  reset();
}

void HeadJoin::reset() {
  std::fill(max_.begin(), max_.end(), -std::numeric_limits<double>::infinity());
  std::fill(others_.begin(), others_.end(), 0.0);
  std::fill(target_.begin(), target_.end(), 0.0);
  std::fill(acc_.begin(), acc_.end(), 0.0f);
}

void HeadJoin::add(const Tensor& max, const Tensor& sum, const Tensor& target_logit,
                   const Tensor* u) {
  const auto max_R = max.values<float>(), sum_R = sum.values<float>(),
             target_R = target_logit.values<float>();
  const size_t hidden = static_cast<size_t>(hidden_);
  for (size_t row = 0; row < max_.size(); ++row) {
    const double joint = std::max(max_[row], static_cast<double>(max_R[row]));
    const double keep = std::exp(max_[row] - joint), take = std::exp(max_R[row] - joint);
    max_[row] = joint;
    others_[row] = others_[row] * keep + sum_R[row] * take;
    target_[row] += target_R[row];
    if (u == nullptr) continue;
    const float* from = u->values<float>().data() + row * hidden;
    float* acc = acc_.data() + row * hidden;
    const float keep_f = static_cast<float>(keep), take_f = static_cast<float>(take);
    for (size_t i = 0; i < hidden; ++i) acc[i] = acc[i] * keep_f + from[i] * take_f;
  }
}

void HeadJoin::add(const Tensor& logits_RC, const Tensor& target_R1) {
  const auto logits = logits_RC.values<float>();
  const auto target = target_R1.values<int32_t>();
  const size_t columns = static_cast<size_t>(logits_RC.shape()[1]);
  Tensor max(DType::kF32, target_R1.shape()), sum = max.clone(), target_logit = max.clone();
  for (size_t row = 0; row < max_.size(); ++row) {
    const auto logits_C = logits.subspan(row * columns, columns);
    const float highest = *std::max_element(logits_C.begin(), logits_C.end());
    double others = 0;
    for (size_t column = 0; column < columns; ++column) {
      if (static_cast<int64_t>(column) == target[row]) continue;
      others += std::exp(static_cast<double>(logits_C[column] - highest));
    }
    max.mutable_values<float>()[row] = highest;
    sum.mutable_values<float>()[row] = static_cast<float>(others);
    const bool inside = target[row] >= 0 && target[row] < static_cast<int64_t>(columns);
    target_logit.mutable_values<float>()[row] =
        inside ? logits_C[static_cast<size_t>(target[row])] : 0.0f;
  }
  add(max, sum, target_logit, nullptr);
}

double HeadJoin::log_prob(int64_t row) const {
  const size_t r = static_cast<size_t>(row);
  const double own = std::exp(target_[r] - max_[r]);
  // log1p keeps the digits of a small loss; the other form survives a target far below the maximum.
  if (own >= others_[r]) return -std::log1p(others_[r] / own);
  return target_[r] - max_[r] - std::log(others_[r] + own);
}

void HeadJoin::gradient(int64_t row, double w, std::span<const float> target_weight_H,
                        std::span<float> dh_H) const {
  const size_t r = static_cast<size_t>(row);
  const double z = others_[r] + std::exp(target_[r] - max_[r]);
  const float scale = static_cast<float>(w / z), own = static_cast<float>(w * (others_[r] / z));
  const float* acc = acc_.data() + r * static_cast<size_t>(hidden_);
  for (size_t i = 0; i < dh_H.size(); ++i) dh_H[i] = scale * acc[i] - own * target_weight_H[i];
}

}  // namespace npu
