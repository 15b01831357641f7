// The distinct parts of a plan while it grows: equal canonical texts are one part.
#pragma once

#include <optional>
#include <string>
#include <unordered_map>

#include "backend/backend.h"
#include "compile/plan.h"

namespace npu {

// Why the backend can't take this part, known before compiling: "exp: is not accepted"; "" when it
// can.
std::string unsupported_node(Backend& backend, const Graph& part, const CompileOptions& options);

// What a compiled part, or a forecast for it, depends on. `text` is its printed form, `compiler`
// the backend's version.
CacheKey part_key(const Graph& part, std::string_view text, Backend& backend,
                  std::string_view compiler, const CompileOptions& options,
                  KeyUse use = KeyUse::kCode);

class DistinctParts {
 public:
  // Adds to `parts`, which may hold some already.
  DistinctParts(std::vector<DistinctPart>& parts, Backend& backend, const CompileOptions& options);

  // Index of the part with this canonical graph; a new one also knows whether it is supported.
  size_t find_or_add(Graph graph, const std::string& group, const std::string& name);

 private:
  std::vector<DistinctPart>& parts_;
  Backend& backend_;
  CompileOptions options_;
  std::unordered_map<std::string, size_t> by_text_;
};

}  // namespace npu
