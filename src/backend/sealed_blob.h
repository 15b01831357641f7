// Blobs that a vendor's library reads without checking: it may crash on damaged bytes or on those
// of another release, so they travel under a line "npu-KIND VERSION SHA256".
#pragma once

#include <string>
#include <string_view>

#include "backend/backend.h"

namespace npu {

Blob seal_blob(std::string_view kind, const std::string& version, const std::string& content);
// The content. Errors: another kind or release, or damaged bytes.
Result<std::string_view> unseal_blob(std::string_view kind, const std::string& version,
                                     const Blob& blob);

}  // namespace npu
