// Products that don't wait for each other share a stage: those of one input (q, k and v; gate and
// up; the adapters' lora_A), and neighbours that touch nothing of each other. No operand is copied
// to join them, and threads meet once for all of them.
#pragma once

#include "backend/cpu_plan.h"

namespace npu::cpu {

// Reorders steps and stages. Called when stages are built and nothing is placed.
void join_products(Plan& plan);

}  // namespace npu::cpu
