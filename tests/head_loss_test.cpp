// The loss that the head reports is the loss of the device's own logits: maximum, sum and target
// logit from one source, however the device rounds.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "base/file.h"
#include "base/random.h"
#include "compile/plan.h"
#include "model/model.h"
#include "ops/ops.h"
#include "train/batch_inputs.h"
#include "train/device_buffers.h"
#include "train/head.h"

namespace npu {
namespace {

constexpr int64_t kRows = 64, kHidden = 96, kVocab = 384, kChunk = 128;
constexpr int64_t kShortVocab = 369;  // the last chunk is padded

using Values = std::map<std::string, Tensor>;

// One graph on the device, from inputs by name to outputs by name; no part may go to the host.
Values run_on(const std::string& name, const Graph& graph, const Values& inputs) {
  const auto backend = make_backend(name).take();
  Plan plan = make_plan({{"ce-grad", graph}}, *backend, {});
  const TempDir cache;
  CompileSettings settings;
  settings.cache_dir = cache.path();
  const CompileReport report = compile_plan(plan, *backend, {}, settings);
  EXPECT_TRUE(report.failed.empty()) << (report.failed.empty() ? "" : report.failed[0].reason);
  const auto runtime = Runtime::create(std::move(plan), *backend, {.threads = 1}).take();
  const Graph& planned = runtime->plan().graph(graph.name()).graph;
  std::map<std::string, DeviceTensor> buffers;
  Runtime::Bindings bindings;
  const auto bind = [&](const std::string& value, const TensorType& type) {
    buffers[value] = allocate_tensor(runtime->device(), type, value);
    bindings[value] = buffers[value].buffer.get();
  };
  for (const NodeId id : graph.inputs()) {
    const Node& input = graph.node(id);
    bind(input.name, input.type);
    upload_tensor(runtime->device(), buffers[input.name], inputs.at(input.name));
  }
  for (const GraphOutput& output : planned.outputs())
    bind(output.name, planned.node(output.node).type);
  EXPECT_FALSE(runtime->run(graph.name(), bindings));
  EXPECT_EQ(runtime->timing().host_seconds, 0) << "a part ran on the host";
  Values outputs;
  for (const GraphOutput& output : planned.outputs()) {
    outputs[output.name] = read_tensor(runtime->device(), buffers[output.name]).clone();
  }
  return outputs;
}

// The logits that the head graphs make inside themselves, as an output.
Graph logits_graph(const LayerOptions& options) {
  Builder builder("logits");
  const DType compute = options.compute_dtype();
  const Value h = builder.input("h", {compute, {kRows, kHidden}});
  const Value w = builder.input("head.weight", {options.weight_dtype, {kChunk, kHidden}});
  builder.output(
      "logits",
      ops::convert(ops::matmul(h, ops::convert(w, compute), {.transpose_rhs = true}), DType::kF32));
  return std::move(builder).build();
}

struct Case {
  std::string backend;
  DType dtype;
  bool arithmetic = false;
};

// The graphs' inputs besides h for a chunk that starts at column `first`.
Values chunk_inputs(const ModelConfig& config, bool arithmetic, const Tensor& w_VH, int64_t first,
                    const std::vector<int32_t>& targets) {
  const int64_t end = std::min(first + kChunk, config.vocab_size);
  Tensor weight(w_VH.dtype(), {kChunk, kHidden});  // zeros beyond the vocabulary
  const Tensor rows = w_VH.rows(first, end);
  std::memcpy(weight.mutable_data(), rows.data(), rows.bytes());
  std::vector<int32_t> relative;
  for (const int32_t t : targets) relative.push_back(t - static_cast<int32_t>(first));
  const Tensor target = Tensor::from_i32({kRows, 1}, relative);
  if (!arithmetic) return {{"head.weight", weight}, {"target", target}};
  std::vector<float> column;
  for (int64_t i = 0; i < kChunk; ++i) {
    column.push_back(first + i < end ? static_cast<float>(i) : kNoColumn);
  }
  return {{"head.weight", weight},
          {"target", target.to(DType::kF32)},
          {"column", Tensor::from_f32({1, kChunk}, column)}};
}

class HeadLoss : public testing::TestWithParam<Case> {
 protected:
  HeadLoss() {
    config.hidden_size = kHidden;
    options.arithmetic_head = GetParam().arithmetic;
    config.vocab_size = options.arithmetic_head ? kShortVocab : kVocab;
    options.activation_dtype = options.weight_dtype = GetParam().dtype;
    options.head_logits = !make_backend(GetParam().backend).take()->traits().exact_f32;
    const RandomStream random(11, "head loss");
    uint64_t i = 0;
    // Logits of some ±4, as a model that is unsure has them.
    for (float& x : h.mutable_values<float>()) x = static_cast<float>(random.normal(i++));
    for (float& x : w.mutable_values<float>()) x = static_cast<float>(0.4 * random.normal(i++));
    h = h.to(GetParam().dtype);
    w = w.to(GetParam().dtype);
    for (int64_t row = 0; row < kRows; ++row) {
      const auto vocab = static_cast<uint64_t>(config.vocab_size);
      targets.push_back(static_cast<int32_t>(random.bits(i++) % vocab));
    }
  }

