// The TCL emitter, by running what it writes: every block of every graph of small models against
// the rows' own kernels, and the refusals by their words.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "backend/tcl_layout.h"
#include "backend/tcl_writer.h"
#include "backend_cases.h"
#include "io/hf_model.h"
#include "io/json.h"
#include "ir/text.h"
#include "ops/ops.h"
#include "ops/table.h"
#include "tools/tcl_geometry.h"
#include "tools/tcl_interpreter.h"
#include "tools/tcl_parts.h"
#include "tools/tcl_reference.h"
#include "train/model_graphs.h"

namespace npu {
namespace {

// ---- the check ----------------------------------------------------------------------------------

// Every statement is run on what the reference has for its operands, so nothing accumulates: a
// block computes in f32 what the graph computes in f32 (in another order, hence kNoise, of the
// largest value) and rounds once, and so does the graph; then they are equal or neighbours, and
// neighbouring bf16 values differ by at most 2⁻⁷ of themselves.
constexpr double kBf16Step = 1.0 / 128, kNoise = 1.0 / (1 << 17);

struct Agreement {
  size_t statements = 0;
  double worst = 0;  // error over bound
  std::string worst_at;
};

Agreement check_blocks(const Graph& graph, const Inputs& inputs) {
  const tcl::Axes axes = tcl::name_axes(graph).take();
  const std::vector<tcl::Item> items = tcl::form_blocks(graph, axes).take();
  const tcl::FunctionLayout layout = tcl::lay_out(graph, axes, items).take();
  const TclFunction function = write_tcl(graph).take();
  const std::vector<Tensor> values = reference_values(graph, inputs);
  std::map<std::string, const tcl::StoredTensor*> stored;
  for (const tcl::StoredTensor& t : layout.tensors) stored[t.name] = &t;

  Agreement agreement;
  const auto observer = [&](const std::string& name, TclTensor& tensor) {
    const tcl::StoredTensor& t = *stored.at(name);
    if (name[0] == 's') return;  // in the middle of a slice of several axes: no node has it
    std::vector<float> wanted =
        in_order(values[static_cast<size_t>(t.node)], axes.atoms_of(t.node), t.order, axes.table);
    double largest = 0;
    for (const float v : wanted) largest = std::max(largest, std::fabs(static_cast<double>(v)));
    ++agreement.statements;
    for (size_t i = 0; i < wanted.size(); ++i) {
      float v = wanted[i];
      if (tensor.dtype == DType::kBF16) v = f32_from_bf16(bf16_from_f32(v));
      const double step = tensor.dtype == DType::kBF16 ? kBf16Step * std::fabs(v) : 0;
      const double bound = step + kNoise * largest + 1e-30;
      const double error = std::fabs(static_cast<double>(tensor.values[i]) - v) / bound;
      if (!(error <= agreement.worst)) {
        agreement.worst = error;
        agreement.worst_at = name + ": " + print_node(graph, t.node);
      }
      wanted[i] = v;
    }
    tensor.values = std::move(wanted);
  };
  std::vector<Tensor> operands;
  for (const TclFunction::Port& port : function.inputs) operands.push_back(inputs.at(port.name));
  const auto outputs = run_tcl(function.text, operands, observer);
  EXPECT_TRUE(outputs.ok()) << (outputs.ok() ? "" : outputs.error().text()) << "\n"
                            << function.text;
  if (!outputs.ok()) return agreement;
  for (size_t i = 0; i < graph.outputs().size(); ++i) {
    const Tensor& wanted = values[static_cast<size_t>(graph.outputs()[i].node)];
    EXPECT_EQ(static_cast<int64_t>(outputs.value()[i].values.size()), wanted.size());
    EXPECT_EQ(outputs.value()[i].dtype, wanted.dtype());
    double error = 0, norm = 0;  // in the output's own order of elements
    for (int64_t e = 0; e < wanted.size(); ++e) {
      const double d = outputs.value()[i].values[static_cast<size_t>(e)] - element(wanted, e);
      error += d * d;
      norm += element(wanted, e) * element(wanted, e);
    }
    EXPECT_LE(std::sqrt(error), kBf16Step * std::sqrt(norm) + 1e-30) << graph.outputs()[i].name;
  }
  return agreement;
}

// ---- models -------------------------------------------------------------------------------------

struct ModelCase {
  std::string name;
  DType dtype;
  Numerics numerics;
  int64_t batch;
  std::string targets;
};

// Four query heads a key head, head_dim unlike any other size, LoRA as asked: the proportions of
// Llama-3.
ModelGraphs small_graphs(const ModelCase& c) {
  ModelConfig config;
  config.hidden_size = 48;
  config.intermediate_size = 80;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 8;
  config.num_key_value_heads = 2;
  config.head_dim = 6;
  config.vocab_size = 90;
  config.max_position_embeddings = 64;
  GraphOptions options;
  options.layer.batch = c.batch;
  options.layer.seq_len = 10;
  options.layer.lora.rank = 4;
  options.layer.lora.targets = parse_targets(c.targets);
  options.layer.activation_dtype = options.layer.weight_dtype = c.dtype;
  options.layer.numerics = c.numerics;
  options.loss_rows = 7;
  options.vocab_chunk = 50;  // 46 are taken, so that two go beyond the vocabulary
  options.layer.arithmetic_head = true;
  options.eval = true;
  return build_model_graphs(config, options);
}

class TclModel : public testing::TestWithParam<ModelCase> {};

TEST_P(TclModel, EveryBlockAgrees) {
  size_t statements = 0;
  for (const NamedGraph& named : small_graphs(GetParam()).graphs) {
    const Graph graph = run_passes(named.graph, default_passes());
    const std::vector<Graph> parts = supported_parts(graph);
    EXPECT_EQ(parts.size(), 1u) << graph.name();
    for (const Graph& part : parts) {
      const Result<TclFunction> function = write_tcl(part);
      ASSERT_TRUE(function.ok()) << function.error().text() << "\n" << print_graph(part);
      EXPECT_EQ(function.value().contractions, part.num_contractions());
      const Inputs inputs = random_inputs({part.name(), "", part, -0.7, 0.7, 0, 6}, 3);
      const Agreement agreement = check_blocks(part, inputs);
      EXPECT_LE(agreement.worst, 1) << graph.name() << ", " << agreement.worst_at << "\n"
                                    << function.value().text;
      statements += agreement.statements;
    }
  }
  EXPECT_GT(statements, 100u);
}

// Cut by number of products, as a plan cuts: the pieces must be written too, and agree.
TEST_P(TclModel, PiecesAgree) {
  for (const NamedGraph& named : small_graphs(GetParam()).graphs) {
    const Graph graph = run_passes(named.graph, default_passes());
    for (const int64_t products : {1, 2, 5}) {
      for (const Graph& part : supported_parts(graph)) {
        const PartLabels labels = partition(part, {.contractions = products}).take();
        for (const Part& piece : split(part, labels)) {
          const Graph canonical = canonicalize(piece.graph).graph;
          const Result<TclFunction> function = write_tcl(canonical);
          EXPECT_TRUE(function.ok()) << function.error().text() << "\n" << print_graph(canonical);
          if (!function.ok()) continue;
          const Inputs inputs = random_inputs({"piece", "", canonical, -0.7, 0.7, 0, 6}, 3);
          const Agreement agreement = check_blocks(canonical, inputs);
          EXPECT_LE(agreement.worst, 1) << agreement.worst_at << "\n" << function.value().text;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, TclModel,
    testing::Values(ModelCase{"hf", DType::kBF16, Numerics::kHf, 1, "q,v"},
                    ModelCase{"hf_all_batch", DType::kBF16, Numerics::kHf, 3, "all"},
                    ModelCase{"vllm", DType::kBF16, Numerics::kVllm, 1, "all"},
                    ModelCase{"vllm_batch", DType::kBF16, Numerics::kVllm, 2, "q,v"},
                    ModelCase{"f32", DType::kF32, Numerics::kHf, 1, "q,v"},
                    ModelCase{"f32_all_batch", DType::kF32, Numerics::kHf, 2, "all"}),
    [](const auto& test) { return test.param.name; });

// Sizes of real models: too large to run here, but each part must be written.
TEST(TclGeometry, EveryGraphIsWritten) {
  each_geometry(/*few_graphs=*/false, [](const std::string& use, const ModelGraphs& graphs) {
    for (const NamedGraph& named : graphs.graphs) {
      const Graph graph = run_passes(named.graph, default_passes());
      const std::vector<Graph> parts = supported_parts(graph);
      EXPECT_EQ(parts.size(), 1u) << use << " " << graph.name();
      for (const Graph& part : parts) {
        const Result<TclFunction> function = write_tcl(canonicalize(part).graph);
        EXPECT_TRUE(function.ok()) << use << " " << graph.name() << ": " << function.error().text();
      }
    }
  });
}

// ---- rows ---------------------------------------------------------------------------------------

TEST(TclRows, EverySampleAgreesOrIsRefused) {
  const std::set<std::string> never = {"compare", "select", "pad",      "gather",
                                       "one_hot", "iota",   "constant", "broadcast"};
  std::set<std::string> agreed;
  for (const BackendCase& c : row_cases()) {
    const std::string op = c.name.substr(0, c.name.rfind('_'));
    const Result<TclFunction> function = write_tcl(c.graph);
    if (!function.ok()) {
      EXPECT_FALSE(function.error().what.empty()) << c.name;
      EXPECT_EQ(function.error().kind, ErrorKind::kBadInput) << c.name;
      continue;
    }
    EXPECT_FALSE(never.contains(op)) << c.name << "\n" << function.value().text;
    const Agreement agreement = check_blocks(c.graph, random_inputs(c, 5));
    EXPECT_LE(agreement.worst, 1) << c.name << ", " << agreement.worst_at << "\n"
                                  << function.value().text;
    agreed.insert(op);
  }
  for (const OpDef* op : op_table()) {
    EXPECT_NE(agreed.contains(std::string(op->name)), never.contains(std::string(op->name)))
        << op->name;
  }
}

TEST(TclRows, AwkwardEndsAgreeOrAreRefused) {
  const std::map<std::string, std::string> refused = {
      {"constant_output", "an output is a constant, and TCL has numbers only in steps"},
      {"widened_weight", "f16"},
      {"output_twice", "do not divide into common axes"},
      {"moved_inputs", "an axis of size 3 occurs in no input"}};
  for (const BackendCase& c : binding_cases()) {
    const Result<TclFunction> function = write_tcl(c.graph);
    const auto reason = refused.find(c.name);
    EXPECT_EQ(function.ok(), reason == refused.end())
        << c.name << (function.ok() ? "" : function.error().text());
    if (!function.ok()) {
      if (reason == refused.end()) continue;
      EXPECT_NE(function.error().text().find(reason->second), std::string::npos)
          << function.error().text();
      continue;
    }
    const Agreement agreement = check_blocks(c.graph, random_inputs(c, 7));
    EXPECT_LE(agreement.worst, 1) << c.name << ", " << agreement.worst_at;
  }
}

// A product's reader may see it under other names, transposed: then it can't be a step of its
// block.
TEST(TclRows, ProductUnderOtherNamesAgrees) {
  Builder b("g");
  const Value x = b.input("x", {DType::kF32, {6, 6}});
  const Value p = ops::matmul(x, b.input("a", {DType::kF32, {6, 8}}), {.transpose_lhs = true});
  const Value q = ops::matmul(x, b.input("b", {DType::kF32, {6, 8}}));
  b.output("y", ops::add(x, ops::matmul(p, q, {.transpose_rhs = true})));
  const BackendCase c{"other_names", "", std::move(b).build()};
  EXPECT_LE(check_blocks(c.graph, random_inputs(c, 7)).worst, 1);
}

// ---- text ---------------------------------------------------------------------------------------

Graph parsed(const std::string& text) { return parse_graph(text, find_op).take(); }

TEST(TclText, DoesNotDependOnNames) {
  const auto graph = [](const std::string& a, const std::string& b, const std::string& y) {
    return parsed("graph g\n%0 = input \"" + a + "\" : bf16[6,8]\n%1 = input \"" + b +
                  "\" : bf16[4,8]\n%2 = matmul(%0, %1) {transpose_rhs=1} : bf16[6,4]\noutput \"" +
                  y + "\" = %2\n");
  };
  const TclFunction one = write_tcl(graph("x", "w", "y")).take();
  const TclFunction other = write_tcl(graph("A name, <odd>", "self_attn.w", "t1")).take();
  EXPECT_EQ(one.text, other.text);
  EXPECT_EQ(other.inputs[1].name, "self_attn.w");
  EXPECT_EQ(other.outputs[0].name, "t1");
  EXPECT_EQ(one.text,
            "#tactic_kernel_dsl\n"
            "def part(\n"
            "    i0: [A0, A1]/bf16,\n"
            "    i1: [A2, A1]/bf16\n"
            ") -> [A0, A2]/bf16:\n"
            "    assert A0 == 6\n"
            "    assert A1 == 8\n"
            "    assert A2 == 4\n"
            "    n2: [A0, A2]/bf16 = tk.EinsumByDpe(\n"
            "        %0 = read(i0)\n"
            "        %1 = read(i1)\n"
            "        %2 = dpe.exec(%0,%1 -> [A0, A2])\n"
            "        write.to([A0, A2]/bf16)\n"
            "    )\n"
            "    return n2\n");
}

TEST(TclText, LeavesOutUnusedInputs) {
  Builder b("g");
  b.input("unused", {DType::kF32, {3}});
  b.output("y", ops::exp(b.input("x", {DType::kF32, {5}})));
  const TclFunction function = write_tcl(std::move(b).build()).take();
  ASSERT_EQ(function.inputs.size(), 1u);
  EXPECT_EQ(function.inputs[0].name, "x");
  EXPECT_EQ(function.blocks, 1);
}

TEST(TclText, EndsBlocksWhereTheGraphRounds) {
  const auto blocks = [](DType dtype) {
    Builder b("g");
    const Value x = b.input("x", {dtype, {5, 6}});
    b.output("y", ops::exp(ops::mul(ops::sigmoid(x), x)));
    return write_tcl(std::move(b).build()).take().blocks;
  };
  EXPECT_EQ(blocks(DType::kF32), 1);
  EXPECT_EQ(blocks(DType::kBF16), 3);
}

TEST(TclText, RefusalsSayWhere) {
  struct Case {
    const char* text;
    const char* reason;
  };
  const Case cases[] = {
      {"graph g\n%0 = input \"x\" : f32[6,4]\n%1 = reshape(%0) {shape=[4,6]} : f32[4,6]\n"
       "output \"y\" = %1\n",
       "%1 reshape: the reshape's sizes do not divide into common axes; got f32[4,6]"},
      {"graph g\n%0 = input \"x\" : f32[6,4]\n%1 = matmul(%0, %0) {transpose_rhs=1} : f32[6,6]\n"
       "output \"y\" = %1\n",
       "%1 matmul: an axis of size 6 occurs in no input, and TCL knows sizes from inputs only; got "
       "f32[6,6]"},
      {"graph g\n%0 = input \"x\" : f32[12,8]\n%1 = matmul(%0, %0) {transpose_rhs=1} : f32[12,12]\n"
       "%2 = reshape(%1) {shape=[4,3,6,2]} : f32[4,3,6,2]\noutput \"y\" = %2\n",
       "%1 matmul: two names of one axis do not divide alike; got f32[12,12]"},
      {"graph g\n%0 = input \"x\" : f16[6]\n%1 = exp(%0) : f16[6]\noutput \"y\" = %1\n",
       "%1 exp: TCL blocks compute with bf16 and f32, not f16; got f16[6]"},
      {"graph g\n%0 = input \"x\" : i32[6]\n%1 = one_hot(%0) {depth=3, dtype=\"f32\"} : f32[6,3]\n"
       "output \"y\" = %1\n",
       "%1 one_hot: TCL has no one_hot of i32; got f32[6,3]"},
      {"graph g\n%0 = input \"x\" : f32[6]\n%1 = pad(%0) {high=[1], low=[0]} : f32[7]\n"
       "output \"y\" = %1\n",
       "%1 pad: TCL has no step that does pad; got f32[7]"},
      {"graph g\n%0 = input \"x\" : f32[1,6]\n%1 = broadcast(%0) {shape=[4,6]} : f32[4,6]\n"
       "output \"y\" = %1\n",
       "%1 broadcast: an output is a repeated tensor, which no step makes; got f32[4,6]"},
      {"graph g\n%0 = input \"x\" : f32[6]\n%1 = slice(%0) {limits=[3], starts=[2]} : f32[1]\n"
       "output \"y\" = %1\n",
       "%1 slice: a slice of single elements has no axis to name; got f32[1]"},
  };
  for (const Case& c : cases) {
    const Result<TclFunction> function = write_tcl(parsed(c.text));
    ASSERT_FALSE(function.ok()) << c.text << function.value().text;
    EXPECT_EQ(function.error().text(), c.reason);
    // What one node alone makes impossible is said before any part is formed.
    const std::string reason = c.reason;
    const bool by_axes = reason.find("occurs in no input") != std::string::npos ||
                         reason.find("divide alike") != std::string::npos;
    const Graph graph = parsed(c.text);
    const std::optional<std::string> unsupported = tcl_unsupported(graph, 1);
    EXPECT_EQ(unsupported.has_value(), !by_axes) << reason;
    if (unsupported) {
      EXPECT_NE(reason.find(*unsupported), std::string::npos) << *unsupported;
    }
  }
}

}  // namespace
}  // namespace npu
