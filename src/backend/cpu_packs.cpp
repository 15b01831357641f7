// Packs of activations: which values, for which side, and after which step.
#include "backend/cpu_packs.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "backend/cpu_emit.h"
#include "backend/cpu_matmul.h"
#include "backend/cpu_touch.h"

namespace npu::cpu {
namespace {

int weight_of(const GemmStep& gemm, Plan& plan) {
  const Storage& storage = plan.storages[static_cast<size_t>(gemm.rhs.storage)];
  if (!gemm.amx && storage.dtype != DType::kBF16) return -1;
  // bf16 rows are the left side's form already, so packing them on the way is a copy that hides
  // behind the products.
  if (gemm.amx && storage.dtype == DType::kBF16 && gemm.turned) return -1;
  const DType lhs = plan.storages[static_cast<size_t>(gemm.lhs.storage)].dtype;
  const WeightForm form = !gemm.amx     ? panel_form(lhs)
                          : gemm.turned ? WeightForm::kLeftTiles
                                        : WeightForm::kRightTiles;
  const PackedWeight weight{storage.index, gemm.rhs.offset, gemm.rhs_ld,          gemm.n,
                            gemm.k,        storage.dtype,   !gemm.rhs_transposed, form};
  const auto at = std::find(plan.weights.begin(), plan.weights.end(), weight);
  if (at != plan.weights.end()) return static_cast<int>(at - plan.weights.begin());
  plan.weights.push_back(weight);
  return static_cast<int>(plan.weights.size()) - 1;
}

Step pack_step(const GemmStep& gemm, Plan& plan) {
  const DType dtype = plan.storages[static_cast<size_t>(gemm.lhs.storage)].dtype;
  const int64_t bytes = packed_bytes(dtype, gemm.space.rows, gemm.k);
  PackStep pack{gemm.space, gemm.lhs, gemm.lhs_ld, !gemm.turned,
                static_cast<int>(plan.storages.size())};
  plan.storages.push_back({Storage::Kind::kArena, 0, 0, static_cast<size_t>(bytes), 0, DType::kU8});
  Step step;
  step.rows = gemm.space.rows;
  step.chunk_rows = rows_per_chunk(step.rows);
  step.work = std::move(pack);
  return step;
}

}  // namespace

void plan_packs(Plan& plan) {
  // A value is a storage as the step `writer` left it; -1: an input.
  using Key = std::tuple<int, int, int64_t, int64_t, int64_t, int64_t, bool>;
  std::map<int, int> writers;
  std::map<Key, int> packed;
  std::map<int, std::vector<Step>> after;   // packs by writer
  std::map<int, std::vector<Step>> before;  // of inputs, by the first reader
  for (size_t i = 0; i < plan.steps.size(); ++i) {
    auto* const gemm = std::get_if<GemmStep>(&plan.steps[i].work);
    if (gemm != nullptr && gemm->by_weight) gemm->weight = weight_of(*gemm, plan);
    if (gemm != nullptr && gemm->packed) {
      const auto written = writers.find(gemm->lhs.storage);
      const int writer = written == writers.end() ? -1 : written->second;
      const auto [at, is_new] =
          packed.try_emplace(Key{gemm->lhs.storage, writer, gemm->lhs.offset, gemm->lhs_ld,
                                 gemm->space.rows, gemm->k, gemm->turned},
                             0);
      if (is_new) {
        at->second = static_cast<int>(plan.storages.size());
        Step step = pack_step(*gemm, plan);
        (writer < 0 ? before[static_cast<int>(i)] : after[writer]).push_back(std::move(step));
      }
      gemm->lhs_packed = at->second;
    }
    for (const Touch& touch : touches(plan.steps[i])) {
      if (touch.written) writers[touch.storage] = static_cast<int>(i);
    }
  }
  std::vector<Step> steps;
  const auto add = [&](std::vector<Step>& list) {
    for (Step& step : list) steps.push_back(std::move(step));
  };
  for (size_t i = 0; i < plan.steps.size(); ++i) {
    add(before[static_cast<int>(i)]);
    steps.push_back(std::move(plan.steps[i]));
    add(after[static_cast<int>(i)]);
  }
  plan.steps = std::move(steps);
}

}  // namespace npu::cpu
