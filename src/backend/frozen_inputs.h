// Code made for the values of frozen weights: which inputs of a call are such weights, and a table
// of what was made for which of them (docs/decisions/011-constant-weights.md).
#pragma once

#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "backend/graph_writers.h"

namespace npu {

// Which inputs of the part are right operands of products of matrices, as they are or after
// conversion, and nothing else: what a weight of a linear layer is in every graph. Only these
// become constants: others would win nothing, and the fewer graphs are new to a compiler, the
// better.
std::vector<bool> product_weights(const Graph& part);

// The frozen inputs of one call: who they are while they live, and what they hold.
class FrozenInputs {
 public:
  // `weights` says by position which inputs may become constants. All arguments must outlive this.
  FrozenInputs(const Graph& part, const std::vector<bool>& weights,
               std::span<Buffer* const> inputs);

  bool empty() const { return identities_.empty(); }
  // The buffers' memory, in place.
  ConstantInputs values() const;
  // One for each input of the part, null where it isn't a frozen weight.
  const std::vector<std::shared_ptr<Buffer::Forms>>& identities() const { return identities_; }

 private:
  const Graph& part_;
  std::span<Buffer* const> inputs_;
  std::vector<std::shared_ptr<Buffer::Forms>> identities_;
};

// What a call answers when its code with constants can't be made: who asked for constants does not
// get a run without them.
Error without_constants(Error error);

// What was made for each set of frozen buffers. An entry whose buffers are gone is never found, and
// is freed when the next one is sought in vain.
template <class Code>
class FrozenCode {
 public:
  Code* find(const FrozenInputs& frozen) {
    const auto found = entries_.find(key_of(frozen));
    if (found != entries_.end() && alive(found->second)) return found->second.code.get();
    std::erase_if(entries_, [](const auto& entry) { return !alive(entry.second); });
    return nullptr;
  }

  Code& add(const FrozenInputs& frozen, std::unique_ptr<Code> code) {
    Entry entry;
    for (const auto& identity : frozen.identities()) {
      if (identity != nullptr) entry.identities.push_back(identity);
    }
    entry.code = std::move(code);
    return *entries_.insert_or_assign(key_of(frozen), std::move(entry)).first->second.code;
  }

  size_t size() const { return entries_.size(); }

 private:
  // Compared only; an address that was used again is told by its entry, which is no longer alive.
  using Key = std::vector<const Buffer::Forms*>;
  struct Entry {
    std::vector<std::weak_ptr<Buffer::Forms>> identities;
    std::unique_ptr<Code> code;
  };

  static Key key_of(const FrozenInputs& frozen) {
    Key key;
    for (const auto& identity : frozen.identities()) key.push_back(identity.get());
    return key;
  }
  static bool alive(const Entry& entry) {
    for (const auto& identity : entry.identities) {
      if (identity.expired()) return false;
    }
    return true;
  }

  std::map<Key, Entry> entries_;
};

// A loaded part of a runtime that prepacks: its code with all inputs bound, and with the frozen
// weights of each set of calls as constants.
template <class Code>
class PrepackExecutable : public Executable {
 public:
  // `constant` says by position which inputs may become constants.
  PrepackExecutable(Graph graph, std::vector<bool> constant, std::unique_ptr<Code> plain)
      : part(std::move(graph)), constant_(std::move(constant)), code_(std::move(plain)) {}

  // The code for this call. make(constants) is asked at the first call with these frozen weights.
  template <class Make>
  Result<Code*> code_for(std::span<Buffer* const> inputs, bool prepack, const Make& make) {
    if (!prepack) return code_.get();
    const FrozenInputs frozen(part, constant_, inputs);
    if (frozen.empty()) return code_.get();
    if (Code* known = with_constants_.find(frozen)) return known;
    Result<std::unique_ptr<Code>> made = make(frozen.values());
    if (!made) return without_constants(made.error());
    return &with_constants_.add(frozen, std::move(made.value()));
  }

  const Graph part;

 private:
  const std::vector<bool> constant_;
  std::unique_ptr<Code> code_;
  FrozenCode<Code> with_constants_;
};

}  // namespace npu
