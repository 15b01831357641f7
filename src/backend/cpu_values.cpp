// Decides for each node what it becomes, folds scales and sums into products, and chooses layouts.
#include "backend/cpu_values.h"

#include <algorithm>
#include <array>
#include <limits>

namespace npu::cpu {
namespace {

constexpr std::array<std::string_view, 12> kArithmetic = {
    "add", "sub", "mul", "div", "max", "min", "neg", "exp", "log", "sqrt", "rsqrt", "sigmoid"};

// Dtypes that registers hold.
bool in_registers(DType dtype) {
  return is_float(dtype) || dtype == DType::kI32 || dtype == DType::kPred;
}

// Every value of `from` is one of `to`, so the conversion is a way of reading.
bool widens(DType from, DType to) {
  if (from == DType::kPred) return is_float(to);
  return to == DType::kF32 && is_float(from);
}

bool converts_in_registers(DType from, DType to) {
  if (from == DType::kI32) return is_float(to) || to == DType::kPred;
  return is_float(from) && (is_float(to) || to == DType::kPred);
}

// Axes of a reduction along which there is anything to reduce.
std::vector<int64_t> reduced_axes(const Graph& graph, const Node& node) {
  const Shape& shape = graph.node(node.inputs[0]).type.shape;
  std::vector<int64_t> axes;
  for (const int64_t axis : node.attrs.integers("axes")) {
    if (shape[static_cast<size_t>(axis)] != 1) axes.push_back(axis);
  }
  return axes;
}

bool only_last_axis_grows(const Shape& in, const Shape& out) {
  return std::equal(in.begin(), in.end() - 1, out.begin());
}

bool is_loop(const Graph& graph, const Node& node) {
  const std::string_view op = node.op->name;
  bool cells = in_registers(node.type.dtype);
  for (const NodeId id : node.inputs) cells &= in_registers(graph.node(id).type.dtype);
  if (!cells) return false;
  if (std::find(kArithmetic.begin(), kArithmetic.end(), op) != kArithmetic.end()) return true;
  if (op == "select" || op == "compare" || op == "constant") return true;
  if (op == "one_hot") return is_float(node.type.dtype);
  if (op == "convert") {
    return converts_in_registers(graph.node(node.inputs[0]).type.dtype, node.type.dtype);
  }
  const int64_t last = static_cast<int64_t>(node.type.shape.size()) - 1;
  if (op == "reduce_sum" || op == "reduce_max") {
    return reduced_axes(graph, node) == std::vector<int64_t>{last};
  }
  if (op == "concat") return node.attrs.integer("axis") == last;
  if (op == "pad") {
    return last >= 0 &&
           only_last_axis_grows(graph.node(node.inputs[0]).type.shape, node.type.shape);
  }
  return false;
}

class ValuePlanner {
 public:
  ValuePlanner(const Graph& graph, const std::set<NodeId>& revised)
      : graph_(graph), revised_(revised) {
    const size_t count = graph.nodes().size();
    values_.of.resize(count);
    values_.users.resize(count);
    values_.is_output.resize(count, false);
    for (size_t i = 0; i < count; ++i) {
      for (const NodeId id : graph.nodes()[i].inputs) users(id).push_back(static_cast<NodeId>(i));
    }
    for (const GraphOutput& output : graph.outputs()) {
      values_.is_output[static_cast<size_t>(output.node)] = true;
    }
  }

  Values run() {
    place_all();
    fold_gemms();
    choose_layouts();
    return std::move(values_);
  }

 private:
  Place& place(NodeId id) { return values_.of[static_cast<size_t>(id)]; }
  std::vector<NodeId>& users(NodeId id) { return values_.users[static_cast<size_t>(id)]; }
  const Shape& shape(NodeId id) const { return graph_.node(id).type.shape; }
  bool single_use(NodeId id) {
    return users(id).size() == 1 && !values_.is_output[static_cast<size_t>(id)];
  }

  void make_root(NodeId id, Role role) {
    place(id).role = role;
    place(id).root = id;
    place(id).view = dense_view(shape(id));
  }

  void place_all() {
    for (size_t i = 0; i < graph_.nodes().size(); ++i) place_node(static_cast<NodeId>(i));
  }

  // Products take 16-bit operands as they lie in an input.
  bool is_widened_weight(NodeId id) {
    const Node& node = graph_.node(id);
    if (node.op->name != "convert" || values_.is_output[static_cast<size_t>(id)]) return false;
    const NodeId from = node.inputs[0];
    return graph_.node(from).is_input() && is_float(graph_.node(from).type.dtype) &&
           std::all_of(users(id).begin(), users(id).end(),
                       [&](NodeId user) { return graph_.node(user).op->name == "matmul"; });
  }

