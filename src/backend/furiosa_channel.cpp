// Posting, waiting, and the judgement that a worker is lost.
#include "backend/furiosa_channel.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>

namespace npu::furiosa {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kLongestWait = 0.5;  // between looks at the limits
constexpr size_t kMostWords = 400;

ResidentChild::Deadline in_seconds(double seconds) {
  return Clock::now() +
         std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

std::string seconds_text(double seconds) {
  std::string text = std::to_string(seconds);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.ends_with('.')) text.pop_back();
  return text + " s";
}

std::string_view name_of(Op op) {
  switch (op) {
    case Op::kOpen:
      return "opening the card";
    case Op::kAllocate:
      return "allocating";
    case Op::kFree:
    case Op::kUnload:
      return "freeing";
    case Op::kUpload:
      return "an upload";
    case Op::kDownload:
      return "a download";
    case Op::kLoad:
      return "loading a part";
    case Op::kRun:
      return "a call";
  }
  return "?";
}

}  // namespace

SharedMemory::SharedMemory(size_t bytes)
    : descriptor_(::memfd_create("npu-staging", MFD_CLOEXEC)), size_(bytes) {
  void* mapped = MAP_FAILED;
  if (descriptor_ >= 0 && ::ftruncate(descriptor_, static_cast<off_t>(bytes)) == 0) {
    mapped = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor_, 0);
  }
  if (mapped == MAP_FAILED) {
    fail(ErrorKind::kRetriable, "device worker", "no shared memory", std::strerror(errno));
  }
  data_ = static_cast<std::byte*>(mapped);
}

SharedMemory::~SharedMemory() {
  ::munmap(data_, size_);
  ::close(descriptor_);
}

Channel::Channel(const WorkerLimits& limits) : limits_(limits), shared_(2 * limits.staging_bytes) {}

Result<std::unique_ptr<Channel>> Channel::start(const WorkerProgram& program,
                                                const WorkerLimits& limits) {
  std::unique_ptr<Channel> channel(new Channel(limits));
  auto child =
      ResidentChild::start(program.argv, {program.environment, {channel->shared_.descriptor()}});
  if (!child) return child.error();
  channel->child_ = std::move(child.value());
  return channel;
}

uint64_t Channel::post(Op op, std::string body, After after) {
  const uint64_t number = ++last_number_;
  if (op == Op::kOpen) {
    OpenCall call = *decode_body<OpenCall>(body);
    call.descriptor = static_cast<uint64_t>(shared_.descriptor());
    call.shared_bytes = shared_.bytes().size();
    body = encode_body(call);
  }
  if (lost()) return number;
  if (posted_.empty()) at_work_ = silent_ = 0;
  posted_.push_back({number, op, after});
  const std::string bytes = encode({static_cast<uint64_t>(op), number, std::move(body)});
  // The worker reads only between calls, so sending may have to wait for the calls before.
  double patience = limits_.call_seconds;
  for (const Posted& before : posted_) patience = std::max(patience, limit_of(before.op));
  switch (child_->send(bytes, in_seconds(patience))) {
    case ResidentChild::Io::kOk:
      break;
    case ResidentChild::Io::kTimedOut:
      give_up("it takes no more calls");
      break;
    case ResidentChild::Io::kClosed:
      take_answers();
      if (!lost()) give_up("");
      break;
  }
  return number;
}

Answer Channel::wait(uint64_t number) {
  for (;;) {
    take_answers();
    const auto found = answers_.find(number);
    if (found != answers_.end()) {
      Answer answer = std::move(found->second);
      answers_.erase(found);
      return answer;
    }
    if (lost()) return {Status::kLost, lost_why_};
    NPU_CHECK(!posted_.empty() && number >= posted_.front().number,
              "an answer is waited for twice: " + std::to_string(number));
    receive_some();
  }
}

double Channel::limit_of(Op op) const {
  if (op == Op::kOpen) return limits_.open_seconds;
  return op == Op::kLoad ? limits_.load_seconds : limits_.call_seconds;
}

void Channel::receive_some() {
  const Op op = posted_.front().op;
  const double limit = limit_of(op);
  // Loaders and imports may hold a worker's interpreter, beats and all.
  const double silence = op == Op::kOpen || op == Op::kLoad ? limit : limits_.silence_seconds;
  const double left = std::min(limit - at_work_, silence - silent_);
  if (left <= 0) {
    return give_up(std::string(name_of(op)) +
                   (limit - at_work_ <= 0
                        ? " took over " + seconds_text(limit)
                        : " without a sign of life for " + seconds_text(silence)));
  }
  const Clock::time_point before = Clock::now();
  const double slice = std::min(left, kLongestWait);
  const ResidentChild::Io io = child_->receive(in_seconds(slice));
  const double waited =
      std::min(std::chrono::duration<double>(Clock::now() - before).count(), slice + 0.01);
  at_work_ += waited;
  silent_ = io == ResidentChild::Io::kOk ? 0 : silent_ + waited;
  if (io != ResidentChild::Io::kClosed) return;
  take_answers();
  if (!lost() && !posted_.empty()) give_up("");
}

