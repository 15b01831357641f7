// Shrinking a graph that fails to compile.
#include "train/shrink.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <mutex>
#include <optional>

#include "base/thread_pool.h"
#include "ir/text.h"

namespace npu {
namespace {

// The words of a message that hold letters only.
std::vector<std::string> plain_words(const std::string& text) {
  std::vector<std::string> words;
  std::string word;
  bool plain = true;
  const auto end_word = [&] {
    if (plain && !word.empty()) words.push_back(word);
    word.clear();
    plain = true;
  };
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (std::isalnum(byte) != 0 || c == '_' || c == '%') {
      plain = plain && std::isalpha(byte) != 0;
      word += c;
    } else {
      end_word();
    }
  }
  end_word();
  return words;
}

// The parts of a graph that can go one by one: its op nodes, then its outputs that are also read
// inside (the others stand as long as their node does).
using Kept = std::vector<bool>;

class Shrinker {
 public:
  Shrinker(const Graph& graph, const CompileOutcome& failure, const TryCompile& compile,
           const ShrinkOptions& options)
      : graph_(graph),
        failure_(failure),
        compile_(compile),
        options_(options),
        pool_(std::max(1, options.jobs)) {
    for (size_t id = 0; id < graph.nodes().size(); ++id) {
      if (!graph.nodes()[id].is_input()) nodes_.push_back(static_cast<NodeId>(id));
    }
    best_ = Kept(nodes_.size() + graph.outputs().size(), true);
    best_outcome_ = failure;
  }

  ShrunkGraph run() {
    shorten_from_end();
    shorten_from_start();
    const bool minimal = delta_debug();
    return {part(best_), best_outcome_, compiles_, minimal};
  }

 private:
  size_t at(NodeId id) const { return static_cast<size_t>(id); }
  bool exhausted() const { return compiles_ >= options_.max_compiles; }

  // The kept nodes as a graph of their own.
  Graph part(const Kept& kept) const {
    std::vector<bool> node_kept(graph_.nodes().size(), false), read(graph_.nodes().size(), false);
    for (size_t i = 0; i < nodes_.size(); ++i) node_kept[at(nodes_[i])] = kept[i];
    Builder builder("part");
    std::vector<Value> values(graph_.nodes().size());
    int inputs = 0;
    for (const NodeId id : nodes_) {
      if (!node_kept[at(id)]) continue;
      const Node& node = graph_.node(id);
      std::vector<Value> operands;
      for (const NodeId operand : node.inputs) {
        read[at(operand)] = true;
        if (!values[at(operand)].valid()) {
          values[at(operand)] =
              builder.input("i" + std::to_string(inputs++), graph_.node(operand).type);
        }
        operands.push_back(values[at(operand)]);
      }
      values[at(id)] = builder.apply(*node.op, std::move(operands), node.attrs);
    }
    int outputs = 0;
    std::vector<bool> is_output(graph_.nodes().size(), false);
    const auto add_output = [&](NodeId id) {
      builder.output("o" + std::to_string(outputs++), values[at(id)]);
      is_output[at(id)] = true;
    };
    for (size_t i = 0; i < graph_.outputs().size(); ++i) {
      const NodeId id = graph_.outputs()[i].node;
      if (node_kept[at(id)] && (kept[nodes_.size() + i] || !read[at(id)])) add_output(id);
    }
    for (const NodeId id : nodes_) {
      if (node_kept[at(id)] && !read[at(id)] && !is_output[at(id)]) add_output(id);
    }
    return std::move(builder).build();
  }

  bool empty(const Kept& kept) const {
    return std::find(kept.begin(), kept.begin() + static_cast<ptrdiff_t>(nodes_.size()), true) ==
           kept.begin() + static_cast<ptrdiff_t>(nodes_.size());
  }

  // The outcome where the graph fails in the way that is looked for.
  std::optional<CompileOutcome> fails(const Kept& kept) {
    if (empty(kept)) return std::nullopt;
    const Graph candidate = part(kept);
    const std::string text = print_graph(candidate);
    {
      const std::lock_guard lock(mutex_);
      if (const auto known = known_.find(text); known != known_.end()) return known->second;
      ++compiles_;
    }
    std::optional<CompileOutcome> outcome = compile_(candidate);
    if (!same_failure(*outcome, failure_)) outcome.reset();
    const std::lock_guard lock(mutex_);
    return known_.emplace(text, std::move(outcome)).first->second;
  }

