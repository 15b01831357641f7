// A shortest path whose edges (parts) are priced lazily: take the path that looks best, price what
// of it is not priced yet, learn from that how far the guesses are off, and look again.
#include "compile/cut_search.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <map>
#include <sstream>

#include "base/log.h"
#include "compile/distinct.h"
#include "compile/estimate.h"
#include "ir/text.h"

namespace npu {
namespace {

// Raised when the same estimates would lead to another cut.
constexpr const char* kSearchForm = "1";
constexpr double kNever = std::numeric_limits<double>::infinity();

using Range = std::pair<int, int>;  // pieces [first, second)

bool within(int64_t count, int64_t limit) { return limit <= 0 || count <= limit; }

// Labels in which `begins` are the first pieces of the parts.
PartLabels merged(const PartLabels& pieces, const std::vector<int>& begins) {
  PartLabels out = pieces;
  out.count = static_cast<int>(begins.size());
  for (int& label : out.part) {
    if (label < 0) continue;
    const auto after = std::upper_bound(begins.begin(), begins.end(), label);
    label = static_cast<int>(after - begins.begin()) - 1;
  }
  return out;
}

std::vector<Graph> parts_of(const Graph& graph, const PartLabels& labels) {
  std::vector<Graph> parts;
  for (const Part& part : split(graph, labels)) parts.push_back(canonicalize(part.graph).graph);
  return parts;
}

// By the products and by the bytes that must move, whichever takes longer.
double guessed_cycles(const Graph& part, const CostRates& rates) {
  const auto bytes = static_cast<double>(part.input_bytes() + part.output_bytes());
  const double seconds = std::max(part.contraction_flops() / rates.flops_per_second,
                                  bytes / std::max(1.0, rates.memory_bytes_per_second));
  return seconds * rates.cycles_per_second;
}

class CutSearch {
 public:
  CutSearch(const Graph& graph, Backend& backend, const CompileOptions& options,
            const CompileSettings& settings, const CutBounds& bounds, const CostRates& rates,
            PartLabels pieces, double off_by)
      : graph_(graph),
        backend_(backend),
        options_(options),
        settings_(settings),
        bounds_(bounds),
        rates_(rates),
        pieces_(std::move(pieces)),
        launch_cycles_(backend.traits().launch_seconds * rates.cycles_per_second),
        off_by_(off_by) {}

  // First pieces of the parts of the best path; nothing when no path could be priced.
  struct Found {
    std::vector<int> begins;
    double cycles = 0;
    size_t estimates = 0;
    bool lasting = true;  // another try would end so too
  };
  std::optional<Found> run() {
    while (true) {
      const std::vector<int> path = best_path(/*guessing=*/true);
      if (path.empty()) break;
      std::vector<Range> open;
      for (size_t i = 0; i < path.size(); ++i) {
        const Range range{path[i], i + 1 < path.size() ? path[i + 1] : pieces_.count};
        if (!priced_.contains(range)) open.push_back(range);
      }
      if (open.empty()) break;
      if (!priced_.empty() && priced_.size() + open.size() > kMostEstimates) break;
      if (!price(open)) return std::nullopt;
    }
    Found found;
    found.begins = best_path(/*guessing=*/false);
    if (found.begins.empty()) return std::nullopt;
    found.cycles = cost_of(found.begins);
    found.estimates = priced_.size();
    found.lasting = lasting_;
    return found;
  }

 private:
  const Graph& part(const Range& range) {
    const auto known = parts_.find(range);
    if (known != parts_.end()) return known->second;
    std::vector<int> begins = {0, range.first, range.second};
    begins.erase(std::unique(begins.begin(), begins.end()), begins.end());
    if (begins.back() == pieces_.count) begins.pop_back();
    const size_t at = range.first == 0 ? 0 : 1;
    Graph graph = parts_of(graph_, merged(pieces_, begins))[at];
    return parts_.emplace(range, std::move(graph)).first->second;
  }

  bool allowed(const Range& range) {
    const Graph& body = part(range);
    const PartLimits& most = bounds_.limits;
    const auto nodes = static_cast<int64_t>(body.nodes().size() - body.inputs().size());
    if (!within(static_cast<int64_t>(body.inputs().size()), most.inputs) ||
        !within(static_cast<int64_t>(body.outputs().size()), most.outputs) ||
        !within(nodes, most.nodes)) {
      return false;
    }
    const auto contractions = static_cast<double>(body.num_contractions());
    return contractions <= 1 || contractions * rates_.compile_seconds <= bounds_.compile_seconds;
  }

