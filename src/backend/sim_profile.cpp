// YAML to Profile: every key is known by a table, every error names file, line and key.
#include "backend/sim_profile.h"

#include <yaml-cpp/yaml.h>

#include <cmath>
#include <functional>
#include <limits>
#include <span>

#include "backend/placement_groups.h"
#include "base/hash.h"
#include "base/text.h"
#include "ops/table.h"

namespace npu::sim {
namespace {

template <class T>
struct Choice {
  std::string_view name;
  T value;
};
constexpr Choice<Format> kFormats[] = {{"f32", Format::kF32},
                                       {"bf16", Format::kBF16},
                                       {"f16", Format::kF16},
                                       {"dlfloat", Format::kDlFloat}};
constexpr Choice<Mode> kModes[] = {
    {"nearest", Mode::kNearest}, {"away", Mode::kAway}, {"truncate", Mode::kTruncate}};
constexpr Choice<DType> kFloats[] = {
    {"f32", DType::kF32}, {"bf16", DType::kBF16}, {"f16", DType::kF16}};
constexpr Choice<bool> kSubnormals[] = {{"flush", true}, {"keep", false}};
constexpr Choice<bool> kNan[] = {{"canonical", true}, {"keep", false}};
constexpr Choice<bool> kMemory[] = {{"host", true}, {"device", false}};
constexpr Choice<bool> kInputOrder[] = {{"by-use", true}, {"as-given", false}};
constexpr Choice<bool> kTruth[] = {{"true", true}, {"false", false}};
constexpr Choice<Failure> kCompileEnds[] = {{"reject", Failure::kReject},
                                            {"crash", Failure::kCrash},
                                            {"hang", Failure::kHang},
                                            {"out-of-memory", Failure::kOutOfMemory}};
constexpr Choice<Failure> kLoadEnds[] = {{"reject", Failure::kReject},
                                         {"crash", Failure::kCrash},
                                         {"out-of-memory", Failure::kOutOfMemory}};
constexpr Choice<Failure> kRunEnds[] = {
    {"timeout", Failure::kTimeout}, {"lost", Failure::kLost}, {"wrong", Failure::kWrong}};
constexpr Choice<Fault::When> kWhen[] = {
    {"compile", Fault::When::kCompile}, {"load", Fault::When::kLoad}, {"run", Fault::When::kRun}};
constexpr std::string_view kClassNames[kNumOpClasses] = {"matmul", "elementwise", "transcendental",
                                                         "reduce", "movement"};

// One value of the document with the way to it.
struct Item {
  const std::string& source;
  std::string path;  // "costs.launch_seconds"
  YAML::Node node;

