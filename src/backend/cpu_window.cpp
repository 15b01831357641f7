// Which stages have windows, and what of a row is open.
#include "backend/cpu_window.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <map>
#include <optional>
#include <string_view>

#include "backend/cpu_touch.h"

namespace npu::cpu {
namespace {

// What is added to a score to close it is at or below the first: exp of the sum less any open score
// is 0 (model/model.h: mask_value). At or below the second, no score reaches its last bit in f32.
constexpr float kClosedScore = -1e4f, kClosedMask = -1e12f;
constexpr int64_t kLeastCols = 2 * kWindowGrain, kLeastRows = 64;

// What a value of a loop holds in columns that the witness closes.
enum class Beyond : uint8_t {
  kAnything,
  kColumn,  // one value a row, the same whether closed columns were seen or not
  kMask,    // what the witness holds there, whatever the score was
  kClosed,  // so far down that exp makes it 0
  kZero,
};
using MaybeBeyond = std::optional<Beyond>;  // nothing: unknown, or closed columns would be felt

bool closed(Beyond state) { return state == Beyond::kMask || state == Beyond::kClosed; }

MaybeBeyond beyond_sum(Beyond a, Beyond b, bool minus) {
  if ((minus && closed(b)) || (closed(a) && closed(b))) return std::nullopt;
  if (closed(a) || closed(b)) {
    const bool score = a == Beyond::kAnything || b == Beyond::kAnything;
    return score && !minus ? Beyond::kMask : Beyond::kClosed;
  }
  if (a == Beyond::kZero && b == Beyond::kZero) return Beyond::kZero;
  return Beyond::kAnything;
}

MaybeBeyond beyond_of(std::string_view op, const std::vector<Beyond>& src) {
  const auto is = [&](size_t i, Beyond state) { return src[i] == state; };
  if (op == "row_max") return closed(src[0]) ? MaybeBeyond(Beyond::kColumn) : std::nullopt;
  if (op == "row_sum") return is(0, Beyond::kZero) ? MaybeBeyond(Beyond::kColumn) : std::nullopt;
  if (op == "one_hot") return std::nullopt;
  if (std::ranges::all_of(src, [](Beyond s) { return s == Beyond::kColumn; })) {
    return Beyond::kColumn;
  }
  if (op == "add" || op == "sub") return beyond_sum(src[0], src[1], op == "sub");
  if (op == "copy" || op.starts_with("load.") || op.starts_with("store.") ||
      op.starts_with("round.")) {
    return src[0];
  }
  // An op and the rounding of its result.
  if (op.ends_with(".bf16")) return beyond_of(op.substr(0, op.size() - 5), src);
  if (op == "mul" && (is(0, Beyond::kZero) || is(1, Beyond::kZero))) return Beyond::kZero;
  if ((op == "div" || op == "neg") && is(0, Beyond::kZero)) return Beyond::kZero;
  if (op == "exp" && closed(src[0])) return Beyond::kZero;
  if (std::ranges::any_of(src, closed)) return std::nullopt;
  return Beyond::kAnything;
}

// A loop under the assumption that memory operand `witness` closes columns.
class LoopView {
 public:
  LoopView(const Plan& plan, const LoopStep& loop, int64_t cols, int witness, bool additive)
      : plan_(plan), loop_(loop), cols_(cols), witness_(witness), additive_(additive) {}

  // What the loop writes of `cols` columns, as memory operands.
  struct Stored {
    std::vector<int> zeros, masks;
  };
  // Nothing when something depends on a closed column.
  std::optional<Stored> stored() {
    Stored stored;
    for (const LoopOp& op : loop_.program) {
      if (op.step != 1) return std::nullopt;
      std::vector<Beyond> src;
      for (const LoopArg& arg : op.src) {
        const MaybeBeyond state = read(arg);
        if (!state) return std::nullopt;
        src.push_back(*state);
      }
      const MaybeBeyond made = beyond_of(op.name, src);
      if (!made || op.dst.column != 0) return std::nullopt;
      if (op.name.starts_with("row_") && op.cols != cols_) return std::nullopt;
      const bool column = *made == Beyond::kColumn && op.dst.cols == 1;
      if (!column && (op.cols != cols_ || op.dst.cols != cols_)) return std::nullopt;
      if (op.dst.where == LoopArg::Where::kRegister) {
        registers_[op.dst.index] = *made;
      } else if (!column) {
        if (!dense(op.dst)) return std::nullopt;
        if (*made == Beyond::kZero) {
          stored.zeros.push_back(op.dst.index);
        } else if (*made == Beyond::kMask && copies_mask(op.dst)) {
          stored.masks.push_back(op.dst.index);
        } else {
          return std::nullopt;
        }
      }
    }
    return stored;
  }

