// A line reader and a naive evaluator over named axes.
#include "tools/tcl_interpreter.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "tools/tcl_lines.h"

namespace npu {
namespace {

using Axes = std::vector<std::string>;

float rounded(float value) { return f32_from_bf16(bf16_from_f32(value)); }

std::vector<std::string> words(std::string_view text, char separator) {
  std::vector<std::string> out;
  std::string word;
  for (const char c : text) {
    if (c == separator) {
      if (!word.empty()) out.push_back(word);
      word.clear();
    } else if (c != ' ' || separator == ' ') {
      word += c;
    }
  }
  if (!word.empty()) out.push_back(word);
  return out;
}

// "[A0, A1]/bf16"
TclTensor declared(const std::string& text) {
  TclTensor tensor;
  tensor.axes = words(between(text, "[", "]"), ',');
  const std::optional<DType> dtype = parse_dtype(type_name_in(text));
  if (dtype != DType::kF32 && dtype != DType::kBF16) throw TclRefused("type of " + text);
  tensor.dtype = *dtype;
  return tensor;
}

class Run : public TclLines {
 public:
  Run(std::string_view text, const std::vector<Tensor>& inputs, const TclObserver& observer)
      : TclLines(text), inputs_(inputs), observer_(observer) {}

  std::vector<TclTensor> run() {
    read_signature();
    while (next()) {
      if (line_.starts_with("return ")) break;
      statement();
    }
    for (const auto& [name, used] : used_) {
      if (!used) throw TclRefused("input " + name + " is not used");
    }
    std::vector<TclTensor> outputs;
    for (const std::string& name : words(line_.substr(7), ',')) {
      if (is_input(name)) throw TclRefused("an input as an output");
      outputs.push_back(value(name));
    }
    if (outputs.size() != num_outputs_) throw TclRefused("number of outputs");
    return outputs;
  }

 private:
  void read_signature() {
    next();
    next();
    if (line_ != "def part(") throw TclRefused("no def");
    std::vector<std::pair<std::string, TclTensor>> declarations;
    while (next() && !line_.starts_with(")")) {
      declarations.emplace_back(line_.substr(0, line_.find(':')), declared(line_));
    }
    num_outputs_ = static_cast<size_t>(std::count(line_.begin(), line_.end(), '/'));
    if (declarations.size() != inputs_.size()) throw TclRefused("number of inputs");
    std::set<std::string> known;
    for (const auto& [name, tensor] : declarations)
      known.insert(tensor.axes.begin(), tensor.axes.end());
    while (next_if("assert ")) {
      const std::vector<std::string> parts = words(line_, ' ');
      if (!known.contains(parts.at(1))) throw TclRefused("axis " + parts[1] + " is in no input");
      sizes_[parts[1]] = std::stoll(parts.at(3));
    }
    for (size_t i = 0; i < declarations.size(); ++i) {
      auto& [name, tensor] = declarations[i];
      if (inputs_[i].dtype() != tensor.dtype) throw TclRefused("type of input " + name);
      for (int64_t e = 0; e < inputs_[i].size(); ++e) {
        tensor.values.push_back(static_cast<float>(element(inputs_[i], e)));
      }
      check(tensor);
      used_[name] = false;
      tensors_[name] = tensor;
    }
  }

  int64_t size(const std::string& axis) const {
    const auto found = sizes_.find(axis);
    if (found == sizes_.end()) throw TclRefused("axis " + axis + " is undefined");
    return found->second;
  }

  int64_t size(const Axes& axes) const {
    int64_t all = 1;
    for (const std::string& axis : axes) all *= size(axis);
    return all;
  }

  void check(const TclTensor& tensor) const {
    if (size(tensor.axes) != static_cast<int64_t>(tensor.values.size())) throw TclRefused("size");
    const std::set<std::string> different(tensor.axes.begin(), tensor.axes.end());
    if (different.size() != tensor.axes.size()) throw TclRefused("an axis twice in one tensor");
  }

  bool is_input(const std::string& name) const { return used_.contains(name); }

  const TclTensor& value(const std::string& name) {
    const auto found = tensors_.find(name);
    if (found == tensors_.end()) throw TclRefused("no tensor " + name);
    const auto root = inputs_behind_.find(name);
    const std::string& input = root == inputs_behind_.end() ? name : root->second;
    if (used_.contains(input)) used_[input] = true;
    return found->second;
  }

