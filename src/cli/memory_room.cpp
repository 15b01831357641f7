// How much memory a run may take, where, and what follows from it.
#include "cli/memory_room.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "base/log.h"

namespace npu {
namespace {

// A number in a cgroup file; `otherwise` when there is none ("max", or no such file).
int64_t cgroup_bytes(const char* file, int64_t otherwise) {
  std::ifstream in(file);
  int64_t bytes = 0;
  return in >> bytes ? bytes : otherwise;
}

// The number after a key in a file of "key number …" lines; `otherwise` without the key.
int64_t keyed_number(const char* file, const std::string& wanted, int64_t otherwise) {
  std::ifstream in(file);
  std::string key, rest;
  for (int64_t number = 0; in >> key >> number; std::getline(in, rest)) {
    if (key == wanted) return number;
  }
  return otherwise;
}

std::string mib(int64_t bytes) { return std::to_string(bytes >> 20) + " MiB"; }

}  // namespace

int64_t available_memory_bytes() {
  const int64_t free = int64_t{sysconf(_SC_AVPHYS_PAGES)} * sysconf(_SC_PAGESIZE);
  const int64_t host = keyed_number("/proc/meminfo", "MemAvailable:", free >> 10) << 10;
  // Pages of files that nobody has used lately count as used, and make room when asked.
  const int64_t limit = cgroup_bytes("/sys/fs/cgroup/memory.max", INT64_MAX);
  const int64_t used = cgroup_bytes("/sys/fs/cgroup/memory.current", 0) -
                       keyed_number("/sys/fs/cgroup/memory.stat", "inactive_file", 0);
  return std::min(host, std::max<int64_t>(0, limit - std::max<int64_t>(0, used)));
}

MemoryRoom memory_room(const Traits& traits) {
  if (traits.host_memory) return {available_memory_bytes(), true, "available here"};
  if (traits.memory_bytes > 0) return {traits.memory_bytes, false, "of " + traits.name};
  return {available_memory_bytes(), false, "available here, for want of a word from the device"};
}

int64_t needed_bytes(const MemoryEstimate& memory, const MemoryRoom& room) {
  return room.on_host ? memory.total() : memory.total() - memory.optimizer;
}

void warn_of_memory(const ModelConfig& config, const Prepared& prepared) {
  const MemoryRoom room = memory_room(prepared.backend->traits());
  const MemoryEstimate memory = estimate_memory(config, prepared.graphs, prepacks(prepared));
  const int64_t needed = needed_bytes(memory, room);
  if (needed <= room.bytes) return;
  const std::string less = memory.prepacked > 0 ? ", --prepack off" : "";
  log_warn("memory", "the run needs about " + mib(needed) + ", more than the " + mib(room.bytes) +
                         " " + room.where +
                         "; hint: --recompute layer, a smaller --seq-len, --batch or "
                         "--vocab-chunk, --weight-dtype bf16" +
                         less);
}

}  // namespace npu
