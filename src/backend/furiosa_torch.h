// The second compiler for RNGD: a part as torch ops, compiled by furiosa.torch in a Python child
// (workers/furiosa_torch_compiler.py). It takes every op; what it makes only furiosa.torch loads.
#pragma once

#include <string>
#include <string_view>

#include "base/error.h"
#include "ir/graph.h"

namespace npu {

struct FuriosaTorch {
  std::string python;   // the interpreter that has it
  std::string version;  // "furiosa-torch 2026.4.0, torch 2.10.0"
};
// What the interpreter of NPU_LORA_FURIOSA_PYTHON has. Error: no such variable or package.
Result<FuriosaTorch> find_furiosa_torch();

struct TorchJob {
  int pes = 1;
  std::string tactic;  // of TacticHintConfig; "" = its own default
  int max_shapes = 0;  // 0 = its own default
  std::string hint;    // YAML for TACTIC_HINT_PATH; "" = none
  int threads = 1;
};

// The hint of furiosa.torch for a --tactic of furiosa-tcc.
std::string torch_tactic(const std::string& tactic);

// What furiosa.torch serializes of the compiled part; ports are those of the part, all of them.
// Errors: kBadInput where it would say the same again, kRetriable for a fault of this machine.
Result<std::string> furiosa_compile_graph(const FuriosaTorch& torch, const Graph& part,
                                          const TorchJob& job);

// workers/furiosa_torch_compiler.py, which this program carries.
std::string_view furiosa_torch_script();

}  // namespace npu
