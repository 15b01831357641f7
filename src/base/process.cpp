// Children that run to their end: limits, and one poll loop until then.
#include "base/process.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/spawn.h"

namespace npu {
namespace {

using Clock = std::chrono::steady_clock;
constexpr size_t kErrorTailBytes = 8192;
// Between looks at the memory of the child, which may end within a few hundredths of a second, and
// of all that it started, which costs more.
constexpr int kSampleMilliseconds = 5, kGroupSampleMilliseconds = 50;
// Reads before limits are looked at again, however fast the child writes; more than a pipe holds.
constexpr int kReadsPerTurn = 64;

// The value in bytes of a "Name:  123 kB" line of /proc/PID/status; 0 when there is none.
int64_t status_bytes(std::string_view status, std::string_view name) {
  const size_t at = status.find(name);
  if (at == std::string_view::npos) return 0;
  return std::strtoll(status.data() + at + name.size(), nullptr, 10) * 1024;
}

std::string proc_text(const fs::path& path) {
  try {
    return read_text(path, size_t{1} << 20);
  } catch (const UserError&) {
    return "";  // the process is gone
  }
}

// Resident bytes of all processes of a group.
int64_t group_resident_bytes(pid_t group) {
  int64_t total = 0;
  std::error_code error;
  for (fs::directory_iterator it("/proc", error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (name.empty() || name.find_first_not_of("0123456789") != std::string::npos) continue;
    if (::getpgid(static_cast<pid_t>(std::atoi(name.c_str()))) != group) continue;
    total += status_bytes(proc_text(it->path() / "status"), "VmRSS:");
  }
  return total;
}

// One run of a child; its destructor leaves no process behind, whatever was thrown.
class Child {
 public:
  explicit Child(const ChildOptions& options) : options_(options) {}
  ~Child() { reap(); }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  ChildResult run(const std::vector<std::string>& argv);

 private:
  bool start(const std::vector<std::string>& argv);
  void attend();
  void look_at_limits();
  void feed();
  void read_out();
  void read_err();
  void kill_group(ChildResult::End reason);
  void reap();
  bool abandoned() const {
    return killed_for_ && elapsed() - killed_at_ > options_.abandon_seconds;
  }
  double elapsed() const { return std::chrono::duration<double>(Clock::now() - started_).count(); }

  const ChildOptions& options_;
  ChildResult result_;
  Clock::time_point started_ = Clock::now();
  Pipe in_, out_, err_;
  ChildProcess process_;
  size_t fed_ = 0;
  std::string error_line_;
  int64_t memory_at_fork_ = 0, sampled_peak_ = 0;
  Clock::time_point next_sample_ = started_, next_group_sample_ = started_;
  std::optional<ChildResult::End> killed_for_;
  double killed_at_ = 0;
};

ChildResult Child::run(const std::vector<std::string>& argv) {
  NPU_CHECK(!argv.empty(), "run_child without a program");
  if (!start(argv)) return std::move(result_);
  attend();
  reap();
  read_out();
  read_err();
  if (!error_line_.empty() && options_.on_error_line) options_.on_error_line(error_line_);
  result_.seconds = elapsed();
  return std::move(result_);
}

bool Child::start(const std::vector<std::string>& argv) {
  const auto not_started = [this, &argv](int error) {
    result_.err_tail = argv[0] + ": " + std::strerror(error);
    return false;
  };
  if (!in_.open(true) || !out_.open(false) || !err_.open(false)) return not_started(errno);
  memory_at_fork_ = memory_use().resident_bytes;
  const int error = process_.start({.argv = argv,
                                    .environment = options_.environment,
                                    .in = in_.ends[0],
                                    .out = out_.ends[1],
                                    .err = err_.ends[1],
                                    .keep = {},
                                    .in_our_group = options_.in_our_group,
                                    .abandon_seconds = options_.abandon_seconds});
  if (error != 0) return not_started(error);
  close_if_open(in_.ends[0]);
  close_if_open(out_.ends[1]);
  close_if_open(err_.ends[1]);
  for (const int fd : {in_.ends[1], out_.ends[0], err_.ends[0]}) {
    ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK);
  }
  return true;
}

void Child::attend() {
  while (!process_.ended() && !abandoned()) {
    look_at_limits();
    double wait_seconds = kSampleMilliseconds / 1000.0;
    if (options_.limits.seconds > 0) {
      wait_seconds = std::clamp(options_.limits.seconds - elapsed(), 0.0, wait_seconds);
    }
    std::array<pollfd, 4> fds = {{{out_.ends[0], POLLIN, 0},
                                  {err_.ends[0], POLLIN, 0},
                                  {in_.ends[1], POLLOUT, 0},
                                  {process_.pidfd(), POLLIN, 0}}};
    if (::poll(fds.data(), fds.size(), static_cast<int>(wait_seconds * 1000) + 1) <= 0) continue;
    if (fds[0].revents != 0) read_out();
    if (fds[1].revents != 0) read_err();
    if (fds[2].revents != 0) feed();
  }
}

void Child::look_at_limits() {
  if (killed_for_) return;
  const ChildLimits& limits = options_.limits;
  if (limits.seconds > 0 && elapsed() >= limits.seconds) {
    return kill_group(ChildResult::End::kTimedOut);
  }
  if (Clock::now() < next_sample_) return;
  next_sample_ = Clock::now() + std::chrono::milliseconds(kSampleMilliseconds);
  int64_t now =
      status_bytes(proc_text("/proc/" + std::to_string(process_.pid()) + "/status"), "VmHWM:");
  if (limits.memory_bytes > 0) {
    if (!options_.in_our_group && Clock::now() >= next_group_sample_) {
      next_group_sample_ = Clock::now() + std::chrono::milliseconds(kGroupSampleMilliseconds);
      now = std::max(now, group_resident_bytes(process_.pid()));
    }
    if (now > limits.memory_bytes) kill_group(ChildResult::End::kOutOfMemory);
  }
  sampled_peak_ = std::max(sampled_peak_, now);
}

void Child::feed() {
  const std::string_view rest = std::string_view(options_.input).substr(fed_);
  const ssize_t sent =
      rest.empty() ? 0 : ::send(in_.ends[1], rest.data(), rest.size(), MSG_NOSIGNAL);
  if (sent > 0) fed_ += static_cast<size_t>(sent);
  const bool refused = sent < 0 && errno != EAGAIN && errno != EINTR;
  if (refused || fed_ == options_.input.size()) close_if_open(in_.ends[1]);  // its end of file
}

void Child::read_out() {
  std::array<char, 1 << 16> chunk{};
  for (int reads = 0; reads < kReadsPerTurn; ++reads) {
    const ssize_t got = ::read(out_.ends[0], chunk.data(), chunk.size());
    if (got < 0 && errno == EINTR) continue;
    if (got == 0) close_if_open(out_.ends[0]);
    if (got <= 0) return;
    const size_t room = options_.max_output_bytes - result_.out.size();
    const size_t kept = std::min(room, static_cast<size_t>(got));
    result_.out.append(chunk.data(), kept);
    if (kept < static_cast<size_t>(got)) result_.out_cut = true;
  }
}

void Child::read_err() {
  std::array<char, 4096> chunk{};
  for (int reads = 0; reads < kReadsPerTurn; ++reads) {
    const ssize_t got = ::read(err_.ends[0], chunk.data(), chunk.size());
    if (got < 0 && errno == EINTR) continue;
    if (got == 0) close_if_open(err_.ends[0]);
    if (got <= 0) return;
    const std::string_view text(chunk.data(), static_cast<size_t>(got));
    result_.err_tail += text;
    if (result_.err_tail.size() > kErrorTailBytes) {
      result_.err_tail.erase(0, result_.err_tail.size() - kErrorTailBytes);
    }
    if (!options_.on_error_line) continue;
    for (const char c : text) {
      if (c != '\n' && error_line_.size() < kErrorTailBytes) {
        error_line_ += c;
      } else if (c == '\n') {
        options_.on_error_line(std::exchange(error_line_, ""));
      }
    }
  }
}

void Child::kill_group(ChildResult::End reason) {
  process_.kill_all();
  killed_for_ = reason;
  killed_at_ = elapsed();
}

void Child::reap() {
  if (process_.pid() < 0) return;
  process_.reap(result_);
  // The kernel's figure starts at this process's size at fork; below that only the samples tell.
  if (result_.peak_memory_bytes <= memory_at_fork_ && sampled_peak_ != 0) {
    result_.peak_memory_bytes = sampled_peak_;
  }
  if (killed_for_) result_.end = *killed_for_;
}

}  // namespace

std::string ChildResult::describe() const {
  char text[128];
  switch (end) {
    case End::kExited:
      return "exited with " + std::to_string(exit_code);
    case End::kSignaled: {
      const char* name = ::sigabbrev_np(signal);
      return "killed by " + (name ? std::string("SIG") + name : std::to_string(signal));
    }
    case End::kTimedOut:
      std::snprintf(text, sizeof text, "timed out after %.3g s", seconds);
      return text;
    case End::kOutOfMemory:
      std::snprintf(text, sizeof text, "out of memory at %.0f MiB",
                    static_cast<double>(peak_memory_bytes) / (1 << 20));
      return text;
    case End::kAbandoned:
      return "was killed and does not end";
    case End::kNotStarted:
      break;
  }
  return "could not be started: " + err_tail;
}

ChildResult run_child(const std::vector<std::string>& argv, const ChildOptions& options) {
  return Child(options).run(argv);
}

std::string self_executable() { return fs::read_symlink("/proc/self/exe").string(); }

MemoryUse memory_use() {
  const std::string status = proc_text("/proc/self/status");
  return {status_bytes(status, "VmRSS:"), status_bytes(status, "VmHWM:")};
}

}  // namespace npu
