// Fused groups: the nodes of a group become a program of vector loops over registers.
#include <algorithm>
#include <bit>
#include <map>

#include "backend/cpu_emit.h"

namespace npu::cpu {
namespace {

constexpr int64_t kMaxBlockRows = 256;
// Rows longer than this are cut in columns where no op looks along the row.
constexpr int64_t kLongRow = 2048;

using Where = LoopArg::Where;

bool is_cell(DType dtype) { return dtype == DType::kF32 || dtype == DType::kI32; }

// Whether the op's f32 result may need rounding to a 16-bit dtype.
bool rounds(std::string_view op) {
  return op != "max" && op != "min" && op != "neg" && op != "select" && op != "concat" &&
         op != "pad" && op != "reduce_max" && op != "one_hot" && op != "compare" &&
         op != "constant";
}

class LoopEmitter {
 public:
  LoopEmitter(const EmitContext& context, const Group& group)
      : context_(context), group_(group), rows_(row_count(type(group.nodes[0]))) {}

  std::optional<NodeId> run(Step& step) {
    for (const NodeId id : group_.nodes) {
      emit_node(id);
      if (needs_copy_ >= 0) return needs_copy_;
    }
    join_stores();
    cut_long_rows();
    std::vector<Factors> rows;
    for (const RowAccess& access : accesses_) rows.push_back(access.rows);
    std::vector<std::vector<int64_t>> strides;
    size_t misfit = 0;
    auto space = common_rows(rows_, rows, strides, misfit);
    if (!space) return accesses_[misfit].source;
    loop_.space = std::move(*space);
    for (size_t i = 0; i < accesses_.size(); ++i) {
      accesses_[i].access.strides = std::move(strides[i]);
      loop_.memory.push_back(std::move(accesses_[i].access));
    }
    allocate_registers();
    for (LoopOp& op : loop_.program) op.flat = can_flatten(op);
    step.rows = rows_;
    step.chunk_rows = rows_per_chunk(rows_);
    step.work = std::move(loop_);
    return std::nullopt;
  }

 private:
  struct RowAccess {
    Access access;
    Factors rows;
    NodeId source;
    LoopArg loaded;  // the register that holds it, for what needs a load
    bool is_loaded = false;
  };

  const TensorType& type(NodeId id) const { return context_.graph.node(id).type; }
  bool in_group(NodeId id) const {
    return context_.groups.of[static_cast<size_t>(id)] ==
           context_.groups.of[static_cast<size_t>(group_.nodes[0])];
  }
  bool stored(NodeId id) const { return context_.storage[static_cast<size_t>(id)] >= 0; }

  // ---- operands --------------------------------------------------------------------------------

  LoopArg new_register(int64_t cols) {
    loop_.register_cols.push_back(cols);
    return {Where::kRegister, static_cast<int>(loop_.register_cols.size()) - 1, 0, cols};
  }

  LoopArg number(uint32_t bits) {
    const auto at = std::find(loop_.numbers.begin(), loop_.numbers.end(), bits);
    const int index = static_cast<int>(at - loop_.numbers.begin());
    if (at == loop_.numbers.end()) loop_.numbers.push_back(bits);
    return {Where::kNumber, index, 0, 1};
  }

  LoopArg constant_number(const Node& constant) {
    Tensor value(constant.type.dtype, {});
    set_element(value, 0, constant.attrs.real("value"));
    const double held = element(value, 0);
    return constant.type.dtype == DType::kI32
               ? number(std::bit_cast<uint32_t>(static_cast<int32_t>(held)))
               : number(std::bit_cast<uint32_t>(static_cast<float>(held)));
  }

  int access(Access access, Factors rows, NodeId source) {
    for (size_t i = 0; i < accesses_.size(); ++i) {
      const RowAccess& known = accesses_[i];
      if (known.access.storage == access.storage && known.access.offset == access.offset &&
          known.access.cols == access.cols && known.access.col_stride == access.col_stride &&
          known.rows == rows) {
        return static_cast<int>(i);
      }
    }
    accesses_.push_back({std::move(access), std::move(rows), source, {}, false});
    return static_cast<int>(accesses_.size()) - 1;
  }

