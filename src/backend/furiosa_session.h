// An open card: its worker, what lies on it, and what of that can be made again in a new worker.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "backend/furiosa_channel.h"

namespace npu::furiosa {

inline constexpr int kPesOfACard = 8;

// What a device is opened with; from the environment in furiosa_setup.
struct DeviceSettings {
  std::vector<int> cards;  // to try in turn
  WorkerProgram worker;
  WorkerLimits limits;
};

// What open_furiosa_device does once it has read the environment.
Result<std::unique_ptr<Device>> open_device(const DeviceSettings& settings);

class Session {
 public:
  // The first card that is not busy.
  static Result<std::shared_ptr<Session>> open(const DeviceSettings& settings);

  // Everything below is called with this held.
  std::mutex& mutex() { return mutex_; }
  const std::string& where() const { return where_; }  // "furiosa:3"
  Channel& channel() { return *channel_; }
  bool lost() const { return channel_->lost(); }
  Error lost_error() const;

  // Code runs on as many PEs as it was compiled for, so the card is opened anew for the first part
  // of another number. Error (kBadInput): it is in use with another number.
  std::optional<Error> use_pes(int pes);

  // kBadInput when this part is refused, also by the death of the worker, if all that was there
  // before could be made again.
  Result<uint64_t> load(LoadCall call);
  void unload(uint64_t executable);

  Result<uint64_t> allocate(size_t bytes);  // zero-filled
  void free(uint64_t buffer);
  // Its bytes are no longer zero: only the card has them.
  void mark_written(uint64_t buffer);

 private:
  explicit Session(DeviceSettings settings) : settings_(std::move(settings)) {}
  std::optional<Error> start(int card);
  std::optional<Error> restart();
  Error error_of(const Answer& answer, const std::string& what) const;

  struct Allocated {
    size_t bytes = 0;
    bool written = false;
  };

  DeviceSettings settings_;
  std::mutex mutex_;
  std::string where_;
  int card_ = 0, pes_ = kPesOfACard;
  std::unique_ptr<Channel> channel_;
  uint64_t last_name_ = 0;  // of buffers and executables
  std::map<uint64_t, Allocated> buffers_;
  std::map<uint64_t, LoadCall> loaded_;  // in order of loading
};

}  // namespace npu::furiosa
