// One poll loop for both directions of the socket and the log.
#include "base/resident_child.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "base/spawn.h"

namespace npu {
namespace {

constexpr size_t kLogTailBytes = 8192;
constexpr int kReadsPerTurn = 64;        // however fast the child prints
constexpr double kGoodbyeSeconds = 0.5;  // for a child that is ending by itself

int milliseconds_until(ResidentChild::Deadline deadline) {
  const auto left =
      std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
  return static_cast<int>(std::clamp<int64_t>(left.count(), 0, 1000));
}

}  // namespace

struct ResidentChild::State {
  Pipe socket, log;
  ChildProcess process;
  bool stopped = false;
};

ResidentChild::ResidentChild() : state_(std::make_unique<State>()) {}

ResidentChild::~ResidentChild() { stop(); }

Result<std::unique_ptr<ResidentChild>> ResidentChild::start(const std::vector<std::string>& argv,
                                                            const Options& options) {
  NPU_CHECK(!argv.empty(), "a resident child without a program");
  std::unique_ptr<ResidentChild> child(new ResidentChild());
  State& state = *child->state_;
  int error = state.socket.open(true) && state.log.open(false) ? 0 : errno;
  for (const int fd : {state.socket.ends[1], state.log.ends[0]}) {
    ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK);
  }
  if (error == 0) {
    error = state.process.start({.argv = argv,
                                 .environment = options.environment,
                                 .in = state.socket.ends[0],
                                 .out = state.log.ends[1],
                                 .err = state.log.ends[1],
                                 .keep = options.keep,
                                 // Whoever opens a device may be a thread that ends before it.
                                 .bound_to_thread = false,
                                 .abandon_seconds = options.abandon_seconds});
  }
  if (error != 0) {
    return Error{ErrorKind::kBadInput, argv[0], "can't be started", std::strerror(error), ""};
  }
  close_if_open(state.socket.ends[0]);
  close_if_open(state.log.ends[1]);
  return child;
}

ResidentChild::Io ResidentChild::send(std::string_view bytes, Deadline deadline) {
  while (!bytes.empty()) {
    if (const Io io = pump(&bytes, deadline); io != Io::kOk) return io;
  }
  return Io::kOk;
}

ResidentChild::Io ResidentChild::receive(Deadline deadline) {
  const size_t before = received_.size();
  while (received_.size() == before) {
    if (const Io io = pump(nullptr, deadline); io != Io::kOk) return io;
  }
  return Io::kOk;
}

ResidentChild::Io ResidentChild::pump(std::string_view* to_send, Deadline deadline) {
  if (state_->stopped) return Io::kClosed;
  const short wanted = to_send == nullptr ? POLLIN : POLLIN | POLLOUT;
  std::array<pollfd, 2> fds = {
      {{state_->socket.ends[1], wanted, 0}, {state_->log.ends[0], POLLIN, 0}}};
  const int wait = milliseconds_until(deadline);
  const int ready = ::poll(fds.data(), fds.size(), wait);
  if (ready > 0 && fds[1].revents != 0) read_log();
  // A log that never falls silent postpones nothing.
  if (ready <= 0 || fds[0].revents == 0) {
    return std::chrono::steady_clock::now() >= deadline ? Io::kTimedOut : Io::kOk;
  }
  if ((fds[0].revents & (POLLIN | POLLHUP | POLLERR)) != 0 && !read_socket()) return Io::kClosed;
  if (to_send != nullptr && (fds[0].revents & POLLOUT) != 0) {
    const ssize_t sent =
        ::send(state_->socket.ends[1], to_send->data(), to_send->size(), MSG_NOSIGNAL);
    if (sent < 0 && errno != EAGAIN && errno != EINTR) return Io::kClosed;
    if (sent > 0) to_send->remove_prefix(static_cast<size_t>(sent));
  }
  return Io::kOk;
}

// False at its end.
bool ResidentChild::read_socket() {
  std::array<char, 1 << 16> chunk{};
  const ssize_t got = ::recv(state_->socket.ends[1], chunk.data(), chunk.size(), 0);
  if (got > 0) received_.append(chunk.data(), static_cast<size_t>(got));
  return got > 0 || (got < 0 && (errno == EAGAIN || errno == EINTR));
}

void ResidentChild::read_log() {
  std::array<char, 4096> chunk{};
  for (int reads = 0; reads < kReadsPerTurn; ++reads) {
    const ssize_t got = ::read(state_->log.ends[0], chunk.data(), chunk.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return;
    if (got == 0) return close_if_open(state_->log.ends[0]);  // poll() passes over closed ones
    log_.append(chunk.data(), static_cast<size_t>(got));
    if (log_.size() > kLogTailBytes) log_.erase(0, log_.size() - kLogTailBytes);
  }
}

const std::string& ResidentChild::log_tail() {
  if (state_->log.ends[0] >= 0) read_log();
  return log_;
}

const ChildResult& ResidentChild::stop() {
  if (state_->stopped) return end_;
  state_->stopped = true;
  // The end of its input lets it end by itself, and one that is dying may tell how.
  close_if_open(state_->socket.ends[1]);
  pollfd ended = {state_->process.pidfd(), POLLIN, 0};
  if (ended.fd >= 0 && !state_->process.ended()) {
    ::poll(&ended, 1, static_cast<int>(kGoodbyeSeconds * 1000));
  }
  state_->process.reap(end_);
  log_tail();
  return end_;
}

}  // namespace npu
