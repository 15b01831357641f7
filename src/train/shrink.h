// From a graph that a compiler fails on to the smallest one that it fails on in the same way: the
// case that a vendor can read.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "compile/cache.h"
#include "ir/graph.h"

namespace npu {

// How a graph fared. Called from several threads at once when jobs > 1.
using TryCompile = std::function<CompileOutcome(const Graph&)>;

struct ShrinkOptions {
  int64_t max_compiles = 200;
  int jobs = 1;
};

struct ShrunkGraph {
  Graph graph;             // canonical names: "i0".., "o0".., graph name "part"
  CompileOutcome outcome;  // of `graph`
  int64_t compiles = 0;
  bool minimal = false;  // no single node or output can go; false when max_compiles ran out
};
// First the shortest prefix in order of nodes that fails, then the shortest suffix of that, then
// delta debugging (Zeller, Hildebrandt 2002: complements of ever smaller chunks) over nodes and
// extra outputs. What is cut off below becomes an input, above an output. Every step is compiled,
// none is assumed.
ShrunkGraph shrink(const Graph& failing, const CompileOutcome& failure, const TryCompile& compile,
                   const ShrinkOptions& options);

// Same kind, and the same words in the reason: numbers, shapes and generated names may differ.
bool same_failure(const CompileOutcome& a, const CompileOutcome& b);

}  // namespace npu
