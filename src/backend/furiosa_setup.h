// What the environment says of cards and workers: device nodes, libraries, interpreters.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "backend/furiosa_session.h"

namespace npu::furiosa {

// The cards to try, in order; see open_furiosa_device. Every one of them has a device node.
Result<std::vector<int>> cards_to_try(const std::string& which);

// The worker that NPU_LORA_FURIOSA_WORKER names (native, python); without it the native one where
// the vendor's library is found, else Python. Starts nothing.
Result<WorkerProgram> worker_program();
// Whether that is the native one.
bool native_worker();

// NPU_LORA_FURIOSA_SECONDS is the limit of one call, NPU_LORA_FURIOSA_LOAD_SECONDS of loading a
// part and of opening the card.
WorkerLimits worker_limits();

// Can this worker load its runtime? Asked of a child, which opens no card.
std::optional<Error> try_worker(const WorkerProgram& program);

// workers/furiosa_worker.py, which this program carries.
std::string_view worker_script();

}  // namespace npu::furiosa
