// What the fast executor runs: a list of steps over memory that is laid out in advance. A plan
// depends on the graph alone, never on the number of threads, so neither do its results.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "backend/cpu_loops.h"
#include "backend/cpu_view.h"

namespace npu::cpu {

// Memory of a stored value.
struct Storage {
  // kLocal: lives within one stage, whose threads each keep only the rows of their chunk.
  enum class Kind { kInput, kOutput, kArena, kLocal };
  Kind kind = Kind::kArena;
  size_t index = 0;   // of the input or output
  size_t offset = 0;  // bytes into the arena, or into a thread's scratch
  size_t bytes = 0;
  size_t row_bytes = 0;  // kLocal
  DType dtype = DType::kF32;
};

// The rows of a step as nested loops, outermost first, cut so that every operand has one stride per
// loop. Flattened rows 0 … rows-1 are what is shared out between threads.
struct RowSpace {
  std::vector<int64_t> sizes;
  int64_t rows = 1;
  int64_t inner() const { return sizes.empty() ? 1 : sizes.back(); }
};

// Rows of elements in a storage.
struct Access {
  int storage = -1;
  int64_t offset = 0;  // elements
  int64_t cols = 1;
  int64_t col_stride = 1;
  std::vector<int64_t> strides;  // one per loop of the row space
  int64_t inner_stride() const { return strides.empty() ? 0 : strides.back(); }
};

// ---- fused elementwise and row-wise ops
// ----------------------------------------------------------

// An operand of a loop: a register (block_rows × cols cells in a thread's scratch), a row of a
// storage, or a number.
struct LoopArg {
  enum class Where : uint8_t { kRegister, kMemory, kNumber };
  Where where = Where::kNumber;
  int index = 0;
  int64_t column = 0;  // first column
  int64_t cols = 1;
};

struct LoopOp {
  LoopFn fn = nullptr;
  LoopArg dst;
  std::vector<LoopArg> src;
  int64_t cols = 1;
  int64_t step = 1;
  bool flat = false;  // all operands are contiguous: the block runs as one row
  std::string name;
};

struct LoopStep {
  RowSpace space;
  std::vector<Access> memory;
  std::vector<int64_t> register_cols;
  std::vector<int64_t> register_start;  // columns of the registers before it
  std::vector<uint32_t> numbers;        // bits of f32 or i32
  std::vector<LoopOp> program;
  int64_t block_rows = 1;
};

// ---- matrix products
// -------------------------------------------------------------------------------

// What multiplies, the best last: each takes what suits it and leaves the rest to the one before,
// but a CPU with vector units needs no BLAS.
enum class ProductUnit : uint8_t { kBlas, kVector, kAmx };

// out[row] = alpha · lhs[row] · rhs[batch of row] (+ out[row])
struct GemmStep {
  RowSpace space;
  Access lhs, rhs, out;  // lhs: cols = k; rhs: cols = n, strides 0 along the rows of one product
  int64_t k = 1, n = 1;
  int64_t rhs_k_stride = 1;
  bool lhs_transposed = false, rhs_transposed = false;
  int64_t lhs_ld = 1, rhs_ld = 1, out_ld = 1;
  double alpha = 1;
  int alpha_storage = -1;  // f32 factor read at run time
  int64_t alpha_offset = 0;
  bool accumulate = false;
  bool amx = false;        // on AMX where the chunk is large enough
  bool vector = false;     // what is not on AMX: on the vector unit, else by BLAS
  int64_t block_k = 0;     // 16-bit operands are widened in blocks of this many k; 0: none are
  bool by_weight = false;  // by an input, which may be kept packed
  bool packed = false;     // by_weight on AMX, with lhs as a PackStep wrote it
  bool turned = false;     // rhs is the left operand of the tiles
  int lhs_packed = -1;     // storage
  int weight = -1;         // of Plan::weights; -1: packed on the way
};

// Rows in the form in which AMX reads them, made once for all products that read them.
struct PackStep {
  RowSpace space;
  Access from;  // cols = k
  int64_t ld = 1;
  bool left = true;
  int to = -1;  // storage
};

// In which form products read a weight: as AMX's left or right tiles, or as a vector unit's panels,
// of single values or of pairs of k.
enum class WeightForm : uint8_t { kLeftTiles, kRightTiles, kPanels, kPairPanels };

// A weight that products read; where its buffer never changes the device may keep it packed.
struct PackedWeight {
  size_t input = 0;
  int64_t offset = 0;  // elements
  int64_t ld = 1, x = 1, k = 1;
  DType dtype = DType::kF32;
  bool k_rows = false;  // as ProductOperand
  WeightForm form = WeightForm::kLeftTiles;
  bool operator==(const PackedWeight&) const = default;
};

// A row's own kernel, for what has no fast path.
struct KernelStep {
  const OpDef* op = nullptr;
  Attrs attrs;
  struct Operand {
    int storage;
    int64_t offset;  // elements
    TensorType type;
  };
  std::vector<Operand> operands;
  int out = -1;
  TensorType out_type;
};

struct Step {
  std::variant<LoopStep, GemmStep, PackStep, KernelStep> work;
  std::vector<NodeId> nodes;
  // How it is cut: into chunks of rows, and for one large product also of columns.
  int64_t rows = 1, chunk_rows = 1;
  int64_t cols = 1, chunk_cols = 1;
  int64_t chunks() const {
    return (rows + chunk_rows - 1) / chunk_rows * ((cols + chunk_cols - 1) / chunk_cols);
  }
};

// The columns of a stage's rows that need work are those between which `witness` is open, a value
// of the same rows: the others' results are 0, or nothing depends on them (cpu_window.h).
struct Window {
  enum class Role : uint8_t {
    kNone,
    kColumns,  // makes these columns only
    kDepth,    // a product that sums over these columns only
  };
  int64_t cols = 0;
  Access witness;
  RowSpace space;           // of the witness
  bool additive = false;    // closed is far below 0, else 0
  std::vector<Role> roles;  // by step of the stage
  // Memory operands of the loop among these steps: the witness, and what the loop stores, of which
  // closed columns become 0 or the witness's own values.
  int witness_operand = -1;
  std::vector<int> zeros, masks;
};

// Steps with no barrier between them. Either a thread runs them one after the other on a chunk of
// rows, and each reads of the ones before only the rows of its own chunk; or they are side by side:
// none touches what another writes, and threads share out the chunks of all of them.
struct Stage {
  size_t first = 0, last = 0;  // steps [first, last)
  bool side_by_side = false;
  std::vector<int> locals;  // storages of kind kLocal
  std::optional<Window> window;
};

struct Plan {
  std::vector<Storage> storages;
  std::vector<Step> steps;
  std::vector<Stage> stages;
  int64_t chunks(const Stage& stage) const;
  std::vector<PackedWeight> weights;
  size_t arena_bytes = 0;
  size_t scratch_bytes = 0;  // per thread, local storages included
};

// Cannot fail: what has no fast path becomes a KernelStep.
Plan make_plan(const Graph& graph, ProductUnit best);

// In words, for tests, logs and the bench.
std::string step_text(const Plan& plan, const Step& step);
std::string plan_text(const Plan& plan);

}  // namespace npu::cpu
