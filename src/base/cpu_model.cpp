// The first "model name : …" of /proc/cpuinfo.
#include "base/cpu_model.h"

#include <fstream>

namespace npu {

std::string cpu_model() {
  std::ifstream in("/proc/cpuinfo");
  for (std::string line; std::getline(in, line);) {
    const size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "";
}

}  // namespace npu
