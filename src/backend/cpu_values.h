// First half of planning: what becomes of each node, and where its value lies.
#pragma once

#include <optional>
#include <set>
#include <vector>

#include "backend/cpu_view.h"

namespace npu::cpu {

enum class Role : uint8_t {
  kInput,
  kView,    // a way of reading another value: movement, widening
  kLoop,    // elementwise, row reductions, copies
  kGemm,    // the result of a GemmSpec
  kFolded,  // inside a GemmSpec, has no value of its own
  kKernel,  // the row's own kernel
};

// A product with what is folded into it: result = alpha · alpha_node · product (+ accumulate).
struct GemmSpec {
  NodeId product = -1;
  NodeId result = -1;
  double alpha = 1;
  NodeId alpha_node = -1;
  NodeId accumulate = -1;  // another product's result, whose memory becomes the result's
};

struct Place {
  Role role = Role::kKernel;
  NodeId root = -1;     // whose storage holds the value
  View view;            // of the root's storage
  bool copied = false;  // a view that is stored after all, by a copying loop
  int gemm = -1;
};

struct Values {
  std::vector<Place> of;
  std::vector<GemmSpec> gemms;
  std::vector<std::vector<NodeId>> users;  // once per operand position
  std::vector<bool> is_output;
};

// `revised`: nodes that an earlier try could not use as they were. Views among them are stored,
// products run in their row's kernel, other results keep their own layout.
Values plan_values(const Graph& graph, const std::set<NodeId>& revised);

// What a node's value is as a way of reading its first operand, stored as `operand`: nothing when
// the node computes, or the loops don't divide.
std::optional<View> view_of(const Graph& graph, const Node& node, const View& operand);

// A matrix whose elements BLAS can address: row major with leading dimension ld, or transposed.
struct BlasMatrix {
  int64_t ld = 1;
  bool transposed = false;
};
// rows × cols; `rows` is the innermost loop over rows.
std::optional<BlasMatrix> blas_matrix(const Factor& rows, const Factors& cols);
// Whether BLAS can read `operand` of a matmul node in place when it lies as `view`.
bool fits_product(const Graph& graph, NodeId product, NodeId operand, const View& view);

// True when the node's value in registers is its operand's: nothing moves between rows, and at most
// a window of the columns is taken or one column repeated.
bool is_register_alias(const Graph& graph, const Node& node);

// Rows and columns of a type as loops see them: the last dimension is the columns.
int64_t row_count(const TensorType& type);
int64_t column_count(const TensorType& type);

// The node at the far end of views, when it is a `constant`; null otherwise.
const Node* constant_behind(const Graph& graph, NodeId id);

}  // namespace npu::cpu
