// Graphs and inputs that every backend is tried on: each op row's samples, layer graphs, and graphs
// whose inputs and outputs are bound in awkward ways.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "ir/graph.h"

namespace npu {

struct BackendCase {
  std::string name;    // letters, digits and underscores
  std::string family;  // key of the table of error bounds
  Graph graph;
  double low = -1, high = 1;          // of random float inputs
  double int_low = -9, int_high = 9;  // of integer inputs, both ends included
};

std::vector<BackendCase> row_cases();    // "add_0", one for each sample of each row
std::vector<BackendCase> layer_cases();  // forward, backward and loss graphs of a small model
std::vector<BackendCase> binding_cases();

using Inputs = std::map<std::string, Tensor>;
// Reproducible inputs; another `seed` gives other values. Integers and truth values are drawn too.
Inputs random_inputs(const BackendCase& test_case, uint64_t seed);

}  // namespace npu
