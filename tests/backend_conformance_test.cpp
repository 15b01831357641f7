// One suite for every registered backend: what it computes against the meaning of the graph. A new
// vendor works down its failures (docs/add-a-backend.md).
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <span>

#include "backend/backend.h"
#include "backend_cases.h"
#include "ops/table.h"
#include "transform/legalise.h"

namespace npu {
namespace {

// ---- bounds ------------------------------------------------------------------------------------

// Largest allowed |result − reference| of a backend, relative to the largest |reference| of the
// output, by family of rows and dtype of the output. The first row that matches counts; "" matches
// all. The reference also adds in f32, one term at a time, so part of each bound is its own error.
struct Bound {
  std::string_view backend, family;
  DType dtype;
  double relative;
};
constexpr double kBf16Step = 0x1p-8, kF16Step = 0x1p-11;  // half a unit in the last place at 1
constexpr Bound kBounds[] = {
    {"cpu:reference", "", DType::kF32, 0},
    {"cpu:reference", "", DType::kBF16, 0},
    {"cpu:reference", "", DType::kF16, 0},
    {"", "movement", DType::kF32, 0},
    {"", "movement", DType::kBF16, 0},
    {"", "movement", DType::kF16, 0},
    // Simulated chips are off by what their profiles say. RNGD: two operands rounded to 8 bits, at
    // worst 2 · 2^-9 of the sum of magnitudes, which is a few times the largest result.
    {"sim:furiosa", "contraction", DType::kF32, 2 * kBf16Step},
    {"sim:furiosa", "contraction", DType::kBF16, 2 * kBf16Step},
    {"sim:furiosa", "layer", DType::kF32, 6 * kBf16Step},
    // ATOM: operands rounded, and results up to two units (four half ones) away from zero;
    // in a layer some forty of these follow each other.
    {"sim:rbln", "layer", DType::kF32, 64 * kBf16Step},
    {"sim:rbln", "", DType::kF32, 5 * kBf16Step},
    {"sim:rbln", "", DType::kBF16, 5 * kBf16Step},
    {"", "contraction", DType::kF32, 2e-6},  // another order of up to a hundred terms of 6e-8 each
    {"", "layer", DType::kF32, 1e-5},        // some ten such products and a softmax in sequence
    {"", "", DType::kF32, 1e-6},             // exp, log and the like by other approximations
    {"", "", DType::kBF16, 2 * kBf16Step},   // the neighbouring value after an f32 difference
    {"", "", DType::kF16, 2 * kF16Step},
};

// Integers and truth values must be equal.
double bound_of(std::string_view backend, std::string_view family, DType dtype) {
  if (!is_float(dtype)) return 0;
  for (const Bound& bound : kBounds) {
    if ((bound.backend.empty() || bound.backend == backend) &&
        (bound.family.empty() || bound.family == family) && bound.dtype == dtype) {
      return bound.relative;
    }
  }
  return 0;
}

void expect_close(const Tensor& result, const Tensor& reference, double bound,
                  const std::string& what) {
  double largest = 0, worst = 0;
  int64_t worst_at = 0;
  for (int64_t i = 0; i < reference.size(); ++i) {
    const double want = element(reference, i), got = element(result, i);
    if (std::isfinite(want)) largest = std::max(largest, std::abs(want));
    double error = std::abs(got - want);
    if (std::isnan(want) && std::isnan(got)) error = 0;
    if (got == want) error = 0;  // infinities
    if (error > worst || std::isnan(error)) {
      worst = error;
      worst_at = i;
      if (std::isnan(error)) break;
    }
  }
  EXPECT_LE(worst, bound * largest)
      << what << " element " << worst_at << ": got " << element(result, worst_at) << ", want "
      << element(reference, worst_at) << ", largest " << largest;
}

// ---- running -----------------------------------------------------------------------------------

constexpr size_t kGuardBytes = 64;
constexpr std::byte kGuard{0xa5};

// A buffer with guard bytes behind the tensor, to catch writes past the end.
std::shared_ptr<Buffer> guarded_buffer(Device& device, const Tensor& content) {
  std::vector<std::byte> bytes(content.bytes() + kGuardBytes, kGuard);
  std::memcpy(bytes.data(), content.data(), content.bytes());
  std::shared_ptr<Buffer> buffer = device.allocate(bytes.size()).take();
  device.upload(*buffer, bytes);
  return buffer;
}

void expect_intact(Device& device, Buffer& buffer, const Tensor* content, size_t tensor_bytes,
                   const std::string& name) {
  std::vector<std::byte> bytes(buffer.bytes());
  device.download(bytes, buffer);
  if (content != nullptr) {
    EXPECT_EQ(std::memcmp(bytes.data(), content->data(), tensor_bytes), 0)
        << name << " was written to";
  }
  EXPECT_TRUE(std::all_of(bytes.begin() + static_cast<std::ptrdiff_t>(tensor_bytes), bytes.end(),
                          [](std::byte b) { return b == kGuard; }))
      << "bytes behind " << name << " were written to";
}

struct Call {
  Device& device;
  Executable& executable;
  const BackendCase& test_case;
  std::string_view backend;
};

// Which inputs of a call are frozen.
enum class Frozen { kNone, kOdd, kEven, kAll };

bool is_frozen(Frozen frozen, size_t input) {
  return frozen == Frozen::kAll ||
         (frozen != Frozen::kNone && (input % 2 == 1) == (frozen == Frozen::kOdd));
}

// One call in new buffers, against the meaning of the graph; `results` gets the outputs.
void run_and_compare(const Call& call, uint64_t seed, std::vector<Tensor>& results,
                     Frozen frozen = Frozen::kNone) {
  const Graph& graph = call.test_case.graph;
  const Inputs inputs = random_inputs(call.test_case, seed);
  const std::vector<Tensor> references = interpret(graph, inputs);
  results.clear();
  std::vector<std::shared_ptr<Buffer>> in, out;
  for (const NodeId id : graph.inputs()) {
    in.push_back(guarded_buffer(call.device, inputs.at(graph.node(id).name)));
    if (is_frozen(frozen, in.size() - 1)) in.back()->freeze();
  }
  for (const Tensor& reference : references) {
    Tensor other(reference.dtype(), reference.shape());
    std::memset(other.mutable_data(), 0x5a, other.bytes());  // not what a result could be by luck
    out.push_back(guarded_buffer(call.device, other));
  }
  std::vector<Buffer*> in_pointers, out_pointers;
  for (const auto& buffer : in) in_pointers.push_back(buffer.get());
  for (const auto& buffer : out) out_pointers.push_back(buffer.get());
  const Result<Device::Ticket> ticket =
      call.device.submit(call.executable, in_pointers, out_pointers);
  ASSERT_TRUE(ticket.ok()) << ticket.error().text();
  const std::optional<Error> failure = call.device.wait(ticket.value());
  ASSERT_FALSE(failure.has_value()) << failure->text();
  for (size_t i = 0; i < out.size(); ++i) {
    const std::string& name = graph.outputs()[i].name;
    Tensor result(references[i].dtype(), references[i].shape());
    call.device.download({result.mutable_data(), result.bytes()}, *out[i]);
    expect_close(result, references[i],
                 bound_of(call.backend, call.test_case.family, result.dtype()), name);
    expect_intact(call.device, *out[i], nullptr, result.bytes(), name);
    results.push_back(std::move(result));
  }
  for (size_t i = 0; i < in.size(); ++i) {
    const std::string& name = graph.node(graph.inputs()[i]).name;
    const Tensor& content = inputs.at(name);
    expect_intact(call.device, *in[i], &content, content.bytes(), name);
  }
}

void expect_same_bits(const std::vector<Tensor>& first, const std::vector<Tensor>& again) {
  for (size_t i = 0; i < first.size(); ++i) {
    EXPECT_EQ(std::memcmp(first[i].data(), again[i].data(), first[i].bytes()), 0)
        << "output " << i << " differs between two calls with equal inputs";
  }
}

bool has_16_bit_type(const Graph& graph) {
  return std::any_of(graph.nodes().begin(), graph.nodes().end(), [](const Node& node) {
    return node.type.dtype == DType::kBF16 || node.type.dtype == DType::kF16;
  });
}

std::optional<std::string> first_refusal(Backend& backend, const Graph& graph) {
  for (size_t id = 0; id < graph.nodes().size(); ++id) {
    auto reason = backend.unsupported(graph, static_cast<NodeId>(id), {});
    if (reason) return reason;
  }
  return std::nullopt;
}

// ---- the suite ---------------------------------------------------------------------------------

// A usable backend with an open device, shared by its tests: opening one may take seconds.
struct OpenBackend {
  std::string name;
  std::unique_ptr<Backend> backend;
  std::unique_ptr<Device> device, prepacking;
};

Device& device_of(OpenBackend& open) {
  if (open.device == nullptr) open.device = open.backend->open({.threads = 2}).take();
  return *open.device;
}
// The same, but it may keep frozen buffers in other forms.
Device& prepacking_device_of(OpenBackend& open) {
  if (open.prepacking == nullptr) {
    open.prepacking = open.backend->open({.threads = 2, .prepack = true}).take();
  }
  return *open.prepacking;
}

class Conformance : public testing::Test {
 public:
  Conformance(std::shared_ptr<OpenBackend> open, std::shared_ptr<const BackendCase> test_case)
      : open_(std::move(open)), case_(std::move(test_case)) {}