  void place_node(NodeId id) {
    const Node& node = graph_.node(id);
    if (node.is_input()) return make_root(id, Role::kInput);
    if (node.op->name == "matmul") {
      return make_root(id, revised_.contains(id) ? Role::kKernel : Role::kGemm);
    }
    const Place* operand = node.inputs.size() == 1 ? &place(node.inputs[0]) : nullptr;
    if (is_loop(graph_, node) && !is_widened_weight(id)) return make_root(id, Role::kLoop);
    std::optional<View> view;
    if (operand != nullptr) view = view_of(graph_, node, operand->view);
    if (view && !revised_.contains(id)) {
      place(id).role = Role::kView;
      place(id).root = operand->root;
      place(id).view = std::move(*view);
      return;
    }
    if (is_loop(graph_, node)) return make_root(id, Role::kLoop);  // its view didn't fit
    const bool copied = view.has_value() && in_registers(node.type.dtype) &&
                        in_registers(graph_.node(operand->root).type.dtype);
    make_root(id, copied ? Role::kLoop : Role::kKernel);
    place(id).copied = copied;
  }

  // ---- products --------------------------------------------------------------------------------

  void fold_gemms() {
    for (size_t i = 0; i < graph_.nodes().size(); ++i) {
      const NodeId id = static_cast<NodeId>(i);
      if (place(id).role != Role::kGemm || place(id).gemm >= 0) continue;
      GemmSpec spec;
      spec.product = spec.result = id;
      if (graph_.node(id).type.dtype == DType::kF32) {
        while (single_use(spec.result) && fold_user(spec, users(spec.result)[0])) {
        }
      }
      make_root(spec.result, Role::kGemm);
      place(spec.result).gemm = static_cast<int>(values_.gemms.size());
      values_.gemms.push_back(spec);
    }
  }

  bool fold_user(GemmSpec& spec, NodeId user) {
    const Node& node = graph_.node(user);
    if (place(user).role != Role::kLoop || node.inputs.size() != 2) return false;
    if (node.type.shape != shape(spec.result)) return false;
    const NodeId other = node.inputs[node.inputs[0] == spec.result ? 1 : 0];
    if (node.op->name == "mul" && spec.accumulate < 0 && fold_factor(spec, other)) {
    } else if (node.op->name == "add" && spec.accumulate < 0 && can_accumulate(spec, other)) {
      spec.accumulate = other;
    } else {
      return false;
    }
    place(spec.result).role = Role::kFolded;
    spec.result = user;
    return true;
  }

  bool fold_factor(GemmSpec& spec, NodeId factor) {
    if (num_elements(shape(factor)) != 1) return false;
    const Node* constant = constant_behind(graph_, factor);
    if (constant != nullptr) {
      spec.alpha *= static_cast<float>(constant->attrs.real("value"));
      return true;
    }
    // Read at run time, straight from an f32 storage.
    const NodeId root = place(factor).root;
    if (spec.alpha_node >= 0 || graph_.node(root).type.dtype != DType::kF32) return false;
    spec.alpha_node = factor;
    return true;
  }

  // `other` is a finished product that dies here, so its memory can take the sum.
  bool can_accumulate(const GemmSpec& spec, NodeId other) {
    return other != spec.result && place(other).role == Role::kGemm && place(other).gemm >= 0 &&
           single_use(other) && shape(other) == shape(spec.result);
  }

  // ---- layouts ---------------------------------------------------------------------------------

  bool is_accumulated(NodeId id) {
    return single_use(id) && place(users(id)[0]).gemm >= 0 &&
           values_.gemms[static_cast<size_t>(place(users(id)[0]).gemm)].accumulate == id;
  }

  // A result that is only read through a transpose is written in the reader's order where the
  // reader could not address it otherwise: attention's heads become columns again without a copy.
  void choose_layouts() {
    for (size_t i = 0; i < graph_.nodes().size(); ++i) {
      const NodeId id = static_cast<NodeId>(i);
      Place& p = place(id);
      if (p.role == Role::kView) {
        if (const auto view =
                view_of(graph_, graph_.node(id), place(graph_.node(id).inputs[0]).view);
            view) {
          p.view = *view;
        }
        continue;
      }
      const bool gemm = p.role == Role::kGemm && p.gemm >= 0 &&
                        values_.gemms[static_cast<size_t>(p.gemm)].accumulate < 0 &&
                        !is_accumulated(id);
      if (revised_.contains(id)) continue;
      if (gemm || (p.role == Role::kLoop && !p.copied)) {
        if (auto layout = reader_layout(id)) p.view = std::move(*layout);
      }
    }
  }

  std::optional<View> reader_layout(NodeId id) {
    std::vector<NodeId> chain;
    NodeId last = id;
    while (single_use(last) && is_permutation(users(last)[0])) {
      last = users(last)[0];
      chain.push_back(last);
    }
    if (chain.empty() || readers_fit(last)) return std::nullopt;
    View layout = dense_view(shape(last));
    for (size_t i = chain.size(); i-- > 0;) {
      const Node& node = graph_.node(chain[i]);
      if (node.op->name == "transpose") {
        layout = transposed(layout, inverse(node.attrs.integers("perm")));
      } else if (node.op->name == "reshape") {
        auto before = reshaped(layout, shape(node.inputs[0]));
        if (!before) return std::nullopt;
        layout = std::move(*before);
      }
    }
    const Factors columns = layout.columns();
    const bool contiguous = columns.empty() || (columns.size() == 1 && columns[0].stride == 1);
    return contiguous ? std::optional<View>(layout) : std::nullopt;
  }

