// The frozen weights of a runner as a store, so that a second runner can use the same memory.
#pragma once

#include "model/weights.h"
#include "train/runner.h"

namespace npu {

// Weights that lie in host memory in the runner are views of it, which stay valid after the runner;
// all others come from `otherwise`.
std::unique_ptr<WeightStore> weights_of(const ModelRunner& runner, const WeightStore& otherwise);

}  // namespace npu
