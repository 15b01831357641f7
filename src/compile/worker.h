// One compile job, in this process or in a child, and the messages between the two.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "backend/backend.h"
#include "compile/cache.h"
#include "compile/plan.h"

namespace npu {

// A compile's end, and whether the same job would end so again: a missing library, a full disk or a
// kill from outside says nothing about the part, so such outcomes are not cached.
struct JobResult {
  CompileOutcome outcome;
  bool lasting = true;
};

// In this process: whatever the compiler does to it, it does to us.
JobResult compile_here(Backend& backend, const Graph& part, const CompileOptions& options);

// By the child settings.worker under the limits of `settings`. `part_text` is print_graph's.
JobResult compile_in_child(const std::string& backend_name, const std::string& part_text,
                           const CompileOptions& options, const CompileSettings& settings);

using MakeBackend = std::function<Result<std::unique_ptr<Backend>>(std::string_view name)>;
// compile_worker_main() for any list of backends.
int serve_compile_job(const MakeBackend& make);

}  // namespace npu
