// One HTTP request with limits on time and size, over libcurl.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "base/error.h"

namespace npu {

inline constexpr double kMostHttpSeconds = 1e6;

struct HttpRequest {
  std::string url;                   // http:// or https://
  std::string body;                  // JSON; "" makes it a GET
  std::vector<std::string> headers;  // "Name: value"
  double seconds = 600;              // for all of it; at most kMostHttpSeconds
  double connect_seconds = 10;
  size_t max_body_bytes = size_t{256} << 20;
};

struct HttpResponse {
  int status = 0;
  std::string body;
};

// Any answer of the server is a value, whatever its status; redirects are not followed. Errors,
// kRetriable and located at the URL: no connection, time-out, an answer over the limit or cut
// short. An address that is no URL is kUsage.
Result<HttpResponse> send_http(const HttpRequest& request);

}  // namespace npu
