// The ONNX Runtime backend when things go wrong: no library, a wrong one, one that computes or
// numbers its types otherwise, missing providers, damaged blobs, wrong buffers. A fake library
// stands in, so no ONNX Runtime is needed.
#include "backend/ort.h"

#include <gtest/gtest.h>

#include "backend/graph_writers.h"
#include "backend/ort_api.h"
#include "ops/ops.h"
#include "transform/passes.h"
#include "vendor_library.h"

namespace npu {
namespace {

fs::path fake(const std::string& name) {
  return fs::path(NPU_FAKE_DIR) / ("libfake_onnxruntime" + name + ".so");
}
std::unique_ptr<Backend> backend_of(const std::string& name, const std::string& provider = "") {
  return make_ort(provider, fake(name));
}

TEST(Ort, LibraryThatIsAbsentIsAnErrorWithAHint) {
  const auto backend = make_ort("", "/nowhere/libonnxruntime.so.1");
  const std::string text = error_text(backend->compiler_version());
  EXPECT_TRUE(contains(text, "/nowhere/libonnxruntime.so.1")) << text;
  EXPECT_TRUE(contains(text, "pip install onnxruntime")) << text;
  EXPECT_FALSE(backend->open({}).ok());
  EXPECT_FALSE(backend->compile(product_graph(), {}).ok());
}

TEST(Ort, LibraryOfAnotherKindIsAnError) {
  const auto backend = make_ort("", fs::path(NPU_FAKE_DIR) / "libfake_openvino.so");
  EXPECT_TRUE(contains(error_text(backend->open({})), "is not ONNX Runtime's library"));
}

TEST(Ort, ReleaseThatIsTooOldNamesItsVersion) {
  const std::string text = error_text(backend_of("_old")->compiler_version());
  EXPECT_TRUE(contains(text, "must be release 1.14 or later; got 0.0-fake")) << text;
}

TEST(Ort, WorkingLibraryPassesItsChecks) {
  const auto backend = backend_of("");
  EXPECT_EQ(backend->compiler_version().take(), "onnxruntime 0.0-fake CPU, ONNX form 2");
  const auto device = backend->open({});
  EXPECT_TRUE(device.ok()) << device.error().text();
  EXPECT_FALSE(probe_ort("", fake("")).has_value());
}

TEST(Ort, ProviderThatTheLibraryLacksIsNotUsable) {
  const auto absent = probe_ort("QNN", fake(""));
  ASSERT_TRUE(absent.has_value());
  EXPECT_EQ(absent->where, "ort:QNN");
  EXPECT_TRUE(contains(absent->text(), "CPUExecutionProvider")) << absent->text();
  EXPECT_FALSE(backend_of("", "QNN")->open({}).ok());
  const std::string text = error_text(backend_of("", "QNN")->compile(product_graph(), {}));
  EXPECT_TRUE(contains(text, "provider QNN is not in this build")) << text;
}

TEST(Ort, RoundingInsideProductsIsFound) {
  const std::string text = error_text(backend_of("_rounds")->open({}));
  EXPECT_TRUE(contains(text, "must multiply in f32")) << text;
}

TEST(Ort, RenumberedElementTypesAreFound) {
  const std::string text = error_text(backend_of("_renumbered")->open({}));
  EXPECT_TRUE(contains(text, "must be f32[16,64]")) << text;
  EXPECT_TRUE(contains(text, "element type 11")) << text;
}

TEST(Ort, RefusalCarriesTheLibrarysMessageOnOneLine) {
  const std::string text = error_text(backend_of("_refusing")->compile(product_graph(), {}));
  EXPECT_TRUE(contains(text, "the fake says no")) << text;
}

TEST(Ort, VendorOptionThatIsRefusedIsNamed) {
  const auto backend = backend_of("");
  EXPECT_TRUE(
      backend->compile(product_graph(), {.threads = 2, .vendor = {{"some.key", "1"}}}).ok());
  const std::string text = error_text(
      backend->compile(product_graph(), {.threads = 2, .vendor = {{"no.such.key", "1"}}}));
  EXPECT_TRUE(contains(text, "setting no.such.key failed")) << text;
}

TEST(Ort, FailedCallIsRetriable) {
  const auto device = backend_of("_failing")->open({});
  ASSERT_FALSE(device.ok());  // its proof can't run
  EXPECT_EQ(device.error().kind, ErrorKind::kRetriable);
  EXPECT_TRUE(contains(device.error().text(), "the device is gone")) << device.error().text();
}

TEST(Ort, DamagedBlobsAreErrors) { expect_damaged_blobs_are_errors(*backend_of("")); }

TEST(Ort, BuffersThatAreTooSmallAreErrors) {
  expect_small_buffers_are_errors(*backend_of(""), "w", "y");
}

TEST(Ort, FrozenWeightsAreConstants) { expect_constants_of_frozen_weights(*backend_of("")); }

TEST(Ort, RoundingOfConstantsIsFound) {
  expect_rounding_of_constants_is_found(*backend_of("_rounds_constants"));
}

TEST(Ort, RefusalOfConstantsEndsTheCall) {
  expect_refusal_of_constants_ends_the_call(*backend_of("_refusing_constants"));
}

TEST(Ort, SixteenBitArithmeticIsRefusedWithItsReason) {
  const auto backend = backend_of("");
  Builder b("mixed");
  const Value w = b.input("w", {DType::kBF16, {4, 4}});
  b.output("sum", ops::add(w, w));
  b.output("wide", ops::convert(w, DType::kF32));
  b.output("moved", ops::transpose(w, {1, 0}));
  const Graph graph = std::move(b).build();
  int refused = 0;
  for (size_t id = 0; id < graph.nodes().size(); ++id) {
    const auto reason = backend->unsupported(graph, static_cast<NodeId>(id), {});
    if (!reason) continue;
    ++refused;
    EXPECT_EQ(*reason, "ort computes in f32, not in bf16");
  }
  EXPECT_EQ(refused, 1);
}

// What ONNX Runtime runs faster as one node is written as one.
TEST(Onnx, SoftmaxIsOneNode) {
  Builder b("softmax");
  const Value x = b.input("x", {DType::kF32, {2, 3, 5}});
  b.output("y", ops::softmax(x));
  const std::string onnx = write_onnx(run_passes(std::move(b).build(), default_passes()));
  EXPECT_TRUE(contains(onnx, "Softmax"));
  EXPECT_FALSE(contains(onnx, "Exp")) << "nothing reads it any more";
}

TEST(Onnx, NodesOfAPatternStayWhereOthersReadThem) {
  Builder b("softmax");
  const Value x = b.input("x", {DType::kF32, {3, 5}});
  const Value weights = ops::exp(ops::sub(x, ops::reduce_max(x, {1})));
  b.output("weights", weights);
  b.output("y", ops::div(weights, ops::reduce_sum(weights, {1})));
  b.output("columns", ops::div(weights, ops::reduce_sum(weights, {0})));
  const std::string onnx = write_onnx(std::move(b).build());
  EXPECT_TRUE(contains(onnx, "Softmax"));
  EXPECT_TRUE(contains(onnx, "Exp"));
  EXPECT_TRUE(contains(onnx, "Div")) << "sums over other dimensions are no softmax";
}

TEST(Onnx, TargetsAreReadAndWrittenAlone) {
  Builder b("targets");
  const Value x = b.input("x", {DType::kF32, {3, 50}});
  const Value target = b.input("target", {DType::kI32, {3, 1}});
  const Value is_target = ops::compare(target, ops::iota(b, {DType::kI32, {1, 50}}, 1), "eq");
  const Value zero = ops::constant(b, {DType::kF32, {1, 1}}, 0.0);
  b.output("others", ops::select(is_target, zero, x));
  b.output("at", ops::reduce_sum(ops::select(is_target, x, zero), {1}));
  const std::string onnx = write_onnx(std::move(b).build());
  EXPECT_TRUE(contains(onnx, "ScatterElements"));
  EXPECT_TRUE(contains(onnx, "GatherElements"));
  EXPECT_FALSE(contains(onnx, "ReduceSum"));
}

}  // namespace
}  // namespace npu