void Channel::take_answers() {
  while (!lost()) {
    Result<std::optional<Frame>> frame = take_frame(child_->received());
    if (!frame) return give_up("its answer is no answer");
    if (!frame.value()) return;
    take_answer(*frame.value());
  }
}

void Channel::take_answer(const Frame& frame) {
  const auto status = static_cast<Status>(frame.kind);
  if (status == Status::kBeat) return;
  if (posted_.empty() || posted_.front().number != frame.number || status > Status::kBeat) {
    return give_up("it answers what it was not asked");
  }
  const Posted posted = posted_.front();
  posted_.pop_front();
  at_work_ = 0;
  if (posted.after == After::kWait) {
    answers_.emplace(frame.number, Answer{status, frame.body});
  }
  const bool failed = status != Status::kOk && posted.after == After::kMustSucceed;
  if (failed || status == Status::kLost) give_up(frame.body);
}

// `why`: what is known beside how it ended; "" when it ended by itself.
void Channel::give_up(const std::string& why) {
  if (lost()) return;
  const std::string during =
      posted_.empty() ? "" : " in " + std::string(name_of(posted_.front().op));
  const bool by_itself = why.empty();
  lost_why_ = why;  // from here on it is lost
  const ChildResult& end = child_->stop();
  if (by_itself) lost_why_ = end.describe() + during;
  killed_ = by_itself && end.end == ChildResult::End::kSignaled &&
            (end.signal == SIGKILL || end.signal == SIGTERM || end.signal == SIGINT ||
             end.signal == SIGHUP);
  lost_why_ += last_words();
  posted_.clear();
}

std::string Channel::last_words() {
  std::string words = child_->log_tail();
  while (!words.empty() && std::isspace(static_cast<unsigned char>(words.back())) != 0) {
    words.pop_back();
  }
  if (words.size() > kMostWords) words = "…" + words.substr(words.size() - kMostWords);
  std::ranges::replace(words, '\n', ' ');
  return words.empty() ? "" : "; its last words: " + words;
}

std::span<std::byte> Channel::half(size_t which) {
  const uint64_t user = std::exchange(half_user_[which], 0);
  // An upload's answer is not kept: it has come when it is no longer posted.
  while (!lost() && user != 0 && !posted_.empty() && posted_.front().number <= user) {
    receive_some();
    take_answers();
  }
  return shared_.bytes().subspan(which * limits_.staging_bytes, limits_.staging_bytes);
}

bool Channel::upload(uint64_t buffer, uint64_t offset, std::span<const std::byte> from) {
  for (size_t at = 0, which = 0; at < from.size() && !lost(); which = 1 - which) {
    const std::span<std::byte> staging = half(which);
    const size_t bytes = std::min(staging.size(), from.size() - at);
    std::memcpy(staging.data(), from.data() + at, bytes);
    const Transfer transfer{{buffer, offset + at, bytes}, which * limits_.staging_bytes};
    half_user_[which] = post(Op::kUpload, encode_body(transfer), After::kMustSucceed);
    at += bytes;
  }
  return !lost();
}

bool Channel::download(std::span<std::byte> to, uint64_t buffer, uint64_t offset) {
  struct Piece {
    uint64_t number = 0;
    std::span<std::byte> to;
  };
  Piece pieces[2];
  const auto finish = [&](size_t which) {
    Piece& piece = pieces[which];
    if (piece.number == 0) return true;
    if (wait(std::exchange(piece.number, 0)).status != Status::kOk) return false;
    std::memcpy(piece.to.data(), shared_.bytes().data() + which * limits_.staging_bytes,
                piece.to.size());
    return true;
  };
  size_t which = 0;
  for (size_t at = 0; at < to.size(); which = 1 - which) {
    if (!finish(which)) return false;
    const size_t bytes = std::min(half(which).size(), to.size() - at);
    const Transfer transfer{{buffer, offset + at, bytes}, which * limits_.staging_bytes};
    pieces[which] = {post(Op::kDownload, encode_body(transfer)), to.subspan(at, bytes)};
    at += bytes;
  }
  return finish(which) && finish(1 - which) && !lost();
}

}  // namespace npu::furiosa
