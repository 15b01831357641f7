// Loss scaling for f16 activations, whose gradients would underflow: the loss is multiplied before
// the backward pass, the f32 gradients are divided on the host before clipping.
#pragma once

#include <cstdint>
#include <string_view>

#include "tensor/tensor.h"

namespace npu {

struct LossScaleOptions {
  enum class Mode { kOff, kFixed, kDynamic };
  Mode mode = Mode::kOff;
  double initial = 65536;          // 2^16; the scale itself under kFixed
  int64_t growth_interval = 2000;  // good steps after which a dynamic scale doubles
  double max = 16777216;           // 2^24: where a dynamic scale stops growing
};

// "auto" (dynamic where activations are f16, else off), "off", or a power of two from 1 to 2^100
// (fixed); else a kUsage error.
LossScaleOptions parse_loss_scale(std::string_view text, DType activations);

// The scale and its history. All changes are by powers of two, so that unscaling is exact.
class LossScaler {
 public:
  explicit LossScaler(const LossScaleOptions& options);

  bool active() const { return options_.mode != LossScaleOptions::Mode::kOff; }
  double scale() const { return scale_; }
  int64_t overflows() const { return overflows_; }  // steps skipped while the scale was falling

  // A step whose gradients are finite.
  void good_step();
  // A step whose loss is finite but whose gradients are not: halves a dynamic scale. False when the
  // scale is not to blame, being fixed or already 1: then the step is a bad one like any other.
  bool overflow();

  // f32 [3]: scale, good steps since it last changed, overflows. All of them are exact in f32.
  Tensor state() const;
  // Errors: values that no run can have written (kBadInput UserError).
  void restore(const Tensor& state);

 private:
  LossScaleOptions options_;
  double scale_ = 1;
  int64_t good_steps_ = 0;
  int64_t overflows_ = 0;
};

}  // namespace npu
