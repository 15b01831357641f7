// A child that stays: it is talked to over one socket, its stdin, while what it and its libraries
// print is only kept as a log.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/process.h"

namespace npu {

struct ResidentChildOptions {
  std::vector<std::string> environment;  // "NAME=value" added to ours
  std::vector<int> keep;                 // descriptors that it inherits under the same numbers
  double abandon_seconds = kAbandonSeconds;
};

class ResidentChild {
 public:
  using Options = ResidentChildOptions;
  // Errors (kBadInput): the program cannot be started.
  static Result<std::unique_ptr<ResidentChild>> start(const std::vector<std::string>& argv,
                                                      const Options& options = {});
  ~ResidentChild();
  ResidentChild(const ResidentChild&) = delete;
  ResidentChild& operator=(const ResidentChild&) = delete;

  using Deadline = std::chrono::steady_clock::time_point;
  enum class Io { kOk, kTimedOut, kClosed };
  // Until all is written. What comes meanwhile is received, so that neither side waits for the
  // other.
  Io send(std::string_view bytes, Deadline deadline);
  // Until anything comes.
  Io receive(Deadline deadline);
  // What came and was not taken yet; the caller erases what it takes.
  std::string& received() { return received_; }
  // The last 8 KiB of what it printed.
  const std::string& log_tail();

  // Kills it, if it has not ended, and waits for abandon_seconds. How it ended; the same answer
  // however often it is asked.
  const ChildResult& stop();

 private:
  struct State;
  ResidentChild();
  // Waits for a readable socket, or a writable one if `sending`.
  Io pump(std::string_view* to_send, Deadline deadline);
  bool read_socket();
  void read_log();

  std::unique_ptr<State> state_;
  std::string received_, log_;
  ChildResult end_;
};

}  // namespace npu