  // What `id` is for a reader of shape `shape`.
  LoopArg operand(NodeId id, const Shape& shape) {
    if (const Node* constant = constant_behind(context_.graph, id)) {
      return constant_number(*constant);
    }
    if (auto held = in_register(id)) return *held;
    View view = context_.place(id).view;
    Shape rows = shape;
    if (!rows.empty()) rows.back() = view.dims.back().empty() ? 1 : rows.back();
    view = broadcast_to(view, rows);
    return memory_operand(id, view.offset, view.rows(), view.columns());
  }

  std::optional<LoopArg> in_register(NodeId id) {
    if (const auto at = held_.find(id); at != held_.end()) return at->second;
    if (context_.place(id).role != Role::kView) return std::nullopt;
    const Node& node = context_.graph.node(id);
    if (!is_register_alias(context_.graph, node)) return std::nullopt;
    auto arg = in_register(node.inputs[0]);
    if (!arg || row_count(node.type) != rows_) return std::nullopt;
    if (node.op->name == "slice") {
      arg->column += node.attrs.integers("starts").back();
      arg->cols = column_count(node.type);
    }
    return arg;
  }

  LoopArg memory_operand(NodeId id, int64_t offset, Factors rows, const Factors& cols) {
    if (cols.size() > 1) {
      needs_copy_ = id;
      return {};
    }
    Access where;
    where.storage = context_.storage_of(id);
    where.offset = offset;
    where.cols = cols.empty() || cols[0].stride == 0 ? 1 : cols[0].size;
    where.col_stride = where.cols == 1 ? 1 : cols[0].stride;
    const DType dtype = context_.stored_dtype(id);
    const int index = access(where, std::move(rows), id);
    LoopArg arg{Where::kMemory, index, 0, where.cols};
    if (is_cell(dtype) && where.col_stride == 1) return arg;
    RowAccess& known = accesses_[static_cast<size_t>(index)];
    if (!known.is_loaded) {
      known.loaded = new_register(where.cols);
      known.is_loaded = true;
      emit("load." + std::string(dtype_name(dtype)), known.loaded, {arg}, where.cols,
           where.col_stride);
    }
    return accesses_[static_cast<size_t>(index)].loaded;
  }

  // ---- ops -------------------------------------------------------------------------------------

  void emit(const std::string& name, LoopArg dst, std::vector<LoopArg> src, int64_t cols,
            int64_t step = 1) {
    unsigned form = 0;
    const bool along_row = name.starts_with("row_") || name.starts_with("load.");
    for (size_t i = 0; i < src.size() && !along_row; ++i) {
      const bool column = src[i].where == Where::kNumber || (src[i].cols == 1 && cols > 1);
      if (column) form |= 1u << i;
    }
    LoopOp op;
    op.fn = find_loop(name.c_str(), form);
    NPU_CHECK(op.fn != nullptr, "no loop " + name);
    op.dst = dst;
    op.src = std::move(src);
    op.cols = cols;
    op.step = step;
    op.name = name;
    loop_.program.push_back(std::move(op));
  }

  // Where the value of `id` is computed: its storage when that holds cells, else a register.
  LoopArg destination(NodeId id) {
    const int64_t cols = column_count(type(id));
    if (!stored(id) || !is_cell(type(id).dtype)) return new_register(cols);
    return stored_rows(id);
  }

  LoopArg stored_rows(NodeId id) {
    const View& view = context_.place(id).view;
    Access where;
    where.storage = context_.storage_of(id);
    where.offset = view.offset;
    where.cols = column_count(type(id));
    const Factors cols = view.columns();
    NPU_CHECK(cols.empty() || (cols.size() == 1 && cols[0].stride == 1), "rows are contiguous");
    return {Where::kMemory, access(where, view.rows(), id), 0, where.cols};
  }

