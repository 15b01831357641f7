// Every row of the op table against its own samples: shape rule, kernel, derivative, lowerings,
// text.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/file.h"
#include "ir/text.h"
#include "ir/verify.h"
#include "op_samples.h"
#include "ops/ops.h"
#include "ops/table.h"

namespace npu {
namespace {

class Row : public testing::TestWithParam<const OpDef*> {
 protected:
  const OpDef& op() const { return *GetParam(); }
  std::vector<OpSample> samples() const { return op().samples(); }
};

std::string row_name(const testing::TestParamInfo<const OpDef*>& info) {
  return std::string(info.param->name);
}

INSTANTIATE_TEST_SUITE_P(OpTable, Row, testing::ValuesIn(op_table().begin(), op_table().end()),
                         row_name);

TEST_P(Row, IsComplete) {
  EXPECT_EQ(find_op(op().name), &op());
  EXPECT_FALSE(op().summary.empty());
  EXPECT_EQ(op().summary.back(), '.');
  EXPECT_NE(op().infer, nullptr);
  EXPECT_NE(op().kernel, nullptr);
  EXPECT_NE(op().onnx, nullptr);
  EXPECT_NE(op().openvino, nullptr);
  ASSERT_NE(op().samples, nullptr);
  EXPECT_FALSE(samples().empty());
  EXPECT_NE(op().vjp == nullptr, op().no_grad_reason.empty()) << "a derivative or a reason";
}

TEST(OpTable, NamesDiffer) {
  for (const OpDef* row : op_table()) {
    EXPECT_EQ(std::count_if(op_table().begin(), op_table().end(),
                            [&](const OpDef* other) { return other->name == row->name; }),
              1)
        << row->name;
  }
  EXPECT_EQ(find_op("no_such_op"), nullptr);
}

// The kernel fills all of the type that the shape rule gives, whatever stood there before.
TEST_P(Row, KernelFillsTheInferredType) {
  for (const OpSample& sample : samples()) {
    const Graph graph = sample_graph(op(), sample, false);
    const std::vector<Tensor> operands = sample_operands(sample, 1);
    const TensorType type = graph.node(graph.find_output("y")).type;
    Tensor filled[2] = {Tensor(type.dtype, type.shape), Tensor(type.dtype, type.shape)};
    for (int i = 0; i < 2; ++i) {
      std::memset(filled[i].mutable_data(), i == 0 ? 0x00 : 0x3e, filled[i].bytes());
      op().kernel(operands, sample.attrs, filled[i]);
      EXPECT_EQ((TensorType{filled[i].dtype(), filled[i].shape()}), type);
    }
    EXPECT_TRUE(same_bytes(filled[0], filled[1])) << print_graph(graph);
    EXPECT_TRUE(same_bytes(interpret(graph, bound(operands))[0], filled[0]));
  }
}

TEST_P(Row, ShapeRuleRefusesWrongOperands) {
  for (const OpSample& sample : samples()) {
    const auto refused = [&](const std::vector<TensorType>& types, const Attrs& attrs) {
      return !infer_checked(op(), types, attrs).ok();
    };
    EXPECT_FALSE(refused(sample.inputs, sample.attrs));
    std::vector<TensorType> more = sample.inputs;
    more.push_back({DType::kU8, {2, 9, 2}});
    EXPECT_TRUE(refused(more, sample.attrs));
    Attrs unknown = sample.attrs;
    unknown.set("no_such_attribute", int64_t{1});
    EXPECT_TRUE(refused(sample.inputs, unknown));
    for (const AttrSpec& spec : op().attrs) {
      Attrs mistyped = sample.attrs;
      mistyped.set(std::string(spec.name),
                   spec.kind == AttrKind::kString ? AttrValue(int64_t{1}) : AttrValue("text"));
      EXPECT_TRUE(refused(sample.inputs, mistyped)) << spec.name;
    }
    if (sample.inputs.size() == 2 && op().arity == 2) {
      std::vector<TensorType> mixed = sample.inputs;
      mixed[1] = {DType::kU8, {5, 7, 11}};
      EXPECT_TRUE(refused(mixed, sample.attrs));
    }
  }
}

// ---- derivative --------------------------------------------------------------------------------

double dot(const Tensor& a, const Tensor& b) {
  double sum = 0;
  for (int64_t i = 0; i < a.size(); ++i) sum += element(a, i) * element(b, i);
  return sum;
}

double norm_of_products(const Tensor& a, const Tensor& b) {
  double sum = 0;
  for (int64_t i = 0; i < a.size(); ++i) sum += std::pow(element(a, i) * element(b, i), 2);
  return std::sqrt(sum);
}

Tensor moved(const Tensor& from, const Tensor& direction, double step) {
  Tensor to = from.clone();
  for (int64_t i = 0; i < to.size(); ++i) {
    set_element(to, i, element(from, i) + step * element(direction, i));
  }
  return to;
}

using Distort = void (*)(Tensor& gradient);

// The largest difference between the row's derivative and a central difference, along random
// directions of one operand at a time, relative to the size of the terms. `distort` may spoil the
// row's gradients first, to see that this test would notice.
double gradient_error(const OpDef& op, const OpSample& sample, Distort distort) {
  const Graph graph = sample_graph(op, sample, true);
  const TensorType y_type = graph.node(graph.find_output("y")).type;
  if (graph.find_input("c") < 0) return 0;  // nothing to differentiate
  double worst = 0;
  for (uint64_t seed = 0; seed < 3; ++seed) {
    const std::vector<Tensor> operands = sample_operands(sample, seed);
    std::map<std::string, Tensor> inputs = bound(operands);
    const Tensor cotangent = random_tensor(y_type, seed, "cotangent");
    inputs["c"] = cotangent;
    const std::vector<Tensor> outputs = interpret(graph, inputs);
    for (size_t k = 1; k < outputs.size(); ++k) {
      const std::string name = graph.outputs()[k].name;
      const size_t which = std::stoul(name.substr(1));
      Tensor gradient = outputs[k].to(DType::kF32);
      if (distort != nullptr) distort(gradient);
      const TensorType as_f32 = {DType::kF32, gradient.shape()};
      const Tensor direction = random_tensor(as_f32, seed, name);
      double moved_by[2] = {};
      for (int side = 0; side < 2; ++side) {
        const double step = side == 0 ? sample.grad_step : -sample.grad_step;
        inputs[operand_name(which)] = moved(operands[which], direction, step);
        moved_by[side] = dot(interpret(graph, inputs)[0], cotangent);
      }
      inputs[operand_name(which)] = operands[which];
      const double by_difference = (moved_by[0] - moved_by[1]) / (2 * sample.grad_step);
      const double by_rule = dot(gradient, direction);
      const double size = std::max(
          {std::abs(by_difference), std::abs(by_rule), norm_of_products(outputs[k], direction)});
      if (size > 0) worst = std::max(worst, std::abs(by_difference - by_rule) / size);
    }
  }
  return worst;
}

TEST_P(Row, DerivativeIsTheFiniteDifference) {
  for (const OpSample& sample : samples()) {
    EXPECT_LE(gradient_error(op(), sample, nullptr), sample.grad_tolerance)
        << print_graph(sample_graph(op(), sample, true));
  }
}

// The test above is sharp: gradients that are 5 % too large, negated, lost, or wrong in one element
// would fail it.
TEST_P(Row, WrongDerivativesWouldBeNoticed) {
  const auto scaled = [](Tensor& g) { g = moved(g, g, 0.05); };
  const auto negated = [](Tensor& g) { g = moved(g, g, -2); };
  const auto lost = [](Tensor& g) { g = moved(g, g, -1); };
  const auto one_wrong = [](Tensor& g) {
    double largest = 0;
    for (int64_t i = 0; i < g.size(); ++i) largest = std::max(largest, std::abs(element(g, i)));
    set_element(g, 0, element(g, 0) + largest);
  };
  for (const OpSample& sample : samples()) {
    const Graph graph = sample_graph(op(), sample, true);
    if (graph.outputs().size() < 2) continue;
    for (const Distort distort : std::initializer_list<Distort>{scaled, negated, lost, one_wrong}) {
      EXPECT_GT(gradient_error(op(), sample, distort), sample.grad_tolerance) << print_graph(graph);
    }
  }
}

// A float operand of a float result has a gradient, and it has the operand's type.
TEST_P(Row, GradientsHaveTheOperandsTypes) {
  for (const OpSample& sample : samples()) {
    const Graph graph = sample_graph(op(), sample, true);
    if (graph.find_input("c") < 0) continue;
    for (size_t i = 0; i < sample.inputs.size(); ++i) {
      const NodeId gradient = graph.find_output("d" + std::to_string(i));
      if (op().name == "stop_gradient" || !is_float(sample.inputs[i].dtype)) {
        EXPECT_EQ(gradient, -1);
      } else {
        ASSERT_GE(gradient, 0) << "operand " << i;
        EXPECT_EQ(graph.node(gradient).type, sample.inputs[i]);
      }
    }
  }
}

// ---- 16-bit floats -----------------------------------------------------------------------------

OpSample with_dtype(OpSample sample, DType dtype) {
  for (TensorType& type : sample.inputs) {
    if (type.dtype == DType::kF32) type.dtype = dtype;
  }
  const AttrValue* named = sample.attrs.find("dtype");
  if (named != nullptr && *named == AttrValue("f32")) {
    sample.attrs.set("dtype", std::string(dtype_name(dtype)));
  }
  return sample;
}

// In bf16 and f16 an op is the f32 op on the same numbers, rounded once.
TEST_P(Row, RoundsOnce) {
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    for (const OpSample& sample : samples()) {
      const OpSample narrow = with_dtype(sample, dtype);
      const std::vector<Tensor> operands = sample_operands(narrow, 5);
      std::vector<Tensor> widened;
      for (size_t i = 0; i < operands.size(); ++i) {
        widened.push_back(operands[i].to(sample.inputs[i].dtype));
      }
      const Tensor y = interpret(sample_graph(op(), narrow, false), bound(operands))[0];
      const Tensor exact = interpret(sample_graph(op(), sample, false), bound(widened))[0];
      EXPECT_TRUE(same_bytes(y, exact.to(y.dtype())))
          << print_graph(sample_graph(op(), narrow, false));
    }
  }
}

// ---- text --------------------------------------------------------------------------------------

TEST_P(Row, TextReadsBackAndRunsAlike) {
  for (const OpSample& sample : samples()) {
    const Graph graph = sample_graph(op(), sample, true);
    EXPECT_FALSE(verify(graph));
    const std::string text = print_graph(graph);
    Result<Graph> again = parse_graph(text, find_op);
    ASSERT_TRUE(again.ok()) << again.error().text();
    EXPECT_EQ(print_graph(again.value()), text);
    EXPECT_FALSE(verify(again.value()));
    std::map<std::string, Tensor> inputs = bound(sample_operands(sample, 3));
    if (const NodeId c = graph.find_input("c"); c >= 0) {
      inputs["c"] = random_tensor(graph.node(c).type, 3, "c");
    }
    const std::vector<Tensor> expected = interpret(graph, inputs);
    const std::vector<Tensor> outputs = interpret(again.value(), inputs);
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_TRUE(same_bytes(outputs[i], expected[i])) << text;
    }
  }
}