  void TestBody() override {
    Device& device = device_of(*open_);
    Backend& backend = *open_->backend;
    const Graph& graph = case_->graph;
    const Traits& traits = backend.traits();
    // A compiler sees graphs with the rewrites that it needs.
    const Graph legal = run_passes(graph, legalise_passes(traits.legalise, traits.name));
    if (const auto reason = first_refusal(backend, legal)) {
      // Only arithmetic in a 16-bit type that the device has not may be refused.
      EXPECT_TRUE(has_16_bit_type(graph)) << *reason;
      EXPECT_NE(reason->find("f16"), std::string::npos) << *reason;
      return;
    }
    const Result<Blob> blob = backend.compile(legal, {.threads = 2, .vendor = {}});
    ASSERT_TRUE(blob.ok()) << blob.error().text();
    const Result<std::unique_ptr<Executable>> executable = device.load(blob.value(), legal);
    ASSERT_TRUE(executable.ok()) << executable.error().text();
    const Call call{device, *executable.value(), *case_, open_->name};
    // Every call binds new buffers; the last one repeats the first.
    std::vector<Tensor> first, results;
    run_and_compare(call, 1, first);
    for (const uint64_t seed : {2, 3, 1}) {
      if (!HasFatalFailure()) run_and_compare(call, seed, results);
    }
    if (!traits.deterministic || HasFatalFailure()) return;
    expect_same_bits(first, results);
  }

