// Runs the TCL text that the emitter writes, with RNGD's rounding: operands of products in bf16,
// everything else in a block in f32, one rounding where it writes. It also holds the text to the
// rules that furiosa-tcc was seen to keep. Only what the emitter writes is understood.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "tensor/tensor.h"

namespace npu {

struct TclTensor {
  std::vector<std::string> axes;
  DType dtype = DType::kF32;
  std::vector<float> values;  // row major in the order of the axes
};

// Called with each tensor that a block, slice or concat made; may change its values.
using TclObserver = std::function<void(const std::string& name, TclTensor& tensor)>;

// Inputs by position, as flat values. Outputs by position. Error: the line that breaks a rule.
Result<std::vector<TclTensor>> run_tcl(std::string_view text, const std::vector<Tensor>& inputs,
                                       const TclObserver& observer = {});

}  // namespace npu
