// Matrix products in f32 on the CPU's vector units (docs/decisions/006-cpu-backend.md). The same
// source is compiled for several instruction sets; cpu_isa.cpp picks at run time.
#pragma once

#include "backend/cpu_product.h"

namespace npu::cpu {

// Each element is a sum over k in rising order, whatever rows and columns a call covers: results
// do not depend on how a product is cut along m and n.
struct VectorUnit {
  const char* isa;     // "avx512_bf16"
  int64_t panel_cols;  // x of a packed panel
  bool bf16_pairs;     // products of bf16 by bf16 are of pairs of k; all others are in f32
  void (*multiply)(const Product& product, std::byte* scratch);
  // Whether the sums of the product stay in registers to the end, so that its result may be of
  // 16 bits.
  bool (*writes_narrow)(const Product& product);
};

#if defined(__x86_64__)
namespace avx2 {
extern const VectorUnit kVectorUnit;
}
namespace avx512 {
extern const VectorUnit kVectorUnit;
}
namespace avx512_bf16 {
extern const VectorUnit kVectorUnit;
}
#endif

// The best that this CPU has; null without AVX2 and FMA.
const VectorUnit* vector_unit();

}  // namespace npu::cpu