 private:
  std::shared_ptr<OpenBackend> open_;
  std::shared_ptr<const BackendCase> case_;
};

// Frozen inputs change nothing that the bounds allow to be seen, nor a bit between two calls.
class Prepacked : public testing::Test {
 public:
  Prepacked(std::shared_ptr<OpenBackend> open, std::shared_ptr<const BackendCase> test_case)
      : open_(std::move(open)), case_(std::move(test_case)) {}

  void TestBody() override {
    Device& device = prepacking_device_of(*open_);
    Backend& backend = *open_->backend;
    const Traits& traits = backend.traits();
    const Graph legal = run_passes(case_->graph, legalise_passes(traits.legalise, traits.name));
    if (first_refusal(backend, legal)) return;  // Conformance judges whether rightly
    const Blob blob = backend.compile(legal, {.threads = 2, .vendor = {}}).take();
    const auto executable = device.load(blob, legal).take();
    const Call call{device, *executable, *case_, open_->name};
    std::vector<Tensor> first, results;
    run_and_compare(call, 1, first, Frozen::kOdd);
    for (const Frozen frozen : {Frozen::kEven, Frozen::kAll, Frozen::kNone, Frozen::kOdd}) {
      if (!HasFatalFailure()) run_and_compare(call, 1, results, frozen);
    }
    if (!traits.deterministic || HasFatalFailure()) return;
    expect_same_bits(first, results);
  }

 private:
  std::shared_ptr<OpenBackend> open_;
  std::shared_ptr<const BackendCase> case_;
};

// What the rest of the program relies on in a device's memory.
class Buffers : public testing::Test {
 public:
  explicit Buffers(std::shared_ptr<OpenBackend> open) : open_(std::move(open)) {}

