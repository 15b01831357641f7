// The TCL texts of every part of the real models in tests/geometry, as the furiosa backend's limits
// cut them: what tests/vendor/estimates.json has the vendor's estimates of.
#pragma once

#include <map>
#include <string>

namespace npu {

struct GeometryText {
  std::string use;  // "llama_8b q,v 128 layer_fwd.0", its first
  std::string text;
};
// By the SHA-256 of the text. InternalError: a graph that can't be written.
std::map<std::string, GeometryText> geometry_texts();

}  // namespace npu
