// Threads, chunks and addresses: everything of a call but the arithmetic.
#include "backend/cpu_run.h"

#include <time.h>

#include <algorithm>
#include <cstring>

#include "backend/cpu_matmul.h"

namespace npu::cpu {
namespace {

using Where = LoopArg::Where;

// About 100 µs, what a sleep and a wake-up cost: barriers inside a call are usually shorter.
constexpr int kSpins = 2000;

// Of this thread alone, so that figures hold on a busy machine.
double thread_seconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// The ticket-th chunk to be taken: threads that take turns each go through a range of neighbouring
// chunks, whose operands they then find in their own caches.
int64_t chunk_of(int64_t ticket, int64_t chunks, int64_t threads) {
  const int64_t whole = chunks / threads, rest = chunks % threads;
  const int64_t thread = ticket % threads;
  return thread * whole + std::min(thread, rest) + ticket / threads;
}

// Calls piece(first row, rows) for the parts of [first, last) that lie in one run of the inner
// loop.
template <class Piece>
void for_inner_runs(const RowSpace& space, int64_t first, int64_t last, Piece&& piece) {
  const int64_t inner = space.inner();
  while (first < last) {
    const int64_t rows = std::min(last - first, inner - first % inner);
    piece(first, rows);
    first += rows;
  }
}

}  // namespace

void Workspace::reserve(const Plan& plan) {
  if (plan.scratch_bytes > scratch_bytes_) {
    std::vector<std::shared_ptr<std::byte>> grown;
    for (size_t i = 0; i < scratch_.size(); ++i)
      grown.push_back(allocate_aligned(plan.scratch_bytes));
    scratch_ = std::move(grown);
    scratch_bytes_ = plan.scratch_bytes;
  }
  if (plan.arena_bytes > arena_bytes_) {
    arena_.reset();  // not both at once
    arena_bytes_ = 0;
    arena_ = allocate_aligned(plan.arena_bytes);
    arena_bytes_ = plan.arena_bytes;
  }
}

PlanRunner::PlanRunner(Plan plan, int threads)
    : plan_(std::move(plan)), stages_(plan_.stages.size()), threads_(static_cast<size_t>(threads)) {
  size_t operands = 0, ops = 0;
  for (const Step& step : plan_.steps) {
    if (const auto* loop = std::get_if<LoopStep>(&step.work)) {
      operands = std::max(operands, loop->memory.size());
      ops = std::max(ops, loop->program.size());
    }
  }
  for (ThreadState& thread : threads_) {
    thread.bases.resize(plan_.storages.size());
    thread.rows.resize(operands);
    thread.row_bytes.resize(operands);
    thread.calls.resize(ops);
    thread.seconds.resize(plan_.steps.size());
  }
}

std::vector<double> PlanRunner::step_seconds() {
  timed_ = true;
  std::vector<double> total(plan_.steps.size(), 0.0);
  for (const ThreadState& thread : threads_) {
    for (size_t i = 0; i < total.size(); ++i) total[i] += thread.seconds[i];
  }
  return total;
}

void PlanRunner::run(ThreadPool& pool, const Workspace& workspace,
                     std::span<std::byte* const> inputs, std::span<std::byte* const> outputs,
                     std::span<const std::byte* const> weights) {
  NPU_CHECK(workspace.arena_bytes() >= plan_.arena_bytes,
            "the workspace was reserved for the plan");
  for (size_t i = 0; i < plan_.storages.size(); ++i) {
    const Storage& storage = plan_.storages[i];
    std::byte* const base = storage.kind == Storage::Kind::kInput    ? inputs[storage.index]
                            : storage.kind == Storage::Kind::kOutput ? outputs[storage.index]
                            : storage.kind == Storage::Kind::kArena
                                ? workspace.arena() + storage.offset
                                : nullptr;  // set for each chunk
    for (ThreadState& thread : threads_) thread.bases[i] = base;
  }
  workspace_ = &workspace;
  weights_ = weights;
  for (StageState& state : stages_) {
    state.next.store(0, std::memory_order_relaxed);
    state.done.store(0, std::memory_order_relaxed);
  }
  failed_.store(false, std::memory_order_relaxed);
  pool.run(static_cast<int64_t>(threads_.size()),
           [this](int64_t thread) { work(static_cast<size_t>(thread)); });
  if (exception_) std::rethrow_exception(std::exchange(exception_, nullptr));
}

void PlanRunner::work(size_t thread) {
  for (size_t s = 0; s < stages_.size(); ++s) {
    const Stage& stage = plan_.stages[s];
    StageState& state = stages_[s];
    const int64_t chunks = plan_.chunks(stage);
    const int64_t threads = static_cast<int64_t>(threads_.size());
    int64_t ticket = 0;
    while ((ticket = state.next.fetch_add(1, std::memory_order_relaxed)) < chunks) {
      const int64_t chunk = chunk_of(ticket, chunks, threads);
      if (!failed_.load(std::memory_order_relaxed)) run_chunk(stage, chunk, thread);
      if (state.done.fetch_add(1, std::memory_order_acq_rel) + 1 == chunks) state.done.notify_all();
    }
    for (int spin = 0; state.done.load(std::memory_order_acquire) < chunks && spin < kSpins;
         ++spin) {
      pause_briefly();
    }
    int32_t done = 0;
    while ((done = state.done.load(std::memory_order_acquire)) < chunks) state.done.wait(done);
  }
}

void PlanRunner::run_chunk(const Stage& stage, int64_t chunk, size_t thread) {
  for (const int index : stage.locals) {
    const Storage& storage = plan_.storages[static_cast<size_t>(index)];
    const int64_t first = chunk * plan_.steps[stage.first].chunk_rows;
    // Rows keep their numbers, so the base lies before the chunk's first row.
    threads_[thread].bases[static_cast<size_t>(index)] =
        reinterpret_cast<std::byte*>(workspace_->scratch(thread)) + storage.offset -
        first * static_cast<int64_t>(storage.row_bytes);
  }
  ThreadState& state = threads_[thread];
  state.role = Window::Role::kNone;
  state.window = stage.window ? &*stage.window : nullptr;
  try {
    if (stage.window) {
      const Step& step = plan_.steps[stage.first];
      const int64_t first = chunk * step.chunk_rows;
      state.open =
          open_columns(*stage.window, first, std::min(step.rows, first + step.chunk_rows), thread);
    }
    if (stage.side_by_side) {
      size_t step = stage.first;
      for (; chunk >= plan_.steps[step].chunks(); ++step) chunk -= plan_.steps[step].chunks();
      run_timed(step, chunk, thread);
      return;
    }
    for (size_t i = stage.first; i < stage.last; ++i) {
      if (stage.window) state.role = stage.window->roles[i - stage.first];
      run_timed(i, chunk, thread);
    }
  } catch (...) {
    failed_.store(true, std::memory_order_relaxed);  // the others only count the chunks down
    const std::lock_guard lock(mutex_);
    if (!exception_) exception_ = std::current_exception();
  }
}

void PlanRunner::run_timed(size_t step, int64_t chunk, size_t thread) {
  const double start = timed_ ? thread_seconds() : 0;
  run_step(plan_.steps[step], chunk, thread);
  if (timed_) threads_[thread].seconds[step] += thread_seconds() - start;
}

ColumnRange PlanRunner::open_columns(const Window& window, int64_t first, int64_t last,
                                     size_t thread) const {
  const DType dtype = plan_.storages[static_cast<size_t>(window.witness.storage)].dtype;
  ColumnRange range{window.cols, 0};
  for (int64_t row = first; row < last; ++row) {
    widen_to_row(window, dtype, row_address(window.space, window.witness, row, thread), range);
  }
  // Nothing but zeros: one step of them is enough.
  return range.count() > 0 ? range : ColumnRange{0, std::min(window.cols, kWindowGrain)};
}

int64_t PlanRunner::element_bytes(const Access& access) const {
  return static_cast<int64_t>(
      dtype_bytes(plan_.storages[static_cast<size_t>(access.storage)].dtype));
}

const std::byte* PlanRunner::row_address(const RowSpace& space, const Access& access, int64_t row,
                                         size_t thread) const {
  int64_t offset = access.offset;
  for (size_t i = space.sizes.size(); i-- > 0;) {
    offset += row % space.sizes[i] * access.strides[i];
    row /= space.sizes[i];
  }
  return threads_[thread].bases[static_cast<size_t>(access.storage)] +
         offset * element_bytes(access);
}

void PlanRunner::run_step(const Step& step, int64_t chunk, size_t thread) {
  if (const auto* loop = std::get_if<LoopStep>(&step.work)) {
    const int64_t first = chunk * step.chunk_rows;
    run_loops(*loop, first, std::min(step.rows, first + step.chunk_rows), thread);
  } else if (std::holds_alternative<GemmStep>(step.work)) {
    run_gemm_rows(step, chunk, thread);
  } else if (std::holds_alternative<PackStep>(step.work)) {
    run_pack_rows(step, chunk, thread);
  } else {
    run_kernel(std::get<KernelStep>(step.work), thread);
  }
}

void PlanRunner::run_gemm_rows(const Step& step, int64_t chunk, size_t thread) {
  const auto& gemm = std::get<GemmStep>(step.work);
  const int64_t col_chunks = (step.cols + step.chunk_cols - 1) / step.chunk_cols;
  const int64_t first = chunk / col_chunks * step.chunk_rows;
  const int64_t last = std::min(step.rows, first + step.chunk_rows);
  const auto dtype = [&](const Access& a) {
    return plan_.storages[static_cast<size_t>(a.storage)].dtype;
  };
  GemmCall call;
  call.lhs_dtype = dtype(gemm.lhs);
  call.rhs_dtype = dtype(gemm.rhs);
  call.out_dtype = dtype(gemm.out);
  call.alpha = static_cast<float>(gemm.alpha);
  if (gemm.alpha_storage >= 0) {
    const std::byte* base = threads_[thread].bases[static_cast<size_t>(gemm.alpha_storage)];
    call.alpha *= reinterpret_cast<const float*>(base)[gemm.alpha_offset];
  }
  call.scratch = workspace_->scratch(thread);
  int64_t col = step.cols > 1 ? chunk % col_chunks * step.chunk_cols : 0;
  call.n = step.cols > 1 ? std::min(step.chunk_cols, gemm.n - col) : gemm.n;
  call.k = gemm.k;
  if (gemm.packed) {
    call.lhs_packed = packed_row(threads_[thread].bases[static_cast<size_t>(gemm.lhs_packed)],
                                 call.lhs_dtype, first, gemm.k);
  }
  if (gemm.weight >= 0 && !weights_.empty()) {
    const std::byte* const whole = weights_[static_cast<size_t>(gemm.weight)];
    if (whole != nullptr) {
      const PackedWeight& weight = plan_.weights[static_cast<size_t>(gemm.weight)];
      call.rhs_packed = packed_from(weight, whole, col);
    }
  }
  const int64_t rhs_step = gemm.rhs_transposed ? gemm.rhs_ld : 1;
  const ThreadState& state = threads_[thread];
  int64_t depth = 0;  // first k
  if (state.role == Window::Role::kColumns) {
    col = state.open.first;
    call.n = state.open.count();
  } else if (state.role == Window::Role::kDepth) {
    depth = state.open.first;
    call.k = state.open.count();
  }
  const int64_t rhs_offset = col * rhs_step + depth * gemm.rhs_k_stride;
  for_inner_runs(gemm.space, first, last, [&](int64_t row, int64_t rows) {
    call.m = rows;
    if (!gemm.packed) {
      call.lhs = row_address(gemm.space, gemm.lhs, row, thread) + depth * element_bytes(gemm.lhs);
    }
    call.rhs =
        row_address(gemm.space, gemm.rhs, row, thread) + rhs_offset * element_bytes(gemm.rhs);
    call.out = const_cast<std::byte*>(row_address(gemm.space, gemm.out, row, thread)) +
               col * element_bytes(gemm.out);
    run_gemm(gemm, call);
  });
}

void PlanRunner::run_pack_rows(const Step& step, int64_t chunk, size_t thread) {
  const auto& pack = std::get<PackStep>(step.work);
  const int64_t first = chunk * step.chunk_rows;
  const std::byte* const from = threads_[thread].bases[static_cast<size_t>(pack.from.storage)];
  run_pack(pack, plan_.storages[static_cast<size_t>(pack.from.storage)].dtype,
           from + pack.from.offset * element_bytes(pack.from), first,
           std::min(step.rows, first + step.chunk_rows),
           threads_[thread].bases[static_cast<size_t>(pack.to)]);
}

void PlanRunner::run_loops(const LoopStep& step, int64_t first, int64_t last, size_t thread) {
  ThreadState& state = threads_[thread];
  for (size_t i = 0; i < step.memory.size(); ++i) {
    const Access& access = step.memory[i];
    state.row_bytes[i] = access.inner_stride() * element_bytes(access);
  }
  for_inner_runs(step.space, first, last, [&](int64_t run, int64_t rows) {
    for (size_t i = 0; i < step.memory.size(); ++i) {
      state.rows[i] = row_address(step.space, step.memory[i], run, thread);
    }
    prepare_calls(step, thread);
    for (int64_t row = 0; row < rows; row += step.block_rows) {
      const int64_t block = std::min(step.block_rows, rows - row);
      run_block(step, block, thread);
      if (state.role == Window::Role::kColumns) fill_closed(step, block, row, thread);
    }
  });
}

// The calls of the program for rows from the addresses in the thread's state on.
void PlanRunner::prepare_calls(const LoopStep& step, size_t thread) {
  ThreadState& state = threads_[thread];
  float* const registers = workspace_->scratch(thread);
  const bool windowed = state.role == Window::Role::kColumns;
  const auto resolve = [&](const LoopArg& arg, int64_t& stride, int64_t& row_bytes) -> const void* {
    const size_t index = static_cast<size_t>(arg.index);
    const int64_t column =
        arg.column + (windowed && arg.cols == state.window->cols ? state.open.first : 0);
    row_bytes = 0;
    switch (arg.where) {
      case Where::kRegister:
        stride = step.register_cols[index];
        return registers + step.register_start[index] * step.block_rows + column;
      case Where::kMemory: {
        const Access& access = step.memory[index];
        stride = access.inner_stride();
        row_bytes = state.row_bytes[index];
        return state.rows[index] + column * element_bytes(access);
      }
      case Where::kNumber:
        break;
    }
    stride = 0;
    return &step.numbers[index];
  };
  for (size_t o = 0; o < step.program.size(); ++o) {
    const LoopOp& op = step.program[o];
    PreparedCall& prepared = state.calls[o];
    LoopCall& call = prepared.call;
    call.dst = const_cast<void*>(resolve(op.dst, call.dst_stride, prepared.dst_row_bytes));
    for (size_t i = 0; i < op.src.size(); ++i) {
      call.src[i] = resolve(op.src[i], call.src_stride[i], prepared.src_row_bytes[i]);
    }
    call.step = op.step;
    const bool narrowed = windowed && op.cols == state.window->cols;
    call.cols = narrowed ? state.open.count() : op.cols;
    prepared.flat = op.flat && !narrowed;
  }
}

// The next `rows` rows.
void PlanRunner::run_block(const LoopStep& step, int64_t rows, size_t thread) {
  ThreadState& state = threads_[thread];
  for (size_t o = 0; o < step.program.size(); ++o) {
    PreparedCall& prepared = state.calls[o];
    LoopCall& call = prepared.call;
    if (prepared.flat) {
      LoopCall flat = call;
      flat.rows = 1;
      flat.cols = rows * call.cols;
      step.program[o].fn(flat);
    } else {
      call.rows = rows;
      step.program[o].fn(call);
    }
    call.dst = static_cast<std::byte*>(call.dst) + rows * prepared.dst_row_bytes;
    for (size_t i = 0; i < step.program[o].src.size(); ++i) {
      call.src[i] = static_cast<const std::byte*>(call.src[i]) + rows * prepared.src_row_bytes[i];
    }
  }
}

// What the loop's results hold where the window is closed.
void PlanRunner::fill_closed(const LoopStep& step, int64_t rows, int64_t row, size_t thread) {
  const ThreadState& state = threads_[thread];
  const Window& window = *state.window;
  const auto fill = [&](int operand, int64_t r, bool mask) {
    const size_t index = static_cast<size_t>(operand);
    const size_t witness = static_cast<size_t>(window.witness_operand);
    const int64_t bytes = element_bytes(step.memory[index]);
    std::byte* const to = const_cast<std::byte*>(state.rows[index]) + r * state.row_bytes[index];
    for (const ColumnRange part :
         {ColumnRange{0, state.open.first}, ColumnRange{state.open.last, window.cols}}) {
      const size_t count = static_cast<size_t>(part.count() * bytes);
      if (mask) {
        const std::byte* const from = state.rows[witness] + r * state.row_bytes[witness];
        std::memcpy(to + part.first * bytes, from + part.first * bytes, count);
      } else {
        std::memset(to + part.first * bytes, 0, count);
      }
    }
  };
  for (int64_t r = row; r < row + rows; ++r) {
    for (const int operand : window.zeros) fill(operand, r, false);
    for (const int operand : window.masks) fill(operand, r, true);
  }
}

void PlanRunner::run_kernel(const KernelStep& step, size_t thread) {
  const std::vector<std::byte*>& bases = threads_[thread].bases;
  std::vector<Tensor> operands;
  for (const KernelStep::Operand& operand : step.operands) {
    const int64_t bytes = static_cast<int64_t>(dtype_bytes(operand.type.dtype));
    operands.push_back(
        Tensor::borrow(operand.type.dtype, operand.type.shape,
                       bases[static_cast<size_t>(operand.storage)] + operand.offset * bytes));
  }
  Tensor out = Tensor::borrow(step.out_type.dtype, step.out_type.shape,
                              bases[static_cast<size_t>(step.out)]);
  step.op->kernel(operands, step.attrs, out);
}

}  // namespace npu::cpu
