// See jinja_eval.h.
#include "io/jinja_eval.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "io/jinja_builtins.h"

namespace npu::jinja {
namespace {

constexpr size_t kStep = 32;  // what a statement or a part of an expression costs
constexpr size_t kFreeBudget = size_t{1} << 26;  // and, for each byte of input:
constexpr size_t kBudgetPerByte = 64;

enum class Flow { kNormal, kBreak, kContinue };

// A rough count of what holding `json` costs.
size_t cost(const Json& json) {
  if (json.is_string()) return json.get_ref<const std::string&>().size() + 32;
  size_t total = 32;
  if (json.is_structured())
    for (const Json& item : json) total += cost(item);
  return total;
}

size_t input_cost(const std::map<std::string, Value>& variables) {
  size_t total = 0;
  for (const auto& [name, value] : variables) total += cost(*value.data);
  return total;
}

class Runner {
 public:
  Runner(std::map<std::string, Value> variables, const std::string& date)
      : date_(date), budget_(kFreeBudget + kBudgetPerByte * input_cost(variables)) {
    scopes_.push_back(std::move(variables));
  }

  std::string run(const Block& block) {
    run_block(block);
    return std::move(out_);
  }

 private:
  // Names the innermost line at which something failed.
  template <class Action>
  auto with_line(int line, Action action) {
    try {
      return action();
    } catch (TemplateError& error) {
      if (error.line == 0) error.line = line;
      throw;
    }
  }

  // --- statements ---
  Flow run_block(const Block& block) {
    for (const Node& node : block) {
      const Flow flow = with_line(node.line, [&] { return run_node(node); });
      if (flow != Flow::kNormal) return flow;
    }
    return Flow::kNormal;
  }

  Flow run_node(const Node& node) {
    budget_.charge(kStep);
    switch (node.kind) {
      case NodeKind::kText:
        write(node.text);
        return Flow::kNormal;
      case NodeKind::kOutput:
        write(to_text(eval(*node.value)));
        return Flow::kNormal;
      case NodeKind::kIf:
        return run_block(truth(eval(*node.value)) ? node.body : node.orelse);
      case NodeKind::kFor:
        return run_for(node);
      case NodeKind::kSet:
        run_set(node, eval(*node.value));
        return Flow::kNormal;
      case NodeKind::kSetBlock:
        run_set(node, Value::of(capture(node.body)));
        return Flow::kNormal;
      case NodeKind::kScope: {
        scopes_.emplace_back();
        const Flow flow = run_block(node.body);
        scopes_.pop_back();
        return flow;
      }
      case NodeKind::kBreak:
        return Flow::kBreak;
      case NodeKind::kContinue:
        return Flow::kContinue;
    }
    return Flow::kNormal;
  }

  void write(const std::string& text) {
    budget_.charge(text.size());
    out_ += text;
  }

  std::string capture(const Block& block) {
    std::string outer = std::move(out_);
    out_.clear();
    scopes_.emplace_back();
    run_block(block);  // break and continue can't stand here: the parser counts loops
    scopes_.pop_back();
    std::swap(outer, out_);
    return outer;
  }

  void assign(const std::vector<std::string>& targets, const Value& value) {
    if (targets.size() == 1) {
      scopes_.back()[targets[0]] = value;
      return;
    }
    const std::vector<Value> parts = iterate(value);
    if (parts.size() != targets.size())
      throw TemplateError{"expected " + std::to_string(targets.size()) + " values to unpack",
                          std::to_string(parts.size())};
    for (size_t i = 0; i < parts.size(); ++i) scopes_.back()[targets[i]] = parts[i];
  }

  void run_set(const Node& node, const Value& value) {
    if (node.attribute.empty()) return assign(node.targets, value);
    const Value object = variable(node.targets[0]);
    if (object.kind != Kind::kNamespace)
      throw TemplateError{"only a namespace's attributes can be set",
                          node.targets[0] + " is " + type_name(object)};
    object.space->attributes[node.attribute] = value;
  }