  bool is_permutation(NodeId id) {
    const std::string_view op = graph_.node(id).op->name;
    return place(id).role == Role::kView &&
           (op == "reshape" || op == "transpose" || op == "stop_gradient");
  }

  static std::vector<int64_t> inverse(const std::vector<int64_t>& perm) {
    std::vector<int64_t> result(perm.size());
    for (size_t i = 0; i < perm.size(); ++i) {
      result[static_cast<size_t>(perm[i])] = static_cast<int64_t>(i);
    }
    return result;
  }

  // Whether all users of a view read it well from a dense root.
  bool readers_fit(NodeId id) {
    const View& view = place(id).view;
    const bool dense = view == dense_view(shape(id));
    if (values_.is_output[static_cast<size_t>(id)] && !dense) return false;
    const Factors columns = view.columns();
    const bool rows_contiguous = columns.empty() || (columns.size() == 1 && columns[0].stride == 1);
    for (const NodeId user : users(id)) {
      const Role role = place(user).role;
      const bool product = graph_.node(user).op->name == "matmul";
      if (product ? !fits_product(graph_, user, id, view)
                  : role == Role::kLoop && !rows_contiguous) {
        return false;
      }
      if (role == Role::kKernel && !dense) return false;
    }
    return true;
  }

  const Graph& graph_;
  const std::set<NodeId>& revised_;
  Values values_;
};

}  // namespace

std::optional<View> view_of(const Graph& graph, const Node& node, const View& operand) {
  const std::string_view op = node.op->name;
  if (op == "convert") {
    const bool exact = widens(graph.node(node.inputs[0]).type.dtype, node.type.dtype);
    return exact ? std::optional<View>(operand) : std::nullopt;
  }
  if (op == "reduce_sum" || op == "reduce_max") {
    const bool nothing = reduced_axes(graph, node).empty();
    return nothing ? std::optional<View>(operand) : std::nullopt;
  }
  return view_through(node, operand);
}

Values plan_values(const Graph& graph, const std::set<NodeId>& revised) {
  return ValuePlanner(graph, revised).run();
}

std::optional<BlasMatrix> blas_matrix(const Factor& rows, const Factors& cols) {
  if (cols.size() > 1) return std::nullopt;
  const Factor c = cols.empty() ? Factor{1, 1} : cols[0];
  BlasMatrix matrix;
  if (c.stride == 1) {
    matrix.ld = rows.size == 1 ? c.size : rows.stride;
    if (matrix.ld < c.size) return std::nullopt;
  } else {
    matrix = {c.stride, true};
    if (rows.size != 1 && rows.stride != 1) return std::nullopt;
    if (matrix.ld < rows.size) return std::nullopt;
  }
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  if (matrix.ld > kMost || rows.size > kMost || c.size > kMost) return std::nullopt;
  return matrix;
}

bool fits_product(const Graph& graph, NodeId product, NodeId operand, const View& view) {
  const Node& node = graph.node(product);
  for (size_t i = 0; i < 2; ++i) {
    if (node.inputs[i] != operand) continue;
    const bool flag = node.attrs.integer(i == 0 ? "transpose_lhs" : "transpose_rhs", 0) != 0;
    const size_t rank = view.dims.size();
    const Factors& rows = view.dims[rank - (flag ? 1 : 2)];  // m, or k
    const Factors& cols = view.dims[rank - (flag ? 2 : 1)];  // k, or n
    if (i == 1 && rows.size() > 1) return false;
    if (!blas_matrix(rows.empty() ? Factor{1, 1} : rows.back(), cols)) return false;
  }
  return true;
}

bool is_register_alias(const Graph& graph, const Node& node) {
  const std::string_view op = node.op->name;
  if (op == "stop_gradient" || op == "convert" || op == "reduce_sum" || op == "reduce_max") {
    return true;  // as views these change nothing
  }
  const TensorType& from = graph.node(node.inputs[0]).type;
  if (op == "reshape") return column_count(from) == column_count(node.type);
  if (op == "slice" || op == "broadcast") return row_count(from) == row_count(node.type);
  return false;
}

int64_t row_count(const TensorType& type) {
  return type.shape.empty() ? 1 : num_elements(type.shape) / type.shape.back();
}

int64_t column_count(const TensorType& type) { return type.shape.empty() ? 1 : type.shape.back(); }

const Node* constant_behind(const Graph& graph, NodeId id) {
  while (true) {
    const Node& node = graph.node(id);
    if (node.is_input()) return nullptr;
    const std::string_view op = node.op->name;
    if (op == "constant") return &node;
    const bool moves = op == "reshape" || op == "transpose" || op == "broadcast" || op == "slice" ||
                       op == "stop_gradient";
    if (!moves) return nullptr;
    id = node.inputs[0];
  }
}

}  // namespace npu::cpu