// ---- lowerings ---------------------------------------------------------------------------------

// Keeps what is written, and the types of all values.
class RecordingWriter : public GraphWriter {
 public:
  Ref add_input(const TensorType& type) { return record(type, "input"); }
  Ref node(std::string_view type, std::span<const Ref> inputs, const Attrs&,
           const TensorType& out) override {
    for (const Ref input : inputs)
      EXPECT_TRUE(input >= 0 && input < static_cast<Ref>(types.size()));
    EXPECT_FALSE(broken_type_bound(out)) << type;
    return record(out, std::string(type));
  }
  Ref constant(const Tensor& value) override {
    constant_elements += value.size();
    return record({value.dtype(), value.shape()}, "constant");
  }

  std::vector<TensorType> types;
  std::vector<std::string> names;
  int64_t constant_elements = 0;

 private:
  Ref record(const TensorType& type, std::string name) {
    types.push_back(type);
    names.push_back(std::move(name));
    return static_cast<Ref>(types.size()) - 1;
  }
};

void expect_sound_lowering(const OpSample& sample, const Graph& graph, OpDef::Lower lower,
                           bool openvino) {
  RecordingWriter writer;
  std::vector<GraphWriter::Ref> inputs;
  for (const TensorType& type : sample.inputs) inputs.push_back(writer.add_input(type));
  const Node& node = graph.node(graph.find_output("y"));
  const GraphWriter::Ref result = lower({writer, node, inputs, sample.inputs});
  ASSERT_TRUE(result >= 0 && result < static_cast<GraphWriter::Ref>(writer.types.size()));
  EXPECT_EQ(writer.types[static_cast<size_t>(result)], node.type);
  for (const std::string& name : writer.names) {
    if (name == "input" || name == "constant") continue;
    EXPECT_EQ(name.find("opset") == 0 && name.find("::") != std::string::npos, openvino) << name;
  }
}