  Values inputs(int64_t first) const {
    Values all = chunk_inputs(config, options.arithmetic_head, w, first, targets);
    all["h"] = h;
    return all;
  }

  // Mean −log p, from the head graph's own outputs, as the trainer joins them.
  double reported(bool training) const {
    HeadJoin join(kRows, kHidden, training && !options.head_logits);
    const Graph graph = training ? ce_grad(config, options, kRows, kChunk)
                                 : ce_stats(config, options, kRows, kChunk);
    for (int64_t first = 0; first < config.vocab_size; first += kChunk) {
      const Values in = inputs(first), out = run_on(GetParam().backend, graph, in);
      if (options.head_logits) {
        join.add(out.at("logits"), in.at("target"));
        continue;
      }
      const Tensor u = training ? out.at("u").to(DType::kF32) : Tensor();
      join.add(out.at("max"), out.at("sum"), out.at("target_logit"), training ? &u : nullptr);
    }
    double nats = 0;
    for (int64_t row = 0; row < kRows; ++row) nats -= join.log_prob(row) / kRows;
    return nats;
  }

  // The device's logits [rows][V].
  std::vector<std::vector<double>> device_logits() const {
    std::vector<std::vector<double>> all(kRows);
    for (int64_t first = 0; first < config.vocab_size; first += kChunk) {
      const Values out = run_on(GetParam().backend, logits_graph(options), inputs(first));
      const auto values = out.at("logits").values<float>();
      for (size_t row = 0; row < all.size(); ++row) {
        const auto begin = values.begin() + static_cast<std::ptrdiff_t>(row * kChunk);
        const int64_t columns = std::min(kChunk, config.vocab_size - first);
        all[row].insert(all[row].end(), begin, begin + columns);
      }
    }
    return all;
  }

  // Mean of log Σ exp(logit) − target logit, in double.
  double loss(const std::vector<std::vector<double>>& logits_RV) const {
    double nats = 0;
    for (size_t row = 0; row < logits_RV.size(); ++row) {
      double sum = 0;
      for (const double logit : logits_RV[row]) sum += std::exp(logit);
      nats += (std::log(sum) - logits_RV[row][static_cast<size_t>(targets[row])]) / kRows;
    }
    return nats;
  }

