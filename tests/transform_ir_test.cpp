// The cases of tests/ir: text in, pass, text out; and both sides executed on random inputs.
//
//   === NAME
//   # what the case shows
//   pass: simplify
//   --- before
//   graph g …
//   --- after
//   graph g …
//
// UPDATE=1 in the environment rewrites the `after` sections; review the difference.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "ir/text.h"
#include "ops/ops.h"
#include "ops/table.h"
#include "random_graph.h"
#include "transform/legalise.h"
#include "transform/passes.h"
#include "transform/vjp.h"

namespace npu {
namespace {

struct IrCase {
  std::string file, name, comments, pass, before, after;
};

std::filesystem::path case_folder() {
  return std::filesystem::path(NPU_SOURCE_DIR) / "tests" / "ir";
}

std::vector<IrCase> read_cases(const std::filesystem::path& path) {
  std::ifstream in(path);
  std::vector<IrCase> cases;
  std::string line;
  std::string* section = nullptr;
  while (std::getline(in, line)) {
    if (line.starts_with("=== ")) {
      cases.push_back({path.filename().string(), line.substr(4), "", "", "", ""});
      section = nullptr;
    } else if (cases.empty()) {
      ADD_FAILURE() << path << " starts with: " << line;
      return {};
    } else if (line == "--- before") {
      section = &cases.back().before;
    } else if (line == "--- after") {
      section = &cases.back().after;
    } else if (section != nullptr) {
      if (!line.empty()) *section += line + "\n";
    } else if (line.starts_with("pass: ")) {
      cases.back().pass = line.substr(6);
    } else if (line.starts_with("#")) {
      cases.back().comments += line + "\n";
    } else if (!line.empty()) {
      ADD_FAILURE() << path << ": what is: " << line;
    }
  }
  return cases;
}

void write_cases(const std::filesystem::path& path, const std::vector<IrCase>& cases) {
  std::ofstream out(path);
  for (size_t i = 0; i < cases.size(); ++i) {
    const IrCase& c = cases[i];
    out << (i > 0 ? "\n" : "") << "=== " << c.name << "\n"
        << c.comments << "pass: " << c.pass << "\n--- before\n"
        << c.before << "--- after\n"
        << c.after;
  }
}

std::vector<std::filesystem::path> case_files() {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(case_folder()))
    if (entry.path().extension() == ".ir") files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  return files;
}

// The default ones and those that vendors need.
std::vector<Pass> all_passes() {
  std::vector<Pass> passes(default_passes().begin(), default_passes().end());
  passes.insert(passes.end(), legalise_passes().begin(), legalise_passes().end());
  return passes;
}

struct Rewritten {
  Graph graph;
  bool exact = true;
  std::set<std::string> rules;  // that fired
};

Rewritten apply_pass(const Graph& graph, const Pass& pass) {
  Rewritten result;
  PassOptions options;
  options.fired = [&](const Rule& rule) {
    result.rules.insert(std::string(rule.name));
    result.exact = result.exact && rule.exact;
  };
  result.graph = run_passes(graph, std::span(&pass, 1), options);
  return result;
}

// "" when both graphs give the same results: bit for bit on special numbers too when `exact`.
std::string execution_difference(const Graph& before, const Graph& after, bool exact) {
  for (uint64_t seed = 0; seed < 8; ++seed) {
    const bool special = exact && seed % 2 == 1;
    const NamedTensors inputs = random_inputs(before, seed, special);
    const NamedTensors expected = run_graph(before, inputs), got = run_graph(after, inputs);
    const std::string difference =
        exact ? bit_difference(got, expected) : value_difference(got, expected, 1e-6);
    if (!difference.empty()) return difference;
  }
  return "";
}

void check_case(IrCase& c, std::set<std::string>& rules_seen, bool update) {
  SCOPED_TRACE(c.file + " === " + c.name);
  const Pass* pass = find_pass(c.pass);
  ASSERT_NE(pass, nullptr) << c.pass;
  Result<Graph> before = parse_graph(c.before, find_op, c.name);
  ASSERT_TRUE(before.ok()) << before.error().text();
  EXPECT_EQ(c.before, print_graph(before.value())) << "`before` is in printed form";
  const Rewritten after = apply_pass(before.value(), *pass);
  const std::string text = print_graph(after.graph);
  if (update) c.after = text;
  EXPECT_EQ(c.after, text);
  EXPECT_EQ(execution_difference(before.value(), after.graph, after.exact), "");
  EXPECT_EQ(print_graph(apply_pass(after.graph, *pass).graph), text) << "a second run changed it";
  // A case is named for the rule that it shows; "RULE.not" shows where it must hold back.
  const std::string rule = c.name.substr(0, c.name.find('.'));
  const bool holds_back = c.name.ends_with(".not");
  if (!pass->rules.empty()) {
    EXPECT_EQ(after.rules.contains(rule), !holds_back);
  }
  if (!holds_back) rules_seen.insert(rule);
}

TEST(IrCases, TextAndValuesAreKept) {
  const bool update = std::getenv("UPDATE") != nullptr;
  std::set<std::string> rules_seen;
  for (const std::filesystem::path& file : case_files()) {
    std::vector<IrCase> cases = read_cases(file);
    EXPECT_FALSE(cases.empty()) << file;
    for (IrCase& c : cases) check_case(c, rules_seen, update);
    if (update) write_cases(file, cases);
  }
  for (const Pass& pass : all_passes()) {
    for (const Rule& rule : pass.rules)
      EXPECT_TRUE(rules_seen.contains(std::string(rule.name))) << "no case for " << rule.name;
  }
}

// The checks above must notice wrong rules.
constexpr Rule kWrongRules[] = {
    {"swap_sub", "wrong: sub does not commute", true,
     [](Builder&, const Node& node, std::span<const Value> in) {
       return node.op->name == "sub" && in[0].id > in[1].id ? ops::sub(in[1], in[0]) : Value{};
     }},
    {"add_zero", "wrong: called exact although -0 becomes +0", true,
     [](Builder& b, const Node& node, std::span<const Value> in) {
       return node.op->name == "neg" ? ops::sub(ops::constant(b, node.type, 0.0), in[0]) : Value{};
     }},
    {"widen", "wrong: changes the dtype", true,
     [](Builder&, const Node& node, std::span<const Value> in) {
       return node.op->name == "exp" ? ops::exp(ops::convert(in[0], DType::kF32)) : Value{};
     }},
};

Graph unary_graph(DType dtype, Value (*function)(Value)) {
  Builder b("g");
  b.output("y", function(b.input("x", {dtype, {64}})));
  return std::move(b).build();
}

TEST(IrCases, ExecutionFindsWrongValues) {
  Builder b("g");
  const Value x = b.input("x", {DType::kF32, {4}});
  b.output("y", ops::sub(ops::exp(x), x));
  const Graph graph = std::move(b).build();
  const Pass pass = {"wrong", "", std::span(kWrongRules).first(1), nullptr};
  const Rewritten after = apply_pass(graph, pass);
  EXPECT_NE(execution_difference(graph, after.graph, after.exact), "");
}

TEST(IrCases, ExecutionFindsTheSignOfZero) {
  const Graph graph = unary_graph(DType::kF32, ops::neg);
  const Pass pass = {"wrong", "", std::span(kWrongRules).subspan(1, 1), nullptr};
  const Rewritten after = apply_pass(graph, pass);
  EXPECT_NE(execution_difference(graph, after.graph, /*exact=*/true), "");
  EXPECT_EQ(execution_difference(graph, after.graph, /*exact=*/false), "");
}

TEST(Passes, ARuleThatChangesTheTypeIsABug) {
  const Graph graph = unary_graph(DType::kBF16, ops::exp);
  const Pass pass = {"wrong", "", std::span(kWrongRules).subspan(2, 1), nullptr};
  try {
    run_passes(graph, std::span(&pass, 1));
    FAIL() << "the type changed unnoticed";
  } catch (const InternalError& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("rule widen of pass wrong"), std::string::npos) << text;
  }
}

