// What this program runs on, for `doctor` and for the records of runs.
#pragma once

#include "io/json.h"

namespace npu {

// {"cpu": model, "usable_cpus": N, "features": "avx2 fma …"}
Json host_json();

// Versions of the libraries that a result may depend on, the vendor's compiler aside.
Json library_versions();

}  // namespace npu