  void emit_node(NodeId id) {
    const Node& node = context_.graph.node(id);
    if (const auto same = widened(id)) {
      held_[id] = *same;
      return;
    }
    if (needs_copy_ >= 0) return;
    const LoopArg dst = destination(id);
    const std::string dtype(dtype_name(node.type.dtype));
    const bool narrow = node.type.dtype == DType::kBF16 || node.type.dtype == DType::kF16;
    emit_op(id, node, dst, narrow && rounds(node.op->name) ? "." + dtype : "");
    if (needs_copy_ >= 0) return;
    held_[id] = dst;
    if (stored(id) && !is_cell(node.type.dtype)) {
      emit("store." + dtype, stored_rows(id), {dst}, dst.cols);
    }
  }

  // The register of a value that is widened: it holds f32 already.
  std::optional<LoopArg> widened(NodeId id) {
    const Node& node = context_.graph.node(id);
    if (node.op->name != "convert" || stored(id) || node.type.dtype != DType::kF32 ||
        loop_name(node) != "copy" || constant_behind(context_.graph, node.inputs[0])) {
      return std::nullopt;
    }
    const LoopArg src = operand(node.inputs[0], node.type.shape);
    const bool whole = src.where == Where::kRegister && src.cols == column_count(node.type);
    return needs_copy_ < 0 && whole ? std::optional(src) : std::nullopt;
  }

  // `rounding` is ".T" where the f32 result is to be rounded to T.
  void emit_op(NodeId id, const Node& node, const LoopArg& dst, const std::string& rounding) {
    const std::string_view op = node.op->name;
    const int64_t cols = column_count(node.type);
    if (op == "constant") return emit("copy", dst, {constant_number(node)}, cols);
    if (op == "concat") return emit_concat(node, dst);
    if (op == "pad") return emit_pad(node, dst);
    if (op == "one_hot") return emit_one_hot(id, dst);
    if (op == "reduce_sum" || op == "reduce_max") {
      emit_reduce(node, dst);
      if (needs_copy_ < 0 && !rounding.empty()) emit("round" + rounding, dst, {dst}, cols);
      return;
    }
    std::vector<LoopArg> src;
    for (const NodeId input : node.inputs) src.push_back(operand(input, node.type.shape));
    if (needs_copy_ >= 0) return;
    const std::string name = loop_name(node);
    if (name == "copy" && !rounding.empty()) return emit("round" + rounding, dst, src, cols);
    if (rounding.empty() || find_loop((name + rounding).c_str()) != nullptr) {
      return emit(name + rounding, dst, std::move(src), cols);
    }
    emit(name, dst, std::move(src), cols);
    emit("round" + rounding, dst, {dst}, cols);
  }

  std::string loop_name(const Node& node) const {
    const std::string op(node.op->name);
    const DType from = type(node.inputs[0]).dtype, to = node.type.dtype;
    if (op == "compare") {
      return op + "." + node.attrs.string("kind") + (from == DType::kI32 ? ".i32" : "");
    }
    if (op == "convert") {
      if (from == DType::kI32) return to == DType::kPred ? "convert.i32.pred" : "convert.i32.f32";
      return to == DType::kPred ? "convert.pred" : "copy";  // narrowing rounds afterwards
    }
    return op;
  }

  void emit_reduce(const Node& node, const LoopArg& dst) {
    const Shape& shape = type(node.inputs[0]).shape;
    LoopArg src = operand(node.inputs[0], shape);
    if (needs_copy_ >= 0) return;
    if (src.cols != shape.back()) {  // one column repeated
      const LoopArg whole = new_register(shape.back());
      emit("copy", whole, {src}, shape.back());
      src = whole;
    }
    emit(node.op->name == "reduce_sum" ? "row_sum" : "row_max", dst, {src}, shape.back());
  }

  static LoopArg window(LoopArg arg, int64_t column, int64_t cols) {
    arg.column += column;
    arg.cols = cols;
    return arg;
  }

  void emit_concat(const Node& node, const LoopArg& dst) {
    int64_t column = 0;
    for (const NodeId part : node.inputs) {
      const int64_t cols = column_count(type(part));
      const LoopArg src = operand(part, type(part).shape);
      if (needs_copy_ >= 0) return;
      emit("copy", window(dst, column, cols), {src}, cols);
      column += cols;
    }
  }

