// The log, on top of spdlog: this file is the only one that sees it.
#include "base/log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <iterator>
#include <mutex>
#include <set>
#include <string>

#include "base/error.h"

namespace npu {
namespace {

// The one object behind the functions of log.h, made on first use.
class Logger {
 public:
  static Logger& instance() {
    static Logger logger;
    return logger;
  }

  void write(LogLevel level, std::string_view channel, std::string_view message) {
    NPU_CHECK(std::ranges::find(kLogChannels, channel) != std::end(kLogChannels),
              "no log channel " + std::string(channel));
    if (!shown(level, channel)) return;
    std::string line(message);
    for (char& c : line) {
      if (c == '\n' || c == '\r') c = ' ';  // one message is one line
    }
    out_.log(spdlog_level(level), "{}: {}", channel, line);
  }

  void set_level(LogLevel level) {
    const std::lock_guard lock(mutex_);
    level_ = level;
  }

  void set_channels(std::string_view list) {
    const std::lock_guard lock(mutex_);
    open_.clear();
    while (!list.empty()) {
      const size_t comma = std::min(list.find(','), list.size());
      if (comma > 0) open_.emplace(list.substr(0, comma));
      list.remove_prefix(std::min(comma + 1, list.size()));
    }
  }

  bool channel_open(std::string_view channel) {
    const std::lock_guard lock(mutex_);
    return open_.contains(channel) || open_.contains("all");
  }

 private:
  Logger() : out_("npu", std::make_shared<spdlog::sinks::stderr_sink_mt>()) {
    out_.set_pattern("%l %v");
    out_.set_level(spdlog::level::debug);  // shown() decides
    out_.flush_on(spdlog::level::debug);
  }

  bool shown(LogLevel level, std::string_view channel) {
    {
      const std::lock_guard lock(mutex_);
      if (level >= level_) return true;
    }
    return channel_open(channel);
  }

  static spdlog::level::level_enum spdlog_level(LogLevel level) {
    switch (level) {
      case LogLevel::kDebug:
        return spdlog::level::debug;
      case LogLevel::kInfo:
        return spdlog::level::info;
      case LogLevel::kWarn:
        return spdlog::level::warn;
      case LogLevel::kError:
        break;
    }
    return spdlog::level::err;
  }

  spdlog::logger out_;
  std::mutex mutex_;
  LogLevel level_ = LogLevel::kInfo;
  std::set<std::string, std::less<>> open_;
};

}  // namespace

void log(LogLevel level, std::string_view channel, std::string_view message) {
  Logger::instance().write(level, channel, message);
}

void set_log_level(LogLevel level) { Logger::instance().set_level(level); }

void set_log_channels(std::string_view comma_separated) {
  Logger::instance().set_channels(comma_separated);
}

bool log_channel_open(std::string_view channel) { return Logger::instance().channel_open(channel); }

}  // namespace npu
