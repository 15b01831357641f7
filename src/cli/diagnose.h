// The three actions of diagnose, and the directory that a case for the vendor is written to.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/file.h"
#include "cli/commands.h"
#include "ir/graph.h"
#include "tensor/tensor.h"

namespace npu {

int diagnose_first_failing_node(const Options& options);
int diagnose_compare_parts(const Options& options);
int diagnose_repro(const Options& options, const std::string& part);

// A case that stands alone: the graph as text and as ONNX, tensors, and a README that says what
// goes wrong, with which versions, and how to see it.
struct VendorCase {
  Graph graph;
  std::string title;                                       // "sim:rbln crashes while compiling …"
  std::vector<std::pair<std::string, std::string>> facts;  // rows of the README's table
  std::string details;                                     // Markdown below the table
  std::map<std::string, std::map<std::string, Tensor>> tensors;  // file name → name → value
};
// Replaces `directory` as a whole; callers have checked that it may be.
void write_case(const fs::path& directory, const VendorCase& content);
// Fails with kUsage when `directory` exists and --overwrite was not given.
void check_case_directory(const Options& options, const fs::path& directory);
// The command line again, from what was given.
std::string command_line(const Options& options, std::string_view command);

// Backend, compiler and program, for tables of facts.
std::vector<std::pair<std::string, std::string>> version_facts(Backend& backend);

}  // namespace npu
