// What a run tells while it goes: a bar on a terminal, JSON lines otherwise, and the log file.
#pragma once

#include <chrono>
#include <fstream>
#include <memory>
#include <optional>
#include <string>

#include "base/file.h"
#include "io/json.h"
#include "train/trainer.h"

namespace npu {

class RunLog {
 public:
  // Appends to `path` (a resumed run continues its file). Errors: not writable (kRetriable).
  RunLog(const fs::path& path, int64_t steps, bool quiet);
  ~RunLog();

  // Cuts off what a run that was killed wrote after `step`, a torn last line included: the resumed
  // run writes it again. Lines of other runs in the file, which finished or never came to `step`,
  // stay. Returns whether an evaluation at `step` is among the lines that stay.
  bool rewind(int64_t step);

  // {"event":"start"|"eval"|"end"|"checkpoint", …}
  void event(std::string_view name, const Json& fields, int64_t step);
  // One line a step: "progress" first, so that log readers find it before any other slash.
  void step(const StepReport& report, double epoch, double total_tokens);

 private:
  void write(const Json& line);
  void draw(const StepReport& report, double tokens_per_s);

  std::ofstream file_;
  fs::path path_;
  int64_t steps_;
  bool bar_, quiet_;
  double mean_step_seconds_ = 0;
};

// NaN and infinity are not JSON: they become null.
Json json_number(double value);

// Set by SIGTERM and SIGINT; a second signal ends the process at once.
int stop_signal();  // 0, SIGTERM or SIGINT
void install_stop_signals();

}  // namespace npu