  double guess(const Range& range) {
    const auto known = guesses_.find(range);
    if (known != guesses_.end()) return known->second;
    return guesses_[range] = allowed(range) ? guessed_cycles(part(range), rates_) : kNever;
  }

  double cost(const Range& range, bool guessing) {
    const auto known = priced_.find(range);
    if (known != priced_.end()) return known->second + launch_cycles_;
    return guessing ? guess(range) * off_by_ + launch_cycles_ : kNever;
  }

  double cost_of(const std::vector<int>& begins) {
    double cycles = 0;
    for (size_t i = 0; i < begins.size(); ++i) {
      cycles += priced_.at({begins[i], i + 1 < begins.size() ? begins[i + 1] : pieces_.count});
    }
    return cycles;
  }

  std::vector<int> best_path(bool guessing) {
    std::vector<double> best(static_cast<size_t>(pieces_.count) + 1, kNever);
    std::vector<int> from(best.size(), -1);
    best[0] = 0;
    for (int end = 1; end <= pieces_.count; ++end) {
      for (int begin = 0; begin < end; ++begin) {
        const double before = best[static_cast<size_t>(begin)];
        if (before == kNever) continue;
        const double here = before + cost({begin, end}, guessing);
        if (here >= best[static_cast<size_t>(end)]) continue;
        best[static_cast<size_t>(end)] = here;
        from[static_cast<size_t>(end)] = begin;
      }
    }
    std::vector<int> begins;
    for (int end = pieces_.count; end > 0; end = from[static_cast<size_t>(end)]) {
      if (from[static_cast<size_t>(end)] < 0) return {};
      begins.insert(begins.begin(), from[static_cast<size_t>(end)]);
    }
    return begins;
  }

  // False where nothing can be priced at all.
  bool price(const std::vector<Range>& ranges) {
    std::vector<const Graph*> parts;
    for (const Range& range : ranges) parts.push_back(&part(range));
    const auto cycles = estimate_parts(parts, backend_, options_, settings_);
    if (!cycles) return false;
    for (size_t i = 0; i < ranges.size(); ++i) {
      const Result<double>& known = cycles.value()[i];
      priced_[ranges[i]] = known ? known.value() : kNever;
      lasting_ = lasting_ && (known || known.error().kind == ErrorKind::kBadInput);
    }
    // What came nearest to its guess: guesses stay hopeful, so that better cuts are not passed
    // over.
    for (const auto& [range, value] : priced_) {
      if (value != kNever && guess(range) > 0) off_by_ = std::min(off_by_, value / guess(range));
    }
    return true;
  }

  const Graph& graph_;
  Backend& backend_;
  const CompileOptions& options_;
  const CompileSettings& settings_;
  const CutBounds& bounds_;
  const CostRates& rates_;
  PartLabels pieces_;
  double launch_cycles_;
  bool lasting_ = true;
  double off_by_;  // of the guesses, by what is priced
  std::map<Range, Graph> parts_;
  std::map<Range, double> guesses_, priced_;
};

std::string grouped(double value) {
  std::string digits = std::to_string(std::llround(value));
  for (size_t at = digits.size(); at > 3;) {
    at -= 3;
    digits.insert(at, ",");
  }
  return digits;
}

// The cache's entry: how many cycles, how many estimates, and the first piece of each part; of the
// cut under the limits as they are, no pieces.
std::string print_record(const CutSearch::Found& found) {
  std::ostringstream text;
  text << std::llround(found.cycles) << " " << found.estimates;
  for (const int begin : found.begins) text << " " << begin;
  return text.str();
}

std::optional<CutSearch::Found> read_record(const std::string& text, int pieces) {
  std::istringstream in(text);
  CutSearch::Found found;
  if (!(in >> found.cycles >> found.estimates)) return std::nullopt;
  for (int begin = 0; in >> begin;) {
    const int before = found.begins.empty() ? -1 : found.begins.back();
    if (begin <= before || begin >= pieces || (found.begins.empty() && begin != 0)) {
      return std::nullopt;
    }
    found.begins.push_back(begin);
  }
  return in.eof() ? std::optional(found) : std::nullopt;
}

// What the limits' own cut costs, where every part of it is priced, and how far it is off a guess
// at the part that comes nearest to one.
struct Plain {
  size_t parts = 0;
  double cycles = kNever, off_by = kNever;
};

Plain price_of(const std::vector<Graph>& parts, Backend& backend, const CompileOptions& options,
               const CompileSettings& settings, const CostRates& rates) {
  std::vector<const Graph*> all;
  for (const Graph& part : parts) all.push_back(&part);
  const auto cycles = estimate_parts(all, backend, options, settings);
  Plain plain;
  plain.parts = parts.size();
  if (!cycles) return plain;
  double sum = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    const Result<double>& part = cycles.value()[i];
    sum += part ? part.value() : kNever;
    const double guess = guessed_cycles(parts[i], rates);
    if (part && guess > 0) plain.off_by = std::min(plain.off_by, part.value() / guess);
  }
  plain.cycles = sum;
  return plain;
}

ChosenCut chosen(const PartLabels& labels, const CutSearch::Found& found, std::string digest) {
  const std::string launches =
      labels.count == 1 ? "1 launch" : std::to_string(labels.count) + " launches";
  return {labels,
          grouped(found.cycles) + " cycles and " + launches + ", the least of " +
              std::to_string(found.estimates) + " estimates",
          std::move(digest)};
}

}  // namespace

