// What a simulator knows of the device that it stands for, read from YAML (docs/simulators.md). The
// built-in devices are such texts too (sim_builtin.cpp).
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "backend/backend.h"
#include "backend/sim_rounding.h"

namespace npu::sim {

enum class OpClass : uint8_t { kMatmul, kElementwise, kTranscendental, kReduce, kMovement };
inline constexpr size_t kNumOpClasses = 5;
OpClass class_of(const OpDef& op);

struct ClassRounding {
  Rounding operands, result;
};

// How a compile ends that does not end well, and what can go wrong later.
enum class Failure : uint8_t { kReject, kCrash, kHang, kOutOfMemory, kTimeout, kLost, kWrong };

// A chain of ops that the compiler does not take: "neg -> add => matmul" is a neg that an add
// reads, with a matmul somewhere behind it.
struct Rejection {
  struct Link {
    std::string op;
    bool adjacent = true;  // reads the link before it directly
  };
  std::vector<Link> pattern;
  Failure how = Failure::kReject;  // or kCrash, kHang, kOutOfMemory
  std::string reason;              // the compiler's words
};

struct Limits {
  BackendLimits most;
  bool known = true;              // the planner is told
  std::optional<Failure> beyond;  // what compiling a larger part does; nothing: it is compiled
};

struct Costs {
  double launch_seconds = 0;
  // 0 = takes no time.
  double flops_per_second = 0, h2d_bytes_per_second = 0, d2h_bytes_per_second = 0;
  double compile_seconds_per_node = 0;
};

struct Fault {
  enum class When : uint8_t { kCompile, kLoad, kRun };
  When when = When::kRun;
  Failure kind = Failure::kReject;
  std::string part;               // of the part's printed text; "" = any
  std::optional<int64_t> launch;  // of the calls of each loaded part that matches; nothing = all
};

struct Profile {
  std::string name;    // "furiosa"
  std::string digest;  // of the text
  DType compute_dtype = DType::kF32;
  bool host_memory = false;  // buffers are host memory, moved at each call
  std::array<ClassRounding, kNumOpClasses> rounding;
  Specials specials;
  std::vector<std::string> ops;   // that compile; empty: all
  std::vector<DType> arithmetic;  // float dtypes that it computes in
  std::vector<Rejection> reject;  // the first that is found counts
  bool inputs_by_use = false;     // compiled parts list their inputs anew: see sim_compile.h
  Limits limits;
  Costs costs;
  int64_t memory_bytes = 0;  // 0 = no limit
  std::vector<std::string> host_parts, legalise;
  std::vector<Fault> faults;

  const ClassRounding& rounding_of(OpClass op_class) const {
    return rounding[static_cast<size_t>(op_class)];
  }
};

// `source` is what errors name: a path. Errors (kBadInput): "source:line:key: what; got …; hint".
Result<Profile> parse_profile(const std::string& text, const std::string& source);

// Text of a built-in profile; nothing when there is none of this name.
std::optional<std::string_view> builtin_profile(std::string_view name);

}  // namespace npu::sim