  void emit_pad(const Node& node, const LoopArg& dst) {
    const int64_t low = node.attrs.integers("low").back();
    const int64_t high = node.attrs.integers("high").back();
    const int64_t cols = column_count(type(node.inputs[0]));
    const LoopArg src = operand(node.inputs[0], type(node.inputs[0]).shape);
    if (needs_copy_ >= 0) return;
    if (low > 0) emit("copy", window(dst, 0, low), {number(0)}, low);
    emit("copy", window(dst, low, cols), {src}, cols);
    if (high > 0) emit("copy", window(dst, low + cols, high), {number(0)}, high);
  }

  // The indices [N] are read as a column: one per row.
  void emit_one_hot(NodeId id, const LoopArg& dst) {
    const NodeId indices = context_.graph.node(id).inputs[0];
    LoopArg src;
    if (const Node* constant = constant_behind(context_.graph, indices)) {
      src = constant_number(*constant);
    } else {
      const View& view = context_.place(indices).view;
      src = memory_operand(indices, view.offset, view.dims[0], {});
    }
    emit("one_hot", dst, {src}, column_count(type(id)));
  }

  // A value that is rounded for its store alone is rounded on the way.
  void join_stores() {
    std::vector<LoopOp>& program = loop_.program;
    for (size_t i = 1; i < program.size(); ++i) {
      const LoopOp &round = program[i - 1], &store = program[i];
      if (!store.name.starts_with("store.") || round.name != "round" + store.name.substr(5)) {
        continue;
      }
      const LoopArg value = round.dst;
      const auto is_value = [&](const LoopArg& arg) {
        return arg.where == Where::kRegister && arg.index == value.index;
      };
      const auto read_later = [&](const LoopOp& op) {
        return is_value(op.dst) || std::any_of(op.src.begin(), op.src.end(), is_value);
      };
      const auto later = program.begin() + static_cast<std::ptrdiff_t>(i) + 1;
      if (!is_value(store.src[0]) || round.src[0].cols != store.cols || round.cols != store.cols ||
          std::any_of(later, program.end(), read_later)) {
        continue;
      }
      const LoopFn joined = find_loop(("store.rounded" + store.name.substr(5)).c_str());
      if (joined == nullptr) continue;
      program[i].fn = joined;
      program[i].name = "store.rounded" + store.name.substr(5);
      program[i].src = round.src;
      program.erase(program.begin() + static_cast<std::ptrdiff_t>(i) - 1);
      --i;
    }
  }

  // ---- columns ---------------------------------------------------------------------------------

  // Where no op looks along a row, a long row becomes several short ones, which stay in cache and
  // can be shared out.
  void cut_long_rows() {
    int64_t width = 1;
    for (const LoopOp& op : loop_.program) width = std::max(width, op.cols);
    if (width <= kLongRow) return;
    for (const LoopOp& op : loop_.program) {
      if (op.name.starts_with("row_") || op.name == "one_hot" || op.dst.column != 0) return;
      if (op.cols != width && (op.cols != 1 || op.dst.where == Where::kMemory)) return;
      for (const LoopArg& arg : op.src) {
        if (arg.column != 0 || (arg.cols != width && arg.cols != 1)) return;
      }
    }
    int64_t part = kLongRow;
    while (part >= kLongRow / 8 && width % part != 0) --part;
    if (width % part != 0) return;
    for (RowAccess& a : accesses_) {
      const bool whole = a.access.cols == width;
      a.rows = joined(a.rows, {{width / part, whole ? part * a.access.col_stride : 0}});
      if (whole) a.access.cols = part;
    }
    const auto narrow = [&](int64_t& cols) {
      if (cols == width) cols = part;
    };
    for (LoopOp& op : loop_.program) {
      narrow(op.cols);
      narrow(op.dst.cols);
      for (LoopArg& arg : op.src) narrow(arg.cols);
    }
    for (int64_t& cols : loop_.register_cols) narrow(cols);
    rows_ *= width / part;
  }

  // ---- registers -------------------------------------------------------------------------------

  void allocate_registers();
  bool can_flatten(const LoopOp& op) const;

