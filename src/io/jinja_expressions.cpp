// See jinja_expressions.h. Precedence is Jinja's, where `~` binds closer than `+`.
#include "io/jinja_expressions.h"

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>

#include "io/jinja_builtins.h"

namespace npu::jinja {
namespace {

// Of nesting and of trees: bounds recursion here and in the evaluator.
constexpr int kMaxDepth = 500;

class Parser {
 public:
  explicit Parser(TokenStream& tokens) : tokens_(tokens) {}

  // `a, b` is a tuple.
  ExprPtr parse_tuple_or_one(bool with_condition = true) {
    const int line = tokens_.peek().line;
    ExprPtr first = with_condition ? parse_expression() : parse_or();
    if (!tokens_.is_operator(",")) return first;
    ExprPtr tuple = make(ExprKind::kTuple, line, "", std::move(first));
    while (tokens_.take_operator(",")) {
      if (tokens_.peek().kind == TokenKind::kStatementEnd ||
          tokens_.peek().kind == TokenKind::kOutputEnd)
        break;
      adopt(*tuple, with_condition ? parse_expression() : parse_or());
    }
    return tuple;
  }

  ExprPtr parse_expression() {
    if (++nesting_ > kMaxDepth) tokens_.fail("an expression is nested too deeply");
    ExprPtr value = parse_or();
    while (tokens_.is_name("if")) {
      const int line = tokens_.next().line;
      ExprPtr condition = parse_or();
      ExprPtr otherwise;
      if (tokens_.take_name("else")) otherwise = parse_expression();
      ExprPtr expr = make(ExprKind::kCondition, line, "", std::move(condition), std::move(value));
      adopt(*expr, std::move(otherwise));
      value = std::move(expr);
    }
    --nesting_;
    return value;
  }

 private:
  static ExprPtr new_expr(ExprKind kind, int line, std::string text = "") {
    auto expr = std::make_unique<Expr>();
    expr->kind = kind;
    expr->line = line;
    expr->text = std::move(text);
    return expr;
  }
  // Adds an operand and keeps the tree within its bound.
  void adopt(Expr& parent, ExprPtr child) const {
    if (child != nullptr) parent.depth = std::max(parent.depth, child->depth + 1);
    if (parent.depth > kMaxDepth) tokens_.fail("an expression is too large");
    parent.args.push_back(std::move(child));
  }
  ExprPtr make(ExprKind kind, int line, std::string text, ExprPtr a, ExprPtr b = nullptr) const {
    ExprPtr expr = new_expr(kind, line, std::move(text));
    adopt(*expr, std::move(a));
    if (b != nullptr) adopt(*expr, std::move(b));
    return expr;
  }

  ExprPtr parse_or() {
    ExprPtr left = parse_and();
    while (tokens_.is_name("or")) {
      const int line = tokens_.next().line;
      left = make(ExprKind::kOr, line, "", std::move(left), parse_and());
    }
    return left;
  }

  ExprPtr parse_and() {
    ExprPtr left = parse_not();
    while (tokens_.is_name("and")) {
      const int line = tokens_.next().line;
      left = make(ExprKind::kAnd, line, "", std::move(left), parse_not());
    }
    return left;
  }

  ExprPtr parse_not() {
    if (!tokens_.is_name("not")) return parse_compare();
    if (++nesting_ > kMaxDepth) tokens_.fail("an expression is nested too deeply");
    const int line = tokens_.next().line;
    ExprPtr expr = make(ExprKind::kNot, line, "", parse_not());
    --nesting_;
    return expr;
  }

  ExprPtr parse_compare() {
    const int line = tokens_.peek().line;
    ExprPtr first = parse_sum();
    ExprPtr compare;
    while (true) {
      std::string op;
      for (const char* symbol : {"==", "!=", "<=", ">=", "<", ">"})
        if (tokens_.is_operator(symbol)) op = symbol;
      if (tokens_.is_name("in")) op = "in";
      if (tokens_.is_name("not") && tokens_.is_name("in", 1)) op = "not in";
      if (op.empty()) break;
      tokens_.next();
      if (op == "not in") tokens_.next();
      if (compare == nullptr) compare = make(ExprKind::kCompare, line, "", std::move(first));
      compare->operators.push_back(op);
      adopt(*compare, parse_sum());
    }
    return compare != nullptr ? std::move(compare) : std::move(first);
  }

  ExprPtr parse_sum() {
    ExprPtr left = parse_concat();
    while (tokens_.is_operator("+") || tokens_.is_operator("-")) {
      const Token op = tokens_.next();
      left = make(ExprKind::kBinary, op.line, op.text, std::move(left), parse_concat());
    }
    return left;
  }

