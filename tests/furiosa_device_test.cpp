// RNGD cards through both workers, over stand-ins of the vendor's runtimes: calls and memory as on
// the simulated chip, bit for bit.
#include "backend/furiosa_device.h"

#include <gtest/gtest.h>

#include <cstring>

#include "backend/furiosa_blob.h"
#include "backend/furiosa_session.h"
#include "backend/furiosa_setup.h"
#include "backend_cases.h"
#include "furiosa_cards.h"
#include "ops/ops.h"
#include "tools/fake_rngd.h"
#include "transform/legalise.h"

namespace npu {
namespace {

class Cards : public testing::TestWithParam<FakeRuntime> {
 protected:
  Cards() : cards(GetParam()) {}
  static std::unique_ptr<Device> open(const std::string& which = "auto") {
    return open_furiosa_device(which, {}).take();
  }
  FakeCards cards;
};
INSTANTIATE_TEST_SUITE_P(Both, Cards, testing::Values(FakeRuntime::kNative, FakeRuntime::kPython),
                         [](const auto& test) { return runtime_name(test.param); });

std::vector<std::byte> numbered(size_t bytes) {
  std::vector<std::byte> result(bytes);
  for (size_t i = 0; i < bytes; ++i) result[i] = static_cast<std::byte>(i * 7 + i / 251);
  return result;
}

std::vector<std::byte> content(Device& device, Buffer& buffer) {
  std::vector<std::byte> bytes(buffer.bytes());
  device.download(bytes, buffer);
  return bytes;
}

// The outputs of one call, each as its bytes.
Result<std::vector<std::vector<std::byte>>> outputs_of(Device& device, Executable& executable,
                                                       const Graph& part, const Inputs& values) {
  std::vector<std::shared_ptr<Buffer>> owned;
  std::vector<Buffer*> inputs, outputs;
  for (const NodeId id : part.inputs()) {
    owned.push_back(device.adopt(values.at(part.node(id).name)).take());
    inputs.push_back(owned.back().get());
  }
  for (const GraphOutput& output : part.outputs()) {
    const auto bytes = static_cast<size_t>(part.node(output.node).type.bytes());
    owned.push_back(device.allocate(bytes).take());
    outputs.push_back(owned.back().get());
  }
  const auto ticket = device.submit(executable, inputs, outputs);
  if (!ticket) return ticket.error();
  if (auto error = device.wait(ticket.value())) return std::move(*error);
  std::vector<std::vector<std::byte>> results;
  for (Buffer* output : outputs) results.push_back(content(device, *output));
  return results;
}

TEST_P(Cards, ComputeAsTheSimulatedChipDoes) {
  const auto device = open();
  const auto simulator = make_backend("sim:furiosa").take();
  const auto simulated = simulator->open({.threads = 1}).take();
  const auto passes = legalise_passes(simulator->traits().legalise, "sim:furiosa");
  int cases = 0;
  for (const auto& list : {row_cases(), layer_cases(), binding_cases()}) {
    for (const BackendCase& test_case : list) {
      const Graph part = run_passes(test_case.graph, passes);
      const auto blob = simulator->compile(part, {});
      if (!blob) continue;  // 16-bit types that the chip has not
      const auto executable = device->load(fake_blob(part), part).take();
      const auto expected = simulated->load(blob.value(), part).take();
      const Inputs values = random_inputs(test_case, 1);
      const auto got = outputs_of(*device, *executable, part, values);
      ASSERT_TRUE(got.ok()) << test_case.name << ": " << got.error().text();
      EXPECT_EQ(got.value(), outputs_of(*simulated, *expected, part, values).value())
          << test_case.name;
      ++cases;
    }
  }
  EXPECT_GT(cases, 60);
}

TEST_P(Cards, MemoryIsZeroAtFirstAndKeepsWhatIsWritten) {
  const auto device = open();
  const auto whole = device->allocate(256).take();
  EXPECT_EQ(whole->bytes(), 256u);
  EXPECT_EQ(whole->host_pointer(), nullptr);
  EXPECT_EQ(content(*device, *whole), std::vector<std::byte>(256));
  const std::vector<std::byte> bytes = numbered(256);
  device->upload(*whole, bytes);
  EXPECT_EQ(content(*device, *whole), bytes);
  // A window into a window, and a write through it.
  const auto window = device->view(device->view(whole, 32, 200), 32, 100);
  EXPECT_EQ(content(*device, *window), std::vector(bytes.begin() + 64, bytes.begin() + 164));
  device->upload(*window, std::vector<std::byte>(100, std::byte{7}));
  const std::vector<std::byte> after = content(*device, *whole);
  EXPECT_EQ(after[63], bytes[63]);
  EXPECT_EQ(after[64], std::byte{7});
  EXPECT_EQ(after[163], std::byte{7});
  EXPECT_EQ(after[164], bytes[164]);
  EXPECT_EQ(device->allocate(0).take()->bytes(), 0u);
}

// More than the shared memory holds, in uneven pieces.
TEST_P(Cards, MovesMuch) {
  furiosa::DeviceSettings settings;
  settings.cards = {0};
  settings.worker = furiosa::worker_program().take();
  settings.limits.staging_bytes = 64 << 10;
  const auto device = furiosa::open_device(settings).take();
  const std::vector<std::byte> bytes = numbered((1 << 20) + 12345);
  const auto buffer = device->allocate(bytes.size()).take();
  EXPECT_EQ(content(*device, *buffer), std::vector<std::byte>(bytes.size()));
  device->upload(*buffer, bytes);
  EXPECT_EQ(content(*device, *buffer), bytes);
}

Graph doubling(const std::string& name, int64_t size = 64) {
  Builder b(name);
  const Value x = b.input("x", {DType::kF32, {size}});
  b.output("y", ops::add(x, x));
  return std::move(b).build();
}

float first_value(Device& device, Buffer& buffer) {
  float value = 0;
  device.download(std::as_writable_bytes(std::span(&value, 1)), buffer);
  return value;
}

// Calls keep their order without being waited for, across two parts, in windows of one buffer that
// is written by the host between them.
TEST_P(Cards, CallsRunInOrder) {
  const auto device = open();
  Builder b("subtract");
  const Value x = b.input("x", {DType::kF32, {8, 8}});
  const Value one = b.input("one", {DType::kF32, {8, 8}});
  b.output("y", ops::sub(x, one));
  const Graph subtracting = std::move(b).build(), adding = doubling("double");
  const auto twice = device->load(fake_blob(adding), adding).take();
  const auto less = device->load(fake_blob(subtracting), subtracting).take();
  const auto arena = device->allocate(3 * 256).take();
  const auto even = device->view(arena, 0, 256), odd = device->view(arena, 256, 256);
  const auto ones = device->view(arena, 512, 256);
  const std::vector<float> values(64, 1.5f), one_values(64, 1.0f);
  device->upload(*even, std::as_bytes(std::span(values)));
  device->upload(*ones, std::as_bytes(std::span(one_values)));
  std::vector<Device::Ticket> tickets;
  float expected = 1.5f;
  for (int i = 0; i < 20; ++i) {
    Buffer* const start[] = {even.get()};
    Buffer* const middle[] = {odd.get()};
    Buffer* const operands[] = {odd.get(), ones.get()};
    tickets.push_back(device->submit(*twice, start, middle).take());
    tickets.push_back(device->submit(*less, operands, start).take());
    expected = 2 * expected - 1;
  }
  EXPECT_EQ(first_value(*device, *even), expected) << "a download is after the calls before it";
  for (const Device::Ticket ticket : tickets) EXPECT_FALSE(device->wait(ticket).has_value());
}

// Far more than sockets hold: neither side may wait for the other.
TEST_P(Cards, TakeManyCallsAtOnce) {
  const auto device = open();
  const Graph part = doubling("double", 1);
  const auto twice = device->load(fake_blob(part), part).take();
  const auto x = device->adopt(Tensor::from_f32({1}, std::vector<float>{1})).take();
  const auto y = device->allocate(4).take();
  Buffer* const inputs[] = {x.get()};
  Buffer* const outputs[] = {y.get()};
  std::vector<Device::Ticket> tickets;
  for (int i = 0; i < 3000; ++i) tickets.push_back(device->submit(*twice, inputs, outputs).take());
  for (const Device::Ticket ticket : tickets) EXPECT_FALSE(device->wait(ticket).has_value());
  EXPECT_EQ(first_value(*device, *y), 2);
}

TEST_P(Cards, BuffersAndPartsMayOutliveTheDevice) {
  auto device = open();
  const Graph part = doubling("double");
  auto twice = device->load(fake_blob(part), part).take();
  auto buffer = device->allocate(256).take();
  auto window = device->view(buffer, 0, 128);
  buffer = nullptr;
  device = nullptr;
  window = nullptr;
  twice = nullptr;
  const auto again = open();
  EXPECT_EQ(content(*again, *again->allocate(4).take()).size(), 4u) << "the card is free";
}

TEST_P(Cards, PortsGoByName) {
  const auto device = open();
  Builder b("part");
  const Value x = b.input("x", {DType::kF32, {4}});
  const Value y = b.input("y", {DType::kF32, {4}});
  const Value unused = b.input("unused", {DType::kF32, {4}});
  b.output("d", ops::sub(x, y));
  b.output("s", ops::add(x, y));
  (void)unused;
  const Graph part = std::move(b).build();
  // As a compiler may do: another order, and no port for what nothing reads.
  Builder c("compiled");
  const Value cy = c.input("y", {DType::kF32, {4}});
  const Value cx = c.input("x", {DType::kF32, {4}});
  c.output("s", ops::add(cx, cy));
  c.output("d", ops::sub(cx, cy));
  const Blob blob = fake_blob(std::move(c).build());
  const auto executable = device->load(blob, part).take();
  Inputs values;
  values["x"] = Tensor::from_f32({4}, std::vector<float>(4, 5));
  values["y"] = Tensor::from_f32({4}, std::vector<float>(4, 2));
  values["unused"] = values["x"];
  const auto outputs = outputs_of(*device, *executable, part, values).take();
  float d = 0, s = 0;
  std::memcpy(&d, outputs[0].data(), 4);
  std::memcpy(&s, outputs[1].data(), 4);
  EXPECT_EQ(d, 3);
  EXPECT_EQ(s, 7);
  const auto missing = device->load(blob, doubling("double"));
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.error().kind, ErrorKind::kBadInput);
  EXPECT_EQ(missing.error().text(),
            "furiosa blob: the part has no such input; got port \"y\"; hint: clear the compile "
            "cache");
}

TEST_P(Cards, SmallBuffersAreErrors) {
  const auto device = open();
  const Graph part = doubling("double");
  const auto twice = device->load(fake_blob(part), part).take();
  const auto good = device->allocate(256).take(), small = device->allocate(255).take();
  Buffer* const fits[] = {good.get()};
  Buffer* const short_one[] = {small.get()};
  for (const auto& [in, out] : {std::pair(short_one, fits), std::pair(fits, short_one)}) {
    const auto ticket = device->submit(*twice, std::span(in, 1), std::span(out, 1));
    ASSERT_FALSE(ticket.ok());
    EXPECT_NE(ticket.error().text().find("needs 256 bytes; got 255"), std::string::npos);
  }
}

// A card is opened for as many PEs as its first part wants.
TEST_P(Cards, PesFollowTheTarget) {
  const auto device = open();
  const Graph part = doubling("double");
  for (const char* target : {"renegade", "renegade-4pe", "renegade-8pe"}) {
    const auto executable = device->load(fake_blob(part, target), part).take();
    Inputs values;
    values["x"] = Tensor::from_f32({64}, std::vector<float>(64, 3));
    EXPECT_TRUE(outputs_of(*device, *executable, part, values).ok()) << target;
  }
  const auto held = device->load(fake_blob(part, "renegade-2pe"), part).take();
  const auto other = device->load(fake_blob(part, "renegade"), part);
  ASSERT_FALSE(other.ok());
  EXPECT_EQ(other.error().text(),
            "furiosa:0: the part is compiled for another number of PEs; got 1, the card is in use "
            "with 2; hint: compile all parts for one target");
}

TEST(PythonCards, OlderReleasesAreKnownByTheirNames) {
  FakeCards cards(FakeRuntime::kPython);
  cards.variables.set("FAKE_RNGD_RELEASE", "2026.2");
  const auto device = open_furiosa_device("1", {}).take();
  const Graph part = doubling("double");
  const auto twice = device->load(fake_blob(part), part).take();
  Inputs values;
  values["x"] = Tensor::from_f32({64}, std::vector<float>(64, 3));
  const auto outputs = outputs_of(*device, *twice, part, values).take();
  float first = 0;
  std::memcpy(&first, outputs[0].data(), 4);
  EXPECT_EQ(first, 6);
}

// A release whose tensors on the card have no views costs time, nothing else.
TEST(PythonCards, ViewsAreNotNeeded) {
  FakeCards cards(FakeRuntime::kPython);
  cards.misbehave("no_views");
  const auto device = open_furiosa_device("auto", {}).take();
  const Graph flat = doubling("flat", 64);
  Builder b("square");
  const Value x = b.input("x", {DType::kF32, {1, 8, 8}});
  b.output("y", ops::add(x, x));
  const Graph square = std::move(b).build();
  const auto first = device->load(fake_blob(flat), flat).take();
  const auto second = device->load(fake_blob(square), square).take();
  const auto buffer = device->adopt(Tensor::from_f32({64}, std::vector<float>(64, 1))).take();
  Buffer* const both[] = {buffer.get()};
  for (int i = 0; i < 3; ++i) {
    ASSERT_FALSE(device->wait(device->submit(*first, both, both).take()).has_value());
    ASSERT_FALSE(device->wait(device->submit(*second, both, both).take()).has_value());
  }
  EXPECT_EQ(first_value(*device, *buffer), 64);
}

}  // namespace
}  // namespace npu

int main(int argc, char** argv) {
  if (const auto code = npu::run_if_device_worker(argc, argv)) return *code;
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
