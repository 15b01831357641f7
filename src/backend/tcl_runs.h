// Which atoms go under one axis name in each statement, and in what form the inputs are declared.
#pragma once

#include <optional>

#include "backend/tcl_layout.h"

namespace npu::tcl {

// Fills `axes` of every tensor and use. TCL knows the size of an axis only from an input that has
// it: each name must stand in some input, as whole dimension or as part of one that is declared
// split. Names that no input can give are not used; their atoms go under names of their own.
std::optional<Error> name_runs(const Graph& graph, const Axes& axes, FunctionLayout& layout);

}  // namespace npu::tcl
