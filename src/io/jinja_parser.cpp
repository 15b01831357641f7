// See jinja_parser.h. Precedence is Jinja's, where `~` binds closer than `+`.
#include "io/jinja_parser.h"

#include <algorithm>
#include <charconv>
#include <initializer_list>
#include <nlohmann/json.hpp>

#include "io/jinja_builtins.h"
#include "io/jinja_lexer.h"

namespace npu::jinja {
namespace {

constexpr size_t kMaxSource = size_t{1} << 20;
constexpr int kMaxExprDepth = 500;  // bounds recursion here and in the evaluator
constexpr int kMaxBlockDepth = 100;

class Parser {
 public:
  explicit Parser(std::string_view source) : tokens_(tokenize(source)) {}

  Block run() {
    Block block = parse_block({}, 0);
    return block;
  }

 private:
  // --- tokens ---
  const Token& peek(size_t ahead = 0) const {
    return tokens_[std::min(at_ + ahead, tokens_.size() - 1)];
  }
  const Token& next() {
    const Token& token = peek();
    if (at_ + 1 < tokens_.size()) ++at_;
    return token;
  }
  bool is_operator(std::string_view text, size_t ahead = 0) const {
    return peek(ahead).kind == TokenKind::kOperator && peek(ahead).text == text;
  }
  bool is_name(std::string_view text, size_t ahead = 0) const {
    return peek(ahead).kind == TokenKind::kName && peek(ahead).text == text;
  }
  bool take_operator(std::string_view text) {
    if (!is_operator(text)) return false;
    next();
    return true;
  }
  bool take_name(std::string_view text) {
    if (!is_name(text)) return false;
    next();
    return true;
  }
  [[noreturn]] void fail(std::string what) const {
    const Token& token = peek();
    std::string got = token.text;
    if (token.kind == TokenKind::kEnd) got = "the end of the template";
    if (token.kind == TokenKind::kStatementEnd || token.kind == TokenKind::kOutputEnd)
      got = "the end of the tag";
    throw TemplateError{std::move(what), std::move(got), token.line};
  }
  void expect_operator(std::string_view text) {
    if (!take_operator(text)) fail("expected `" + std::string(text) + "`");
  }
  void expect(TokenKind kind, const char* what) {
    if (peek().kind != kind) fail(std::string("expected ") + what);
    next();
  }
  std::string expect_name(const char* what) {
    if (peek().kind != TokenKind::kName) fail(std::string("expected ") + what);
    return next().text;
  }

  // --- statements ---
  // Up to a statement that begins with one of `ends`, whose name is left to read; with none, to the
  // end of the template.
  Block parse_block(std::initializer_list<std::string_view> ends, int depth) {
    if (depth > kMaxBlockDepth) fail("blocks are nested too deeply");
    Block block;
    while (true) {
      const Token& token = peek();
      if (token.kind == TokenKind::kEnd) {
        if (ends.size() > 0)
          fail("a block is not closed: expected " + std::string(*(ends.end() - 1)));
        return block;
      }
      if (token.kind == TokenKind::kText) {
        Node node = new_node(NodeKind::kText);
        node.text = next().text;
        block.push_back(std::move(node));
      } else if (token.kind == TokenKind::kOutputBegin) {
        next();
        Node node = new_node(NodeKind::kOutput);
        node.value = parse_tuple_or_one();
        expect(TokenKind::kOutputEnd, "`}}`");
        block.push_back(std::move(node));
      } else {
        NPU_CHECK(token.kind == TokenKind::kStatementBegin, "token between tags");
        next();
        const bool ended = std::any_of(ends.begin(), ends.end(),
                                       [&](std::string_view end) { return is_name(end); });
        if (ended) return block;
        block.push_back(parse_statement(depth));
      }
    }
  }

  // A block that break and continue can't leave.
  Block parse_outside_loops(std::string_view end, int depth) {
    const int loops = std::exchange(loop_depth_, 0);
    Block block = parse_block({end}, depth);
    loop_depth_ = loops;
    return block;
  }

  Node new_node(NodeKind kind) const {
    Node node;
    node.kind = kind;
    node.line = peek().line;
    return node;
  }
  void end_statement() { expect(TokenKind::kStatementEnd, "`%}`"); }

  Node parse_statement(int depth) {
    if (is_name("if")) return parse_if(depth);
    if (is_name("for")) return parse_for(depth);
    if (is_name("set")) return parse_set(depth);
    if (is_name("generation")) {
      Node node = new_node(NodeKind::kScope);
      next();
      end_statement();
      node.body = parse_outside_loops("endgeneration", depth + 1);
      next();
      end_statement();
      return node;
    }
    if (is_name("break") || is_name("continue")) {
      if (loop_depth_ == 0) fail("this stands outside of a loop");
      Node node = new_node(is_name("break") ? NodeKind::kBreak : NodeKind::kContinue);
      next();
      end_statement();
      return node;
    }
    fail("this statement is not supported");
  }

