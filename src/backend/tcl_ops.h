// What the rows of the op table are as steps of TCL's vector engine: one table.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ir/graph.h"

namespace npu::tcl {

struct VectorStep {
  enum class Form { kUnary, kNumberLeft, kNumberRight } form = Form::kUnary;
  std::string op;
  float number = 0;
};

struct VectorOp {
  std::string_view name;
  bool binary = false;
  std::vector<VectorStep> steps;  // none: the value as it is
  bool exact = false;             // its result needs no rounding
};

const VectorOp* vector_op(std::string_view name);  // null: no step or series of steps does it

// The number in every element, as the graph's kernel would make it; nothing for other nodes.
std::optional<float> constant_value(const Graph& graph, NodeId id);

}  // namespace npu::tcl
