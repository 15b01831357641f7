// One-line messages to stderr. Results never go through here: they belong on stdout.
#pragma once

#include <string_view>

namespace npu {

enum class LogLevel { kDebug, kInfo, kWarn, kError };

// Every channel that is written to; "all" opens all of them.
inline constexpr std::string_view kLogChannels[] = {
    "all",   "cache", "check",  "compile",   "convert", "data",    "diagnose",
    "drift", "eval",  "memory", "placement", "plan",    "runtime", "train"};

// Writes "level channel: message". Channels can be opened one by one with set_log_channels: an open
// channel also shows its kDebug lines (`--log cache,compile`).
void log(LogLevel level, std::string_view channel, std::string_view message);
inline void log_info(std::string_view channel, std::string_view message) {
  log(LogLevel::kInfo, channel, message);
}
inline void log_warn(std::string_view channel, std::string_view message) {
  log(LogLevel::kWarn, channel, message);
}

void set_log_level(LogLevel level);
void set_log_channels(std::string_view comma_separated);
bool log_channel_open(std::string_view channel);

}  // namespace npu
