// Graphs as values: hash-consing, pruning, the text form against hostile input, the verifier.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "ir/graph.h"
#include "ir/text.h"
#include "ir/verify.h"
#include "ops/ops.h"
#include "ops/table.h"

namespace npu {

// Reaches into a graph to plant the faults that Builder refuses to make.
struct GraphTestPeer {
  static std::vector<Node>& nodes(Graph& graph) { return graph.nodes_; }
  static std::vector<NodeId>& inputs(Graph& graph) { return graph.inputs_; }
  static std::vector<GraphOutput>& outputs(Graph& graph) { return graph.outputs_; }
};

namespace {

const TensorType kMatrix = {DType::kF32, {2, 3}};

Graph small_graph() {
  Builder b("small");
  const Value x = b.input("x", kMatrix);
  const Value w = b.input("w", {DType::kF32, {4, 3}});
  const Value y = ops::matmul(x, w, {.transpose_rhs = true});
  b.output("y", ops::scale(y, 0.1));
  b.output("loss", ops::reduce_sum(y, {0, 1}));
  return std::move(b).build();
}

TEST(Builder, EqualSubexpressionsAreOneNode) {
  Builder b("g");
  const Value x = b.input("x", kMatrix);
  EXPECT_EQ(b.input("x", kMatrix).id, x.id);
  EXPECT_EQ(ops::add(x, x).id, ops::add(x, x).id);
  EXPECT_EQ(ops::scale(x, 2).id, ops::scale(x, 2).id);
  EXPECT_NE(ops::scale(x, 2).id, ops::scale(x, 3).id);
  EXPECT_NE(ops::reduce_sum(x, {0}).id, ops::reduce_sum(x, {1}).id);
  EXPECT_NE(ops::constant_like(x, 0.0).id, ops::constant_like(x, -0.0).id);
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(ops::constant_like(x, nan).id, ops::constant_like(x, nan).id);
}

TEST(Builder, DropsWhatNoOutputNeedsAndKeepsDeclaredInputs) {
  const auto make = [](bool drop) {
    Builder b("g");
    b.input("unused", kMatrix);
    const Value x = b.input("x", kMatrix);
    ops::exp(x);
    b.output("y", ops::neg(x));
    return std::move(b).build(drop);
  };
  const Graph kept = make(false);
  ASSERT_EQ(kept.nodes().size(), 3u);
  EXPECT_EQ(kept.node(kept.find_output("y")).op->name, "neg");
  EXPECT_EQ(kept.find_input("unused"), 0);
  const Graph dropped = make(true);
  EXPECT_EQ(dropped.nodes().size(), 2u);
  EXPECT_EQ(dropped.find_input("unused"), -1);
  EXPECT_EQ(dropped.find_input("x"), dropped.inputs()[0]);
  EXPECT_FALSE(verify(dropped));
}

TEST(Builder, MistakesAreInternalErrorsThatNameTheGraph) {
  Builder b("graph_of_mistakes"), other("other");
  const Value x = b.input("x", kMatrix);
  const auto message = [](const auto& act) -> std::string {
    try {
      act();
    } catch (const InternalError& error) {
      return error.what();
    }
    return "nothing was thrown";
  };
  const auto has = [](const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos ? "" : "no \"" + part + "\" in: " + text;
  };
  const std::string broken = message([&] { ops::add(x, b.input("v", {DType::kF32, {2, 4}})); });
  EXPECT_EQ(has(broken, "graph_of_mistakes"), "");
  EXPECT_EQ(has(broken, "add"), "");
  EXPECT_EQ(has(broken, "f32[2,3], f32[2,4]"), "");
  EXPECT_EQ(has(message([&] { b.input("x", {DType::kF32, {9}}); }), "f32[9]"), "");
  EXPECT_EQ(has(message([&] { ops::add(x, other.input("x", kMatrix)); }), "another graph"), "");
  b.output("y", x);
  EXPECT_EQ(has(message([&] { b.output("y", x); }), "twice"), "");
  EXPECT_EQ(has(message([&] { b.input("z", {DType::kF32, {0, 3}}); }), "positive"), "");
}

TEST(Builder, ReferencesToTypesSurviveGrowth) {
  Builder b("g");
  Value x = b.input("x", kMatrix);
  const Shape& shape = x.shape();
  for (int i = 0; i < 1000; ++i) x = ops::neg(ops::add_scalar(x, i));
  EXPECT_EQ(shape, kMatrix.shape);
}

TEST(Graph, CountsContractions) {
  const Graph g = small_graph();
  EXPECT_EQ(g.num_contractions(), 1);
  EXPECT_EQ(g.contraction_flops(), 2.0 * 2 * 4 * 3);
  Builder b("batched");
  const Value x = b.input("x", {DType::kF32, {5, 7, 3}});
  const Value y = b.input("y", {DType::kF32, {5, 7, 2}});
  b.output("z", ops::matmul(x, y, {.transpose_lhs = true}));
  EXPECT_EQ(std::move(b).build().contraction_flops(), 2.0 * 5 * 3 * 2 * 7);
}

TEST(Graph, ImportRebuildsWithReplacements) {
  const Graph g = small_graph();
  Builder b("imported");
  const Value replacement = ops::neg(b.input("other", {DType::kF32, {4, 3}}));
  std::vector<Value> mapped(g.nodes().size());
  mapped[static_cast<size_t>(g.find_input("w"))] = replacement;
  b.output("y", import_node(b, g, g.find_output("y"), mapped));
  const Graph imported = std::move(b).build();
  EXPECT_EQ(imported.find_input("w"), -1);
  EXPECT_GE(imported.find_input("x"), 0);
  EXPECT_FALSE(verify(imported));
  // A chain far deeper than a stack of recursive calls.
  Builder deep("deep");
  Value x = deep.input("x", kMatrix);
  for (int i = 0; i < 300'000; ++i) x = ops::neg(x);
  deep.output("y", x);
  const Graph chain = std::move(deep).build();
  Builder copy("deep");
  std::vector<Value> none;
  copy.output("y", import_node(copy, chain, chain.find_output("y"), none));
  EXPECT_EQ(std::move(copy).build().nodes().size(), chain.nodes().size());
}

// ---- text --------------------------------------------------------------------------------------

Graph parsed(std::string_view text) { return parse_graph(text, find_op).take(); }

std::string parse_error(std::string_view text) {
  const Result<Graph> graph = parse_graph(text, find_op, "t.ir");
  return graph.ok() ? "no error" : graph.error().text();
}

TEST(Text, IsStableAndReadsBack) {
  const std::string text = print_graph(small_graph());
  EXPECT_EQ(text,
            "graph small\n"
            "%0 = input \"x\" : f32[2,3]\n"
            "%1 = input \"w\" : f32[4,3]\n"
            "%2 = matmul(%0, %1) {transpose_rhs=1} : f32[2,4]\n"
            "%3 = constant() {dtype=\"f32\", shape=[1,1], value=0.1} : f32[1,1]\n"
            "%4 = mul(%2, %3) : f32[2,4]\n"
            "%5 = reduce_sum(%2) {axes=[0,1]} : f32[1,1]\n"
            "output \"y\" = %4\n"
            "output \"loss\" = %5\n");
  EXPECT_EQ(print_graph(parsed(text)), text);
}

TEST(Text, RealsAndNamesKeepEveryBit) {
  const double tiny = std::numeric_limits<double>::denorm_min();
  const double infinite = std::numeric_limits<double>::infinity();
  for (const double value : {0.1, -0.0, 1e300, 1e-5, tiny, 3.0, 1.0 / 3, 16777217.0, -infinite}) {
    Builder b("a graph \"with\"\n\\ \x01 odd name");
    const Value x = b.input("näme \"q\"\t", {DType::kF32, {}});
    b.output("out put", ops::add_scalar(x, value));
    const std::string text = print_graph(std::move(b).build());
    const Graph again = parsed(text);
    EXPECT_EQ(print_graph(again), text);
    EXPECT_EQ(again.name(), "a graph \"with\"\n\\ \x01 odd name");
    EXPECT_EQ(again.node(0).name, "näme \"q\"\t");
    const double read = again.node(1).attrs.real("value");
    EXPECT_EQ(std::signbit(read), std::signbit(value));
    EXPECT_EQ(read, value);
  }
}

TEST(Text, AcceptsWhatPeopleWrite) {
  const Graph g = parsed(
      "# a comment\n\n"
      "graph g  # here too\r\n"
      "  %x.1 = input \"x\":f32[ 2 , 3 ]\n"
      "\t%unused=exp( %x.1 ) : f32[2,3]\n"
      "%y = reduce_sum(%x.1){ axes = [ 1 ] } : f32[2,1]\n"
      "output \"y\"=%y");
  EXPECT_EQ(print_graph(g),
            "graph g\n%0 = input \"x\" : f32[2,3]\n"
            "%1 = reduce_sum(%0) {axes=[1]} : f32[2,1]\noutput \"y\" = %1\n");
}

// One malformed text and a part of the message that it must cause.
struct Malformed {
  std::string text;
  std::string message;
};

TEST(Text, RejectsMalformedInputWithItsPlace) {
  const std::string head = "graph g\n%x = input \"x\" : f32[2,3]\n";
  const std::vector<Malformed> cases = {
      {"", "t.ir:1: a graph begins with"},
      {"%x = input \"x\" : f32[2]", "t.ir:1: a graph begins with"},
      {"grph g", "t.ir:1: a line begins with"},
      {"graph", "a name is expected"},
      {"graph g\ngraph h", "t.ir:2: there is one graph"},
      {"graph \"g", "closing '\"'"},
      {"graph \"\\q\"", "an escape is"},
      {"graph \"\\x4", "an escape is"},
      {head + "%y = expp(%x) : f32[2,3]", "t.ir:3: there is no such op; did you mean exp?"},
      {head + "%y = pxe(%x) : f32[2,3]", "there is no such op; got pxe"},
      {head + "%y = mni(%x, %x) : f32[2,3]", "did you mean min?"},
      {head + "%y = exp(%z) : f32[2,3]", "defined before they are used; got %z"},
      {head + "%y = exp(%y) : f32[2,3]", "defined before they are used; got %y"},
      {head + "%x = exp(%x) : f32[2,3]", "defined once; got %x"},
      {head + "%y = input \"x\" : f32[2,3]", "input names differ"},
      {head + "output \"y\" = %x\noutput \"y\" = %x", "t.ir:4: output names differ"},
      {head + "output \"y\" = %q", "defined before they are used"},
      {head + "%y = exp(%x, %x) : f32[2,3]", "exp: takes 1 operands"},
      {head + "%y = concat() {axis=0} : f32[2,3]", "concat: takes one or more operands"},
      {head + "%y = exp(%x) : f32[3,2]", "the stated type is the result's, f32[2,3]; got f32[3,2]"},
      {head + "%y = exp(%x) : f64[2,3]", "there is no such dtype; got f64"},
      {head + "%y = exp(%x)", "':' is expected; got the end of the line"},
      {head + "%y = exp(%x : f32[2,3]", "')' is expected"},
      {head + "%y = exp(%x) : f32[2,3] trailing", "the line ends here; got trailing"},
      {head + "%y = exp(%x) {axes=[1]} : f32[2,3]", "there is no attribute \"axes\""},
      {head + "%y = reduce_sum(%x) : f32[2,1]", "attribute \"axes\" is needed"},
      {head + "%y = reduce_sum(%x) {axes=1} : f32[2,1]", "\"axes\" is of kind integers"},
      {head + "%y = reduce_sum(%x) {axes=\"1\"} : f32[2,1]", "\"axes\" is of kind integers"},
      {head + "%y = reduce_sum(%x) {axes=[1], axes=[1]} : f32[2,1]", "given once; got axes"},
      {head + "%y = reduce_sum(%x) {axes=[1.5]} : f32[2,1]", "a number is expected"},
      {head + "%y = reduce_sum(%x) {axes=[]} : f32[2,1]", "at least one axis"},
      {head + "%y = reduce_sum(%x) {axes=[2]} : f32[2,1]", "axes are dimensions"},
      {head + "%y = reduce_sum(%x) {axes=[-1]} : f32[2,1]", "axes are dimensions"},
      {head + "%y = reduce_sum(%x) {axes=[1,1]} : f32[2,1]", "rising order"},
      {head + "%y = matmul(%x, %x) {transpose_rhs=0} : f32[2,2]", "1 or left out"},
      {head + "%y = matmul(%x, %x) : f32[2,2]", "contracted dimensions are equal"},
      {head + "%y = convert(%x) {dtype=\"f33\"} : f32[2,3]", "there is no dtype \"f33\""},
      {head + "%y = compare(%x, %x) {kind=\"==\"} : pred[2,3]", "kind is one of"},
      {head + "%y = constant() {dtype=\"i32\", shape=[1], value=0.5} : i32[1]", "whole number"},
      {head + "%y = constant() {dtype=\"pred\", shape=[1], value=2.0} : pred[1]", "whole number"},
      {head + "%y = constant() {dtype=\"f32\", shape=[1], value=1} : f32[1]", "of kind real"},
      {head + "%y = constant() {dtype=\"f32\", shape=[1], value=1e999} : f32[1]", "number"},
      {head + "%y = slice(%x) {starts=[0,0], limits=[2,4]} : f32[2,4]", "limit <= size"},
      {head + "%y = slice(%x) {starts=[0,1], limits=[2,1]} : f32[2,1]", "start < limit"},
      {head + "%y = slice(%x) {starts=[0], limits=[2]} : f32[2]", "one entry per dimension"},
      {head + "%y = transpose(%x) {perm=[0,0]} : f32[2,2]", "each dimension once"},
      {head + "%y = reshape(%x) {shape=[2,-3]} : f32[2,3]", "dimensions are positive"},
      {head + "%y = reshape(%x) {shape=[7]} : f32[7]", "the number of elements stays"},
      {head + "%y = iota() {axis=2, dtype=\"f32\", shape=[2,2]} : f32[2,2]", "axis is"},
      {head + "%y = one_hot(%x) {depth=4, dtype=\"f32\"} : f32[2,4]", "indices are i32 [N]"},
  };
  for (const Malformed& c : cases) {
    const std::string message = parse_error(c.text);
    EXPECT_NE(message.find(c.message), std::string::npos) << c.text << "\n  gave: " << message;
  }
}

TEST(Text, BoundsWhatHostileTextCanAskFor) {
  const std::string head = "graph g\n%x = input \"x\" : f32[2,3]\n";
  const std::string huge = "9223372036854775807";
  EXPECT_NE(parse_error("graph g\n%x = input \"x\" : f32[" + huge + "," + huge + "]").find("2^46"),
            std::string::npos);
  EXPECT_NE(parse_error("graph g\n%x = input \"x\" : f32[9" + huge + "]").find("a number"),
            std::string::npos);
  EXPECT_NE(parse_error("graph g\n%x = input \"x\" : f32[0]").find("positive"), std::string::npos);
  EXPECT_NE(parse_error("graph g\n%x = input \"x\" : f32[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]")
                .find("at most 16 dimensions"),
            std::string::npos);
  EXPECT_NE(
      parse_error(head + "%y = pad(%x) {low=[" + huge + ",0], high=[" + huge + ",0]} : f32[2,3]")
          .find("between 0 and 2^46"),
      std::string::npos);
  EXPECT_NE(parse_error(head + "%y = broadcast(%x) {shape=[2," + huge + "]} : f32[2,3]")
                .find("of size 1 are repeated"),
            std::string::npos);
  EXPECT_NE(parse_error("graph g\n%i = input \"i\" : i32[1000000000]\n"
                        "%y = one_hot(%i) {depth=2000000000, dtype=\"f32\"} : f32[1,1]")
                .find("2^46"),
            std::string::npos);
  std::string attrs = "a0=1";
  for (int i = 1; i < 100; ++i) attrs.append(", a").append(std::to_string(i)).append("=1");
  EXPECT_NE(parse_error(head + "%y = exp(%x) {" + attrs + "} : f32[2,3]").find("few attributes"),
            std::string::npos);
  EXPECT_NE(parse_error(std::string(1 << 20, '"')).find("t.ir:1"), std::string::npos);
  EXPECT_NE(parse_error("graph g\n%x = " + std::string(1 << 20, 'a') + "()").find("no such op"),
            std::string::npos);
  EXPECT_NE(parse_error(std::string("graph g\0h\n", 10)).find("the line ends here"),
            std::string::npos);
}

TEST(Text, CountsNodes) {
  std::string text = "graph g\n%a0 = input \"x\" : f32[1]\n";
  for (int64_t i = 1; i <= kMaxTextNodes; ++i) {
    text.append("%a").append(std::to_string(i)).append(" = neg(%a0) : f32[1]\n");
  }
  EXPECT_NE(parse_error(text).find("at most 1000000 nodes"), std::string::npos);
}

// Every prefix and every one-byte change of a good text parses or fails; it never crashes.
TEST(Text, SurvivesDamage) {
  const std::string text = print_graph(small_graph());
  int failures = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    failures += parse_graph(text.substr(0, i), find_op).ok() ? 0 : 1;
    for (const char c : {'\0', '%', '"', '[', '9', '-', '\n', '\xff'}) {
      std::string damaged = text;
      damaged[i] = c;
      const Result<Graph> graph = parse_graph(damaged, find_op);
      if (graph.ok()) {
        EXPECT_FALSE(verify(graph.value())) << damaged;
      } else {
        ++failures;
      }
    }
  }
  EXPECT_GT(failures, static_cast<int>(text.size()));
}

// ---- verifier ----------------------------------------------------------------------------------

using Plant = void (*)(Graph&);

TEST(Verify, FindsEachPlantedFault) {
  ASSERT_FALSE(verify(small_graph()));
  using Peer = GraphTestPeer;
  const std::vector<std::pair<std::string, Plant>> faults = {
      {"operands stand before", [](Graph& g) { Peer::nodes(g)[2].inputs[0] = 4; }},
      {"operands stand before", [](Graph& g) { Peer::nodes(g)[2].inputs[0] = 2; }},
      {"operands stand before", [](Graph& g) { Peer::nodes(g)[2].inputs[0] = -1; }},
      {"takes 2 operands", [](Graph& g) { Peer::nodes(g)[2].inputs.pop_back(); }},
      {"contracted dimensions", [](Graph& g) { Peer::nodes(g)[2].attrs = {}; }},
      {"stored type",
       [](Graph& g) {
         Peer::nodes(g)[5].type.shape = {1, 4};
       }},
      {"stored type", [](Graph& g) { Peer::nodes(g)[4].type.dtype = DType::kBF16; }},
      {"stored type",
       [](Graph& g) {
         Peer::nodes(g)[0].type.shape = {5, 3};
       }},
      {"\"axes\" is of kind", [](Graph& g) { Peer::nodes(g)[5].attrs.set("axes", int64_t{1}); }},
      {"no attribute", [](Graph& g) { Peer::nodes(g)[4].attrs.set("extra", int64_t{1}); }},
      {"no operands", [](Graph& g) { Peer::nodes(g)[1].inputs = {0}; }},
      {"dimensions are positive", [](Graph& g) { Peer::nodes(g)[0].type.shape = {0}; }},
      {"input names differ", [](Graph& g) { Peer::nodes(g)[1].name = "x"; }},
      {"list of inputs", [](Graph& g) { Peer::inputs(g).pop_back(); }},
      {"list of inputs", [](Graph& g) { std::swap(Peer::inputs(g)[0], Peer::inputs(g)[1]); }},
      {"output names differ", [](Graph& g) { Peer::outputs(g)[0].name = "loss"; }},
      {"outputs are nodes", [](Graph& g) { Peer::outputs(g)[0].node = 6; }},
      {"outputs are nodes", [](Graph& g) { Peer::outputs(g)[0].node = -1; }},
  };
  for (const auto& [message, plant] : faults) {
    Graph graph = small_graph();
    plant(graph);
    const std::optional<Error> error = verify(graph);
    ASSERT_TRUE(error) << message;
    EXPECT_NE(error->text().find(message), std::string::npos) << error->text();
  }
}

}  // namespace
}  // namespace npu