  ModelConfig config;
  LayerOptions options;
  Tensor h{DType::kF32, {kRows, kHidden}}, w{DType::kF32, {kVocab, kHidden}};
  std::vector<int32_t> targets;
};

TEST_P(HeadLoss, IsTheLossOfTheDevicesOwnLogits) {
  const double expected = loss(device_logits());
  EXPECT_NEAR(reported(/*training=*/true), expected, 1e-3);
  EXPECT_NEAR(reported(/*training=*/false), expected, 1e-3);
}

std::string plain(const testing::TestParamInfo<Case>& info) {
  std::string name = info.param.backend + "_" + std::string(dtype_name(info.param.dtype));
  if (info.param.arithmetic) name += "_arithmetic";
  for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
  return name;
}
INSTANTIATE_TEST_SUITE_P(
    All, HeadLoss,
    testing::Values(Case{"cpu", DType::kBF16}, Case{"cpu", DType::kF16},
                    Case{"sim:furiosa", DType::kF32}, Case{"sim:furiosa", DType::kBF16},
                    Case{"sim:rbln", DType::kF32}, Case{"sim:rbln", DType::kBF16},
                    Case{"cpu:reference", DType::kBF16, true}, Case{"cpu", DType::kF16, true},
                    Case{"sim:furiosa", DType::kBF16, true}),
    plain);

// Without select, compare and iota every value is the same, and padding has no share in any.
TEST(ArithmeticHead, GivesTheSameValues) {
  ModelConfig config;
  config.hidden_size = kHidden;
  config.vocab_size = kShortVocab;
  LayerOptions options;
  options.activation_dtype = options.weight_dtype = DType::kBF16;
  const RandomStream random(5, "arithmetic head");
  uint64_t n = 0;
  Tensor h(DType::kF32, {kRows, kHidden}), w(DType::kF32, {kShortVocab, kHidden});
  for (float& x : h.mutable_values<float>()) x = static_cast<float>(random.normal(n++));
  for (float& x : w.mutable_values<float>()) x = static_cast<float>(0.4 * random.normal(n++));
  // Equal rows of W: equal logits, of which the first is the likeliest.
  std::memcpy(w.mutable_data() + 300 * kHidden * 4, w.data() + 290 * kHidden * 4, kHidden * 4);
  std::vector<int32_t> targets;
  for (int64_t row = 0; row < kRows; ++row) {
    targets.push_back(static_cast<int32_t>(random.bits(n++) % kShortVocab));
  }
  targets[0] = -1;  // no target
  h = h.to(DType::kBF16);
  w = w.to(DType::kBF16);
  for (int64_t first = 0; first < kShortVocab; first += kChunk) {
    const int64_t columns = std::min(kChunk, kShortVocab - first);
    for (const bool training : {true, false}) {
      Values out[2];
      for (const bool arithmetic : {false, true}) {
        options.arithmetic_head = arithmetic;
        const int64_t chunk = arithmetic ? kChunk : columns;
        Values in = chunk_inputs(config, arithmetic, w, first, targets);
        in["h"] = h;
        if (!arithmetic) in["head.weight"] = w.rows(first, first + columns);
        const Graph graph = training ? ce_grad(config, options, kRows, chunk)
                                     : ce_stats(config, options, kRows, chunk);
        out[arithmetic ? 1 : 0] = run_on("cpu:reference", graph, in);
      }
      for (const auto& [name, value] : out[0]) {
        Tensor got = out[1].at(name);
        if (got.dtype() != value.dtype()) got = got.to(value.dtype());
        for (int64_t i = 0; i < value.size(); ++i) {
          ASSERT_EQ(element(got, i), element(value, i)) << name << " " << i << " from " << first;
        }
      }
    }
  }
}

TEST(ArithmeticHead, PicksTheSameRows) {
  ModelConfig config;
  config.hidden_size = kHidden;
  LayerOptions options;
  options.seq_len = kRows;
  options.activation_dtype = options.weight_dtype = DType::kBF16;
  const std::vector<RowTarget> picked = {{5, 0}, {0, 0}, {63, 0}, {31, 0}};
  const RandomStream random(6, "arithmetic head");
  uint64_t n = 0;
  Tensor x(DType::kF32, {kRows, kHidden}), weight(DType::kF32, {1, kHidden});
  for (float& v : x.mutable_values<float>()) v = static_cast<float>(random.normal(n++));
  for (float& v : weight.mutable_values<float>()) v = static_cast<float>(random.normal(n++));
  Values out[2];
  for (const bool arithmetic : {false, true}) {
    options.arithmetic_head = arithmetic;
    Tensor rows = arithmetic ? Tensor(DType::kBF16, {4, kRows}) : Tensor(DType::kI32, {4});
    loss_row_input(picked, rows);
    out[arithmetic ? 1 : 0] = run_on(
        "cpu:reference", final_norm(config, options, 4),
        {{"x", x.to(DType::kBF16)}, {"norm.weight", weight.to(DType::kBF16)}, {"rows", rows}});
  }
  for (int64_t i = 0; i < 4 * kHidden; ++i) {
    EXPECT_EQ(element(out[1].at("h"), i), element(out[0].at("h"), i)) << i;
  }
}

TEST(ArithmeticHead, ChunksAreEqualAndDivideWell) {
  EXPECT_EQ(vocabulary_chunks(128256, 16384, true), std::vector<int64_t>(8, 16384));
  EXPECT_EQ(vocabulary_chunks(128256, 16384, false), std::vector<int64_t>(8, 16032));
  EXPECT_EQ(vocabulary_chunks(49152, 16384, true), std::vector<int64_t>(3, 16384));
  EXPECT_EQ(vocabulary_chunks(90, 45, true), std::vector<int64_t>(3, 30));
  EXPECT_EQ(vocabulary_chunks(17, 16, true), std::vector<int64_t>(2, 9));
}

}  // namespace
}  // namespace npu
