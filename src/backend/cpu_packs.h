// Fourth part of planning: which operands of products are packed by steps of their own.
#pragma once

#include "backend/cpu_plan.h"

namespace npu::cpu {

// Adds a PackStep for each value that packed products read as lhs, right after the step that writes
// it, and lists the weights they read as rhs.
void plan_packs(Plan& plan);

}  // namespace npu::cpu