  void statement() {
    const std::string name = line_.substr(0, line_.find(':'));
    if (name.empty() || std::isupper(static_cast<unsigned char>(name[0])) ||
        tensors_.contains(name)) {
      throw TclRefused("name " + name);
    }
    const size_t equals = line_.find(" = ");
    if (equals == std::string::npos) throw TclRefused("no statement");
    TclTensor result = declared(line_.substr(0, equals));
    const std::string what = line_.substr(equals + 3);
    if (what.starts_with("reshape(")) {
      const std::string from = between(what, "(", ")");
      const TclTensor& source = value(from);
      if (source.dtype != result.dtype) throw TclRefused("a reshape to another type");
      result.values = source.values;
      if (is_input(from)) inputs_behind_[name] = from;
    } else if (what.starts_with("slice(")) {
      slice(words(between(what, "(", ")"), ','), result);
    } else if (what.starts_with("concat(")) {
      concat(words(between(what, "[", "]"), ','), result);
    } else {
      block(between(what, "tk.", "("), result);
    }
    check(result);
    if (observer_ && !what.starts_with("reshape(")) observer_(name, result);
    tensors_[name] = result;
  }

  static Axes with(Axes axes, const std::string& from, const std::string& to) {
    std::replace(axes.begin(), axes.end(), from, to);
    return axes;
  }

  void slice(const std::vector<std::string>& arguments, TclTensor& result) {
    const TclTensor& source = value(arguments.at(0));
    const auto at = std::find(source.axes.begin(), source.axes.end(), arguments.at(1));
    if (at == source.axes.end()) throw TclRefused("slice along an axis that is not there");
    const std::string piece = result.axes.at(static_cast<size_t>(at - source.axes.begin()));
    if (with(source.axes, *at, piece) != result.axes) throw TclRefused("slice moves axes");
    if (source.dtype != result.dtype) throw TclRefused("slice to another type");
    const int64_t inner = size(Axes(at + 1, source.axes.end())), whole = size(*at);
    const int64_t offset = std::stoll(arguments.at(2)), length = size(piece);
    if (offset + length > whole) throw TclRefused("slice past the end");
    const auto total = static_cast<int64_t>(source.values.size());
    for (int64_t outer = 0; outer < total / (whole * inner); ++outer) {
      const auto begin = source.values.begin() + (outer * whole + offset) * inner;
      result.values.insert(result.values.end(), begin, begin + length * inner);
    }
  }

  void concat(const std::vector<std::string>& names, TclTensor& result) {
    std::vector<std::pair<const TclTensor*, int64_t>> parts;  // and elements of one stretch
    size_t axis = result.axes.size();
    for (const std::string& name : names) {
      const TclTensor& part = value(name);
      if (part.dtype != result.dtype)
        throw TclRefused("input/output type of concat should be same");
      if (part.axes.size() != result.axes.size()) throw TclRefused("concat of another rank");
      for (size_t d = 0; d < part.axes.size(); ++d) {
        if (part.axes[d] == result.axes[d]) continue;
        if (axis != result.axes.size() && axis != d) throw TclRefused("concat along two axes");
        axis = d;
      }
      parts.emplace_back(&part, 0);
    }
    if (axis == result.axes.size()) throw TclRefused("concat along no axis");
    for (auto& [part, stretch] : parts) {
      stretch =
          size(Axes(part->axes.begin() + static_cast<std::ptrdiff_t>(axis), part->axes.end()));
    }
    const int64_t outer =
        size(Axes(result.axes.begin(), result.axes.begin() + static_cast<std::ptrdiff_t>(axis)));
    for (int64_t o = 0; o < outer; ++o) {
      for (const auto& [part, stretch] : parts) {
        const auto begin = part->values.begin() + o * stretch;
        result.values.insert(result.values.end(), begin, begin + stretch);
      }
    }
  }

  // ---- blocks -----------------------------------------------------------------------------------

  // Where element `index` of a walk over `axes` lies in a tensor with axes `in`.
  std::vector<int64_t> strides(const Axes& axes, const Axes& in) const {
    std::vector<int64_t> out;
    for (const std::string& axis : axes) {
      const auto at = std::find(in.begin(), in.end(), axis);
      out.push_back(at == in.end() ? 0 : size(Axes(at + 1, in.end())));
    }
    return out;
  }

  template <class Body>
  void walk(const Axes& axes, const Body& body) const {
    std::vector<int64_t> index(axes.size(), 0);
    const int64_t total = size(axes);
    for (int64_t i = 0; i < total; ++i) {
      body(index);
      for (size_t d = axes.size(); d-- > 0;) {
        if (++index[d] < size(axes[d])) break;
        index[d] = 0;
      }
    }
  }

  static int64_t offset(const std::vector<int64_t>& index, const std::vector<int64_t>& strides) {
    int64_t at = 0;
    for (size_t d = 0; d < index.size(); ++d) at += index[d] * strides[d];
    return at;
  }