  void TestBody() override {
    Device& device = device_of(*open_);
    const bool host = open_->backend->traits().host_memory;
    const auto whole = device.allocate(300).take();
    EXPECT_EQ(whole->bytes(), 300u);
    EXPECT_TRUE(!host || whole->host_pointer() != nullptr);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(whole->host_pointer()) % kBufferAlignment, 0u);
    std::vector<std::byte> bytes(300, std::byte{1});
    device.download(bytes, *whole);
    EXPECT_EQ(bytes, std::vector<std::byte>(300)) << "new memory is zero";

    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i);
    device.upload(*whole, bytes);
    const auto window = device.view(whole, 64, 100);
    std::vector<std::byte> part(100);
    device.download(part, *window);
    EXPECT_TRUE(std::equal(part.begin(), part.end(), bytes.begin() + 64));
    device.upload(*window, std::vector<std::byte>(100, std::byte{7}));
    device.download(bytes, *whole);
    EXPECT_EQ(bytes[63], std::byte{63});
    EXPECT_EQ(bytes[64], std::byte{7});
    EXPECT_EQ(bytes[164], std::byte{164});

    // Weights lie in files at any address: row 1 of this tensor is at an odd multiple of 4.
    const Tensor rows = Tensor::from_f32({2, 3}, std::vector<float>{1, 2, 3, 4, 5, 6}).rows(1, 2);
    const auto adopted = device.adopt(rows).take();
    std::vector<float> read(3);
    device.download(std::as_writable_bytes(std::span(read)), *adopted);
    EXPECT_EQ(read, (std::vector<float>{4, 5, 6}));
  }

 private:
  std::shared_ptr<OpenBackend> open_;
};

std::string test_name(std::string name) {
  for (char& c : name) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
  }
  return name;
}

// Returns the opened backends, to be closed before exit: runtimes tear down their own state then.
std::vector<std::shared_ptr<OpenBackend>> register_cases() {
  std::vector<std::shared_ptr<OpenBackend>> opened;
  std::vector<std::shared_ptr<const BackendCase>> cases;
  for (const auto& list : {row_cases(), layer_cases(), binding_cases()}) {
    for (const BackendCase& test_case : list) {
      cases.push_back(std::make_shared<const BackendCase>(test_case));
    }
  }
  for (const BackendEntry& entry : backend_entries()) {
    if (const auto absent = entry.probe()) {
      std::printf("no cases for %s\n", absent->text().c_str());
      continue;
    }
    auto open = std::make_shared<OpenBackend>();
    open->name = entry.pattern;
    open->backend = entry.make();
    opened.push_back(open);
    testing::RegisterTest(("Buffers_" + test_name(open->name)).c_str(), "round_trip", nullptr,
                          nullptr, __FILE__, __LINE__,
                          [open]() -> Buffers* { return new Buffers(open); });
    for (const auto& test_case : cases) {
      testing::RegisterTest(
          ("Conformance_" + test_name(open->name)).c_str(), test_case->name.c_str(), nullptr,
          nullptr, __FILE__, __LINE__,
          [open, test_case]() -> Conformance* { return new Conformance(open, test_case); });
      if (open->backend->traits().prepack == Prepack::kNever) continue;
      if (test_case->graph.num_contractions() == 0) continue;  // devices keep forms for products
      testing::RegisterTest(
          ("Prepacked_" + test_name(open->name)).c_str(), test_case->name.c_str(), nullptr, nullptr,
          __FILE__, __LINE__,
          [open, test_case]() -> Prepacked* { return new Prepacked(open, test_case); });
    }
  }
  return opened;
}

// NPU_EXPECT_BACKENDS lists the backends that this machine must have ("openvino:CPU,cpu"): without
// it, a missing library would only make the suite shorter.
TEST(Backends, ExpectedOnesAreUsable) {
  const char* expected = std::getenv("NPU_EXPECT_BACKENDS");
  const std::string list = expected == nullptr ? "cpu,cpu:reference" : expected;
  for (size_t begin = 0; begin < list.size();) {
    const size_t end = std::min(list.find(',', begin), list.size());
    const std::string name = list.substr(begin, end - begin);
    begin = end + 1;
    const auto entries = backend_entries();
    const auto entry = std::find_if(entries.begin(), entries.end(),
                                    [&](const BackendEntry& e) { return e.pattern == name; });
    ASSERT_NE(entry, entries.end()) << name << " is not a backend";
    const auto absent = entry->probe();
    EXPECT_FALSE(absent.has_value()) << absent->text();
  }
}

}  // namespace
}  // namespace npu

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  const auto opened = npu::register_cases();
  const int failed = RUN_ALL_TESTS();
  for (const auto& open : opened) {
    open->prepacking.reset();
    open->device.reset();
    open->backend.reset();
  }
  return failed;
}
