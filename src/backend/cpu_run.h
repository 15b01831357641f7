// Runs plans: all threads walk the same list of stages and take chunks of each until it is done, so
// a call wakes the pool once, and a thread that comes late or never is not waited for.
#pragma once

#include <atomic>
#include <exception>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "backend/cpu_plan.h"
#include "backend/cpu_window.h"
#include "base/thread_pool.h"

namespace npu::cpu {

// Memory that the plans of one device share, since they run one at a time.
class Workspace {
 public:
  explicit Workspace(int threads) : scratch_(static_cast<size_t>(threads)) {}
  // Grows to what `plan` needs. Throws std::bad_alloc and stays as it was.
  void reserve(const Plan& plan);
  std::byte* arena() const { return arena_.get(); }
  float* scratch(size_t thread) const { return reinterpret_cast<float*>(scratch_[thread].get()); }
  size_t arena_bytes() const { return arena_bytes_; }

 private:
  std::shared_ptr<std::byte> arena_;
  size_t arena_bytes_ = 0, scratch_bytes_ = 0;
  std::vector<std::shared_ptr<std::byte>> scratch_;
};

class PlanRunner {
 public:
  // Everything that run() needs is allocated here. `threads` is the pool's.
  PlanRunner(Plan plan, int threads);

  const Plan& plan() const { return plan_; }
  // Inputs and outputs in the graph's order; `weights` in that of the plan's, null where they are
  // not packed, or none at all. Rethrows what a row's kernel throws.
  void run(ThreadPool& pool, const Workspace& workspace, std::span<std::byte* const> inputs,
           std::span<std::byte* const> outputs, std::span<const std::byte* const> weights = {});

  // CPU seconds of all threads by step, summed over the runs since the first call, which turns
  // timing on.
  std::vector<double> step_seconds();

 private:
  struct alignas(64) StageState {
    std::atomic<int64_t> next = 0;
    alignas(64) std::atomic<int32_t> done = 0;
  };
  // A loop's call for the block of rows at hand, and how far its operands move from row to row.
  struct PreparedCall {
    LoopCall call;
    int64_t dst_row_bytes, src_row_bytes[3];
    bool flat;  // rows lie one after the other: one row of all cells
  };
  struct alignas(64) ThreadState {
    std::vector<std::byte*> bases;       // by storage
    std::vector<const std::byte*> rows;  // by memory operand of the loop step at hand
    std::vector<int64_t> row_bytes;
    std::vector<PreparedCall> calls;  // by op of the loop step at hand
    std::vector<double> seconds;
    // Of the chunk and the step at hand.
    ColumnRange open;
    Window::Role role = Window::Role::kNone;
    const Window* window = nullptr;  // null in a stage without
  };

  void work(size_t thread);
  void run_chunk(const Stage& stage, int64_t chunk, size_t thread);
  // The columns that are open in any of rows [first, last).
  ColumnRange open_columns(const Window& window, int64_t first, int64_t last, size_t thread) const;
  void run_timed(size_t step, int64_t chunk, size_t thread);
  void run_step(const Step& step, int64_t chunk, size_t thread);
  void run_loops(const LoopStep& step, int64_t first, int64_t last, size_t thread);
  void prepare_calls(const LoopStep& step, size_t thread);
  void run_block(const LoopStep& step, int64_t rows, size_t thread);
  void fill_closed(const LoopStep& step, int64_t rows, int64_t row, size_t thread);
  void run_gemm_rows(const Step& step, int64_t chunk, size_t thread);
  void run_pack_rows(const Step& step, int64_t chunk, size_t thread);
  void run_kernel(const KernelStep& step, size_t thread);
  const std::byte* row_address(const RowSpace& space, const Access& access, int64_t row,
                               size_t thread) const;
  int64_t element_bytes(const Access& access) const;

  Plan plan_;
  bool timed_ = false;
  const Workspace* workspace_ = nullptr;
  std::span<const std::byte* const> weights_;
  std::vector<StageState> stages_;
  std::vector<ThreadState> threads_;
  std::atomic<bool> failed_ = false;
  std::mutex mutex_;
  std::exception_ptr exception_;
};

}  // namespace npu::cpu
