// The OpenVINO backend when things go wrong: no library, a wrong one, one that computes or numbers
// its types otherwise, damaged blobs, wrong buffers. A fake library stands in, so no OpenVINO is
// needed.
#include <gtest/gtest.h>

#include <cstdlib>

#include "backend/openvino.h"
#include "backend/openvino_api.h"
#include "backend/sealed_blob.h"
#include "ops/ops.h"
#include "vendor_library.h"

namespace npu {
namespace {

std::unique_ptr<Backend> backend_of(const std::string& fake) {
  return make_openvino(OpenVinoDevice::kCpu, fs::path(NPU_FAKE_DIR) / ("lib" + fake + ".so"));
}

// Sets an environment variable for the length of a test.
class Environment {
 public:
  Environment(const char* name, const std::string& value) : name_(name) {
    if (const char* old = std::getenv(name)) old_ = old;
    setenv(name, value.c_str(), 1);
  }
  ~Environment() { old_ ? setenv(name_, old_->c_str(), 1) : unsetenv(name_); }

 private:
  const char* name_;
  std::optional<std::string> old_;
};

TEST(OpenVino, LibraryThatIsAbsentIsAnErrorWithAHint) {
  const auto backend = make_openvino(OpenVinoDevice::kCpu, "/nowhere/libopenvino_c.so.1");
  const std::string text = error_text(backend->compiler_version());
  EXPECT_TRUE(contains(text, "/nowhere/libopenvino_c.so.1")) << text;
  EXPECT_TRUE(contains(text, "pip install openvino")) << text;
  EXPECT_FALSE(backend->open({}).ok());
  EXPECT_FALSE(backend->compile(product_graph(), {}).ok());
}

TEST(OpenVino, LibraryWithoutTheFunctionsNamesThem) {
  const std::string text = error_text(backend_of("fake_openvino_lacking")->compiler_version());
  EXPECT_TRUE(contains(text, "ov_core_create")) << text;
  EXPECT_FALSE(contains(text, "ov_get_openvino_version")) << text;
}

TEST(OpenVino, FileThatIsNoLibraryIsAnError) {
  const TempDir directory;
  publish_text(directory.path() / "libopenvino_c.so.2641", "not a library");
  const auto backend =
      make_openvino(OpenVinoDevice::kCpu, directory.path() / "libopenvino_c.so.2641");
  EXPECT_TRUE(contains(error_text(backend->open({})), "cannot be loaded"));
}

TEST(OpenVino, WorkingLibraryPassesItsChecks) {
  const auto backend = backend_of("fake_openvino");
  EXPECT_EQ(backend->compiler_version().take(), "openvino 0.0-fake CPU");
  const auto device = backend->open({});
  EXPECT_TRUE(device.ok()) << device.error().text();
}

TEST(OpenVino, DeviceThatTheLibraryDoesNotKnowIsNotUsable) {
  const fs::path library = fs::path(NPU_FAKE_DIR) / "libfake_openvino.so";
  EXPECT_FALSE(probe_openvino(OpenVinoDevice::kCpu, library).has_value());
  const auto absent = probe_openvino(OpenVinoDevice::kNpu, library);
  ASSERT_TRUE(absent.has_value());
  EXPECT_EQ(absent->where, "openvino:NPU");
}

TEST(OpenVino, OtherPrecisionIsRefusedAtCompileAndOpen) {
  const auto backend = backend_of("fake_openvino_reads_bf16");
  const std::string text = error_text(backend->compile(product_graph(), {}));
  EXPECT_TRUE(contains(text, "must compute in f32")) << text;
  EXPECT_TRUE(contains(text, "bf16")) << text;
  EXPECT_FALSE(backend->open({}).ok());
}

TEST(OpenVino, RoundingBehindTheHintIsFound) {
  const std::string text = error_text(backend_of("fake_openvino_rounds")->open({}));
  EXPECT_TRUE(contains(text, "must multiply in f32")) << text;
}

TEST(OpenVino, RenumberedElementTypesAreFound) {
  const std::string text = error_text(backend_of("fake_openvino_renumbered")->open({}));
  EXPECT_TRUE(contains(text, "must be f32[16,64]")) << text;
  EXPECT_TRUE(contains(text, "element type 5")) << text;
}

TEST(OpenVino, RefusalCarriesTheLibrarysMessageOnOneLine) {
  const std::string text =
      error_text(backend_of("fake_openvino_refusing")->compile(product_graph(), {}));
  EXPECT_TRUE(contains(text, "got general error: the fake says no")) << text;
}

TEST(OpenVino, UnknownVendorOptionIsAnErrorThatNamesIt) {
  const auto backend = backend_of("fake_openvino");
  EXPECT_TRUE(
      backend->compile(product_graph(), {.threads = 2, .vendor = {{"SOME_KEY", "1"}}}).ok());
  const std::string text = error_text(
      backend->compile(product_graph(), {.threads = 2, .vendor = {{"NO_SUCH_KEY", "1"}}}));
  EXPECT_TRUE(contains(text, "NO_SUCH_KEY=1")) << text;
}

TEST(OpenVino, DamagedBlobsAreErrors) {
  expect_damaged_blobs_are_errors(*backend_of("fake_openvino"));
}

TEST(OpenVino, BlobOfAnotherReleaseIsAnError) {
  const Blob blob = seal_blob("openvino", "1.0", "bytes");
  EXPECT_EQ(unseal_blob("openvino", "1.0", blob).take(), "bytes");
  EXPECT_TRUE(
      contains(error_text(unseal_blob("openvino", "1.1", blob)), "must be made by openvino 1.1"));
}

TEST(OpenVino, BuffersThatAreTooSmallAreErrors) {
  expect_small_buffers_are_errors(*backend_of("fake_openvino"), "input 1", "output 0");
}

TEST(OpenVino, FrozenWeightsAreConstants) {
  expect_constants_of_frozen_weights(*backend_of("fake_openvino"));
}

TEST(OpenVino, RoundingOfConstantsIsFound) {
  expect_rounding_of_constants_is_found(*backend_of("fake_openvino_rounds_constants"));
}

TEST(OpenVino, RefusalOfConstantsEndsTheCall) {
  expect_refusal_of_constants_ends_the_call(*backend_of("fake_openvino_refusing_constants"));
}

TEST(OpenVino, SixteenBitArithmeticIsRefusedWithItsReason) {
  const auto backend = backend_of("fake_openvino");
  Builder b("mixed");
  const Value w = b.input("w", {DType::kBF16, {4, 4}});
  const Value wide = ops::convert(w, DType::kF32);
  const Value narrow_sum = ops::add(w, w);
  const Value rounded = ops::convert(ops::convert(wide, DType::kBF16), DType::kF32);
  const Value out = ops::convert(ops::neg(wide), DType::kF16);
  const Value moved = ops::transpose(w, {1, 0});
  b.output("narrow_sum", narrow_sum);
  b.output("rounded", rounded);
  b.output("out", out);
  b.output("moved", moved);
  const Graph graph = std::move(b).build();
  int refused = 0;
  for (size_t id = 0; id < graph.nodes().size(); ++id) {
    const auto reason = backend->unsupported(graph, static_cast<NodeId>(id), {});
    if (!reason) continue;
    ++refused;
    EXPECT_TRUE(contains(*reason, "bf16")) << *reason;
  }
  // The bf16 sum, and the rounding to bf16 whose result is used further (its widening is not
  // refused).
  EXPECT_EQ(refused, 2);
}

// ---- finding the library -----------------------------------------------------------------------

void make_library(const fs::path& path) {
  fs::create_directories(path.parent_path());
  publish_text(path, "");
}

TEST(OpenVinoSearch, NewestReleaseOfAllPlacesWins) {
  const TempDir home;
  const std::string packages = "lib/python3.11/site-packages/openvino/libs/";
  make_library(home.path() / "venv" / packages / "libopenvino_c.so.9991");
  make_library(home.path() / "venv" / packages / "libopenvino_c.so");
  make_library(home.path() / "other" / "libopenvino_c.so.2099.10.2");
  make_library(home.path() / "other" / "libopenvino.so.9999");
  const Environment venv("VIRTUAL_ENV", home.path() / "venv");
  const Environment paths("LD_LIBRARY_PATH", ":/nowhere:" + (home.path() / "other").string());
  const Environment unset("NPU_LORA_OPENVINO", "");
  const auto libraries = search_library(kOpenVinoLibrary).libraries;
  ASSERT_GE(libraries.size(), 3u);
  EXPECT_EQ(libraries[0].filename(), "libopenvino_c.so.2099.10.2");  // 99.10.2 before 99.9.1
  EXPECT_EQ(libraries[1].filename(), "libopenvino_c.so.9991");
  EXPECT_EQ(libraries.back().filename(), "libopenvino_c.so");
  EXPECT_EQ(find_library(kOpenVinoLibrary).take(), libraries[0]);
}

TEST(OpenVinoSearch, NamedFileOrDirectoryGoesFirst) {
  const TempDir home;
  make_library(home.path() / "libopenvino_c.so.2400");
  make_library(home.path() / "libopenvino_c.so.2410");
  {
    const Environment named("NPU_LORA_OPENVINO", home.path() / "libopenvino_c.so.2400");
    EXPECT_EQ(find_library(kOpenVinoLibrary).take().filename(), "libopenvino_c.so.2400");
  }
  {
    const Environment named("NPU_LORA_OPENVINO", home.path());
    EXPECT_EQ(find_library(kOpenVinoLibrary).take().filename(), "libopenvino_c.so.2410");
  }
  for (const char* wrong : {"absent.so", "empty"}) {
    fs::create_directories(home.path() / "empty");
    const Environment named("NPU_LORA_OPENVINO", home.path() / wrong);
    const std::string text = error_text(find_library(kOpenVinoLibrary));
    EXPECT_TRUE(contains(text, "NPU_LORA_OPENVINO")) << text;
    EXPECT_TRUE(contains(text, "pip install openvino")) << text;
  }
}

}  // namespace
}  // namespace npu
