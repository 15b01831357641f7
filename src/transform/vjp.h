// Reverse-mode derivative as a graph, and its division into a forward and a backward graph.
#pragma once

#include <string>
#include <vector>

#include "ir/graph.h"

namespace npu {

// The graph of `forward` extended by its vector-Jacobian product: inputs are forward's plus, for
// each name in `seeds` (names of outputs), "d_NAME" of that output's type; outputs are forward's
// plus, for each name in `wrt` (names of inputs), "d_NAME". An input that no seed reaches gets
// zeros. A node on the way whose row has no derivative is an Error naming the node and the row's
// reason.
Result<Graph> vjp(const Graph& forward, const std::vector<std::string>& seeds,
                  const std::vector<std::string>& wrt);

struct ForwardBackward {
  Graph forward;   // forward's outputs, then one output per saved tensor
  Graph backward;  // inputs: what it needs of forward's inputs, seeds and saved tensors
  std::vector<std::string> saved;  // "saved0", …: outputs of `forward`, inputs of `backward`
};

// What a forward keeps for its backward.
enum class Recompute {
  kNone,   // the fewest bytes such that no contraction is computed twice (a minimum cut)
  kLayer,  // nothing: backward starts from forward's inputs and computes all again
};

// `joint` is vjp()'s result; `num_forward_outputs` says how many leading outputs are forward's.
// Both graphs give the bits that `joint` gives. Backward is named like forward with "_bwd" in the
// place of "_fwd", or after the name.
ForwardBackward split_joint(const Graph& joint, size_t num_forward_outputs, Recompute recompute);

}  // namespace npu