  ExprPtr parse_concat() {
    const int line = tokens_.peek().line;
    ExprPtr first = parse_product();
    if (!tokens_.is_operator("~")) return first;
    ExprPtr concat = make(ExprKind::kConcat, line, "", std::move(first));
    while (tokens_.take_operator("~")) adopt(*concat, parse_product());
    return concat;
  }

  ExprPtr parse_product() {
    ExprPtr left = parse_unary(true);
    while (tokens_.is_operator("*") || tokens_.is_operator("/") || tokens_.is_operator("//") ||
           tokens_.is_operator("%")) {
      const Token op = tokens_.next();
      left = make(ExprKind::kBinary, op.line, op.text, std::move(left), parse_unary(true));
    }
    if (tokens_.is_operator("**")) tokens_.fail("the operator `**` is not supported");
    return left;
  }

  ExprPtr parse_unary(bool with_filters) {
    if (++nesting_ > kMaxDepth) tokens_.fail("an expression is nested too deeply");
    ExprPtr expr;
    if (tokens_.is_operator("-")) {
      const int line = tokens_.next().line;
      expr = make(ExprKind::kNegate, line, "", parse_unary(false));
    } else if (tokens_.is_operator("+")) {
      tokens_.fail("the operator `+` before a value is not supported");
    } else {
      expr = parse_primary();
    }
    expr = parse_postfix(std::move(expr));
    if (with_filters) expr = parse_filters(std::move(expr));
    --nesting_;
    return expr;
  }

  ExprPtr constant(Json json) {
    ExprPtr expr = new_expr(ExprKind::kConstant, tokens_.peek().line);
    expr->constant = Value::of(std::move(json));
    return expr;
  }

  ExprPtr parse_primary() {
    const Token token = tokens_.peek();
    switch (token.kind) {
      case TokenKind::kName:
        return parse_name();
      case TokenKind::kString: {
        std::string text;  // neighbours are one string
        while (tokens_.peek().kind == TokenKind::kString) text += tokens_.next().text;
        return constant(std::move(text));
      }
      case TokenKind::kInteger: {
        int64_t value = 0;
        const auto end = token.text.data() + token.text.size();
        if (std::from_chars(token.text.data(), end, value).ec != std::errc())
          tokens_.fail("a number is too large");
        tokens_.next();
        return constant(value);
      }
      case TokenKind::kFloat: {
        double value = 0;
        std::from_chars(token.text.data(), token.text.data() + token.text.size(), value);
        tokens_.next();
        return constant(value);
      }
      default:
        break;
    }
    if (tokens_.take_operator("(")) return parse_brackets(token.line);
    if (tokens_.take_operator("[")) {
      ExprPtr list = new_expr(ExprKind::kList, token.line);
      while (!tokens_.take_operator("]")) {
        if (!list->args.empty()) tokens_.expect_operator(",");
        if (tokens_.take_operator("]")) break;
        adopt(*list, parse_expression());
      }
      return list;
    }
    if (tokens_.take_operator("{")) return parse_dict(token.line);
    tokens_.fail("expected a value");
  }

  ExprPtr parse_name() {
    const Token token = tokens_.next();
    if (token.text == "true" || token.text == "True") return constant(true);
    if (token.text == "false" || token.text == "False") return constant(false);
    if (token.text == "none" || token.text == "None") return constant(nullptr);
    return new_expr(ExprKind::kName, token.line, token.text);
  }

  // After `(`: one value in brackets, or a tuple.
  ExprPtr parse_brackets(int line) {
    if (tokens_.take_operator(")")) return new_expr(ExprKind::kTuple, line);
    ExprPtr first = parse_expression();
    if (tokens_.take_operator(")")) return first;
    ExprPtr tuple = make(ExprKind::kTuple, line, "", std::move(first));
    while (!tokens_.take_operator(")")) {
      tokens_.expect_operator(",");
      if (tokens_.take_operator(")")) break;
      adopt(*tuple, parse_expression());
    }
    return tuple;
  }

  ExprPtr parse_dict(int line) {
    ExprPtr dict = new_expr(ExprKind::kDict, line);
    while (!tokens_.take_operator("}")) {
      if (!dict->args.empty()) tokens_.expect_operator(",");
      if (tokens_.take_operator("}")) break;
      adopt(*dict, parse_expression());
      tokens_.expect_operator(":");
      adopt(*dict, parse_expression());
    }
    return dict;
  }

