// The one place in this folder that calls getenv.
#include "backend/environment.h"

#include <cstdlib>

namespace npu {

std::string environment(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace npu