  Flow run_for(const Node& node) {
    auto loop = std::make_shared<Loop>();
    const Value sequence = eval(*node.value);
    if (sequence.is_string()) budget_.charge(sequence.text().size() * kStep);
    std::vector<Value> items = iterate(sequence);
    budget_.charge(items.size() * kStep);
    scopes_.emplace_back();
    if (node.condition == nullptr) loop->items = std::move(items);
    for (const Value& item : items) {  // those that the condition keeps
      if (node.condition == nullptr) break;
      scopes_.back().clear();
      assign(node.targets, item);
      if (truth(eval(*node.condition))) loop->items.push_back(item);
    }
    for (loop->index = 0; loop->index < loop->items.size(); ++loop->index) {
      scopes_.back().clear();
      Value facts;
      facts.kind = Kind::kLoop;
      facts.loop = loop;
      scopes_.back()["loop"] = facts;
      assign(node.targets, loop->items[loop->index]);
      if (run_block(node.body) == Flow::kBreak) break;
    }
    scopes_.pop_back();
    return loop->items.empty() ? run_block(node.orelse) : Flow::kNormal;
  }

  // --- expressions ---
  Value variable(const std::string& name) const {
    for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
      const auto found = scope->find(name);
      if (found != scope->end()) return found->second;
    }
    if (is_function(name)) {
      Value function;
      function.kind = Kind::kFunction;
      function.name = name;
      return function;
    }
    // transformers hands these over when the model has them; we know three.
    if (name.ends_with("_token") && name != "bos_token" && name != "eos_token" &&
        name != "pad_token")
      throw TemplateError{"this variable is not supported", name};
    for (const char* jinja_only : {"lipsum", "cycler", "joiner"})
      if (name == jinja_only) throw TemplateError{"this function is not supported", name};
    return Value::undefined("`" + name + "` is undefined");
  }

  Value eval(const Expr& expr) {
    budget_.charge(kStep);
    return with_line(expr.line, [&] { return eval_kind(expr); });
  }

  // A value that was made, not found: it counts.
  Value made(Value value) {
    if (value.is_data()) budget_.charge(cost(*value.data));
    return value;
  }

  // A value that is read through, whatever comes of it.
  void read(const Value& value) {
    if (value.is_string()) budget_.charge(value.text().size() / 8);
    if (value.is_list() || value.is_dict()) budget_.charge(value.data->size() * 4);
  }

  Value eval_kind(const Expr& expr) {
    switch (expr.kind) {
      case ExprKind::kConstant:
        return expr.constant;
      case ExprKind::kName:
        return variable(expr.text);
      case ExprKind::kList:
        return made(Value::list(eval_all(expr, 0)));
      case ExprKind::kTuple:
        return made(Value::list(eval_all(expr, 0), Form::kTuple));
      case ExprKind::kDict:
        return made(eval_dict(expr));
      case ExprKind::kAttribute:
        return get_attribute(eval(*expr.args[0]), expr.text);
      case ExprKind::kItem:
        return eval_item(expr);
      case ExprKind::kSlice:
        return made(eval_slice(expr));
      case ExprKind::kCall:
        return made(eval_call(expr));
      case ExprKind::kFilter:
        return made(eval_filter(expr));
      case ExprKind::kTest:
        return Value::of(eval_test(expr));
      case ExprKind::kNegate:
        return arithmetic("-", Value::of(0), eval(*expr.args[0]));
      case ExprKind::kNot:
        return Value::of(!truth(eval(*expr.args[0])));
      case ExprKind::kBinary: {
        const Value left = eval(*expr.args[0]);
        return made(arithmetic(expr.text, left, eval(*expr.args[1])));
      }
      case ExprKind::kConcat: {
        std::string text;
        for (const ExprPtr& arg : expr.args) text += to_text(eval(*arg));
        return made(Value::of(std::move(text)));
      }
      case ExprKind::kCompare:
        return Value::of(eval_compare(expr));
      case ExprKind::kAnd: {
        Value left = eval(*expr.args[0]);
        return truth(left) ? eval(*expr.args[1]) : left;
      }
      case ExprKind::kOr: {
        Value left = eval(*expr.args[0]);
        return truth(left) ? left : eval(*expr.args[1]);
      }
      case ExprKind::kCondition:
        if (truth(eval(*expr.args[0]))) return eval(*expr.args[1]);
        if (expr.args[2] == nullptr)
          return Value::undefined("an inline if was false and has no else");
        return eval(*expr.args[2]);
    }
    NPU_CHECK(false, "unknown kind of expression");
  }

  std::vector<Value> eval_all(const Expr& expr, size_t from) {
    std::vector<Value> values;
    for (size_t i = from; i < expr.args.size(); ++i) values.push_back(eval(*expr.args[i]));
    return values;
  }

  Arguments eval_arguments(const Expr& expr) {
    Arguments arguments;
    arguments.values = eval_all(expr, 1);
    for (const auto& [name, value] : expr.named) arguments.named.emplace_back(name, eval(*value));
    return arguments;
  }

