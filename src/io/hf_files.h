// Finding a model on this machine and reading its tokenizer's files. Private to src/io.
#pragma once

#include <string>
#include <vector>

#include "base/file.h"
#include "io/hf_model.h"
#include "io/json.h"

namespace npu {

struct ModelPlace {
  fs::path path;  // a directory with config.json, or a .gguf file
  bool gguf = false;
};

// `where`: a directory, a .gguf file, or an id "org/name" looked up in the hub caches `hub_roots`
// (models--org--name/snapshots/<what refs/main names>). Not found: UserError that lists the places.
ModelPlace find_model(const std::string& where, const std::vector<fs::path>& hub_roots);

// Absent files give empty fields: a geometry alone needs no tokenizer.
TokenizerFiles read_tokenizer_files(const fs::path& directory, const Json& config);

}  // namespace npu
