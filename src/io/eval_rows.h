// Rows for `eval`: what to ask and what is right.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/file.h"

namespace npu {

struct EvalRow {
  std::string prompt;
  std::string response;  // the right answer
  std::string where;     // "file:line"
};

// Rows {"prompt","response"|"completion"}, other keys ignored; errors as those of load_dataset.
// Bad rows up to `skip_bad_rows` are left out with a warning.
std::vector<EvalRow> load_eval_rows(const std::vector<fs::path>& files, int64_t skip_bad_rows);

}  // namespace npu