 private:
  bool dense(const LoopArg& arg) const {
    return loop_.memory[static_cast<size_t>(arg.index)].col_stride == 1;
  }

  // f16 has nothing as low as kClosedMask.
  bool copies_mask(const LoopArg& arg) const {
    const DType dtype = dtype_of(arg.index);
    return dtype == dtype_of(witness_) && dtype != DType::kF16;
  }
  DType dtype_of(int operand) const {
    const int storage = loop_.memory[static_cast<size_t>(operand)].storage;
    return plan_.storages[static_cast<size_t>(storage)].dtype;
  }

  MaybeBeyond read(const LoopArg& arg) const {
    if (arg.where == LoopArg::Where::kNumber) return Beyond::kColumn;
    if (arg.where == LoopArg::Where::kRegister) {
      const auto at = registers_.find(arg.index);
      if (arg.column != 0 || at == registers_.end()) return std::nullopt;
      const bool whole = at->second == Beyond::kColumn ? arg.cols == 1 : arg.cols == cols_;
      return whole ? MaybeBeyond(at->second) : std::nullopt;
    }
    if (arg.cols == 1) return Beyond::kColumn;
    if (arg.cols != cols_ || arg.column != 0 || !dense(arg)) return std::nullopt;
    if (arg.index != witness_) return Beyond::kAnything;
    return additive_ ? Beyond::kMask : Beyond::kZero;
  }

  const Plan& plan_;
  const LoopStep& loop_;
  const int64_t cols_;
  const int witness_;
  const bool additive_;
  std::map<int, Beyond> registers_;
};

bool reads(const Step& step, int storage) {
  const auto* gemm = std::get_if<GemmStep>(&step.work);
  // What a loop or a sum writes it may have read before.
  const bool in_place =
      gemm != nullptr ? gemm->accumulate : std::holds_alternative<LoopStep>(step.work);
  return std::ranges::any_of(touches(step), [&](const Touch& touch) {
    return touch.storage == storage && (!touch.written || in_place);
  });
}

class Finder {
 public:
  explicit Finder(Plan& plan) : plan_(plan) {}

  void run() {
    for (Stage& stage : plan_.stages) {
      if (!find_loop_window(stage) && !find_product_window(stage)) continue;
      const auto quarter = std::bit_floor(static_cast<uint64_t>(stage.window->cols)) / 4;
      const int64_t rows = std::max(kLeastRows, static_cast<int64_t>(quarter));
      for (size_t i = stage.first; i < stage.last; ++i) {
        plan_.steps[i].chunk_rows = std::min(plan_.steps[i].chunk_rows, rows);
      }
    }
  }

 private:
  // A product of rows, the loop that is its only reader, and what follows.
  bool find_loop_window(Stage& stage) {
    for (size_t i = stage.first; i + 1 < stage.last; ++i) {
      const auto* gemm = std::get_if<GemmStep>(&plan_.steps[i].work);
      const auto* loop = std::get_if<LoopStep>(&plan_.steps[i + 1].work);
      if (gemm == nullptr || loop == nullptr || gemm->n < kLeastCols) continue;
      if (gemm->accumulate || gemm->by_weight || !only_reader(gemm->out.storage, i + 1)) continue;
      if (auto window = loop_window(stage, i, *gemm, *loop)) {
        window->roles.assign(stage.last - stage.first, Window::Role::kNone);
        window->roles[i - stage.first] = window->roles[i + 1 - stage.first] =
            Window::Role::kColumns;
        mark_depth(stage, i + 2, *loop, *window);
        stage.window = std::move(window);
        return true;
      }
    }
    return false;
  }

  std::optional<Window> loop_window(const Stage& stage, size_t product, const GemmStep& gemm,
                                    const LoopStep& loop) const {
    const int64_t cols = gemm.n;
    for (size_t i = 0; i < loop.memory.size(); ++i) {
      // The window is found before the stage runs, so its witness must be there by then.
      if (written(loop.memory[i].storage, stage.first, product + 2)) continue;
      const int witness = static_cast<int>(i);
      for (const bool additive : {true, false}) {
        const auto stored = LoopView(plan_, loop, cols, witness, additive).stored();
        if (!stored || stored->zeros.empty()) continue;
        return Window{cols, loop.memory[i], loop.space,    additive,
                      {},   witness,        stored->zeros, stored->masks};
      }
    }
    return std::nullopt;
  }

  // Products whose left operand is 0 beyond the window.
  void mark_depth(const Stage& stage, size_t from, const LoopStep& loop, Window& window) const {
    const auto zero = [&](int storage) {
      return std::ranges::any_of(window.zeros, [&](int operand) {
        return loop.memory[static_cast<size_t>(operand)].storage == storage;
      });
    };
    for (size_t i = from; i < stage.last; ++i) {
      const auto* gemm = std::get_if<GemmStep>(&plan_.steps[i].work);
      if (gemm == nullptr || !deep(*gemm, window.cols)) continue;
      if (!zero(gemm->lhs.storage) || gemm->lhs.offset != 0) continue;
      window.roles[i - stage.first] = Window::Role::kDepth;
    }
  }

