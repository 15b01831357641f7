// The TCL text that the emitter writes as a graph of ours again, so that the executor of a backend
// computes what tcl_interpreter.h computes element by element: hundreds of times as fast, and with
// other orders of sums. It leaves checking the vendor's rules to that one.
#pragma once

#include <string_view>

#include "ir/graph.h"

namespace npu {

// Inputs i0, i1, … and outputs o0, o1, … by position, each with the axes that it is declared with.
// Products take operands rounded to bf16 and give f32. Error: the line that is not understood.
Result<Graph> tcl_graph(std::string_view text);

}  // namespace npu
