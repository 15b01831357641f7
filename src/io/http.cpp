// One HTTP request over libcurl.
#include "io/http.h"

#include <curl/curl.h>

#include <memory>

namespace npu {
namespace {

struct Body {
  std::string text;
  size_t limit;
  bool over = false;
};

size_t receive(char* data, size_t, size_t bytes, void* user) {
  Body& body = *static_cast<Body*>(user);
  if (bytes > body.limit - body.text.size()) {
    body.over = true;
    return 0;  // ends the transfer
  }
  body.text.append(data, bytes);
  return bytes;
}

// curl_global_init is not safe against itself; a function's static is made once.
bool curl_ready() {
  static const bool ready = curl_global_init(CURL_GLOBAL_DEFAULT) == CURLE_OK;
  return ready;
}

struct FreeHandle {
  void operator()(CURL* handle) const { curl_easy_cleanup(handle); }
};
struct FreeList {
  void operator()(curl_slist* list) const { curl_slist_free_all(list); }
};

std::unique_ptr<curl_slist, FreeList> header_list(const HttpRequest& request) {
  std::unique_ptr<curl_slist, FreeList> list;
  const auto append = [&](const std::string& header) {
    curl_slist* longer = curl_slist_append(list.get(), header.c_str());
    NPU_CHECK(longer != nullptr, "no memory for a header");
    static_cast<void>(list.release());
    list.reset(longer);
  };
  if (!request.body.empty()) append("Content-Type: application/json");
  append("Expect:");  // a body goes out at once
  for (const std::string& header : request.headers) append(header);
  return list;
}

}  // namespace

Result<HttpResponse> send_http(const HttpRequest& request) {
  NPU_CHECK(curl_ready(), "libcurl does not start");
  NPU_CHECK(request.seconds > 0 && request.seconds <= kMostHttpSeconds,
            "a request of " + std::to_string(request.seconds) + " s");
  const std::unique_ptr<CURL, FreeHandle> handle(curl_easy_init());
  NPU_CHECK(handle != nullptr, "libcurl gives no handle");
  CURL* curl = handle.get();
  Body body{"", request.max_body_bytes};
  char message[CURL_ERROR_SIZE] = "";
  const auto headers = header_list(request);
  curl_easy_setopt(curl, CURLOPT_URL, request.url.c_str());
  curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
  curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers.get());
  curl_easy_setopt(curl, CURLOPT_TIMEOUT_MS, static_cast<long>(request.seconds * 1000));
  curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT_MS,
                   static_cast<long>(request.connect_seconds * 1000));
  curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, receive);
  curl_easy_setopt(curl, CURLOPT_WRITEDATA, &body);
  curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, message);
  if (!request.body.empty()) {
    curl_easy_setopt(curl, CURLOPT_POSTFIELDSIZE_LARGE,
                     static_cast<curl_off_t>(request.body.size()));
    curl_easy_setopt(curl, CURLOPT_POSTFIELDS, request.body.c_str());
  }
  const CURLcode code = curl_easy_perform(curl);
  if (body.over) {
    return Error{ErrorKind::kRetriable, request.url, "the answer is too long",
                 "over " + std::to_string(request.max_body_bytes) + " bytes", ""};
  }
  if (code == CURLE_URL_MALFORMAT || code == CURLE_UNSUPPORTED_PROTOCOL) {
    return Error{ErrorKind::kUsage, request.url, "is not an http address", "",
                 "give http://host:port"};
  }
  if (code != CURLE_OK) {
    const std::string got = message[0] != '\0' ? message : curl_easy_strerror(code);
    return Error{ErrorKind::kRetriable, request.url,
                 code == CURLE_OPERATION_TIMEDOUT ? "no answer in time" : "the request failed", got,
                 "does the server run, and is its address right?"};
  }
  long status = 0;
  curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &status);
  return HttpResponse{static_cast<int>(status), std::move(body.text)};
}

}  // namespace npu
