// The vendor's EDF file, as far as this program reads it: the frame, and the shapes that it takes
// and gives. An 8-byte little-endian length, that much CBOR, 16 zero bytes (release 2026.4).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace npu {

struct EdfPort {
  std::string element_type;  // "Bfloat16"
  std::vector<int64_t> dims;
};
struct EdfPorts {
  std::vector<EdfPort> inputs, outputs;
};

// Nothing when the bytes have an EDF's frame: a length that is true, the map "Edf", the zero tail.
std::optional<Error> check_edf_frame(std::string_view edf);

// The signature. The bytes are untrusted; a form that is not known is an Error.
Result<EdfPorts> read_edf_ports(std::string_view edf);

}  // namespace npu
