// How much memory a run may take, where, and what follows from it.
#pragma once

#include <string>

#include "train/session.h"

namespace npu {

// What is left on this host, or in this container where that is less.
int64_t available_memory_bytes();

// Where a backend's buffers lie, and how much room is there.
struct MemoryRoom {
  int64_t bytes = 0;
  bool on_host = true;
  std::string where;  // "available here", "of sim:furiosa"
};
MemoryRoom memory_room(const Traits& traits);

// What of the estimate takes that room: AdamW's state is always on the host.
int64_t needed_bytes(const MemoryEstimate& memory, const MemoryRoom& room);

// Says so on stderr when the graphs need more than there is.
void warn_of_memory(const ModelConfig& config, const Prepared& prepared);

}  // namespace npu
