// Where weights come from, as the trainer sees it: names to tensors. src/io implements it over
// files, tests over memory.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tensor/tensor.h"

namespace npu {

class WeightStore {
 public:
  virtual ~WeightStore() = default;
  virtual bool has(std::string_view name) const = 0;
  // The tensor as stored (f32, bf16 or f16), possibly a view of a mapped file. `name` is the
  // Hugging Face name ("model.layers.0.self_attn.q_proj.weight"). Absent: a kBadInput UserError.
  virtual Tensor get(std::string_view name) const = 0;
  // The caller has copied the tensor and will not read this view again soon.
  virtual void release(const Tensor& view) const = 0;
  virtual std::vector<std::string> names() const = 0;
};

}  // namespace npu