std::optional<ChosenCut> search_cut(const Graph& graph, Backend& backend,
                                    const CompileOptions& options, const CompileSettings& settings,
                                    const CutBounds& bounds) {
  const std::optional<CostRates> rates = backend.cost_rates(options);
  const Result<std::string> compiler = backend.compiler_version();
  PartLimits least = bounds.limits;
  least.contractions = 1;
  const Result<PartLabels> pieces = partition(graph, least);
  const Result<PartLabels> by_limits = partition(graph, bounds.limits);
  if (!rates || !compiler || !pieces || !by_limits || pieces.value().count < 2) return std::nullopt;

  CacheKey key =
      part_key(graph, print_graph(graph), backend, compiler.value(), options, KeyUse::kForecast);
  key.add("use", "cut");
  char budget[96];
  std::snprintf(budget, sizeof budget, "%g s, %g s a contraction, %g s a launch",
                bounds.compile_seconds, rates->compile_seconds, backend.traits().launch_seconds);
  key.add("cut", budget);
  key.add("search", kSearchForm);
  const auto labels_of = [&](const CutSearch::Found& found) {
    return found.begins.empty() ? by_limits.value() : merged(pieces.value(), found.begins);
  };
  const Cache cache(settings.cache_dir);
  if (const auto entry = cache.get(key); entry && entry->built()) {
    if (const auto known = read_record(entry->blob, pieces.value().count)) {
      return chosen(labels_of(*known), *known, key.digest());
    }
  }

  log_info("plan", "looking for the best cut of " + graph.name());
  const Plain plain =
      price_of(parts_of(graph, by_limits.value()), backend, options, settings, *rates);
  std::optional<CutSearch::Found> found =
      CutSearch(graph, backend, options, settings, bounds, *rates, pieces.value(),
                plain.off_by == kNever ? 1 : plain.off_by)
          .run();
  if (!found && plain.cycles == kNever) return std::nullopt;
  const double launch = backend.traits().launch_seconds * rates->cycles_per_second;
  const auto with_launches = [&](double cycles, size_t parts) {
    return cycles + launch * static_cast<double>(parts);
  };
  const bool lasting = !found || found->lasting;
  const size_t estimates = (found ? found->estimates : 0) + plain.parts;
  if (!found || with_launches(plain.cycles, plain.parts) <
                    with_launches(found->cycles, found->begins.size())) {
    found = CutSearch::Found{{}, plain.cycles, 0, lasting};
  }
  found->estimates = estimates;
  if (!found->lasting) return chosen(labels_of(*found), *found, "");
  CompileOutcome record;
  record.kind = CompileOutcome::Kind::kBuilt;
  record.blob = print_record(*found);
  try {
    cache.put(key, record, graph.name());
  } catch (const UserError& e) {
    log_warn("cache", "not stored: " + e.error().text());
  }
  return chosen(labels_of(*found), *found, key.digest());
}

}  // namespace npu
