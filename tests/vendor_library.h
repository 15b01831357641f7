// What the tests of backends over a stand-in library share: the one graph that the stand-ins know,
// and the checks that hold for every such backend.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "backend/backend.h"
#include "ops/ops.h"

namespace npu {

inline Graph product_graph() {
  Builder b("product");
  const Value x = b.input("x", {DType::kF32, {16, 64}});
  const Value w = b.input("w", {DType::kF32, {32, 64}});
  b.output("y", ops::matmul(x, w, {.transpose_rhs = true}));
  return std::move(b).build();
}

template <class T>
std::string error_text(const Result<T>& result) {
  EXPECT_FALSE(result.ok());
  return result.ok() ? "" : result.error().text();
}

inline bool contains(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

// Any byte of a blob that is changed or missing at its end is found at load.
inline void expect_damaged_blobs_are_errors(Backend& backend) {
  const auto device = backend.open({}).take();
  const Graph graph = product_graph();
  const Blob blob = backend.compile(graph, {}).take();
  ASSERT_TRUE(device->load(blob, graph).ok());
  for (size_t at = 0; at < blob.size(); ++at) {
    Blob flipped = blob;
    flipped[at] ^= 1;
    EXPECT_FALSE(device->load(flipped, graph).ok()) << "byte " << at;
    EXPECT_FALSE(device->load(blob.substr(0, at), graph).ok()) << "first " << at << " bytes";
  }
  EXPECT_FALSE(device->load(blob + "x", graph).ok());
}

// `w` and `y` are how the backend's messages call the second input and the first output.
inline void expect_small_buffers_are_errors(Backend& backend, const std::string& w,
                                            const std::string& y) {
  const auto device = backend.open({}).take();
  const Graph graph = product_graph();
  const auto part = device->load(backend.compile(graph, {}).take(), graph).take();
  const auto x_buffer = device->allocate(16 * 64 * 4).take();
  const auto w_buffer = device->allocate(32 * 64 * 4).take();
  const auto y_buffer = device->allocate(16 * 32 * 4).take();
  const auto small = device->view(y_buffer, 0, 16 * 32 * 4 - 1);
  Buffer* const inputs[] = {x_buffer.get(), w_buffer.get()};
  Buffer* const outputs[] = {y_buffer.get()};
  Buffer* const small_inputs[] = {x_buffer.get(), small.get()};
  Buffer* const small_outputs[] = {small.get()};
  EXPECT_TRUE(
      contains(error_text(device->submit(*part, small_inputs, outputs)), w + " needs 8192 bytes"));
  EXPECT_TRUE(
      contains(error_text(device->submit(*part, inputs, small_outputs)), y + " needs 2048 bytes"));
  EXPECT_TRUE(device->submit(*part, inputs, outputs).ok());
}

// What product_graph() gives on a device, and who its operands are.
struct ProductCall {
  std::unique_ptr<Device> device;
  Graph graph = product_graph();
  std::unique_ptr<Executable> part;
  std::shared_ptr<Buffer> x, w, y;

  explicit ProductCall(Backend& backend, bool prepack)
      : device(backend.open({.threads = 1, .prepack = prepack}).take()) {
    part = device->load(backend.compile(graph, {}).take(), graph).take();
    x = device->adopt(Tensor::from_f32({16, 64}, std::vector<float>(16 * 64, 1.0f))).take();
    y = device->allocate(16 * 32 * 4).take();
    w = weight(1);
  }
  std::shared_ptr<Buffer> weight(float value) const {
    const std::vector<float> values(32 * 64, value);
    std::shared_ptr<Buffer> buffer = device->allocate(values.size() * 4).take();
    device->upload(*buffer, std::as_bytes(std::span(values)));
    return buffer;
  }
  Result<float> run(const std::shared_ptr<Buffer>& weights) {
    Buffer* const inputs[] = {x.get(), weights.get()};
    Buffer* const outputs[] = {y.get()};
    const auto ticket = device->submit(*part, inputs, outputs);
    if (!ticket) return ticket.error();
    if (auto failure = device->wait(ticket.value())) return *failure;
    return *reinterpret_cast<const float*>(y->host_pointer());
  }
};

// Code with constants is made for frozen weights and for no others, once for each, and never
// outlives its meaning. The memory of w is changed behind the device's back to see who reads it.
inline void expect_constants_of_frozen_weights(Backend& backend) {
  ProductCall call(backend, true);
  const auto set = [](Buffer& buffer, float value) {
    std::fill_n(reinterpret_cast<float*>(buffer.host_pointer()), 32 * 64, value);
  };
  EXPECT_EQ(call.run(call.w).take(), 64);
  set(*call.w, 2);
  EXPECT_EQ(call.run(call.w).take(), 128) << "not frozen yet";
  call.w->freeze();
  EXPECT_EQ(call.run(call.w).take(), 128);
  auto other = call.weight(3);
  EXPECT_EQ(call.run(other).take(), 192) << "others are inputs as before";
  other->freeze();
  EXPECT_EQ(call.run(other).take(), 192);
  EXPECT_EQ(call.run(call.w).take(), 128) << "each has code of its own";
  // A new buffer may lie where a freed one lay.
  for (int i = 0; i < 20; ++i) {
    const auto value = static_cast<float>(i);
    other = nullptr;
    other = call.weight(value);
    other->freeze();
    EXPECT_EQ(call.run(other).take(), 64 * value);
  }
}

inline void expect_rounding_of_constants_is_found(Backend& backend) {
  EXPECT_TRUE(backend.open({.threads = 1}).ok());
  const std::string text = error_text(backend.open({.threads = 1, .prepack = true}));
  EXPECT_TRUE(contains(text, "must multiply in f32 by constants too")) << text;
}

// A run that asked for constants stops; one that did not is not concerned.
inline void expect_refusal_of_constants_ends_the_call(Backend& backend) {
  ProductCall plain(backend, false);
  plain.w->freeze();
  EXPECT_EQ(plain.run(plain.w).take(), 64);
  const std::string text = error_text(backend.open({.threads = 1, .prepack = true}));
  EXPECT_TRUE(contains(text, "with frozen weights as constants")) << text;
  EXPECT_TRUE(contains(text, "leave out --prepack on")) << text;
}

}  // namespace npu
