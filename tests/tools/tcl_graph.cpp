// One statement after the other; a value inside a block is f32 and knows its axes by name.
#include "tools/tcl_graph.h"

#include <algorithm>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "ops/ops.h"
#include "tools/tcl_lines.h"

namespace npu {
namespace {

using Axes = std::vector<std::string>;

struct Named {
  Axes axes;
  Value value;        // a dimension for each
  bool bf16 = false;  // f32 that holds bf16 numbers
};

Value converted(Value x, DType dtype) { return x.dtype() == dtype ? x : ops::convert(x, dtype); }

bool contains(const Axes& axes, const std::string& axis) {
  return std::find(axes.begin(), axes.end(), axis) != axes.end();
}

Axes joined(Axes a, const Axes& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// Apart at blanks and commas.
std::vector<std::string> words(std::string text) {
  std::replace(text.begin(), text.end(), ',', ' ');
  std::istringstream in(text);
  std::vector<std::string> out;
  for (std::string word; in >> word;) out.push_back(word);
  return out;
}

class Reader : public TclLines {
 public:
  explicit Reader(std::string_view text) : TclLines(text), builder_("tcl") {}

  Graph read() {
    read_signature();
    while (next() && !line_.starts_with("return ")) statement();
    const std::vector<std::string> outputs = words(line_.substr(std::min<size_t>(7, line_.size())));
    for (size_t i = 0; i < outputs.size(); ++i) {
      builder_.output("o" + std::to_string(i), tensor(outputs[i]).value);
    }
    return std::move(builder_).build();
  }

 private:
  // "[A0, A1]/bf16"
  struct Declared {
    Axes axes;
    DType dtype;
  };
  static Declared declared(const std::string& text) {
    const std::optional<DType> dtype = parse_dtype(type_name_in(text));
    if (!dtype) throw TclRefused("type");
    return {words(between(text, "[", "]")), *dtype};
  }

  void read_signature() {
    while (next() && line_ != "def part(") {
    }
    std::vector<std::pair<std::string, Declared>> inputs;
    while (next() && !line_.starts_with(")")) {
      inputs.emplace_back(line_.substr(0, line_.find(':')), declared(line_));
    }
    while (next_if("assert ")) {
      const std::vector<std::string> parts = words(line_);
      sizes_[parts.at(1)] = std::stoll(parts.at(3));
    }
    for (const auto& [name, port] : inputs) {
      tensors_[name] = {port.axes, builder_.input("i" + std::to_string(tensors_.size()),
                                                  {port.dtype, shape(port.axes)})};
    }
  }

  int64_t size(const std::string& axis) const { return sizes_.at(axis); }
  int64_t size(const Axes& axes) const {
    int64_t all = 1;
    for (const std::string& axis : axes) all *= size(axis);
    return all;
  }
  Shape shape(const Axes& axes) const {
    Shape dims;
    for (const std::string& axis : axes) dims.push_back(size(axis));
    return dims;
  }
  const Named& tensor(const std::string& name) const {
    const auto found = tensors_.find(name);
    if (found == tensors_.end()) throw TclRefused("no tensor " + name);
    return found->second;
  }

  void statement() {
    const size_t equals = line_.find(" = ");
    if (equals == std::string::npos) throw TclRefused("no statement");
    const std::string name = line_.substr(0, line_.find(':'));
    const Declared result = declared(line_.substr(0, equals));
    const std::string what = line_.substr(equals + 3);
    if (what.starts_with("reshape(")) {
      tensors_[name] = {result.axes,
                        ops::reshape(tensor(between(what, "(", ")")).value, shape(result.axes))};
    } else if (what.starts_with("slice(")) {
      tensors_[name] = {result.axes, slice(words(between(what, "(", ")")), result.axes)};
    } else if (what.starts_with("concat(")) {
      tensors_[name] = {result.axes, concat(words(between(what, "[", "]")), result.axes)};
    } else if (what.starts_with("tk.")) {
      const Named made = block();
      tensors_[name] = {result.axes, converted(arranged(made, result.axes), result.dtype)};
    } else {
      throw TclRefused("statement");
    }
  }

  Value slice(const std::vector<std::string>& arguments, const Axes& result) {
    const Named& source = tensor(arguments.at(0));
    const auto at = static_cast<size_t>(
        std::find(source.axes.begin(), source.axes.end(), arguments.at(1)) - source.axes.begin());
    std::vector<int64_t> starts(source.axes.size(), 0), limits = shape(source.axes);
    starts.at(at) = std::stoll(arguments.at(2));
    limits.at(at) = starts[at] + size(result.at(at));
    return ops::slice(source.value, starts, limits);
  }

  Value concat(const std::vector<std::string>& names, const Axes& result) {
    std::vector<Value> parts;
    size_t axis = 0;
    for (const std::string& name : names) {
      const Named& part = tensor(name);
      for (size_t d = 0; d < result.size(); ++d) {
        if (part.axes.at(d) != result[d]) axis = d;
      }
      parts.push_back(part.value);
    }
    return ops::concat(parts, static_cast<int64_t>(axis));
  }

  // ---- blocks -----------------------------------------------------------------------------------

  Named block() {
    locals_.clear();
    while (next() && !line_.starts_with("write.to(")) {
      const std::string what = line_.substr(line_.find(" = ") + 3);
      if (what.starts_with("read(")) {
        const Named& from = tensor(between(what, "(", ")"));
        locals_.push_back(
            {from.axes, converted(from.value, DType::kF32), from.value.dtype() == DType::kBF16});
      } else if (what.starts_with("dpe.exec(")) {
        locals_.push_back(contract(words(between(what, "[", "]"))));
      } else {
        locals_.push_back(step(words(between(what, "ve.exec(", ")"))));
      }
    }
    next();  // the closing parenthesis
    return locals_.back();
  }

  // The same value with its axes in another order.
  static Value arranged(const Named& x, const Axes& order) {
    if (x.axes == order) return x.value;
    std::vector<int64_t> perm;
    for (const std::string& axis : order) {
      const auto at = std::find(x.axes.begin(), x.axes.end(), axis);
      if (at == x.axes.end()) throw TclRefused("axis " + axis);
      perm.push_back(at - x.axes.begin());
    }
    return ops::transpose(x.value, perm);
  }

  struct Operand {
    Value value;
    bool turned = false;  // [batch, second, first]
  };
  // As [batch, first, second], each flattened, or turned where it lies so; rounded to bf16.
  Operand operand(const Named& x, const Axes& batch, const Axes& first, const Axes& second) const {
    Operand out;
    out.turned = x.axes == joined(joined(batch, second), first);
    const Axes& rows = out.turned ? second : first;
    const Axes& columns = out.turned ? first : second;
    Shape dims;
    if (!batch.empty()) dims.push_back(size(batch));
    dims.push_back(size(rows));
    dims.push_back(size(columns));
    const Value flat = ops::reshape(arranged(x, joined(joined(batch, rows), columns)), dims);
    out.value = x.bf16 ? flat : ops::convert(ops::convert(flat, DType::kBF16), DType::kF32);
    return out;
  }

  Named contract(const Axes& result) {
    const Named &a = locals_.at(0), &b = locals_.at(1);
    Axes batch, rows, columns, summed;
    for (const std::string& axis : a.axes) {
      const bool both = contains(b.axes, axis), kept = contains(result, axis);
      if (!both && !kept) throw TclRefused("an axis summed in one operand only");
      if (both && kept) batch.push_back(axis);
      if (!both) rows.push_back(axis);
    }
    for (const std::string& axis : b.axes) {
      if (!contains(a.axes, axis)) columns.push_back(axis);
      if (contains(a.axes, axis) && !contains(result, axis)) summed.push_back(axis);
    }
    const Operand left = operand(a, batch, rows, summed);
    const Operand right = operand(b, batch, summed, columns);
    const Value product = ops::matmul(
        left.value, right.value, {.transpose_lhs = left.turned, .transpose_rhs = right.turned});
    const Axes axes = joined(joined(batch, rows), columns);
    return {axes, ops::reshape(product, shape(axes))};
  }

  // Its axes and those of size 1 in the places of what it lacks.
  Value widened(const Named& x, const Axes& order) const {
    Axes present;
    Shape dims;
    for (const std::string& axis : order) {
      const bool there = contains(x.axes, axis);
      if (there) present.push_back(axis);
      dims.push_back(there ? size(axis) : 1);
    }
    return ops::reshape(arranged(x, present), dims);
  }

  Named named(const std::string& word) {
    if (word[0] == '%') return locals_.at(std::stoul(word.substr(1)));
    if (word[0] != 'f') throw TclRefused("operand " + word);
    return {{}, ops::constant(builder_, {DType::kF32, {}}, std::stof(word.substr(1)))};
  }

  Named step(const std::vector<std::string>& w) {
    if (w.at(1).starts_with("t[")) return reduce(w);
    if (w.size() != 3) return unary(w.at(0), named(w.at(1)));
    const Named a = named(w[0]), b = named(w[2]);
    const bool a_leads = a.axes.size() >= b.axes.size();
    Axes order = a_leads ? a.axes : b.axes;
    for (const std::string& axis : a_leads ? b.axes : a.axes) {
      if (!contains(order, axis)) order.push_back(axis);
    }
    return {order, combined(w[1], widened(a, order), widened(b, order))};
  }

  static Named unary(const std::string& op, const Named& x) {
    if (op == "exp") return {x.axes, ops::exp(x.value)};
    if (op == "log") return {x.axes, ops::log(x.value)};
    if (op == "sqrt") return {x.axes, ops::sqrt(x.value)};
    if (op == "sigmoid") return {x.axes, ops::sigmoid(x.value)};
    throw TclRefused("step " + op);
  }

  static Value combined(const std::string& op, Value a, Value b) {
    if (op == "+") return ops::add(a, b);
    if (op == "-") return ops::sub(a, b);
    if (op == "*") return ops::mul(a, b);
    if (op == "/") return ops::div(a, b);
    if (op == "max_f") return ops::max(a, b);
    if (op == "min_f") return ops::min(a, b);
    throw TclRefused("step " + op);
  }

  // "+ t[A1 A2] %3"
  Named reduce(const std::vector<std::string>& w) {
    std::string list;
    for (size_t i = 1; i + 1 < w.size(); ++i) list += w[i] + " ";
    const Axes summed = words(between(list, "t[", "]"));
    const Named x = named(w.back());
    std::vector<int64_t> dims;
    Axes kept;
    for (size_t d = 0; d < x.axes.size(); ++d) {
      if (contains(summed, x.axes[d])) {
        dims.push_back(static_cast<int64_t>(d));
      } else {
        kept.push_back(x.axes[d]);
      }
    }
    if (w[0] != "+" && w[0] != "max_f") throw TclRefused("reduction " + w[0]);
    const Value reduced =
        w[0] == "+" ? ops::reduce_sum(x.value, dims) : ops::reduce_max(x.value, dims);
    return {kept, ops::reshape(reduced, shape(kept))};
  }

  Builder builder_;
  std::map<std::string, int64_t> sizes_;
  std::map<std::string, Named> tensors_;
  std::vector<Named> locals_;
};

}  // namespace

Result<Graph> tcl_graph(std::string_view text) {
  Reader reader(text);
  try {
    return reader.read();
  } catch (const std::exception& refused) {
    return Error{ErrorKind::kBadInput, "TCL", refused.what(), reader.line(), ""};
  }
}

}  // namespace npu
