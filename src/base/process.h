// Running fragile programs (vendor compilers) as children with limits; how they ended is a value.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace npu {

// How long a killed child is waited for.
inline constexpr double kAbandonSeconds = 10;

struct ChildLimits {
  double seconds = 0;        // wall time; 0 = none
  int64_t memory_bytes = 0;  // resident set of the process group, sampled; 0 = none
};

struct ChildResult {
  // kAbandoned: it was killed and does not end; a call into a driver can't be interrupted.
  enum class End { kExited, kSignaled, kTimedOut, kOutOfMemory, kNotStarted, kAbandoned };
  End end = End::kNotStarted;
  int exit_code = 0;
  int signal = 0;
  std::string out;       // stdout, up to `max_output_bytes`
  bool out_cut = false;  // there was more
  std::string err_tail;  // the last 8 KiB of stderr
  double seconds = 0;
  int64_t peak_memory_bytes = 0;

  bool ok() const { return end == End::kExited && exit_code == 0; }
  std::string describe() const;  // "exited with 3", "killed by SIGSEGV", "timed out after 60 s", …
};

struct ChildOptions {
  ChildLimits limits;
  std::string input;                                    // fed to stdin
  std::vector<std::string> environment;                 // "NAME=value" added to ours
  std::function<void(std::string_view)> on_error_line;  // each line of stderr as it comes
  size_t max_output_bytes = size_t{1} << 30;
  // Stays in the caller's process group: whoever set limits on that (a compile child's parent)
  // counts and kills this child with it. `limits` then reach the child alone.
  bool in_our_group = false;
  double abandon_seconds = kAbandonSeconds;
};

// Runs argv[0] with argv, in its own process group unless options say otherwise; the group is
// killed at a limit, and when this process dies. Never throws for what the child does, and never
// waits for one that cannot be killed.
ChildResult run_child(const std::vector<std::string>& argv, const ChildOptions& options = {});

// Path of the running executable, for children that are this program again.
std::string self_executable();

// Resident set of this process now, and its highest value so far, in bytes.
struct MemoryUse {
  int64_t resident_bytes = 0;
  int64_t peak_resident_bytes = 0;
};
MemoryUse memory_use();

}  // namespace npu