  [[noreturn]] void fail(std::string what, std::string got = "", std::string hint = "") const {
    const int line = node.Mark().line + 1;
    const std::string key = path.empty() ? "" : ":" + path;
    fail_input(source + ":" + std::to_string(std::max(line, 1)) + key, std::move(what),
               std::move(got), std::move(hint));
  }
  // What a scalar holds, for `got`.
  std::string shown() const {
    if (node.IsScalar()) return "'" + node.Scalar() + "'";
    return node.IsMap() ? "a map" : node.IsSequence() ? "a list" : "nothing";
  }
};

struct Field {
  std::string_view key;
  std::function<void(const Item&)> read;
};

void read_map(const Item& item, std::span<const Field> fields) {
  if (!item.node.IsMap()) item.fail("must be a map", item.shown());
  std::vector<std::string> seen;
  for (const auto& entry : item.node) {
    const Item key = {item.source, item.path, entry.first};
    const std::string name = entry.first.IsScalar() ? entry.first.Scalar() : "";
    const auto field =
        std::find_if(fields.begin(), fields.end(), [&](const Field& f) { return f.key == name; });
    if (field == fields.end()) {
      std::vector<std::string_view> known;
      for (const Field& f : fields) known.push_back(f.key);
      key.fail("unknown key", key.shown(), "keys are " + joined(known));
    }
    if (std::find(seen.begin(), seen.end(), name) != seen.end()) {
      key.fail("a key may stand once", "'" + name + "' again");
    }
    seen.push_back(name);
    // The mark of an empty value is nowhere: the key's line serves.
    const std::string path = item.path.empty() ? name : item.path + "." + name;
    if (entry.second.IsNull()) Item{item.source, path, entry.first}.fail("has no value");
    field->read({item.source, path, entry.second});
  }
}

void read_list(const Item& item, const std::function<void(const Item&)>& read) {
  if (!item.node.IsSequence()) item.fail("must be a list", item.shown());
  for (size_t i = 0; i < item.node.size(); ++i) {
    read({item.source, item.path + "[" + std::to_string(i) + "]", item.node[i]});
  }
}

std::string read_text_value(const Item& item) {
  if (!item.node.IsScalar() || item.node.Scalar().empty()) item.fail("must be text", item.shown());
  return item.node.Scalar();
}

double read_number(const Item& item, double low, double high) {
  double value = 0;
  const bool number = item.node.IsScalar() && YAML::convert<double>::decode(item.node, value);
  if (!number || !(value >= low && value <= high)) {
    char range[64];
    std::snprintf(range, sizeof range, "must be a number from %g to %g", low, high);
    item.fail(range, item.shown());
  }
  return value;
}

int64_t read_count(const Item& item) {
  int64_t value = 0;
  const bool number = item.node.IsScalar() && YAML::convert<int64_t>::decode(item.node, value);
  if (!number || value < 0) item.fail("must be a whole number of at least 0", item.shown());
  return value;
}

template <class T, size_t N>
T read_choice(const Item& item, const Choice<T> (&choices)[N]) {
  std::vector<std::string_view> names;
  for (const Choice<T>& choice : choices) {
    if (item.node.IsScalar() && item.node.Scalar() == choice.name) return choice.value;
    names.push_back(choice.name);
  }
  item.fail("must be one of " + joined(names), item.shown());
}

std::string read_op(const Item& item) {
  std::string name = read_text_value(item);
  if (find_op(name) == nullptr) {
    item.fail("must name an op", "'" + name + "'", "docs/ops.md lists them");
  }
  return name;
}

void read_rounding(const Item& item, Rounding& rounding) {
  bool biased = false;
  const Field fields[] = {
      {"format", [&](const Item& i) { rounding.format = read_choice(i, kFormats); }},
      {"mode", [&](const Item& i) { rounding.mode = read_choice(i, kModes); }},
      {"bias",
       [&](const Item& i) {
         rounding.bias = read_number(i, 0, 1);
         biased = true;
       }},
      {"from",
       [&](const Item& i) {
         rounding.from = read_number(i, 0, 3e38);
         biased = true;
       }},
  };
  read_map(item, fields);
  if (biased && rounding.mode != Mode::kAway) {
    item.fail("bias and from go with mode away", "", "add 'mode: away', or drop them");
  }
}

void read_all_rounding(const Item& item, Profile& profile) {
  std::vector<Field> fields = {
      {"subnormals",
       [&](const Item& i) { profile.specials.flush_subnormals = read_choice(i, kSubnormals); }},
      {"nan", [&](const Item& i) { profile.specials.canonical_nan = read_choice(i, kNan); }},
  };
  for (size_t c = 0; c < kNumOpClasses; ++c) {
    fields.push_back(
        {kClassNames[c], [&profile, c](const Item& i) {
           ClassRounding& rounding = profile.rounding[c];
           const Field sides[] = {
               {"operands", [&](const Item& side) { read_rounding(side, rounding.operands); }},
               {"result", [&](const Item& side) { read_rounding(side, rounding.result); }},
           };
           read_map(i, sides);
         }});
  }
  read_map(item, fields);
}

// "neg -> add => matmul"
std::vector<Rejection::Link> read_pattern(const Item& item) {
  const std::string text = read_text_value(item);
  std::vector<Rejection::Link> links;
  bool op_next = true, adjacent = true;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find(' ', begin), text.size());
    const std::string word = text.substr(begin, end - begin);
    begin = end + 1;
    if (word.empty()) continue;
    if (op_next) {
      if (find_op(word) == nullptr) {
        item.fail("must name ops", "'" + word + "'", "docs/ops.md lists them");
      }
      links.push_back({word, adjacent});
    } else if (word == "->" || word == "=>") {
      adjacent = word == "->";
    } else {
      item.fail("ops must be joined by -> (reads it) or => (somewhere behind it)", "'" + word + "'",
                "write 'neg -> add => matmul'");
    }
    op_next = !op_next;
  }
  if (op_next) item.fail("must end with an op", "'" + text + "'");
  return links;
}

Rejection read_rejection(const Item& item) {
  Rejection rejection;
  const Field fields[] = {
      {"pattern", [&](const Item& i) { rejection.pattern = read_pattern(i); }},
      {"how", [&](const Item& i) { rejection.how = read_choice(i, kCompileEnds); }},
      {"reason", [&](const Item& i) { rejection.reason = read_text_value(i); }},
  };
  read_map(item, fields);
  if (rejection.pattern.empty()) item.fail("needs a pattern", "", "write pattern: neg -> add");
  return rejection;
}

void read_limits(const Item& item, Limits& limits) {
  const Field fields[] = {
      {"contractions", [&](const Item& i) { limits.most.contractions = read_count(i); }},
      {"nodes", [&](const Item& i) { limits.most.nodes = read_count(i); }},
      {"inputs", [&](const Item& i) { limits.most.inputs = read_count(i); }},
      {"outputs", [&](const Item& i) { limits.most.outputs = read_count(i); }},
      {"known", [&](const Item& i) { limits.known = read_choice(i, kTruth); }},
      {"beyond", [&](const Item& i) { limits.beyond = read_choice(i, kCompileEnds); }},
  };
  read_map(item, fields);
}

