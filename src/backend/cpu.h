// Backends "cpu" (fast, docs/decisions/006-cpu-backend.md) and "cpu:reference" (the rows' own
// kernels, the judge of every other backend). Both run on the host and keep buffers in host memory.
#pragma once

#include <memory>

#include "backend/backend.h"

namespace npu {

std::unique_ptr<Backend> make_cpu();
std::unique_ptr<Backend> make_cpu_reference();

}  // namespace npu
