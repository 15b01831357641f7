// The TCL texts of every part of the real models in tests/geometry, as the furiosa backend's limits
// cut them: what tests/vendor/estimates.json has the vendor's estimates of.
#pragma once

#include <functional>
#include <map>
#include <string>

#include "train/model_graphs.h"

namespace npu {

// Calls visit("llama_8b q,v 128", graphs) for each model, set of targets and length: all graphs of
// training and evaluation in bf16, with the head that the furiosa backend asks for.
void each_geometry(bool few_graphs,
                   const std::function<void(const std::string& use, const ModelGraphs&)>& visit);

struct GeometryText {
  std::string use;  // "llama_8b q,v 128 layer_fwd.0", its first
  std::string text;
};
// By the SHA-256 of the text. InternalError: a graph that can't be written.
std::map<std::string, GeometryText> geometry_texts();

}  // namespace npu
