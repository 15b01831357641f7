// What the tests of the furiosa backend share: the stand-in compiler in place, and a part for it.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/file.h"
#include "ops/ops.h"
#include "test_environment.h"

namespace npu {

inline void write_program(const fs::path& path) {
  publish_text(path, "#!/bin/sh\nexit 0\n");
  fs::permissions(path, fs::perms::owner_all);
}

// The stand-in is furiosa-tcc, and a cross compiler is in PATH.
class FuriosaTest : public testing::Test {
 protected:
  FuriosaTest() {
    fs::create_directory(bin());
    write_program(bin() / "aarch64-linux-gnu-gcc");
    variables.set("PATH", bin().string() + ":/usr/bin:/bin");
    variables.set("NPU_LORA_FURIOSA_TCC", NPU_FAKE_TCC);
    variables.set("FAKE_TCC_LOG", log_file().string());
    for (const char* name : {"FAKE_TCC_MODE", "FAKE_TCC_ONLY", "FAKE_TCC_SECONDS", "VIRTUAL_ENV",
                             "NPU_COMPILER_CONFIG_PATH", "TACTIC_HINT_PATH", "RAYON_NUM_THREADS"}) {
      variables.unset(name);
    }
  }
  void misbehave(const std::string& mode) { variables.set("FAKE_TCC_MODE", mode); }
  fs::path bin() const { return folder.path() / "bin"; }
  fs::path log_file() const { return folder.path() / "calls"; }
  // A line for each call of the stand-in: "compile renegade-8pe threads 2 pid 77 hinted 8".
  std::vector<std::string> calls() const {
    std::vector<std::string> lines;
    if (!fs::exists(log_file())) return lines;
    std::string line;
    for (const char c : read_text(log_file())) {
      if (c == '\n') {
        lines.push_back(std::exchange(line, ""));
      } else {
        line += c;
      }
    }
    return lines;
  }

  TempDir folder;
  Environment variables;
};

// y = x·wᵀ in bf16, whose text names no size but these.
inline Graph bf16_product(int64_t rows = 16) {
  Builder b("part");
  const Value x = b.input("i0", {DType::kBF16, {rows, 64}});
  const Value w = b.input("i1", {DType::kBF16, {32, 64}});
  b.output("o0", ops::matmul(x, w, {.transpose_rhs = true}));
  return std::move(b).build();
}

}  // namespace npu
