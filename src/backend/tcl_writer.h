// TCL: the text that FuriosaAI's native compiler takes. A part becomes one function of named
// blocks; each block is one tensor operation with one rounding at its end (docs/decisions/013).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ir/graph.h"

namespace npu {

struct TclFunction {
  std::string text;  // equal parts give equal text, whatever their names
  // An input or output of the part, by its name there. The type is the part's; in the text the
  // dimensions are split into named axes and those of size 1 are gone, which moves no byte.
  struct Port {
    std::string name;
    TensorType type;
  };
  // In the order of the text's signature and return. Inputs that nothing reads are left out.
  std::vector<Port> inputs, outputs;
  int64_t blocks = 0, contractions = 0;
};

// Error kBadInput: `where` is the node, `what` why it cannot be expressed.
Result<TclFunction> write_tcl(const Graph& part);

// Why this node cannot be expressed in any part; nothing when it can. What depends on a node's
// neighbours is write_tcl's to say.
std::optional<std::string> tcl_unsupported(const Graph& graph, NodeId node);

}  // namespace npu