  struct Local {
    TclTensor tensor;
    bool is_read = false;
  };

  void block(const std::string& kind, TclTensor& result) {
    locals_.clear();
    kind_ = kind;
    reads_ = 0;
    bool number_seen = false;
    while (next() && !line_.starts_with("write.to(")) {
      const std::string what = line_.substr(line_.find(" = ") + 3);
      if (line_.substr(0, line_.find(' ')) != "%" + std::to_string(locals_.size())) {
        throw TclRefused("numbering");
      }
      if (what.starts_with("read(")) {
        if (reads_ != locals_.size()) throw TclRefused("a read after a step");
        locals_.push_back({value(between(what, "(", ")")), true});
        ++reads_;
      } else if (what.starts_with("dpe.exec(")) {
        contract(what);
      } else {
        step(words(between(what, "ve.exec(", ")"), ' '), number_seen);
      }
    }
    const TclTensor written = declared(line_);
    if (written.axes != result.axes || written.dtype != result.dtype) throw TclRefused("write.to");
    if (next(); line_ != ")") throw TclRefused("no end of the block");
    if (kind == "ReduceByVe" && !reduced_) throw TclRefused("ReduceByVe without a reduction");
    reduced_ = false;
    store(locals_.back().tensor, result);
  }

  void store(const TclTensor& from, TclTensor& result) const {
    const std::set<std::string> a(from.axes.begin(), from.axes.end());
    if (a != std::set<std::string>(result.axes.begin(), result.axes.end())) {
      throw TclRefused("what is written has other axes");
    }
    const std::vector<int64_t> at = strides(result.axes, from.axes);
    walk(result.axes, [&](const std::vector<int64_t>& index) {
      const float v = from.values[static_cast<size_t>(offset(index, at))];
      result.values.push_back(result.dtype == DType::kBF16 ? rounded(v) : v);
    });
  }

  void contract(const std::string& what) {
    if (kind_ != "EinsumByDpe" || locals_.size() != reads_) throw TclRefused("a contraction here");
    const TclTensor &a = locals_.at(0).tensor, &b = locals_.at(1).tensor;
    TclTensor out;
    out.axes = words(between(what, "[", "]"), ',');
    Axes all = out.axes, summed;
    for (const TclTensor* t : {&a, &b}) {
      for (const std::string& axis : t->axes) {
        if (std::find(all.begin(), all.end(), axis) != all.end()) continue;
        all.push_back(axis);
        summed.push_back(axis);
      }
    }
    for (const std::string& axis : summed) {
      for (const TclTensor* t : {&a, &b}) {
        if (std::find(t->axes.begin(), t->axes.end(), axis) == t->axes.end()) {
          throw TclRefused("an axis summed in one operand only");
        }
      }
    }
    const std::vector<int64_t> sa = strides(all, a.axes), sb = strides(all, b.axes),
                               so = strides(all, out.axes);
    out.values.assign(static_cast<size_t>(size(out.axes)), 0.0f);
    walk(all, [&](const std::vector<int64_t>& index) {
      out.values[static_cast<size_t>(offset(index, so))] +=
          rounded(a.values[static_cast<size_t>(offset(index, sa))]) *
          rounded(b.values[static_cast<size_t>(offset(index, sb))]);
    });
    locals_.push_back({std::move(out), false});
  }

  const TclTensor* operand(const std::string& word, TclTensor& number) const {
    if (word[0] == '%') return &locals_.at(std::stoul(word.substr(1))).tensor;
    if (word[0] != 'f') throw TclRefused("operand " + word);
    number.values = {std::stof(word.substr(1))};
    return &number;
  }

  // Each step uses the result just before it; the first one the read with all axes, or the product.
  void mainstream(const std::vector<std::string>& operands) const {
    const std::string before =
        locals_.size() == reads_ ? "%0" : "%" + std::to_string(locals_.size() - 1);
    if (kind_ == "EinsumByDpe" && locals_.size() == reads_) throw TclRefused("a step first");
    if (std::find(operands.begin(), operands.end(), before) == operands.end()) {
      throw TclRefused("should use mainstream");
    }
  }

  void step(const std::vector<std::string>& w, bool& number_seen) {
    const bool reduction = w.at(1).starts_with("t[");
    const bool binary = !reduction && w.size() == 3;
    const std::vector<std::string> operands =
        binary ? std::vector{w[0], w[2]} : std::vector{w.back()};
    mainstream(operands);
    TclTensor number;
    if (reduction) {
      reduce(w);
    } else if (!binary) {
      locals_.push_back({unary(w[0], *operand(operands[0], number)), false});
    } else {
      TclTensor other;
      locals_.push_back(
          {combine(w[1], *operand(operands[0], number), *operand(operands[1], other)), false});
    }
    bool reads_tensor = false;
    for (const std::string& o : operands) {
      reads_tensor |= o[0] == '%' && locals_.at(std::stoul(o.substr(1))).is_read;
    }
    if (kind_ == "EinsumByDpe" && reads_tensor && number_seen) {
      throw TclRefused("a tensor after a number behind a contraction");
    }
    number_seen |= !reads_tensor;
  }

