// What a step reads and writes.
#pragma once

#include <vector>

#include "backend/cpu_plan.h"

namespace npu::cpu {

// A storage that a step touches. `access` is null when the step may read any part of it.
struct Touch {
  int storage;
  const Access* access;
  bool written;
};
std::vector<Touch> touches(const Step& step);

// The loops of a step's rows over an operand of it.
Factors row_loops(const Step& step, const Access& access);

}  // namespace npu::cpu
