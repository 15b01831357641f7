// A fixed pool whose idle workers sleep: spinning pools starve the runtimes we run beside
// (docs/decisions/004-threads.md).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

namespace npu {

class ThreadPool {
 public:
  // `threads` counts the caller: 2 starts one worker. 0 means the number of usable CPUs.
  explicit ThreadPool(int threads = 0);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return threads_; }

  // Calls task(i) once for each i in [0, count), on this thread and the workers; returns when all
  // are done. Which thread runs which i is unspecified, so tasks must not depend on it. The first
  // exception thrown by a task is rethrown here. A call from inside a task runs inline.
  void run(int64_t count, const std::function<void(int64_t)>& task);

  // Splits [0, size) into ranges of at least `grain` and calls task(begin, end) on each. The split
  // depends on size, grain and threads() only.
  void for_range(int64_t size, int64_t grain, const std::function<void(int64_t, int64_t)>& task);

 private:
  struct State;
  int threads_;
  std::unique_ptr<State> state_;
};

// Usable CPUs of this process (affinity and cgroup quota respected).
int usable_cpus();

}  // namespace npu
