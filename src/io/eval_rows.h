// Rows for `eval`: what to ask and what is right.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/file.h"

namespace npu {

struct EvalRow {
  std::string prompt;
  std::string response;          // the right answer
  std::optional<int64_t> label;  // its class, where the row gives one
  std::string where;             // "file:line"
};

// Rows {"prompt","response"|"completion"[,"label"]}; errors as those of load_dataset.
std::vector<EvalRow> load_eval_rows(const std::vector<fs::path>& files);

}  // namespace npu
