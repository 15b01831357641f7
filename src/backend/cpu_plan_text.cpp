// Plans in words.
#include <algorithm>

#include "backend/cpu_plan.h"

namespace npu::cpu {
namespace {

std::string storage_name(const Plan& plan, int index) {
  const Storage& storage = plan.storages[static_cast<size_t>(index)];
  switch (storage.kind) {
    case Storage::Kind::kInput:
      return "in" + std::to_string(storage.index);
    case Storage::Kind::kOutput:
      return "out" + std::to_string(storage.index);
    case Storage::Kind::kLocal:
      return "local" + std::to_string(index);
    case Storage::Kind::kArena:
      break;
  }
  return "s" + std::to_string(index);
}

std::string sizes_text(const RowSpace& space) {
  std::string text;
  for (const int64_t size : space.sizes) text += (text.empty() ? "" : "x") + std::to_string(size);
  return text.empty() ? "1" : text;
}

std::string arg_text(const Plan& plan, const LoopStep& loop, const LoopArg& arg) {
  const size_t index = static_cast<size_t>(arg.index);
  std::string text = arg.where == LoopArg::Where::kRegister ? "r" + std::to_string(arg.index)
                     : arg.where == LoopArg::Where::kMemory
                         ? storage_name(plan, loop.memory[index].storage)
                         : "number";
  if (arg.column != 0) text += "+" + std::to_string(arg.column);
  return text;
}

std::string loop_text(const Plan& plan, const LoopStep& loop) {
  std::string text = "loops over " + sizes_text(loop.space) + ", blocks of " +
                     std::to_string(loop.block_rows) + ":";
  for (const LoopOp& op : loop.program) {
    text += "\n      " + arg_text(plan, loop, op.dst) + " = " + op.name + "(";
    for (const LoopArg& arg : op.src) {
      text += (&arg == &op.src[0] ? "" : ", ") + arg_text(plan, loop, arg);
    }
    text += ") x" + std::to_string(op.cols) + (op.flat ? " flat" : "");
  }
  return text;
}

std::string gemm_text(const Plan& plan, const GemmStep& gemm) {
  std::string text = storage_name(plan, gemm.out.storage) + (gemm.accumulate ? " += " : " = ");
  text += storage_name(plan, gemm.packed ? gemm.lhs_packed : gemm.lhs.storage) +
          (gemm.lhs_transposed ? "' * " : " * ");
  text += storage_name(plan, gemm.rhs.storage) + (gemm.rhs_transposed ? "'" : "");
  if (gemm.alpha != 1) text += " * " + std::to_string(gemm.alpha);
  if (gemm.alpha_storage >= 0) text += " * " + storage_name(plan, gemm.alpha_storage);
  return text + "  rows " + sizes_text(gemm.space) + " n " + std::to_string(gemm.n) + " k " +
         std::to_string(gemm.k);
}

std::string window_text(const Plan& plan, const Stage& stage) {
  if (!stage.window) return "";
  return ", only of columns where " + storage_name(plan, stage.window->witness.storage) +
         (stage.window->additive ? " is open" : " is not 0");
}

}  // namespace

std::string step_text(const Plan& plan, const Step& step) {
  std::string text;
  if (const auto* loop = std::get_if<LoopStep>(&step.work)) {
    text = loop_text(plan, *loop);
  } else if (const auto* gemm = std::get_if<GemmStep>(&step.work)) {
    text = gemm_text(plan, *gemm);
  } else if (const auto* pack = std::get_if<PackStep>(&step.work)) {
    text = storage_name(plan, pack->to) + " = " + (pack->left ? "left" : "right") + " tiles of " +
           storage_name(plan, pack->from.storage) + "  rows " + sizes_text(pack->space) + " k " +
           std::to_string(pack->from.cols);
  } else {
    text = "kernel " + std::string(std::get<KernelStep>(step.work).op->name);
  }
  return text;
}

std::string plan_text(const Plan& plan) {
  std::string text = "arena " + std::to_string(plan.arena_bytes) + " bytes, scratch " +
                     std::to_string(plan.scratch_bytes) + " bytes per thread\n";
  for (size_t s = 0; s < plan.stages.size(); ++s) {
    const Stage& stage = plan.stages[s];
    text += "stage " + std::to_string(s) + ": " + std::to_string(plan.chunks(stage)) + " chunks" +
            (stage.side_by_side ? " side by side" : "") + window_text(plan, stage) + "\n";
    for (size_t i = stage.first; i < stage.last; ++i) {
      text += "    " + step_text(plan, plan.steps[i]) + "\n";
    }
  }
  return text;
}

}  // namespace npu::cpu
