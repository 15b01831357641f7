// Wall time by the steady clock, for reports and logs.
#pragma once

#include <chrono>

namespace npu {

inline double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Adds the time from its birth to its death.
class Stopwatch {
 public:
  explicit Stopwatch(double& seconds) : seconds_(seconds), start_(seconds_now()) {}
  ~Stopwatch() { seconds_ += seconds_now() - start_; }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  double& seconds_;
  double start_;
};

}  // namespace npu
