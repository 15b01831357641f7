// What both CPU backends share: a blob is the part's printed text, a call is checked before it
// runs.
#pragma once

#include <optional>
#include <span>

#include "backend/backend.h"

namespace npu::cpu {

// The graph that `blob` holds. Errors: text that does not parse, or whose inputs or outputs differ
// from the part's in number, order or type.
Result<Graph> decode_part(const Blob& blob, const Graph& part);

// Room for the part's values could not be had on the host (kRetriable).
Error too_large(const Graph& part);

// What is wrong with the buffers of a call: their number, a size below the type's, no host memory,
// or an output that overlaps another buffer.
std::optional<Error> check_call(const Graph& graph, std::span<Buffer* const> inputs,
                                std::span<Buffer* const> outputs);

}  // namespace npu::cpu
