// The one op table. Every fact about an op is in its row; nothing else lists ops.
#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ir/graph.h"

namespace npu {

// All rows, grouped by family, in the order of docs/ops.md.
std::span<const OpDef* const> op_table();
const OpDef* find_op(std::string_view name);  // null when absent

// Runs a graph with the rows' own kernels: the meaning of a graph. Inputs by name; returns outputs
// by position. A missing or mistyped input is an InternalError.
std::vector<Tensor> interpret(const Graph& graph, const std::map<std::string, Tensor>& inputs);

// The page docs/ops.md, generated from the rows.
std::string op_table_markdown();

}  // namespace npu