void read_costs(const Item& item, Costs& costs) {
  constexpr double kMost = 1e18, kMostSeconds = 1e6;
  const auto number = [](double& into, double most) {
    return [&into, most](const Item& i) { into = read_number(i, 0, most); };
  };
  const Field fields[] = {
      {"launch_seconds", number(costs.launch_seconds, kMostSeconds)},
      {"flops_per_second", number(costs.flops_per_second, kMost)},
      {"h2d_bytes_per_second", number(costs.h2d_bytes_per_second, kMost)},
      {"d2h_bytes_per_second", number(costs.d2h_bytes_per_second, kMost)},
      {"compile_seconds_per_node", number(costs.compile_seconds_per_node, kMostSeconds)},
  };
  read_map(item, fields);
}

Fault read_fault(const Item& item) {
  Fault fault;
  std::optional<Item> when, kind;
  const Field fields[] = {
      {"when", [&](const Item& i) { when.emplace(i); }},
      {"kind", [&](const Item& i) { kind.emplace(i); }},
      {"part", [&](const Item& i) { fault.part = read_text_value(i); }},
      {"launch", [&](const Item& i) { fault.launch = read_count(i); }},
  };
  read_map(item, fields);
  if (!when || !kind) item.fail("needs when and kind", "", "write {when: run, kind: lost}");
  fault.when = read_choice(*when, kWhen);
  fault.kind = fault.when == Fault::When::kCompile ? read_choice(*kind, kCompileEnds)
               : fault.when == Fault::When::kLoad  ? read_choice(*kind, kLoadEnds)
                                                   : read_choice(*kind, kRunEnds);
  if (fault.launch && fault.when != Fault::When::kRun) {
    item.fail("launch goes with when: run", "", "name the part instead");
  }
  if (fault.launch == 0) item.fail("launches count from 1", "launch 0");
  return fault;
}

std::string read_group(const Item& item) {
  std::string name = read_text_value(item);
  if (std::find(kPlacementGroups.begin(), kPlacementGroups.end(), name) == kPlacementGroups.end()) {
    item.fail("must name a group", "'" + name + "'", "groups are " + joined(kPlacementGroups));
  }
  return name;
}

Profile read_profile(const Item& root) {
  Profile profile;
  profile.arithmetic = {DType::kF32, DType::kBF16, DType::kF16};
  const Field fields[] = {
      {"name", [&](const Item& i) { profile.name = read_text_value(i); }},
      {"compute_dtype", [&](const Item& i) { profile.compute_dtype = read_choice(i, kFloats); }},
      {"memory", [&](const Item& i) { profile.host_memory = read_choice(i, kMemory); }},
      {"memory_bytes", [&](const Item& i) { profile.memory_bytes = read_count(i); }},
      {"rounding", [&](const Item& i) { read_all_rounding(i, profile); }},
      {"ops",
       [&](const Item& i) {
         read_list(i, [&](const Item& op) { profile.ops.push_back(read_op(op)); });
       }},
      {"arithmetic",
       [&](const Item& i) {
         profile.arithmetic.clear();
         read_list(i, [&](const Item& dtype) {
           profile.arithmetic.push_back(read_choice(dtype, kFloats));
         });
       }},
      {"reject",
       [&](const Item& i) {
         read_list(i, [&](const Item& r) { profile.reject.push_back(read_rejection(r)); });
       }},
      {"inputs", [&](const Item& i) { profile.inputs_by_use = read_choice(i, kInputOrder); }},
      {"limits", [&](const Item& i) { read_limits(i, profile.limits); }},
      {"costs", [&](const Item& i) { read_costs(i, profile.costs); }},
      {"host_parts",
       [&](const Item& i) {
         read_list(i, [&](const Item& g) { profile.host_parts.push_back(read_group(g)); });
       }},
      {"legalise",
       [&](const Item& i) {
         read_list(i, [&](const Item& p) { profile.legalise.push_back(read_text_value(p)); });
       }},
      {"faults",
       [&](const Item& i) {
         read_list(i, [&](const Item& f) { profile.faults.push_back(read_fault(f)); });
       }},
  };
  read_map(root, fields);
  if (profile.name.empty()) root.fail("needs a name", "", "write name: mychip");
  return profile;
}

}  // namespace

OpClass class_of(const OpDef& op) {
  constexpr std::string_view kTranscendental[] = {"exp", "log", "sqrt", "rsqrt", "sigmoid"};
  if (op.traits.contraction) return OpClass::kMatmul;
  if (op.traits.reduction) return OpClass::kReduce;
  const auto found = std::find(std::begin(kTranscendental), std::end(kTranscendental), op.name);
  if (found != std::end(kTranscendental)) return OpClass::kTranscendental;
  // convert has the rounding of its own type, and select hands values on.
  const bool computes = op.traits.elementwise && op.name != "convert" && op.name != "select";
  return computes ? OpClass::kElementwise : OpClass::kMovement;
}

Result<Profile> parse_profile(const std::string& text, const std::string& source) {
  try {
    Profile profile = read_profile({source, "", YAML::Load(text)});
    profile.digest = sha256_hex(std::string_view(text));
    return profile;
  } catch (const UserError& error) {
    return error.error();
  } catch (const YAML::Exception& error) {
    return Error{ErrorKind::kBadInput, source + ":" + std::to_string(error.mark.line + 1),
                 "is not YAML", error.msg, "docs/simulators.md shows a profile"};
  }
}

}  // namespace npu::sim