  // At `if` or `elif`.
  Node parse_if(int depth) {
    if (depth > kMaxBlockDepth) fail("blocks are nested too deeply");
    Node node = new_node(NodeKind::kIf);
    next();
    node.value = parse_tuple_or_one();
    end_statement();
    node.body = parse_block({"elif", "else", "endif"}, depth + 1);
    if (is_name("elif")) {
      node.orelse.push_back(parse_if(depth + 1));
      return node;  // the inner one has read endif
    }
    if (take_name("else")) {
      end_statement();
      node.orelse = parse_block({"endif"}, depth + 1);
    }
    next();
    end_statement();
    return node;
  }

  Node parse_for(int depth) {
    Node node = new_node(NodeKind::kFor);
    next();
    node.targets = parse_targets();
    if (!take_name("in")) fail("expected `in`");
    node.value = parse_tuple_or_one(false);
    if (take_name("if")) node.condition = parse_expression();
    if (is_name("recursive")) fail("a recursive loop is not supported");
    end_statement();
    ++loop_depth_;
    node.body = parse_block({"else", "endfor"}, depth + 1);
    --loop_depth_;
    if (take_name("else")) {
      end_statement();
      node.orelse = parse_block({"endfor"}, depth + 1);
    }
    next();
    end_statement();
    return node;
  }

  Node parse_set(int depth) {
    Node node = new_node(NodeKind::kSet);
    next();
    if (is_operator(".", 1)) {
      node.targets.push_back(expect_name("a name"));
      next();
      node.attribute = expect_name("an attribute");
    } else {
      node.targets = parse_targets();
    }
    if (take_operator("=")) {
      node.value = parse_tuple_or_one();
      end_statement();
      return node;
    }
    if (peek().kind != TokenKind::kStatementEnd || node.targets.size() != 1)
      fail("this form of set is not supported");
    end_statement();
    node.kind = NodeKind::kSetBlock;
    node.body = parse_outside_loops("endset", depth + 1);
    next();
    end_statement();
    return node;
  }

  std::vector<std::string> parse_targets() {
    std::vector<std::string> names;
    const bool bracket = take_operator("(");
    do {
      if (!names.empty() && !(peek().kind == TokenKind::kName && !is_name("in"))) break;
      names.push_back(expect_name("the name of a variable"));
    } while (take_operator(","));
    if (bracket) expect_operator(")");
    return names;
  }

  // --- expressions ---
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
    if (parent.depth > kMaxExprDepth) fail("an expression is too large");
    parent.args.push_back(std::move(child));
  }
  ExprPtr make(ExprKind kind, int line, std::string text, ExprPtr a, ExprPtr b = nullptr) const {
    ExprPtr expr = new_expr(kind, line, std::move(text));
    adopt(*expr, std::move(a));
    if (b != nullptr) adopt(*expr, std::move(b));
    return expr;
  }

  // `a, b` is a tuple.
  ExprPtr parse_tuple_or_one(bool with_condition = true) {
    const int line = peek().line;
    ExprPtr first = with_condition ? parse_expression() : parse_or();
    if (!is_operator(",")) return first;
    ExprPtr tuple = make(ExprKind::kTuple, line, "", std::move(first));
    while (take_operator(",")) {
      if (peek().kind == TokenKind::kStatementEnd || peek().kind == TokenKind::kOutputEnd) break;
      adopt(*tuple, with_condition ? parse_expression() : parse_or());
    }
    return tuple;
  }

  ExprPtr parse_expression() {
    if (++nesting_ > kMaxExprDepth) fail("an expression is nested too deeply");
    ExprPtr value = parse_or();
    while (is_name("if")) {
      const int line = next().line;
      ExprPtr condition = parse_or();
      ExprPtr otherwise;
      if (take_name("else")) otherwise = parse_expression();
      ExprPtr expr = make(ExprKind::kCondition, line, "", std::move(condition), std::move(value));
      adopt(*expr, std::move(otherwise));
      value = std::move(expr);
    }
    --nesting_;
    return value;
  }

  ExprPtr parse_or() {
    ExprPtr left = parse_and();
    while (is_name("or")) {
      const int line = next().line;
      left = make(ExprKind::kOr, line, "", std::move(left), parse_and());
    }
    return left;
  }

  ExprPtr parse_and() {
    ExprPtr left = parse_not();
    while (is_name("and")) {
      const int line = next().line;
      left = make(ExprKind::kAnd, line, "", std::move(left), parse_not());
    }
    return left;
  }

