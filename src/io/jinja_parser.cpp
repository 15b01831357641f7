// See jinja_parser.h.
#include "io/jinja_parser.h"

#include <algorithm>
#include <initializer_list>

#include "io/jinja_expressions.h"

namespace npu::jinja {
namespace {

constexpr size_t kMaxSource = size_t{1} << 20;
constexpr int kMaxBlockDepth = 100;

class Parser {
 public:
  explicit Parser(std::string_view source) : tokens_(tokenize(source)) {}

  Block run() { return parse_block({}, 0); }

 private:
  // Up to a statement that begins with one of `ends`, whose name is left to read; with none, to the
  // end of the template.
  Block parse_block(std::initializer_list<std::string_view> ends, int depth) {
    if (depth > kMaxBlockDepth) tokens_.fail("blocks are nested too deeply");
    Block block;
    while (true) {
      const Token& token = tokens_.peek();
      if (token.kind == TokenKind::kEnd) {
        if (ends.size() > 0)
          tokens_.fail("a block is not closed: expected " + std::string(*(ends.end() - 1)));
        return block;
      }
      if (token.kind == TokenKind::kText) {
        Node node = new_node(NodeKind::kText);
        node.text = tokens_.next().text;
        block.push_back(std::move(node));
      } else if (token.kind == TokenKind::kOutputBegin) {
        tokens_.next();
        Node node = new_node(NodeKind::kOutput);
        node.value = parse_tuple_or_one(tokens_);
        tokens_.expect(TokenKind::kOutputEnd, "`}}`");
        block.push_back(std::move(node));
      } else {
        NPU_CHECK(token.kind == TokenKind::kStatementBegin, "token between tags");
        tokens_.next();
        const bool ended = std::any_of(ends.begin(), ends.end(),
                                       [&](std::string_view end) { return tokens_.is_name(end); });
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
    node.line = tokens_.peek().line;
    return node;
  }
  void end_statement() { tokens_.expect(TokenKind::kStatementEnd, "`%}`"); }

  Node parse_statement(int depth) {
    if (tokens_.is_name("if")) return parse_if(depth);
    if (tokens_.is_name("for")) return parse_for(depth);
    if (tokens_.is_name("set")) return parse_set(depth);
    if (tokens_.is_name("generation")) {
      Node node = new_node(NodeKind::kScope);
      tokens_.next();
      end_statement();
      node.body = parse_outside_loops("endgeneration", depth + 1);
      tokens_.next();
      end_statement();
      return node;
    }
    if (tokens_.is_name("break") || tokens_.is_name("continue")) {
      if (loop_depth_ == 0) tokens_.fail("this stands outside of a loop");
      Node node = new_node(tokens_.is_name("break") ? NodeKind::kBreak : NodeKind::kContinue);
      tokens_.next();
      end_statement();
      return node;
    }
    tokens_.fail("this statement is not supported");
  }

  // At `if` or `elif`.
  Node parse_if(int depth) {
    if (depth > kMaxBlockDepth) tokens_.fail("blocks are nested too deeply");
    Node node = new_node(NodeKind::kIf);
    tokens_.next();
    node.value = parse_tuple_or_one(tokens_);
    end_statement();
    node.body = parse_block({"elif", "else", "endif"}, depth + 1);
    if (tokens_.is_name("elif")) {
      node.orelse.push_back(parse_if(depth + 1));
      return node;  // the inner one has read endif
    }
    if (tokens_.take_name("else")) {
      end_statement();
      node.orelse = parse_block({"endif"}, depth + 1);
    }
    tokens_.next();
    end_statement();
    return node;
  }

  Node parse_for(int depth) {
    Node node = new_node(NodeKind::kFor);
    tokens_.next();
    node.targets = parse_targets();
    if (!tokens_.take_name("in")) tokens_.fail("expected `in`");
    node.value = parse_tuple_or_one(tokens_, false);
    if (tokens_.take_name("if")) node.condition = parse_expression(tokens_);
    if (tokens_.is_name("recursive")) tokens_.fail("a recursive loop is not supported");
    end_statement();
    ++loop_depth_;
    node.body = parse_block({"else", "endfor"}, depth + 1);
    --loop_depth_;
    if (tokens_.take_name("else")) {
      end_statement();
      node.orelse = parse_block({"endfor"}, depth + 1);
    }
    tokens_.next();
    end_statement();
    return node;
  }

  Node parse_set(int depth) {
    Node node = new_node(NodeKind::kSet);
    tokens_.next();
    if (tokens_.is_operator(".", 1)) {
      node.targets.push_back(tokens_.expect_name("a name"));
      tokens_.next();
      node.attribute = tokens_.expect_name("an attribute");
    } else {
      node.targets = parse_targets();
    }
    if (tokens_.take_operator("=")) {
      node.value = parse_tuple_or_one(tokens_);
      end_statement();
      return node;
    }
    if (tokens_.peek().kind != TokenKind::kStatementEnd || node.targets.size() != 1)
      tokens_.fail("this form of set is not supported");
    end_statement();
    node.kind = NodeKind::kSetBlock;
    node.body = parse_outside_loops("endset", depth + 1);
    tokens_.next();
    end_statement();
    return node;
  }

  std::vector<std::string> parse_targets() {
    std::vector<std::string> names;
    const bool bracket = tokens_.take_operator("(");
    do {
      if (!names.empty() && !(tokens_.peek().kind == TokenKind::kName && !tokens_.is_name("in")))
        break;
      names.push_back(tokens_.expect_name("the name of a variable"));
    } while (tokens_.take_operator(","));
    if (bracket) tokens_.expect_operator(")");
    return names;
  }

  TokenStream tokens_;
  int loop_depth_ = 0;
};

}  // namespace

Block parse_template(std::string_view source) {
  if (source.size() > kMaxSource)
    throw TemplateError{"the template is too large", std::to_string(source.size()) + " bytes", 1};
  return Parser(source).run();
}

}  // namespace npu::jinja