  // One of a batch of products, as attention's are, judged by the zeros of its own left operand.
  bool find_product_window(Stage& stage) {
    const auto* gemm = std::get_if<GemmStep>(&plan_.steps[stage.first].work);
    if (gemm == nullptr || gemm->space.sizes.size() < 2 || !deep(*gemm, gemm->k)) return false;
    // A right operand that is turned is scores = q·kᵀ or their like, where nothing is 0.
    if (gemm->k < kLeastCols || gemm->rhs_transposed || plan_.steps[stage.first].cols > 1) {
      return false;
    }
    stage.window = Window{gemm->k, gemm->lhs, gemm->space, false, {}, -1, {}, {}};
    stage.window->roles.assign(stage.last - stage.first, Window::Role::kNone);
    stage.window->roles[0] = Window::Role::kDepth;
    return true;
  }

  static bool deep(const GemmStep& gemm, int64_t cols) {
    return gemm.k == cols && !gemm.by_weight && !gemm.lhs_transposed && gemm.lhs.col_stride == 1;
  }

  bool written(int storage, size_t first, size_t last) const {
    for (size_t i = first; i < last; ++i) {
      for (const Touch& touch : touches(plan_.steps[i])) {
        if (touch.written && touch.storage == storage) return true;
      }
    }
    return false;
  }

  bool only_reader(int storage, size_t reader) const {
    if (plan_.storages[static_cast<size_t>(storage)].kind != Storage::Kind::kArena) return false;
    for (size_t i = 0; i < plan_.steps.size(); ++i) {
      if (i != reader && reads(plan_.steps[i], storage)) return false;
    }
    return true;
  }

  Plan& plan_;
};

// Compared as integers, which the compiler turns into vector code.
int32_t f32_bits(float value) { return std::bit_cast<int32_t>(value); }
int32_t f32_bits(uint16_t bf16) { return static_cast<int32_t>(uint32_t{bf16} << 16); }

template <class T>
bool any_open(const T* values, int64_t count, const Window& window) {
  const int32_t closed = f32_bits(window.masks.empty() ? kClosedScore : kClosedMask),
                infinity = f32_bits(-HUGE_VALF);
  int32_t open = 0;
  if (window.additive) {  // bits of negative numbers grow with their size
    for (int64_t i = 0; i < count; ++i) {
      const int32_t bits = f32_bits(values[i]);
      open |= static_cast<int32_t>(bits < closed) | static_cast<int32_t>(bits > infinity);
    }
  } else {
    for (int64_t i = 0; i < count; ++i) open |= f32_bits(values[i]) & INT32_MAX;
  }
  return open != 0;
}

bool any_open(const Window& window, DType dtype, const std::byte* row, ColumnRange columns) {
  const int64_t count = std::min(columns.last, window.cols) - columns.first;
  if (dtype == DType::kF32) {
    return any_open(reinterpret_cast<const float*>(row) + columns.first, count, window);
  }
  const uint16_t* const halves = reinterpret_cast<const uint16_t*>(row) + columns.first;
  if (dtype == DType::kBF16) return any_open(halves, count, window);
  return std::any_of(halves, halves + count, [&](uint16_t half) {
    const float value = f32_from_f16(half);
    return any_open(&value, 1, window);
  });
}

}  // namespace

void find_windows(Plan& plan) { Finder(plan).run(); }

void widen_to_row(const Window& window, DType dtype, const std::byte* row, ColumnRange& range) {
  const auto open = [&](int64_t from, int64_t to) {
    return from < to && any_open(window, dtype, row, {from, to});
  };
  const int64_t end = (window.cols + kWindowGrain - 1) / kWindowGrain * kWindowGrain;
  int64_t first = std::min(range.first, end);
  // Forwards and in one go, as memory likes it; step by step only where that finds something.
  if (open(0, first)) {
    for (first = 0; !open(first, first + kWindowGrain);) first += kWindowGrain;
  }
  int64_t last = std::max(range.last, first);
  if (open(last, end)) {
    for (last = end; !open(last - kWindowGrain, last);) last -= kWindowGrain;
  }
  if (!open(first, std::min(first + kWindowGrain, last)) && !open(first, last)) {
    // Scores that are all closed count as if they were open; zeros don't count.
    if (window.additive) range = {0, window.cols};
    return;
  }
  range = {first, std::max(range.last, std::min(last, window.cols))};
}

}  // namespace npu::cpu