  ExprPtr parse_postfix(ExprPtr expr) {
    while (true) {
      const int line = tokens_.peek().line;
      if (tokens_.take_operator(".")) {
        if (tokens_.peek().kind == TokenKind::kInteger) {
          expr = make(ExprKind::kItem, line, "", std::move(expr), parse_primary());
        } else {
          expr = make(ExprKind::kAttribute, line, tokens_.expect_name("an attribute"),
                      std::move(expr));
        }
      } else if (tokens_.take_operator("[")) {
        expr = parse_subscript(std::move(expr), line);
      } else if (tokens_.take_operator("(")) {
        ExprPtr call = make(ExprKind::kCall, line, "", std::move(expr));
        parse_arguments(*call);
        expr = std::move(call);
      } else {
        return expr;
      }
    }
  }

  // After `[`.
  ExprPtr parse_subscript(ExprPtr object, int line) {
    ExprPtr parts[3];
    int count = 0;
    bool slice = false;
    while (!tokens_.is_operator("]")) {
      if (tokens_.take_operator(":")) {
        slice = true;
        if (++count > 2) tokens_.fail("a slice has too many parts");
      } else {
        if (parts[count] != nullptr) tokens_.fail("expected `]`");
        parts[count] = parse_expression();
      }
    }
    tokens_.next();
    if (!slice && parts[0] == nullptr) tokens_.fail("an index is missing");
    ExprPtr expr = make(slice ? ExprKind::kSlice : ExprKind::kItem, line, "", std::move(object));
    for (int i = 0; i < (slice ? 3 : 1); ++i) adopt(*expr, std::move(parts[i]));
    return expr;
  }

  // After `(`: arguments, to the closing bracket.
  void parse_arguments(Expr& call) {
    bool first = true;
    while (!tokens_.take_operator(")")) {
      if (!std::exchange(first, false)) tokens_.expect_operator(",");
      if (tokens_.take_operator(")")) return;
      if (tokens_.is_operator("*") || tokens_.is_operator("**"))
        tokens_.fail("unpacked arguments are not supported");
      if (tokens_.peek().kind == TokenKind::kName && tokens_.is_operator("=", 1)) {
        std::string name = tokens_.next().text;
        tokens_.next();
        ExprPtr value = parse_expression();
        call.depth = std::max(call.depth, value->depth + 1);
        if (call.depth > kMaxDepth) tokens_.fail("an expression is too large");
        call.named.emplace_back(std::move(name), std::move(value));
      } else {
        if (!call.named.empty()) tokens_.fail("an argument without a name follows one with a name");
        adopt(call, parse_expression());
      }
    }
  }

  ExprPtr parse_filters(ExprPtr expr) {
    while (true) {
      const int line = tokens_.peek().line;
      if (tokens_.take_operator("|")) {
        if (tokens_.peek().kind != TokenKind::kName || !is_filter(tokens_.peek().text))
          tokens_.fail("this filter is not supported");
        ExprPtr filter = make(ExprKind::kFilter, line, tokens_.next().text, std::move(expr));
        if (tokens_.take_operator("(")) parse_arguments(*filter);
        expr = std::move(filter);
      } else if (tokens_.is_name("is")) {
        expr = parse_test(std::move(expr));
      } else if (tokens_.take_operator("(")) {
        ExprPtr call = make(ExprKind::kCall, line, "", std::move(expr));
        parse_arguments(*call);
        expr = std::move(call);
      } else {
        return expr;
      }
    }
  }

  ExprPtr parse_test(ExprPtr expr) {
    const int line = tokens_.next().line;  // is
    const bool negated = tokens_.take_name("not");
    if (tokens_.peek().kind != TokenKind::kName || !is_test(tokens_.peek().text))
      tokens_.fail("this test is not supported");
    ExprPtr test = make(ExprKind::kTest, line, tokens_.next().text, std::move(expr));
    if (tokens_.take_operator("(")) {
      parse_arguments(*test);
    } else if (starts_test_argument()) {
      adopt(*test, parse_postfix(parse_primary()));
    }
    return negated ? make(ExprKind::kNot, line, "", std::move(test)) : std::move(test);
  }

  bool starts_test_argument() const {
    const Token& token = tokens_.peek();
    if (token.kind == TokenKind::kName) {
      for (const char* word : {"else", "or", "and", "is", "if", "in", "not"})
        if (token.text == word) return false;
      return true;
    }
    return token.kind == TokenKind::kString || token.kind == TokenKind::kInteger ||
           token.kind == TokenKind::kFloat || tokens_.is_operator("[") || tokens_.is_operator("{");
  }

  TokenStream& tokens_;
  int nesting_ = 0;
};

}  // namespace

ExprPtr parse_expression(TokenStream& tokens) { return Parser(tokens).parse_expression(); }

ExprPtr parse_tuple_or_one(TokenStream& tokens, bool with_condition) {
  return Parser(tokens).parse_tuple_or_one(with_condition);
}

}  // namespace npu::jinja