// Two rules that undo each other.
constexpr Rule kLoop[] = {
    {"to_neg", "", true,
     [](Builder& b, const Node& node, std::span<const Value> in) {
       return node.op->name == "exp" ? ops::neg(ops::neg(b.apply(*node.op, {in[0]}))) : Value{};
     }},
    {"from_neg", "", true,
     [](Builder&, const Node& node, std::span<const Value> in) {
       if (node.op->name != "neg") return Value{};
       const Node& inner = in[0].builder->node(in[0].id);
       if (inner.is_input() || inner.op->name != "neg") return Value{};
       return Value{in[0].builder, inner.inputs[0]};
     }},
};

TEST(Passes, RulesThatUndoEachOtherAreNamed) {
  const Graph graph = unary_graph(DType::kF32, ops::exp);
  const Pass pass = {"loop", "", kLoop, nullptr};
  try {
    run_passes(graph, std::span(&pass, 1));
    FAIL() << "the pass ended";
  } catch (const InternalError& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("pass loop does not end"), std::string::npos) << text;
    EXPECT_NE(text.find("to_neg"), std::string::npos) << text;
    EXPECT_NE(text.find("from_neg"), std::string::npos) << text;
  }
}

// The first rule puts work for the second below the node, which only another round reaches.
constexpr Rule kTwoRounds[] = {
    {"insert", "", true,
     [](Builder&, const Node& node, std::span<const Value> in) {
       return node.op->name == "sigmoid" ? ops::exp(ops::neg(ops::neg(in[0]))) : Value{};
     }},
    kLoop[1],
};

TEST(Passes, GoOnUntilNothingChanges) {
  const Pass pass = {"rounds", "", kTwoRounds, nullptr};
  const Graph after = run_passes(unary_graph(DType::kF32, ops::sigmoid), std::span(&pass, 1));
  EXPECT_EQ(print_graph(after), print_graph(unary_graph(DType::kF32, ops::exp)));
}

