// Reads and writes of each kind of step.
#include "backend/cpu_touch.h"

#include <variant>

namespace npu::cpu {

std::vector<Touch> touches(const Step& step) {
  std::vector<Touch> list;
  if (const auto* loop = std::get_if<LoopStep>(&step.work)) {
    std::vector<bool> written(loop->memory.size(), false);
    for (const LoopOp& op : loop->program) {
      if (op.dst.where == LoopArg::Where::kMemory)
        written[static_cast<size_t>(op.dst.index)] = true;
    }
    for (size_t i = 0; i < written.size(); ++i) {
      list.push_back({loop->memory[i].storage, &loop->memory[i], written[i]});
    }
  } else if (const auto* gemm = std::get_if<GemmStep>(&step.work)) {
    list = {gemm->packed ? Touch{gemm->lhs_packed, nullptr, false}
                         : Touch{gemm->lhs.storage, &gemm->lhs, false},
            {gemm->rhs.storage, nullptr, false},
            {gemm->out.storage, &gemm->out, true}};
    if (gemm->alpha_storage >= 0) list.push_back({gemm->alpha_storage, nullptr, false});
  } else if (const auto* pack = std::get_if<PackStep>(&step.work)) {
    list = {{pack->from.storage, &pack->from, false}, {pack->to, nullptr, true}};
  } else {
    const auto& kernel = std::get<KernelStep>(step.work);
    for (const auto& operand : kernel.operands) list.push_back({operand.storage, nullptr, false});
    list.push_back({kernel.out, nullptr, true});
  }
  return list;
}

Factors row_loops(const Step& step, const Access& access) {
  const RowSpace& space =
      std::holds_alternative<LoopStep>(step.work)   ? std::get<LoopStep>(step.work).space
      : std::holds_alternative<PackStep>(step.work) ? std::get<PackStep>(step.work).space
                                                    : std::get<GemmStep>(step.work).space;
  Factors result;
  for (size_t i = 0; i < space.sizes.size(); ++i) {
    result = joined(result, {{space.sizes[i], access.strides[i]}});
  }
  return result;
}

}  // namespace npu::cpu
