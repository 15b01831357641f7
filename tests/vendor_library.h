// What the tests of backends over a stand-in library share: the one graph that the stand-ins know,
// and the checks that hold for every such backend.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <string_view>

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

}  // namespace npu