  ExprPtr parse_not() {
    if (!is_name("not")) return parse_compare();
    if (++nesting_ > kMaxExprDepth) fail("an expression is nested too deeply");
    const int line = next().line;
    ExprPtr expr = make(ExprKind::kNot, line, "", parse_not());
    --nesting_;
    return expr;
  }

  ExprPtr parse_compare() {
    const int line = peek().line;
    ExprPtr first = parse_sum();
    ExprPtr compare;
    while (true) {
      std::string op;
      for (const char* symbol : {"==", "!=", "<=", ">=", "<", ">"})
        if (is_operator(symbol)) op = symbol;
      if (is_name("in")) op = "in";
      if (is_name("not") && is_name("in", 1)) op = "not in";
      if (op.empty()) break;
      next();
      if (op == "not in") next();
      if (compare == nullptr) compare = make(ExprKind::kCompare, line, "", std::move(first));
      compare->operators.push_back(op);
      adopt(*compare, parse_sum());
    }
    return compare != nullptr ? std::move(compare) : std::move(first);
  }

  ExprPtr parse_sum() {
    ExprPtr left = parse_concat();
    while (is_operator("+") || is_operator("-")) {
      const Token op = next();
      left = make(ExprKind::kBinary, op.line, op.text, std::move(left), parse_concat());
    }
    return left;
  }

  ExprPtr parse_concat() {
    const int line = peek().line;
    ExprPtr first = parse_product();
    if (!is_operator("~")) return first;
    ExprPtr concat = make(ExprKind::kConcat, line, "", std::move(first));
    while (take_operator("~")) adopt(*concat, parse_product());
    return concat;
  }

  ExprPtr parse_product() {
    ExprPtr left = parse_unary(true);
    while (is_operator("*") || is_operator("/") || is_operator("//") || is_operator("%")) {
      const Token op = next();
      left = make(ExprKind::kBinary, op.line, op.text, std::move(left), parse_unary(true));
    }
    if (is_operator("**")) fail("the operator `**` is not supported");
    return left;
  }

  ExprPtr parse_unary(bool with_filters) {
    if (++nesting_ > kMaxExprDepth) fail("an expression is nested too deeply");
    ExprPtr expr;
    if (is_operator("-")) {
      const int line = next().line;
      expr = make(ExprKind::kNegate, line, "", parse_unary(false));
    } else if (is_operator("+")) {
      fail("the operator `+` before a value is not supported");
    } else {
      expr = parse_primary();
    }
    expr = parse_postfix(std::move(expr));
    if (with_filters) expr = parse_filters(std::move(expr));
    --nesting_;
    return expr;
  }

  ExprPtr constant(Json json) {
    ExprPtr expr = new_expr(ExprKind::kConstant, peek().line);
    expr->constant = Value::of(std::move(json));
    return expr;
  }

  ExprPtr parse_primary() {
    const Token token = peek();
    switch (token.kind) {
      case TokenKind::kName:
        return parse_name();
      case TokenKind::kString: {
        std::string text;  // neighbours are one string
        while (peek().kind == TokenKind::kString) text += next().text;
        return constant(std::move(text));
      }
      case TokenKind::kInteger: {
        int64_t value = 0;
        const auto end = token.text.data() + token.text.size();
        if (std::from_chars(token.text.data(), end, value).ec != std::errc())
          fail("a number is too large");
        next();
        return constant(value);
      }
      case TokenKind::kFloat: {
        double value = 0;
        std::from_chars(token.text.data(), token.text.data() + token.text.size(), value);
        next();
        return constant(value);
      }
      default:
        break;
    }
    if (take_operator("(")) return parse_brackets(token.line);
    if (take_operator("[")) {
      ExprPtr list = new_expr(ExprKind::kList, token.line);
      while (!take_operator("]")) {
        if (!list->args.empty()) expect_operator(",");
        if (take_operator("]")) break;
        adopt(*list, parse_expression());
      }
      return list;
    }
    if (take_operator("{")) return parse_dict(token.line);
    fail("expected a value");
  }

  ExprPtr parse_name() {
    const Token token = next();
    if (token.text == "true" || token.text == "True") return constant(true);
    if (token.text == "false" || token.text == "False") return constant(false);
    if (token.text == "none" || token.text == "None") return constant(nullptr);
    return new_expr(ExprKind::kName, token.line, token.text);
  }

  // After `(`: one value in brackets, or a tuple.
  ExprPtr parse_brackets(int line) {
    if (take_operator(")")) return new_expr(ExprKind::kTuple, line);
    ExprPtr first = parse_expression();
    if (take_operator(")")) return first;
    ExprPtr tuple = make(ExprKind::kTuple, line, "", std::move(first));
    while (!take_operator(")")) {
      expect_operator(",");
      if (take_operator(")")) break;
      adopt(*tuple, parse_expression());
    }
    return tuple;
  }