  // The first candidate that fails becomes the best one, whatever the number of jobs.
  bool take_first(const std::vector<Kept>& candidates) {
    const size_t jobs = static_cast<size_t>(pool_.threads());
    for (size_t begin = 0; begin < candidates.size() && !exhausted(); begin += jobs) {
      const size_t count = std::min(jobs, candidates.size() - begin);
      std::vector<std::optional<CompileOutcome>> outcomes(count);
      pool_.run(static_cast<int64_t>(count), [&](int64_t i) {
        outcomes[static_cast<size_t>(i)] = fails(candidates[begin + static_cast<size_t>(i)]);
      });
      for (size_t i = 0; i < count; ++i) {
        if (!outcomes[i]) continue;
        best_ = candidates[begin + i];
        best_outcome_ = std::move(*outcomes[i]);
        return true;
      }
    }
    return false;
  }

  // Bisection for the shortest run that fails; `cut(n)` keeps n of `size` nodes.
  template <class Cut>
  void bisect(size_t size, const Cut& cut) {
    size_t low = 0, high = size;
    while (high - low > 1 && !exhausted()) {
      const size_t middle = low + (high - low) / 2;
      if (take_first({cut(middle)})) {
        high = middle;
      } else {
        low = middle;
      }
    }
  }

  void shorten_from_end() {
    const Kept start = best_;
    bisect(nodes_.size(), [&](size_t length) {
      Kept kept = start;
      std::fill(kept.begin() + static_cast<ptrdiff_t>(length),
                kept.begin() + static_cast<ptrdiff_t>(nodes_.size()), false);
      return kept;
    });
  }

  void shorten_from_start() {
    const Kept start = best_;
    size_t size = 0;
    while (size < nodes_.size() && start[size]) ++size;
    bisect(size, [&](size_t length) {
      Kept kept = start;
      std::fill(kept.begin(), kept.begin() + static_cast<ptrdiff_t>(size - length), false);
      return kept;
    });
  }

  // Returns whether it came to an end within the budget.
  bool delta_debug() {
    size_t chunks = 2;
    while (!exhausted()) {
      std::vector<size_t> items;
      for (size_t i = 0; i < best_.size(); ++i) {
        if (best_[i]) items.push_back(i);
      }
      if (items.size() <= 1) return true;
      chunks = std::min(chunks, items.size());
      std::vector<Kept> candidates;
      for (size_t c = 0; c < chunks; ++c) {
        Kept kept = best_;
        for (size_t i = items.size() * c / chunks; i < items.size() * (c + 1) / chunks; ++i) {
          kept[items[i]] = false;
        }
        candidates.push_back(std::move(kept));
      }
      if (take_first(candidates)) {
        chunks = std::max<size_t>(2, chunks - 1);
      } else if (chunks == items.size()) {
        return !exhausted();
      } else {
        chunks *= 2;
      }
    }
    return false;
  }

  const Graph& graph_;
  const CompileOutcome& failure_;
  const TryCompile& compile_;
  const ShrinkOptions& options_;
  ThreadPool pool_;
  std::vector<NodeId> nodes_;
  Kept best_;
  CompileOutcome best_outcome_;
  std::mutex mutex_;
  std::map<std::string, std::optional<CompileOutcome>> known_;  // by text
  int64_t compiles_ = 0;
};

}  // namespace

bool same_failure(const CompileOutcome& a, const CompileOutcome& b) {
  if (a.built() || a.kind != b.kind) return false;
  // Time and memory run out with all kinds of last words.
  if (a.kind == CompileOutcome::Kind::kTimedOut || a.kind == CompileOutcome::Kind::kOutOfMemory) {
    return true;
  }
  return plain_words(a.reason) == plain_words(b.reason);
}

ShrunkGraph shrink(const Graph& failing, const CompileOutcome& failure, const TryCompile& compile,
                   const ShrinkOptions& options) {
  return Shrinker(failing, failure, compile, options).run();
}

}  // namespace npu
