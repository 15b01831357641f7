// Passes are named, ordered lists; the graph is verified after each, and any can be switched off by
// name (`--disable-pass NAME`).
#pragma once

#include <functional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ir/graph.h"

namespace npu {

// One rewrite: looks at a node (operands already rewritten, in `builder`) and may replace its
// value. A rule never changes shapes or dtypes.
struct Rule {
  std::string_view name;
  std::string_view why;  // the algebra, and the reason it is worth having
  bool exact;            // results equal bit for bit (any NaN equals any NaN)
  // Returns an invalid Value when the rule does not apply. `node` holds op and attrs, `inputs` the
  // operands in the new graph (their nodes can be read through Value::builder).
  Value (*apply)(Builder& builder, const Node& node, std::span<const Value> inputs);
};

struct Pass {
  std::string_view name;
  std::string_view why;
  std::span<const Rule> rules;           // applied bottom-up until nothing changes, or
  Graph (*run)(const Graph&) = nullptr;  // a whole-graph function, when `rules` is empty
};

// The passes that every graph gets before it is cut, in order.
std::span<const Pass> default_passes();
const Pass* find_pass(std::string_view name);  // in default_passes and the vendors' lists

struct PassOptions {
  std::set<std::string, std::less<>> disabled;  // names of passes or rules
  // Called after each pass that changed the graph (for `npu-lora ir --print-after`).
  std::function<void(std::string_view pass, const Graph&)> after;
  // Called each time a rule replaced a value (tests, `npu-lora ir --trace`).
  std::function<void(const Rule&)> fired;
};

// Runs `passes` in order; a result that does not verify is an InternalError naming the pass.
Graph run_passes(const Graph& graph, std::span<const Pass> passes, const PassOptions& options = {});

}  // namespace npu