  ExprPtr parse_dict(int line) {
    ExprPtr dict = new_expr(ExprKind::kDict, line);
    while (!take_operator("}")) {
      if (!dict->args.empty()) expect_operator(",");
      if (take_operator("}")) break;
      adopt(*dict, parse_expression());
      expect_operator(":");
      adopt(*dict, parse_expression());
    }
    return dict;
  }

  ExprPtr parse_postfix(ExprPtr expr) {
    while (true) {
      const int line = peek().line;
      if (take_operator(".")) {
        if (peek().kind == TokenKind::kInteger) {
          expr = make(ExprKind::kItem, line, "", std::move(expr), parse_primary());
        } else {
          expr = make(ExprKind::kAttribute, line, expect_name("an attribute"), std::move(expr));
        }
      } else if (take_operator("[")) {
        expr = parse_subscript(std::move(expr), line);
      } else if (take_operator("(")) {
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
    while (!is_operator("]")) {
      if (take_operator(":")) {
        slice = true;
        if (++count > 2) fail("a slice has too many parts");
      } else {
        if (parts[count] != nullptr) fail("expected `]`");
        parts[count] = parse_expression();
      }
    }
    next();
    if (!slice && parts[0] == nullptr) fail("an index is missing");
    ExprPtr expr = make(slice ? ExprKind::kSlice : ExprKind::kItem, line, "", std::move(object));
    for (int i = 0; i < (slice ? 3 : 1); ++i) adopt(*expr, std::move(parts[i]));
    return expr;
  }

  // After `(`: arguments, to the closing bracket.
  void parse_arguments(Expr& call) {
    bool first = true;
    while (!take_operator(")")) {
      if (!std::exchange(first, false)) expect_operator(",");
      if (take_operator(")")) return;
      if (is_operator("*") || is_operator("**")) fail("unpacked arguments are not supported");
      if (peek().kind == TokenKind::kName && is_operator("=", 1)) {
        std::string name = next().text;
        next();
        ExprPtr value = parse_expression();
        call.depth = std::max(call.depth, value->depth + 1);
        if (call.depth > kMaxExprDepth) fail("an expression is too large");
        call.named.emplace_back(std::move(name), std::move(value));
      } else {
        if (!call.named.empty()) fail("an argument without a name follows one with a name");
        adopt(call, parse_expression());
      }
    }
  }

  ExprPtr parse_filters(ExprPtr expr) {
    while (true) {
      const int line = peek().line;
      if (take_operator("|")) {
        if (peek().kind != TokenKind::kName || !is_filter(peek().text))
          fail("this filter is not supported");
        ExprPtr filter = make(ExprKind::kFilter, line, next().text, std::move(expr));
        if (take_operator("(")) parse_arguments(*filter);
        expr = std::move(filter);
      } else if (is_name("is")) {
        expr = parse_test(std::move(expr));
      } else if (take_operator("(")) {
        ExprPtr call = make(ExprKind::kCall, line, "", std::move(expr));
        parse_arguments(*call);
        expr = std::move(call);
      } else {
        return expr;
      }
    }
  }

  ExprPtr parse_test(ExprPtr expr) {
    const int line = next().line;  // is
    const bool negated = take_name("not");
    if (peek().kind != TokenKind::kName || !is_test(peek().text))
      fail("this test is not supported");
    ExprPtr test = make(ExprKind::kTest, line, next().text, std::move(expr));
    if (take_operator("(")) {
      parse_arguments(*test);
    } else if (starts_test_argument()) {
      adopt(*test, parse_postfix(parse_primary()));
    }
    return negated ? make(ExprKind::kNot, line, "", std::move(test)) : std::move(test);
  }

  bool starts_test_argument() const {
    const Token& token = peek();
    if (token.kind == TokenKind::kName) {
      for (const char* word : {"else", "or", "and", "is", "if", "in", "not"})
        if (token.text == word) return false;
      return true;
    }
    return token.kind == TokenKind::kString || token.kind == TokenKind::kInteger ||
           token.kind == TokenKind::kFloat || is_operator("[") || is_operator("{");
  }

  std::vector<Token> tokens_;
  size_t at_ = 0;
  int nesting_ = 0;
  int loop_depth_ = 0;
};

}  // namespace

Block parse_template(std::string_view source) {
  if (source.size() > kMaxSource)
    throw TemplateError{"the template is too large", std::to_string(source.size()) + " bytes", 1};
  return Parser(source).run();
}

}  // namespace npu::jinja
