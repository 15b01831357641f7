// Vector loops over rows of f32 (or i32) cells, one small loop per op. The same source is compiled
// for several instruction sets, so this header holds plain types only: an inline function emitted
// by one of those files could be linked into code that must run everywhere.
#pragma once

#include <cstdint>

namespace npu::cpu {

// dst[r][c] = op(src0[r][c], …) for r < rows, c < cols. Strides are in elements between rows; what
// operands an op takes and whether one is a column (read at c = 0 only) is the loop's choice. dst
// may be an operand with the same strides.
struct LoopCall {
  void* dst;
  const void* src[3];
  int64_t dst_stride;
  int64_t src_stride[3];
  int64_t rows, cols;
  int64_t step;  // loads: elements between columns of src0
};
using LoopFn = void (*)(const LoopCall&);

inline constexpr int kLoopForms = 8;

// Registers hold f32 for every float dtype and for truth values (0 or 1), and i32 for i32.
// Names: the op's, with the kind of a compare and the dtype where it matters ("compare.lt",
// "compare.eq.i32"), and load.T, store.T, round.T, copy, row_sum, row_max. OP.T rounds what OP
// gives, store.rounded.T what it stores.
struct LoopRow {
  const char* name;
  LoopFn forms[kLoopForms];  // bit i of the index: operand i is a column
};

struct LoopTable {
  const char* isa;
  const LoopRow* rows;
  int count;
};

namespace baseline {
extern const LoopTable kTable;
}
#if defined(__x86_64__)
namespace avx2 {
extern const LoopTable kTable;
}
namespace avx512 {
extern const LoopTable kTable;
}
#endif

// The table for this machine.
const LoopTable& loop_table();
// Null when the table has no such loop.
LoopFn find_loop(const char* name, unsigned form = 0);

}  // namespace npu::cpu