  static TclTensor unary(const std::string& op, const TclTensor& x) {
    TclTensor out = x;
    for (float& v : out.values) {
      if (op == "exp") {
        v = std::exp(v);
      } else if (op == "log") {
        v = std::log(v);
      } else if (op == "sqrt") {
        v = std::sqrt(v);
      } else if (op == "sigmoid") {
        v = 1.0f / (1.0f + std::exp(-v));
      } else {
        throw TclRefused("step " + op);
      }
    }
    return out;
  }

  static float combined(const std::string& op, float a, float b) {
    if (op == "+") return a + b;
    if (op == "-") return a - b;
    if (op == "*") return a * b;
    if (op == "/") return a / b;
    if (op == "max_f") return std::max(a, b);
    if (op == "min_f") return std::min(a, b);
    throw TclRefused("step " + op);
  }

  TclTensor combine(const std::string& op, const TclTensor& a, const TclTensor& b) const {
    TclTensor out;
    out.axes = a.axes;
    for (const std::string& axis : b.axes) {
      if (std::find(out.axes.begin(), out.axes.end(), axis) == out.axes.end())
        out.axes.push_back(axis);
    }
    const Axes& space = locals_.at(0).tensor.axes;
    for (const std::string& axis : out.axes) {
      const bool known = std::find(space.begin(), space.end(), axis) != space.end();
      if (!known && kind_ != "EinsumByVe" && kind_ != "EinsumByDpe") {
        throw TclRefused("a read enlarges the main tensor");
      }
    }
    const std::vector<int64_t> sa = strides(out.axes, a.axes), sb = strides(out.axes, b.axes);
    walk(out.axes, [&](const std::vector<int64_t>& index) {
      out.values.push_back(combined(op, a.values[static_cast<size_t>(offset(index, sa))],
                                    b.values[static_cast<size_t>(offset(index, sb))]));
    });
    return out;
  }

  // "+ t[A1 A2] %3"
  void reduce(const std::vector<std::string>& w) {
    if (kind_ != "ReduceByVe") throw TclRefused("a reduction in " + kind_);
    reduced_ = true;
    std::string list;
    for (size_t i = 1; i + 1 < w.size(); ++i) list += w[i] + " ";
    const Axes summed = words(between(list, "t[", "]"), ' ');
    if (summed.empty()) throw TclRefused("a reduction over nothing");
    const TclTensor& x = locals_.at(std::stoul(w.back().substr(1))).tensor;
    TclTensor out;
    for (const std::string& axis : x.axes) {
      if (std::find(summed.begin(), summed.end(), axis) == summed.end()) out.axes.push_back(axis);
    }
    if (out.axes.size() + summed.size() != x.axes.size())
      throw TclRefused("a reduced axis is not there");
    const bool max = w[0] == "max_f";
    out.values.assign(static_cast<size_t>(size(out.axes)), max ? -INFINITY : 0.0f);
    const std::vector<int64_t> so = strides(x.axes, out.axes), sx = strides(x.axes, x.axes);
    walk(x.axes, [&](const std::vector<int64_t>& index) {
      float& to = out.values[static_cast<size_t>(offset(index, so))];
      const float v = x.values[static_cast<size_t>(offset(index, sx))];
      to = max ? std::max(to, v) : to + v;
    });
    locals_.push_back({std::move(out), false});
  }

  const std::vector<Tensor>& inputs_;
  const TclObserver& observer_;
  std::string kind_;
  std::map<std::string, int64_t> sizes_;
  std::map<std::string, TclTensor> tensors_;
  std::map<std::string, bool> used_;
  std::map<std::string, std::string> inputs_behind_;
  std::vector<Local> locals_;
  size_t reads_ = 0, num_outputs_ = 0;
  bool reduced_ = false;
};

}  // namespace

Result<std::vector<TclTensor>> run_tcl(std::string_view text, const std::vector<Tensor>& inputs,
                                       const TclObserver& observer) {
  Run run(text, inputs, observer);
  try {
    return run.run();
  } catch (const std::exception& refused) {
    return Error{ErrorKind::kBadInput, "TCL", refused.what(), run.line(), ""};
  }
}

}  // namespace npu
