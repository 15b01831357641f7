// One job at a time, shared by the caller and by workers that sleep between jobs.
#include "base/thread_pool.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/file.h"

namespace npu {

// A worker joins a job under the mutex and leaves it under the mutex, so the caller waits only for
// workers that came in time: one that wakes late finds no job and sleeps on.
struct ThreadPool::State {
  std::vector<std::thread> workers;
  std::atomic<bool> busy = false;  // a run() owns the workers

  std::mutex mutex;
  std::condition_variable wake, done;
  bool stop = false;
  uint64_t generation = 0;
  const std::function<void(int64_t)>* task = nullptr;  // null between jobs
  int64_t count = 0;
  std::exception_ptr first_exception;
  std::atomic<int64_t> next = 0;
  std::atomic<int> inside = 0;  // workers in the job; raised under the mutex

  void take_tasks(const std::function<void(int64_t)>& body, int64_t limit) {
    try {
      for (;;) {
        const int64_t i = next.fetch_add(1, std::memory_order_relaxed);
        if (i >= limit) return;
        body(i);
      }
    } catch (...) {
      next.store(limit, std::memory_order_relaxed);  // start no further task
      const std::lock_guard lock(mutex);
      if (!first_exception) first_exception = std::current_exception();
    }
  }

  void worker_loop() {
    uint64_t seen = 0;
    std::unique_lock lock(mutex);
    for (;;) {
      wake.wait(lock, [&] { return stop || (task != nullptr && generation != seen); });
      if (stop) return;
      seen = generation;
      const auto* body = task;
      const int64_t limit = count;
      inside.fetch_add(1, std::memory_order_relaxed);
      lock.unlock();
      take_tasks(*body, limit);
      lock.lock();
      if (inside.fetch_sub(1, std::memory_order_release) == 1) done.notify_one();
    }
  }

  void start(const std::function<void(int64_t)>& body, int64_t tasks) {
    {
      const std::lock_guard lock(mutex);
      task = &body;
      count = tasks;
      next.store(0, std::memory_order_relaxed);
      ++generation;
    }
    const auto helpers = static_cast<size_t>(tasks - 1);
    if (helpers >= workers.size()) {
      wake.notify_all();
    } else {
      for (size_t i = 0; i < helpers; ++i) wake.notify_one();
    }
  }

  std::exception_ptr finish() {
    // The last task usually ends within microseconds, less than a sleep and a wake-up cost.
    constexpr int kSpins = 300;
    for (int i = 0; i < kSpins && inside.load(std::memory_order_acquire) > 0; ++i) {
#if defined(__x86_64__)
      __builtin_ia32_pause();
#endif
    }
    std::unique_lock lock(mutex);
    task = nullptr;
    done.wait(lock, [&] { return inside.load(std::memory_order_acquire) == 0; });
    return std::exchange(first_exception, nullptr);
  }
};

ThreadPool::ThreadPool(int threads)
    : threads_(threads > 0 ? threads : usable_cpus()), state_(std::make_unique<State>()) {
  for (int i = 1; i < threads_; ++i) {
    state_->workers.emplace_back([state = state_.get()] { state->worker_loop(); });
  }
}

ThreadPool::~ThreadPool() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->stop = true;
  }
  state_->wake.notify_all();
  for (std::thread& worker : state_->workers) worker.join();
}

void ThreadPool::run(int64_t count, const std::function<void(int64_t)>& task) {
  // A pool in use means a call from inside a task, or a second caller: both go on alone.
  if (count <= 1 || state_->workers.empty() || state_->busy.exchange(true)) {
    for (int64_t i = 0; i < count; ++i) task(i);
    return;
  }
  state_->start(task, count);
  state_->take_tasks(task, count);
  const std::exception_ptr exception = state_->finish();
  state_->busy.store(false);
  if (exception) std::rethrow_exception(exception);
}

void ThreadPool::for_range(int64_t size, int64_t grain,
                           const std::function<void(int64_t, int64_t)>& task) {
  if (size <= 0) return;
  // A few ranges per thread level out uneven speed; more would only cost calls.
  constexpr int64_t kRangesPerThread = 4;
  const int64_t most = threads_ == 1 ? 1 : threads_ * kRangesPerThread;
  const int64_t ranges = std::clamp(size / std::max<int64_t>(grain, 1), int64_t{1}, most);
  run(ranges, [&](int64_t i) { task(size * i / ranges, size * (i + 1) / ranges); });
}

namespace {

// CPUs granted by one cgroup, or `otherwise` when it sets no limit.
int cgroup_cpus(const fs::path& directory, int otherwise) {
  std::error_code absent;
  const fs::path file = directory / "cpu.max";
  if (!fs::exists(file, absent)) return otherwise;
  try {
    const std::string text = read_text(file);
    if (text.starts_with("max")) return otherwise;
    size_t end = 0;
    const double quota = std::stod(text, &end);
    const double period = std::stod(text.substr(end));
    if (quota <= 0 || period <= 0) return otherwise;
    return std::max(1, static_cast<int>(quota / period + 0.5));
  } catch (const std::exception&) {
    return otherwise;  // unreadable quota: the affinity mask still holds
  }
}

}  // namespace

int usable_cpus() {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  const bool known = sched_getaffinity(0, sizeof mask, &mask) == 0;
  int cpus = known ? CPU_COUNT(&mask) : static_cast<int>(std::thread::hardware_concurrency());
  // A quota may sit on any ancestor of our cgroup ("0::/a/b" under the unified hierarchy).
  fs::path group = "/";
  std::error_code absent;
  if (fs::exists("/proc/self/cgroup", absent)) {
    const std::string text = read_text("/proc/self/cgroup");
    const size_t at = text.find("0::/");
    if (at != std::string::npos) group = text.substr(at + 3, text.find('\n', at) - at - 3);
  }
  for (;; group = group.parent_path()) {
    cpus = std::min(cpus, cgroup_cpus(fs::path("/sys/fs/cgroup") / group.relative_path(), cpus));
    if (group == group.parent_path()) break;
  }
  return std::max(cpus, 1);
}

}  // namespace npu
