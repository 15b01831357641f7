// RNGD cards as devices. The vendor's runtime can abort or poison its process, so it lives in a
// resident worker (docs/decisions/014): this program again over the vendor's C library, or Python
// over furiosa.torch.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backend/backend.h"

namespace npu {

// `which`: "auto", or a card's number. auto tries in turn the cards that NPU_LORA_RNGD lists, else
// those in the file that NPU_LORA_RNGD_FILE names, else all that have a device node. Errors: no
// card or no runtime (kBadInput); every card busy, or a worker that does not come up (kRetriable).
Result<std::unique_ptr<Device>> open_furiosa_device(const std::string& which,
                                                    const DeviceOptions& options);

// Nothing when a card has its device node and a runtime can be loaded; opens no card.
std::optional<Error> probe_furiosa_device();

// The worker over the C library: what `npu-lora device-worker LIBRARY [probe]` is.
int furiosa_worker_main(const std::vector<std::string>& arguments);

}  // namespace npu
