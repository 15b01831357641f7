// Third part of planning: a group of nodes becomes a step with addresses.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "backend/cpu_fuse.h"
#include "backend/cpu_plan.h"

namespace npu::cpu {

// Cells of registers and memory that a loop's block of rows should touch: 32 KiB. That is more than
// some L1 caches keep, but an op's call costs more than its reads from L2.
inline constexpr int64_t kBlockCells = 8192;

struct EmitContext {
  const Graph& graph;
  const Values& values;
  const Groups& groups;
  const std::vector<int>& storage;  // by root node; -1 where nothing reads it from memory
  ProductUnit best;

  const Place& place(NodeId id) const { return values.of[static_cast<size_t>(id)]; }
  int storage_of(NodeId id) const { return storage[static_cast<size_t>(place(id).root)]; }
  DType stored_dtype(NodeId id) const { return graph.node(place(id).root).type.dtype; }
};

// Each returns the node to plan otherwise (see plan_values) when an operand can't be read where it
// lies, else nothing.
std::optional<NodeId> emit_loops(const EmitContext& context, const Group& group, Step& step);
std::optional<NodeId> emit_gemm(const EmitContext& context, const Group& group, Step& step);
std::optional<NodeId> emit_kernel(const EmitContext& context, const Group& group, Step& step);
void emit_copy(const EmitContext& context, NodeId id, Step& step);

// The loops that cut `rows` rows so that each of `operands` has one stride per loop; fills
// strides[i]. Where an operand's loops don't nest with the others', its number is returned in
// `misfit`.
std::optional<RowSpace> common_rows(int64_t rows, std::span<const Factors> operands,
                                    std::vector<std::vector<int64_t>>& strides, size_t& misfit);

// Rows that one thread takes at a time: a function of the number of rows only, so that steps over
// the same rows can share a stage.
int64_t rows_per_chunk(int64_t rows);

}  // namespace npu::cpu
