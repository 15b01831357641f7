// What the tests that run parts on stand-ins of RNGD cards share: cards, both runtimes, and a
// compiler for them.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "base/file.h"
#include "test_environment.h"

namespace npu {

enum class FakeRuntime { kNative, kPython };

inline std::string runtime_name(FakeRuntime runtime) {
  return runtime == FakeRuntime::kNative ? "native" : "python";
}

// Two cards, 0 and 1, and one of the two runtimes. Its worker is this test's program again, so
// main() must begin with run_if_device_worker().
class FakeCards {
 public:
  explicit FakeCards(FakeRuntime runtime);
  void misbehave(const std::string& mode) { variables.set("FAKE_RNGD_MODE", mode); }
  void add_card(int card);
  fs::path nodes() const { return folder.path() / "rngd"; }

  TempDir folder;
  Environment variables;
};

std::optional<int> run_if_device_worker(int argc, char** argv);

// A part as a blob for the stand-ins' cards: its EDF is the graph's text.
Blob fake_blob(const Graph& part, const std::string& target = "renegade-8pe");

// Compiles so, refuses what sim:furiosa refuses, and runs on the cards of the environment.
std::unique_ptr<Backend> make_card_backend();

}  // namespace npu
