// Frozen weights in the form in which products read them: made at the first call that needs them,
// kept with the buffer.
#pragma once

#include <span>
#include <vector>

#include "backend/backend.h"
#include "backend/cpu_plan.h"
#include "base/thread_pool.h"

namespace npu::cpu {

// Fills `found` with the packed form of each of `weights`, null where its buffer isn't frozen or
// its values are more than bf16. A form is made by all threads of `pool`. The caller sees to it
// that calls don't overlap. Error: no memory (kRetriable).
std::optional<Error> packed_weights(std::span<const PackedWeight> weights,
                                    std::span<Buffer* const> inputs, ThreadPool& pool,
                                    std::vector<const std::byte*>& found);

}  // namespace npu::cpu
