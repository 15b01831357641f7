// Where vendors' libraries are looked for. They are this folder's business, so it reads the
// environment variables that name them itself.
#pragma once

#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/file.h"

namespace npu {

// What to look for; one constant per vendor.
struct VendorLibrary {
  const char* name;          // "openvino"
  std::string_view prefix;   // of the file's name, before its release: "libopenvino_c.so"
  std::string_view package;  // its folder in a Python environment's packages: "openvino/libs"
  const char* variable;      // names the library or its directory: "NPU_LORA_OPENVINO"
  const char* hint;          // how to install it
};

// Where it was looked for, in order, and what was found.
struct LibrarySearch {
  std::vector<fs::path> directories;
  std::vector<fs::path> libraries;  // newest release first
};

// Looks beside the running program (its own and a nearby .venv's Python packages), in the active
// virtual environment, in the Python packages of the system and the user, in the places of vendors'
// and the distributions' packages, and in LD_LIBRARY_PATH.
LibrarySearch search_library(const VendorLibrary& wanted);

// The library that `variable` names where set, else the newest one that the search finds.
Result<fs::path> find_library(const VendorLibrary& wanted);

}  // namespace npu
