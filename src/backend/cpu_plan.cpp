// Puts the parts of planning together: values, groups, steps, then stages and memory.
#include "backend/cpu_plan.h"

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <set>

#include "backend/cpu_emit.h"
#include "backend/cpu_matmul.h"
#include "backend/cpu_packs.h"
#include "backend/cpu_side_by_side.h"
#include "backend/cpu_touch.h"
#include "backend/cpu_window.h"
#include "ops/table.h"

namespace npu::cpu {
namespace {

constexpr size_t kAlign = 64;
// What the steps of a stage write is all alive at once, so stages don't grow without end.
constexpr size_t kMaxStageSteps = 6;

size_t aligned(size_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

class Planner {
 public:
  Planner(const Graph& graph, ProductUnit best) : graph_(graph), best_(best) {}

  Plan run() {
    while (const auto id = try_steps()) {
      const bool news = revised_.insert(*id).second;
      NPU_CHECK(news,
                "planning " + graph_.name() + " goes in circles at node " + std::to_string(*id));
    }
    plan_packs(plan_);
    build_stages();
    join_products(plan_);
    find_windows(plan_);
    size_scratch();
    find_lives();
    place_locals();
    place_arena();
    return std::move(plan_);
  }

 private:
  const Place& place(NodeId id) const { return values_.of[static_cast<size_t>(id)]; }
  int& storage(NodeId root) { return storage_[static_cast<size_t>(root)]; }

  // Fills plan_.steps; or returns a node to plan otherwise.
  std::optional<NodeId> try_steps() {
    plan_ = Plan();
    values_ = plan_values(graph_, revised_);
    groups_ = fuse(graph_, values_);
    if (auto id = assign_storages()) return id;
    const EmitContext context{graph_, values_, groups_, storage_, best_};
    for (const Group& group : groups_.in_order) {
      const bool wanted = std::any_of(group.nodes.begin(), group.nodes.end(),
                                      [&](NodeId id) { return storage(id) >= 0; });
      if (!wanted) continue;  // a constant that became numbers
      Step step;
      std::optional<NodeId> id;
      if (place(group.nodes[0]).copied) {
        emit_copy(context, group.nodes[0], step);
      } else if (group.role == Role::kLoop) {
        id = emit_loops(context, group, step);
      } else if (group.role == Role::kGemm) {
        id = emit_gemm(context, group, step);
      } else {
        id = emit_kernel(context, group, step);
      }
      if (id) return id;
      plan_.steps.push_back(std::move(step));
    }
    for (Step& step : output_copies_) plan_.steps.push_back(std::move(step));
    return std::nullopt;
  }

  // ---- storages --------------------------------------------------------------------------------

  std::optional<NodeId> assign_storages() {
    storage_.assign(graph_.nodes().size(), -1);
    output_copies_.clear();
    for (size_t i = 0; i < graph_.inputs().size(); ++i) {
      store(graph_.inputs()[i], Storage::Kind::kInput, i);
    }
    const std::vector<bool> wanted = stored_roots();
    for (const Group& group : groups_.in_order) {
      for (const NodeId id : group.nodes) {
        if (!wanted[static_cast<size_t>(id)]) continue;
        const int gemm = place(id).gemm;
        const NodeId sum = gemm < 0 ? -1 : values_.gemms[static_cast<size_t>(gemm)].accumulate;
        if (sum >= 0) {
          storage(id) = storage(place(sum).root);
        } else {
          store(id, Storage::Kind::kArena, 0);
        }
      }
    }
    for (size_t i = 0; i < graph_.outputs().size(); ++i) {
      if (auto id = assign_output(i)) return id;
    }
    return std::nullopt;
  }

  void store(NodeId root, Storage::Kind kind, size_t index) {
    const TensorType& type = graph_.node(root).type;
    storage(root) = static_cast<int>(plan_.storages.size());
    plan_.storages.push_back({kind, index, 0, static_cast<size_t>(type.bytes()), 0, type.dtype});
  }

  std::vector<bool> stored_roots() const {
    std::vector<bool> stored(graph_.nodes().size(), false);
    const auto want = [&](NodeId id) { stored[static_cast<size_t>(place(id).root)] = true; };
    for (const Group& group : groups_.in_order) {
      for (const NodeId id : group.nodes) {
        if (place(id).gemm >= 0) {
          const GemmSpec& spec = values_.gemms[static_cast<size_t>(place(id).gemm)];
          for (const NodeId operand : graph_.node(spec.product).inputs) want(operand);
          if (spec.alpha_node >= 0) want(spec.alpha_node);
          if (spec.accumulate >= 0) want(spec.accumulate);
          want(id);
          continue;
        }
        if (group.role == Role::kKernel) want(id);
        for (const NodeId operand : graph_.node(id).inputs) {
          if (!read_in_registers(group, id, operand)) want(operand);
        }
      }
    }
    for (const GraphOutput& output : graph_.outputs()) want(output.node);
    return stored;
  }

  bool read_in_registers(const Group& group, NodeId id, NodeId operand) const {
    if (group.role != Role::kLoop || place(id).copied) return false;
    if (constant_behind(graph_, operand) != nullptr) return true;
    const NodeId root = register_root(graph_, values_, operand);
    return root >= 0 &&
           groups_.of[static_cast<size_t>(root)] == groups_.of[static_cast<size_t>(id)];
  }

  // Lets the value be computed in the output's memory where nothing else claims it, else adds a
  // copy.
  std::optional<NodeId> assign_output(size_t index) {
    const NodeId id = graph_.outputs()[index].node;
    const TensorType& type = graph_.node(id).type;
    const Place& p = place(id);
    View view = p.view;
    const int64_t offset = view.offset;
    view.offset = 0;
    if (view != dense_view(type.shape) || graph_.node(p.root).type.dtype != type.dtype) return id;
    Storage& home = plan_.storages[static_cast<size_t>(storage(p.root))];
    if (home.kind == Storage::Kind::kArena && home.bytes == static_cast<size_t>(type.bytes())) {
      home.kind = Storage::Kind::kOutput;
      home.index = index;
      return std::nullopt;
    }
    KernelStep copy;
    copy.op = find_op("stop_gradient");
    copy.operands = {{storage(p.root), offset, type}};
    copy.out = static_cast<int>(plan_.storages.size());
    copy.out_type = type;
    plan_.storages.push_back(
        {Storage::Kind::kOutput, index, 0, static_cast<size_t>(type.bytes()), 0, type.dtype});
    Step step;
    step.nodes = {id};
    step.work = std::move(copy);
    output_copies_.push_back(std::move(step));
    return std::nullopt;
  }

  // ---- stages ----------------------------------------------------------------------------------

  void build_stages() {
    for (size_t i = 0; i < plan_.steps.size(); ++i) {
      if (!plan_.stages.empty() && joins(plan_.stages.back(), i)) {
        plan_.stages.back().last = i + 1;
      } else {
        plan_.stages.push_back({i, i + 1, false, {}, std::nullopt});
      }
    }
  }

  bool joins(const Stage& stage, size_t index) const {
    if (stage.last - stage.first == kMaxStageSteps) return false;
    const Step& step = plan_.steps[index];
    const Step& first = plan_.steps[stage.first];
    const auto by_rows = [](const Step& s) {
      return s.cols == 1 && !std::holds_alternative<KernelStep>(s.work);
    };
    if (!by_rows(step) || !by_rows(first)) return false;
    if (step.rows != first.rows || step.chunk_rows != first.chunk_rows) return false;
    for (size_t i = stage.first; i < stage.last; ++i) {
      for (const Touch& made : touches(plan_.steps[i])) {
        if (!made.written) continue;
        for (const Touch& used : touches(step)) {
          if (used.storage == made.storage && !same_rows(plan_.steps[i], made, step, used))
            return false;
        }
      }
    }
    return true;
  }

  // Row r of `used` lies inside row r of what was written.
  static bool same_rows(const Step& writer, const Touch& made, const Step& reader,
                        const Touch& used) {
    if (used.access == nullptr || made.access == nullptr) return false;
    const Access &from = *made.access, &to = *used.access;
    if (from.col_stride != 1 || to.col_stride != 1) return false;
    if (to.offset < from.offset || to.offset + to.cols > from.offset + from.cols) return false;
    return row_loops(writer, from) == row_loops(reader, to);
  }

  // ---- memory ----------------------------------------------------------------------------------

  struct Life {
    size_t first = std::numeric_limits<size_t>::max(), last = 0;  // stages
  };

  void find_lives() {
    lives_.assign(plan_.storages.size(), {});
    for (size_t s = 0; s < plan_.stages.size(); ++s) {
      for (size_t i = plan_.stages[s].first; i < plan_.stages[s].last; ++i) {
        for (const Touch& touch : touches(plan_.steps[i])) {
          Life& life = lives_[static_cast<size_t>(touch.storage)];
          life.first = std::min(life.first, s);
          life.last = std::max(life.last, s);
        }
      }
    }
  }

  // What one stage writes and reads by rows, and nobody else reads, needs room for a chunk of rows
  // per thread only: attention's scores never leave the cache.
  void place_locals() {
    const size_t scratch = aligned(plan_.scratch_bytes);
    for (Stage& stage : plan_.stages) {
      if (stage.last - stage.first < 2 || stage.side_by_side) continue;
      size_t bytes = 0;
      for (size_t i = stage.first; i < stage.last; ++i) {
        const Step& step = plan_.steps[i];
        for (const Touch& touch : touches(step)) {
          if (!touch.written || !can_be_local(step, touch)) continue;
          Storage& storage = plan_.storages[static_cast<size_t>(touch.storage)];
          storage.kind = Storage::Kind::kLocal;
          storage.row_bytes = storage.bytes / static_cast<size_t>(step.rows);
          storage.offset = scratch + bytes;
          bytes += aligned(storage.row_bytes * static_cast<size_t>(step.chunk_rows));
          stage.locals.push_back(touch.storage);
        }
      }
      plan_.scratch_bytes = std::max(plan_.scratch_bytes, scratch + bytes);
    }
  }

  bool can_be_local(const Step& step, const Touch& touch) const {
    const size_t index = static_cast<size_t>(touch.storage);
    const Storage& storage = plan_.storages[index];
    if (storage.kind != Storage::Kind::kArena || touch.access == nullptr) return false;
    if (lives_[index].first != lives_[index].last || touch.access->offset != 0) return false;
    const Factors rows = row_loops(step, *touch.access);
    return rows == Factors{{step.rows, touch.access->cols}} &&
           storage.bytes ==
               static_cast<size_t>(step.rows * touch.access->cols) * dtype_bytes(storage.dtype);
  }

  // Largest first, each at the lowest place that is free during its life.
  void place_arena() {
    std::vector<size_t> order;
    for (size_t i = 0; i < lives_.size(); ++i) {
      if (plan_.storages[i].kind == Storage::Kind::kArena) order.push_back(i);
    }
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
      return plan_.storages[a].bytes > plan_.storages[b].bytes;
    });
    std::vector<size_t> placed;
    for (const size_t i : order) {
      std::map<size_t, size_t> taken;  // start → end, of those alive together
      for (const size_t j : placed) {
        if (lives_[i].first > lives_[j].last || lives_[j].first > lives_[i].last) continue;
        size_t& end = taken[plan_.storages[j].offset];
        end = std::max(end, plan_.storages[j].offset + aligned(plan_.storages[j].bytes));
      }
      const size_t bytes = aligned(plan_.storages[i].bytes);
      size_t offset = 0;
      for (const auto& [start, end] : taken) {
        if (offset + bytes <= start) break;
        offset = std::max(offset, end);
      }
      plan_.storages[i].offset = offset;
      plan_.arena_bytes = std::max(plan_.arena_bytes, offset + bytes);
      placed.push_back(i);
    }
  }

