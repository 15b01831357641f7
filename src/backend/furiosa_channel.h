// One running worker: calls go out in order, answers come back in that order. It is lost when it
// ends, says nonsense or keeps silent for too long; a lost one is killed and never comes back.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backend/furiosa_protocol.h"
#include "base/resident_child.h"

namespace npu::furiosa {

struct WorkerProgram {
  std::vector<std::string> argv;         // speaks the protocol on its stdin, a socket
  std::vector<std::string> environment;  // added to ours
};

struct WorkerLimits {
  double open_seconds = 300;  // from its start: interpreters import, cards are reset
  double load_seconds = 600;
  double call_seconds = 120;                // of anything else
  double silence_seconds = 60;              // of a worker in a call that is none of the first two
  size_t staging_bytes = size_t{32} << 20;  // twice
};

// Memory that this process and the worker both map.
class SharedMemory {
 public:
  explicit SharedMemory(size_t bytes);
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;
  int descriptor() const { return descriptor_; }
  std::span<std::byte> bytes() const { return {data_, size_}; }

 private:
  int descriptor_;
  std::byte* data_ = nullptr;
  size_t size_;
};

struct Answer {
  Status status = Status::kOk;
  std::string body;
};

class Channel {
 public:
  static Result<std::unique_ptr<Channel>> start(const WorkerProgram& program,
                                                const WorkerLimits& limits);

  // What becomes of the answer: it is waited for, only a failure matters (the worker is then lost),
  // or nobody cares.
  enum class After { kWait, kMustSucceed, kIgnore };
  // The number to wait for. On a lost worker it is one all the same.
  uint64_t post(Op op, std::string body, After after = After::kWait);
  // kLost when there will be none; once for each number.
  Answer wait(uint64_t number);
  Answer call(Op op, std::string body) { return wait(post(op, std::move(body))); }

  bool lost() const { return !lost_why_.empty(); }
  const std::string& lost_why() const { return lost_why_; }
  // It is lost because somebody, or the kernel, killed the worker.
  bool killed() const { return killed_; }
  // Ends the worker, which is of no more use.
  void give_up(const std::string& why);

  // Moving bytes of a buffer. False when the worker is lost.
  bool upload(uint64_t buffer, uint64_t offset, std::span<const std::byte> from);
  bool download(std::span<std::byte> to, uint64_t buffer, uint64_t offset);

 private:
  struct Posted {
    uint64_t number;
    Op op;
    After after;
  };
  explicit Channel(const WorkerLimits& limits);
  void take_answers();
  void take_answer(const Frame& frame);
  void receive_some();
  double limit_of(Op op) const;
  std::string last_words();
  // Waits until the half of the shared memory is free; returns it.
  std::span<std::byte> half(size_t which);

  WorkerLimits limits_;
  SharedMemory shared_;
  std::unique_ptr<ResidentChild> child_;
  uint64_t last_number_ = 0;
  std::deque<Posted> posted_;           // without an answer yet
  std::map<uint64_t, Answer> answers_;  // not waited for yet
  // How long the first of posted_ has been at work, and nothing was heard: counted in waits, so
  // that a pause of this process is not the worker's.
  double at_work_ = 0, silent_ = 0;
  std::string lost_why_;
  bool killed_ = false;
  uint64_t half_user_[2] = {0, 0};
};

}  // namespace npu::furiosa
