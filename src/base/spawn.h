// A started process and its group: what children of every kind share.
#pragma once

#include <sys/types.h>

#include <string>
#include <utility>
#include <vector>

#include "base/process.h"

namespace npu {

void close_if_open(int& fd);

// Two connected descriptors: [0] is read from, [1] is written to. A socket where this process
// writes, since send() can do without SIGPIPE; a socket goes both ways.
struct Pipe {
  int ends[2] = {-1, -1};
  Pipe() = default;
  ~Pipe() {
    close_if_open(ends[0]);
    close_if_open(ends[1]);
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;
  bool open(bool as_socket);
};

// Never reads from a child: that is the caller's. The destructor leaves no process behind.
class ChildProcess {
 public:
  struct Request {
    std::vector<std::string> argv, environment;  // "NAME=value" added to ours
    int in = -1, out = -1, err = -1;             // its standard descriptors
    std::vector<int> keep;                       // that it inherits under the same numbers
    bool in_our_group = false;                   // see ChildOptions; else it leads its own
    // It dies with the thread that starts it, not just with this process.
    bool bound_to_thread = true;
    double abandon_seconds = kAbandonSeconds;
  };
  ChildProcess() = default;
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  // 0, or the errno of what stood in its way.
  int start(const Request& request);
  // Readable when the child has ended.
  int pidfd() const { return pidfd_; }
  pid_t pid() const { return pid_; }
  bool ended() const;
  void kill_all();  // its group, or itself in ours
  // Kills what is left of it and says how the child ended: end, exit_code, signal and
  // peak_memory_bytes. Once only. One that does not end within abandon_seconds is left alone, with
  // a warning.
  void reap(ChildResult& result);

 private:
  [[noreturn]] void become(const Request& request, char* const* argv, char* const* environment,
                           pid_t parent);

  pid_t whole() const { return in_our_group_ ? pid_ : -pid_; }  // for kill()

  Pipe exec_error_, life_;
  bool in_our_group_ = false;
  double abandon_seconds_ = kAbandonSeconds;
  std::string program_;
  pid_t pid_ = -1;
  int pidfd_ = -1;
};

}  // namespace npu