  void size_scratch() {
    for (const Step& step : plan_.steps) {
      size_t bytes = 0;
      if (const auto* loop = std::get_if<LoopStep>(&step.work)) {
        for (const int64_t cols : loop->register_cols) {
          bytes += static_cast<size_t>(cols * loop->block_rows) * sizeof(float);
        }
      } else if (const auto* gemm = std::get_if<GemmStep>(&step.work)) {
        bytes = gemm_scratch_bytes(*gemm, std::min(step.chunk_rows, gemm->space.inner()),
                                   step.cols > 1 ? step.chunk_cols : gemm->n,
                                   dtype(gemm->out.storage) != DType::kF32);
      }
      plan_.scratch_bytes = std::max(plan_.scratch_bytes, bytes);
    }
  }

  DType dtype(int index) const { return plan_.storages[static_cast<size_t>(index)].dtype; }

  const Graph& graph_;
  const ProductUnit best_;
  std::set<NodeId> revised_;
  Values values_;
  Groups groups_;
  std::vector<int> storage_;
  std::vector<Step> output_copies_;
  std::vector<Life> lives_;  // by storage
  Plan plan_;
};

}  // namespace

int64_t Plan::chunks(const Stage& stage) const {
  if (!stage.side_by_side) return steps[stage.first].chunks();
  int64_t sum = 0;
  for (size_t i = stage.first; i < stage.last; ++i) sum += steps[i].chunks();
  return sum;
}

Plan make_plan(const Graph& graph, ProductUnit best) { return Planner(graph, best).run(); }

}  // namespace npu::cpu