TEST_P(Row, LoweringsGiveTheNodesType) {
  for (const OpSample& sample : samples()) {
    const Graph graph = sample_graph(op(), sample, false);
    expect_sound_lowering(sample, graph, op().onnx, false);
    expect_sound_lowering(sample, graph, op().openvino, true);
  }
}

TEST(OpTable, ConstantsAreWrittenSmall) {
  Builder b("g");
  b.output("constant", ops::constant(b, {DType::kF32, {1000, 1000}}, 0.5));
  b.output("iota", ops::iota(b, {DType::kF32, {1000, 1000}}, 1));
  const Graph graph = std::move(b).build();
  for (const Node& node : graph.nodes()) {
    for (const OpDef::Lower lower : {node.op->onnx, node.op->openvino}) {
      RecordingWriter writer;
      lower({writer, node, {}, {}});
      EXPECT_LE(writer.constant_elements, 1002) << node.op->name;
    }
  }
}

TEST(OpTable, PageIsUpToDate) {
  const std::string path = NPU_SOURCE_DIR "/docs/ops.md";
  const std::string generated = op_table_markdown();
  if (read_text(path) == generated) return;
  const std::string written = testing::TempDir() + "ops.md";
  publish_text(written, generated);
  FAIL() << path << " differs from the rows; the new page is " << written;
}

}  // namespace
}  // namespace npu
