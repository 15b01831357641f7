// Fork, what a child sets up between fork and exec, and its end.
#include "base/spawn.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <string_view>
#include <thread>

#include "base/log.h"

extern char** environ;

namespace npu {
namespace {

std::vector<std::string> merged_environment(const std::vector<std::string>& added) {
  std::vector<std::string> merged;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view ours = *entry;
    const std::string_view name = ours.substr(0, ours.find('=') + 1);
    const bool replaced = std::any_of(added.begin(), added.end(),
                                      [&](const std::string& e) { return e.starts_with(name); });
    if (!replaced) merged.emplace_back(ours);
  }
  merged.insert(merged.end(), added.begin(), added.end());
  return merged;
}

std::vector<char*> pointers(const std::vector<std::string>& strings) {
  std::vector<char*> result;
  for (const std::string& s : strings) result.push_back(const_cast<char*>(s.c_str()));
  result.push_back(nullptr);
  return result;
}

}  // namespace

void close_if_open(int& fd) {
  if (fd >= 0) ::close(std::exchange(fd, -1));
}

bool Pipe::open(bool as_socket) {
  return as_socket ? ::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0
                   : ::pipe2(ends, O_CLOEXEC) == 0;
}

ChildProcess::~ChildProcess() {
  ChildResult ignored;
  reap(ignored);
}

int ChildProcess::start(const Request& request) {
  in_our_group_ = request.in_our_group;
  abandon_seconds_ = request.abandon_seconds;
  program_ = request.argv[0];
  if (!exec_error_.open(false) || !life_.open(false)) return errno;
  // All memory is made before fork: between fork and exec only async-signal-safe calls are allowed.
  const std::vector<std::string> environment = merged_environment(request.environment);
  const std::vector<char*> argv_pointers = pointers(request.argv);
  const std::vector<char*> environment_pointers = pointers(environment);
  const pid_t parent = ::getpid();
  pid_ = ::fork();
  if (pid_ == 0) become(request, argv_pointers.data(), environment_pointers.data(), parent);
  if (pid_ < 0) return errno;
  if (!in_our_group_) ::setpgid(pid_, pid_);  // also in the child: whoever comes first
  pidfd_ = static_cast<int>(::syscall(SYS_pidfd_open, pid_, 0));
  close_if_open(exec_error_.ends[1]);
  close_if_open(life_.ends[0]);
  int exec_errno = 0;
  ssize_t got = 0;
  while ((got = ::read(exec_error_.ends[0], &exec_errno, sizeof exec_errno)) < 0 &&
         errno == EINTR) {
  }
  if (got != sizeof exec_errno) return 0;
  ChildResult ignored;
  reap(ignored);
  return exec_errno;
}

void ChildProcess::become(const Request& request, char* const* argv, char* const* environment,
                          pid_t parent) {
  if (!in_our_group_) ::setpgid(0, 0);
  if (request.bound_to_thread) ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(127);  // it died before the line above
  // PDEATHSIG reaches only this process. For its children: the kernel signals the owner of an
  // asynchronous descriptor, here the group, when the pipe's other end closes with our parent.
  ::fcntl(life_.ends[0], F_SETFD, 0);
  ::fcntl(life_.ends[0], F_SETOWN, in_our_group_ ? ::getpid() : -::getpid());
  ::fcntl(life_.ends[0], F_SETSIG, SIGKILL);
  ::fcntl(life_.ends[0], F_SETFL, O_ASYNC);
  ::dup2(request.in, STDIN_FILENO);
  ::dup2(request.out, STDOUT_FILENO);
  ::dup2(request.err, STDERR_FILENO);
  for (const int fd : request.keep) ::fcntl(fd, F_SETFD, 0);
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  ::signal(SIGPIPE, SIG_DFL);
  // When the machine runs out of memory the kernel should take the compiler, not the trainer.
  const int oom = ::open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
  if (oom >= 0 && ::write(oom, "500", 3) < 0) {
    // Without /proc the child is as likely a victim as we are; nothing else changes.
  }
  ::execvpe(argv[0], argv, environment);
  const int error = errno;
  const ssize_t told = ::write(exec_error_.ends[1], &error, sizeof error);
  ::_exit(told == sizeof error ? 127 : 126);
}

bool ChildProcess::ended() const {
  siginfo_t info{};
  // The child stays a zombie until reap(), so that its id, the group's, can't be given away.
  const int rc = ::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT);
  return (rc == 0 && info.si_pid == pid_) || (rc != 0 && errno == ECHILD);
}

void ChildProcess::kill_all() { ::kill(whole(), SIGKILL); }

void ChildProcess::reap(ChildResult& result) {
  if (pid_ < 0) return;
  kill_all();  // also what the child left behind in its group
  int status = 0;
  rusage usage{};
  const auto until =
      std::chrono::steady_clock::now() + std::chrono::duration<double>(abandon_seconds_);
  pid_t ended = 0;
  while ((ended = ::wait4(pid_, &status, WNOHANG, &usage)) == 0 || (ended < 0 && errno == EINTR)) {
    if (std::chrono::steady_clock::now() >= until) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  if (ended == 0) {
    log_warn("runtime", program_ + " was killed and does not end (process " + std::to_string(pid_) +
                            "): it is left alone, with what it holds");
    result.end = ChildResult::End::kAbandoned;
  }
  pid_ = -1;
  close_if_open(pidfd_);
  if (ended == 0) return;
  result.peak_memory_bytes = int64_t{usage.ru_maxrss} * 1024;
  if (WIFSIGNALED(status)) {
    result.end = ChildResult::End::kSignaled;
    result.signal = WTERMSIG(status);
  } else {
    result.end = ChildResult::End::kExited;
    result.exit_code = WEXITSTATUS(status);
  }
}

}  // namespace npu
