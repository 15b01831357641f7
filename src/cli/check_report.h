// What check found, as JSON, as text and as a page.
#pragma once

#include <iosfwd>
#include <optional>
#include <string>
#include <vector>

#include "io/json.h"
#include "train/check.h"
#include "train/part_compare.h"

namespace npu {

struct CheckReport {
  std::string model, backend, reference;
  int64_t layers = 0, batch = 0, seq_len = 0;
  std::string dtype, weight_dtype, numerics;
  CheckLimits limits;
  // Worst over the seeds.
  Comparison versus_reference, versus_fp32;
  std::optional<Comparison> reference_versus_fp32;  // nothing where both are f32
  struct Seed {
    uint64_t seed;
    Comparison comparison;
  };
  std::vector<Seed> seeds;
  std::vector<GroupPlacement> placement;
  double step_seconds = 0;  // of the parts of one step, by the device's clock where it has one
  std::vector<GroupBlame> blame;  // empty: not asked for
  std::vector<PartError> parts;
  std::string parts_judge;  // "" when parts were not compared

  bool pass() const { return versus_reference.pass(limits); }
  // Why it did not pass, one sentence each.
  std::vector<std::string> failures() const;
  // Which group, moved to the host, cures how much; "" without blame.
  std::string blame_verdict() const;
};

Json check_json(const CheckReport& report);
void print_check(std::ostream& out, const CheckReport& report, size_t top);
std::string check_html(const CheckReport& report);

Json part_errors_json(const std::vector<PartError>& parts);
void print_part_errors(std::ostream& out, const std::vector<PartError>& parts, size_t top);
Json placement_json(const std::vector<GroupPlacement>& placement);
// "3 of 5 parts on the host (rejected: …)", one line a group.
void print_placement(std::ostream& out, const std::vector<GroupPlacement>& placement);

// printf for one number: a table cell.
std::string number_text(const char* format, double value);
// "1.38 %", "not finite".
std::string percent_text(double ratio);

}  // namespace npu
