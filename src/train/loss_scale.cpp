// Loss scaling for f16 activations.
#include "train/loss_scale.h"

#include <algorithm>
#include <charconv>
#include <cmath>

namespace npu {

LossScaleOptions parse_loss_scale(std::string_view text, DType activations) {
  using enum LossScaleOptions::Mode;
  LossScaleOptions options;
  if (text == "off") return options;
  if (text == "auto") {
    options.mode = activations == DType::kF16 ? kDynamic : kOff;
    return options;
  }
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), options.initial);
  // Beyond 2^100 the scaled gradients would leave f32, where they are summed.
  if (error != std::errc{} || end != text.data() + text.size() ||
      !(options.initial >= 1 && options.initial <= 0x1p100)) {
    fail(ErrorKind::kUsage, "--loss-scale", "must be auto, off or a number from 1 to 2^100",
         "'" + std::string(text) + "'");
  }
  int exponent = 0;
  if (std::frexp(options.initial, &exponent) != 0.5) {
    fail(ErrorKind::kUsage, "--loss-scale", "must be a power of two, or scaling rounds gradients",
         "'" + std::string(text) + "'",
         "for example " + std::to_string(int64_t(std::ldexp(1.0, std::min(exponent - 1, 62)))));
  }
  options.mode = kFixed;
  return options;
}

LossScaler::LossScaler(const LossScaleOptions& options)
    : options_(options), scale_(active() ? options.initial : 1) {}

void LossScaler::good_step() {
  if (options_.mode != LossScaleOptions::Mode::kDynamic) return;
  if (++good_steps_ < options_.growth_interval) return;
  good_steps_ = 0;
  scale_ = std::min(2 * scale_, std::max(scale_, options_.max));
}

bool LossScaler::overflow() {
  if (options_.mode != LossScaleOptions::Mode::kDynamic || scale_ <= 1) return false;
  good_steps_ = 0;
  scale_ = std::max(1.0, scale_ / 2);
  ++overflows_;
  return true;
}

Tensor LossScaler::state() const {
  const float values[] = {static_cast<float>(scale_), static_cast<float>(good_steps_),
                          static_cast<float>(overflows_)};
  return Tensor::from_f32({3}, values);
}

void LossScaler::restore(const Tensor& state) {
  const auto values = state.values<float>();
  const bool sane = std::all_of(values.begin(), values.end(),
                                [](float value) { return std::isfinite(value) && value >= 0; });
  if (!sane || values[0] < 1) {
    fail_input("checkpoint", "the state of the loss scale is damaged",
               "scale " + std::to_string(values[0]));
  }
  scale_ = values[0];
  good_steps_ = static_cast<int64_t>(values[1]);
  overflows_ = static_cast<int64_t>(values[2]);
}

}  // namespace npu