  Value eval_filter(const Expr& expr) {
    const Value input = eval(*expr.args[0]);
    if (expr.text != "length" || input.is_string()) read(input);
    if (input.is_string() && (expr.text == "list" || expr.text == "reverse"))
      budget_.charge(input.text().size() * kStep);
    return apply_filter(expr.text, input, eval_arguments(expr));
  }

  bool eval_test(const Expr& expr) {
    const Value input = eval(*expr.args[0]);
    const Arguments arguments = eval_arguments(expr);
    if (!arguments.values.empty()) read_both(input, arguments.values[0]);
    return apply_test(expr.text, input, arguments);
  }

  void read_both(const Value& a, const Value& b) {
    read(a);
    read(b);
    const bool deep = a.is_data() && b.is_data() && a.data->is_structured();
    if (deep && b.data->is_structured()) budget_.charge(cost(*a.data) / 8);
  }

  Value eval_dict(const Expr& expr) {
    Json dict = Json::object();
    int depth = 0;
    for (size_t i = 0; i < expr.args.size(); i += 2) {
      const Value key = eval(*expr.args[i]), value = eval(*expr.args[i + 1]);
      if (!key.is_string()) throw TemplateError{"a key must be a string", type_name(key)};
      if (!value.is_data() || value.form != Form::kPlain)
        throw TemplateError{"a dict can't hold this", type_name(value)};
      dict[key.text()] = *value.data;
      depth = std::max(depth, value.depth);
    }
    return Value::of(std::move(dict), depth + 1);
  }

  // Items first, then attributes; the other way round than `.`.
  Value eval_item(const Expr& expr) {
    const Value object = eval(*expr.args[0]), key = eval(*expr.args[1]);
    if (object.is_string()) read(object);
    Value item = object.kind == Kind::kNamespace || object.kind == Kind::kLoop
                     ? Value::undefined("no item")
                     : get_item(object, key);
    if (!item.is_undefined() || !key.is_string()) return item;
    return get_attribute(object, key.text());
  }

  Value eval_slice(const Expr& expr) {
    const Value object = eval(*expr.args[0]);
    if (object.is_string()) read(object);
    int64_t numbers[3] = {0, 0, 1};
    const int64_t* given[3] = {nullptr, nullptr, nullptr};
    for (int i = 0; i < 3; ++i) {
      if (expr.args[i + 1] == nullptr) continue;
      const Value part = eval(*expr.args[i + 1]);
      if (part.is_none()) continue;
      numbers[i] = to_int(part, "a part of a slice");
      given[i] = &numbers[i];
    }
    if (object.is_string() && numbers[2] != 1) budget_.charge(object.text().size() * 4);
    return get_slice(object, given[0], given[1], numbers[2]);
  }

  Value eval_call(const Expr& expr) {
    const Value function = eval(*expr.args[0]);
    const Arguments arguments = eval_arguments(expr);
    if (function.is_undefined()) throw TemplateError{function.name, ""};
    if (function.kind == Kind::kMethod) {
      read(*function.self);
      return call_method(*function.self, function.name, arguments);
    }
    if (function.kind == Kind::kFunction) return call_function(function.name, arguments, date_);
    throw TemplateError{"this can't be called", type_name(function)};
  }

  // a < b < c holds when each neighbour's comparison does; evaluation stops at the first that
  // fails.
  bool eval_compare(const Expr& expr) {
    Value left = eval(*expr.args[0]);
    for (size_t i = 0; i < expr.operators.size(); ++i) {
      Value right = eval(*expr.args[i + 1]);
      if (!compare_pair(expr.operators[i], left, right)) return false;
      left = std::move(right);
    }
    return true;
  }

  bool compare_pair(const std::string& op, const Value& a, const Value& b) {
    read_both(a, b);
    if (op == "==") return equal(a, b);
    if (op == "!=") return !equal(a, b);
    if (op == "in" || op == "not in") return contains(b, a) == (op == "in");
    const int order = compare(a, b);
    return op == "<" ? order < 0 : op == "<=" ? order <= 0 : op == ">" ? order > 0 : order >= 0;
  }

  std::vector<std::map<std::string, Value>> scopes_;
  std::string date_;
  std::string out_;
  Budget budget_;
};

}  // namespace

std::string run_template(const Block& block, std::map<std::string, Value> variables,
                         const std::string& date) {
  return Runner(std::move(variables), date).run(block);
}

}  // namespace npu::jinja