  const EmitContext& context_;
  const Group& group_;
  int64_t rows_;
  LoopStep loop_;
  std::vector<RowAccess> accesses_;
  std::map<NodeId, LoopArg> held_;
  NodeId needs_copy_ = -1;
};

// Values whose last reader has run give their register to later ones of the same width; an
// elementwise op may write over an operand that dies with it.
void LoopEmitter::allocate_registers() {
  const size_t count = loop_.register_cols.size();
  std::vector<size_t> last(count, 0);
  for (size_t i = 0; i < loop_.program.size(); ++i) {
    const LoopOp& op = loop_.program[i];
    if (op.dst.where == Where::kRegister) last[static_cast<size_t>(op.dst.index)] = i;
    for (const LoopArg& arg : op.src) {
      if (arg.where == Where::kRegister) last[static_cast<size_t>(arg.index)] = i;
    }
  }
  std::vector<int> assigned(count, -1);
  std::vector<int64_t> cols;
  std::multimap<int64_t, int> idle;  // width → register
  for (size_t i = 0; i < loop_.program.size(); ++i) {
    LoopOp& op = loop_.program[i];
    const bool in_place = !op.name.starts_with("row_") && !op.name.starts_with("load.") &&
                          !op.name.starts_with("store.") && op.name != "one_hot";
    std::vector<std::pair<int64_t, int>> freed;
    for (LoopArg& arg : op.src) {
      if (arg.where != Where::kRegister) continue;
      const size_t name = static_cast<size_t>(arg.index);
      arg.index = assigned[name];
      if (last[name] != i ||
          (op.dst.where == Where::kRegister && name == static_cast<size_t>(op.dst.index))) {
        continue;
      }
      const int64_t width = loop_.register_cols[name];
      const std::pair<int64_t, int> entry{width, assigned[name]};
      if (std::find(freed.begin(), freed.end(), entry) != freed.end()) continue;
      const bool over = in_place && arg.column == 0 && arg.cols == width && width == op.cols;
      if (over && std::count_if(op.src.begin(), op.src.end(), [&](const LoopArg& other) {
                    return other.where == Where::kRegister && &other > &arg &&
                           static_cast<size_t>(other.index) == name;
                  }) == 0) {
        idle.insert(entry);
      } else {
        freed.push_back(entry);
      }
    }
    if (op.dst.where == Where::kRegister) {
      const size_t name = static_cast<size_t>(op.dst.index);
      if (assigned[name] < 0) {
        const auto at = idle.find(loop_.register_cols[name]);
        if (at != idle.end()) {
          assigned[name] = at->second;
          idle.erase(at);
        } else {
          assigned[name] = static_cast<int>(cols.size());
          cols.push_back(loop_.register_cols[name]);
        }
      }
      op.dst.index = assigned[name];
    }
    for (const auto& entry : freed) idle.insert(entry);
  }
  loop_.register_cols = std::move(cols);
  int64_t total = 0;
  for (const int64_t width : loop_.register_cols) {
    loop_.register_start.push_back(total);
    total += width;
  }
  for (const Access& a : loop_.memory) total += a.cols;
  loop_.block_rows =
      std::clamp(kBlockCells / std::max<int64_t>(total, 1), int64_t{1}, kMaxBlockRows);
  loop_.block_rows = std::min(loop_.block_rows, loop_.space.inner());
}

bool LoopEmitter::can_flatten(const LoopOp& op) const {
  if (op.name.starts_with("row_") || op.name == "one_hot" || op.step != 1) return false;
  const auto contiguous = [&](const LoopArg& arg) {
    if (arg.where == Where::kNumber) return true;
    if (arg.cols != op.cols) return false;
    if (arg.where == Where::kRegister) {
      return arg.column == 0 && loop_.register_cols[static_cast<size_t>(arg.index)] == op.cols;
    }
    const Access& a = loop_.memory[static_cast<size_t>(arg.index)];
    return arg.column == 0 && a.inner_stride() == op.cols;
  };
  return contiguous(op.dst) && std::all_of(op.src.begin(), op.src.end(), contiguous);
}

}  // namespace

std::optional<NodeId> emit_loops(const EmitContext& context, const Group& group, Step& step) {
  step.nodes = group.nodes;
  return LoopEmitter(context, group).run(step);
}

}  // namespace npu::cpu
