// What a device computes in is never taken on trust: which nodes it may be given, and a product
// that proves its precision when it is opened.
#pragma once

#include <optional>
#include <string>

#include "backend/backend.h"

namespace npu {

bool is_16_bit(DType dtype);

// Why a device that computes in `compute_dtype` can't be given this node: it would compute with
// 16-bit operands in another type, without their roundings. Movements and widenings are exact.
std::optional<std::string> foreign_arithmetic(const Graph& graph, NodeId node, DType compute_dtype,
                                              const std::string& backend);

// Runs a product whose operands need all of compute_dtype's mantissa. A device that rounds them
// further, whatever its properties say, is off by more than the bound. `hint` goes into the Error.
// With options.prepack the product is computed with a frozen operand too: other code does that.
std::optional<Error> prove_precision(Backend& backend, Device& device, const DeviceOptions& options,
                                     const std::string& hint);

}  // namespace npu