TEST(Passes, CanBeSwitchedOffByPassOrRule) {
  const Graph graph = unary_graph(DType::kF32, [](Value x) { return ops::neg(ops::neg(x)); });
  const auto nodes = [&](std::set<std::string, std::less<>> disabled) {
    return run_passes(graph, default_passes(), {std::move(disabled), {}, {}}).nodes().size();
  };
  EXPECT_EQ(nodes({}), 1u);
  EXPECT_EQ(nodes({"neg_neg"}), 3u);
  EXPECT_EQ(nodes({"simplify"}), 3u);
}

TEST(Passes, ReportTheGraphAfterEachPassThatChangedIt) {
  const Graph graph = unary_graph(DType::kF32, [](Value x) { return ops::neg(ops::neg(x)); });
  std::vector<std::string> changed;
  PassOptions options;
  options.after = [&](std::string_view pass, const Graph& result) {
    changed.emplace_back(pass);
    EXPECT_EQ(result.nodes().size(), 1u);
  };
  run_passes(graph, default_passes(), options);
  EXPECT_EQ(changed, std::vector<std::string>{"simplify"});
}

TEST(Passes, NamesAreUniqueAndExplained) {
  std::set<std::string_view> names;
  for (const Pass& pass : all_passes()) {
    EXPECT_TRUE(names.insert(pass.name).second) << pass.name;
    EXPECT_FALSE(pass.why.empty()) << pass.name;
    EXPECT_EQ(pass.rules.empty(), pass.run != nullptr) << pass.name;
    EXPECT_EQ(find_pass(pass.name)->why, pass.why);
    for (const Rule& rule : pass.rules) {
      EXPECT_TRUE(names.insert(rule.name).second) << rule.name;
      EXPECT_FALSE(rule.why.empty()) << rule.name;
    }
  }
  EXPECT_EQ(find_pass("no such pass"), nullptr);
}

void expect_all_fired(const Pass& pass, std::map<std::string, int>& fired) {
  for (const Rule& rule : pass.rules)
    EXPECT_GT(fired[std::string(rule.name)], 0) << rule.name << " never fired";
}

TEST(Passes, ExactRulesKeepTheBitsOfRandomGraphs) {
  std::map<std::string, int> fired;
  PassOptions options;
  options.disabled = {"algebra"};
  options.fired = [&](const Rule& rule) {
    EXPECT_TRUE(rule.exact) << rule.name;
    ++fired[std::string(rule.name)];
  };
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const Graph graph = random_graph(seed, RandomOps::kAll);
    const Graph after = run_passes(graph, all_passes(), options);
    const NamedTensors inputs = random_inputs(graph, seed, /*special=*/seed % 2 == 1);
    ASSERT_EQ(bit_difference(run_graph(after, inputs), run_graph(graph, inputs)), "")
        << print_graph(graph);
  }
  for (const char* pass : {"simplify", "fold_neg_add", "pad_to_concat"}) {
    expect_all_fired(*find_pass(pass), fired);
  }
}

TEST(Legalise, TakesNamesInOrderAndRefusesOthers) {
  const std::string names[] = {"pad_to_concat", "fold_neg_add"};
  const std::vector<Pass> passes = legalise_passes(names, "sim:x");
  ASSERT_EQ(passes.size(), 2u);
  EXPECT_EQ(passes[0].name, "pad_to_concat");
  EXPECT_EQ(passes[1].name, "fold_neg_add");
  const std::string unknown[] = {"fold_neg_ad"};
  try {
    legalise_passes(unknown, "sim:x");
    FAIL() << "the name was taken";
  } catch (const UserError& error) {
    EXPECT_STREQ(error.what(),
                 "sim:x: legalise: there is no such pass; got 'fold_neg_ad'; hint: use "
                 "fold_neg_add, pad_to_concat");
  }
}

TEST(Passes, KeepTheValuesOfDerivativesWithinRounding) {
  std::map<std::string, int> fired;
  PassOptions options;
  options.fired = [&](const Rule& rule) { ++fired[std::string(rule.name)]; };
  for (uint64_t seed = 0; seed < 1000; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const Graph forward = random_graph(seed, RandomOps::kSmooth);
    std::vector<std::string> seeds, wrt;
    for (const GraphOutput& output : forward.outputs()) seeds.push_back(output.name);
    for (NodeId id : forward.inputs()) wrt.push_back(forward.node(id).name);
    const Graph graph = vjp(forward, seeds, wrt).take();
    const Graph after = run_passes(graph, default_passes(), options);
    const NamedTensors inputs = random_inputs(graph, seed);
    ASSERT_EQ(value_difference(run_graph(after, inputs), run_graph(graph, inputs), 1e-4), "")
        << print_graph(graph);
  }
  expect_all_fired(*find_pass("algebra"), fired);
}

}  // namespace
}  // namespace npu
