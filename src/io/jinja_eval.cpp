// See jinja_eval.h.
#include "io/jinja_eval.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "io/jinja_builtins.h"

namespace npu::jinja {
namespace {

enum class Flow { kNormal, kBreak, kContinue };

// A rough count of what holding `json` costs.
size_t cost(const Json& json) {
  if (json.is_string()) return json.get_ref<const std::string&>().size() + 32;
  size_t total = 32;
  if (json.is_structured())
    for (const Json& item : json) total += cost(item);
  return total;
}

class Runner {
 public:
  Runner(std::map<std::string, Value> variables, const std::string& date) : date_(date) {
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
    budget_.charge(1);
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
    loop->depth = loop_depth_;
    std::vector<Value> items = iterate(eval(*node.value));
    budget_.charge(items.size() * 32);
    scopes_.emplace_back();
    if (node.condition == nullptr) loop->items = std::move(items);
    for (const Value& item : items) {  // those that the condition keeps
      if (node.condition == nullptr) break;
      scopes_.back().clear();
      assign(node.targets, item);
      if (truth(eval(*node.condition))) loop->items.push_back(item);
    }
    ++loop_depth_;
    for (loop->index = 0; loop->index < loop->items.size(); ++loop->index) {
      scopes_.back().clear();
      Value facts;
      facts.kind = Kind::kLoop;
      facts.loop = loop;
      scopes_.back()["loop"] = facts;
      assign(node.targets, loop->items[loop->index]);
      if (run_block(node.body) == Flow::kBreak) break;
    }
    --loop_depth_;
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
    budget_.charge(1);
    return with_line(expr.line, [&] { return eval_kind(expr); });
  }

  // A value that was made, not found: it counts.
  Value made(Value value) {
    if (value.is_data()) budget_.charge(cost(*value.data));
    return value;
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
        return made(apply_filter(expr.text, eval(*expr.args[0]), eval_arguments(expr)));
      case ExprKind::kTest:
        return Value::of(apply_test(expr.text, eval(*expr.args[0]), eval_arguments(expr)));
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

  Value eval_dict(const Expr& expr) {
    Json dict = Json::object();
    int depth = 0;
    for (size_t i = 0; i < expr.args.size(); i += 2) {
      const Value key = eval(*expr.args[i]), value = eval(*expr.args[i + 1]);
      if (!key.is_string()) throw TemplateError{"a key must be a string", type_name(key)};
      if (!value.is_data()) throw TemplateError{"a dict can't hold this", type_name(value)};
      dict[key.text()] = *value.data;
      depth = std::max(depth, value.depth);
    }
    return Value::of(std::move(dict), depth + 1);
  }

  // Items first, then attributes; the other way round than `.`.
  Value eval_item(const Expr& expr) {
    const Value object = eval(*expr.args[0]), key = eval(*expr.args[1]);
    Value item = object.kind == Kind::kNamespace || object.kind == Kind::kLoop
                     ? Value::undefined("no item")
                     : get_item(object, key);
    if (!item.is_undefined() || !key.is_string()) return item;
    return get_attribute(object, key.text());
  }

  Value eval_slice(const Expr& expr) {
    const Value object = eval(*expr.args[0]);
    int64_t numbers[3] = {0, 0, 1};
    const int64_t* given[3] = {nullptr, nullptr, nullptr};
    for (int i = 0; i < 3; ++i) {
      if (expr.args[i + 1] == nullptr) continue;
      const Value part = eval(*expr.args[i + 1]);
      if (part.is_none()) continue;
      numbers[i] = to_int(part, "a part of a slice");
      given[i] = &numbers[i];
    }
    return get_slice(object, given[0], given[1], numbers[2]);
  }

  Value eval_call(const Expr& expr) {
    const Expr& callee = *expr.args[0];
    const bool by_name = callee.kind == ExprKind::kAttribute;
    Value self, function;
    if (by_name) {
      self = eval(*callee.args[0]);
      function = get_attribute(self, callee.text);
    } else {
      function = eval(callee);
    }
    const Arguments arguments = eval_arguments(expr);
    if (function.is_undefined()) throw TemplateError{function.name, ""};
    if (function.kind == Kind::kMethod && by_name)
      return call_method(self, function.name, arguments);
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
    if (op == "==") return equal(a, b);
    if (op == "!=") return !equal(a, b);
    if (op == "in" || op == "not in") {
      if (b.is_list()) budget_.charge(b.data->size() * 8);
      return contains(b, a) == (op == "in");
    }
    const int order = compare(a, b);
    return op == "<" ? order < 0 : op == "<=" ? order <= 0 : op == ">" ? order > 0 : order >= 0;
  }

  std::vector<std::map<std::string, Value>> scopes_;
  std::string date_;
  std::string out_;
  Budget budget_;
  int loop_depth_ = 0;
};

}  // namespace

std::string run_template(const Block& block, std::map<std::string, Value> variables,
                         const std::string& date) {
  return Runner(std::move(variables), date).run(block);
}

}  // namespace npu::jinja
