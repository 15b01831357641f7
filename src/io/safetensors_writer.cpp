// Writing safetensors: the header from names and shapes, then the bytes, in memory or streamed.
#include "io/safetensors_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>

#include "io/json.h"
#include "io/safetensors.h"

namespace npu {
namespace {

using Metadata = std::map<std::string, std::string>;

// Wide elements first keeps every tensor aligned to its element without padding between tensors.
void sort_for_file(std::vector<TensorSpec>& specs) {
  std::ranges::sort(specs, [](const TensorSpec& a, const TensorSpec& b) {
    const size_t width_a = dtype_bytes(a.dtype), width_b = dtype_bytes(b.dtype);
    return width_a != width_b ? width_a > width_b : a.name < b.name;
  });
}

// Length and JSON of the header for tensors that lie in the given order.
std::string header_bytes(const std::vector<TensorSpec>& specs, Metadata metadata) {
  // transformers 4 can't load a file without it.
  metadata.try_emplace("format", "pt");
  Json header = Json::object();
  header["__metadata__"] = metadata;
  auto& members = header.get_ref<Json::object_t&>();
  size_t at = 0;
  for (const TensorSpec& spec : specs) {
    Json entry = {{"dtype", safetensors_dtype(spec.dtype)},
                  {"shape", spec.shape},
                  {"data_offsets", {at, at + spec.bytes()}}};
    members.emplace_back(spec.name, std::move(entry));
    at += spec.bytes();
  }
  std::string json = header.dump();
  json.resize((json.size() + 7) / 8 * 8, ' ');
  const uint64_t length = json.size();
  std::string result(sizeof(length), '\0');
  std::memcpy(result.data(), &length, sizeof(length));
  return result + json;
}

// A file that is written front to back and reaches the disk before close() returns.
class OutputFile {
 public:
  explicit OutputFile(fs::path path) : path_(std::move(path)) {
    fd_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (fd_ < 0) fail_os("the file can't be created");
  }
  ~OutputFile() {
    if (fd_ >= 0) ::close(fd_);
  }
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  void write(const void* data, size_t size) {
    const char* at = static_cast<const char*>(data);
    while (size > 0) {
      const ssize_t written = ::write(fd_, at, size);
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) fail_os("the file can't be written");
      at += written;
      size -= static_cast<size_t>(written);
    }
  }
  void close() {
    if (::fsync(fd_) != 0) fail_os("the file can't be flushed to disk");
    if (::close(std::exchange(fd_, -1)) != 0) fail_os("the file can't be closed");
  }

 private:
  [[noreturn]] void fail_os(const char* what) {
    fail(errno_kind(errno), path_.string(), what, std::strerror(errno));
  }

  fs::path path_;
  int fd_ = -1;
};

void write_shard(const fs::path& path, std::vector<TensorSpec> specs, const TensorSource& source) {
  sort_for_file(specs);
  OutputFile file(path);
  const std::string header = header_bytes(specs, {});
  file.write(header.data(), header.size());
  for (const TensorSpec& spec : specs) {
    const Tensor tensor = source(spec);
    NPU_CHECK(tensor.dtype() == spec.dtype && tensor.shape() == spec.shape,
              spec.name + " differs from its spec");
    file.write(tensor.data(), tensor.bytes());
  }
  file.close();
}

std::vector<std::vector<TensorSpec>> cut_in_shards(const std::vector<TensorSpec>& specs,
                                                   size_t shard_bytes) {
  std::vector<std::vector<TensorSpec>> shards(1);
  size_t used = 0;
  for (const TensorSpec& spec : specs) {
    if (!shards.back().empty() && used + spec.bytes() > shard_bytes) {
      shards.emplace_back();
      used = 0;
    }
    used += spec.bytes();
    shards.back().push_back(spec);
  }
  return shards;
}

std::string shard_name(size_t index, size_t count) {
  char name[64];
  std::snprintf(name, sizeof(name), "model-%05zu-of-%05zu.safetensors", index + 1, count);
  return name;
}

}  // namespace

void write_model_files(const fs::path& directory, const std::vector<TensorSpec>& specs,
                       const TensorSource& source, size_t shard_bytes) {
  const auto shards = cut_in_shards(specs, shard_bytes);
  if (shards.size() == 1) {
    write_shard(directory / "model.safetensors", shards[0], source);
    return;
  }
  std::map<std::string, std::string> weight_map;
  size_t total_bytes = 0, total_elements = 0;
  for (size_t i = 0; i < shards.size(); ++i) {
    const std::string name = shard_name(i, shards.size());
    write_shard(directory / name, shards[i], source);
    for (const TensorSpec& spec : shards[i]) {
      weight_map[spec.name] = name;
      total_bytes += spec.bytes();
      total_elements += static_cast<size_t>(num_elements(spec.shape));
    }
  }
  const Json index = {
      {"metadata", {{"total_parameters", total_elements}, {"total_size", total_bytes}}},
      {"weight_map", weight_map}};
  publish_text(directory / "model.safetensors.index.json", index.dump(2) + "\n");
}

std::string safetensors_bytes(const std::map<std::string, Tensor>& tensors, Metadata metadata) {
  std::vector<TensorSpec> specs;
  for (const auto& [name, tensor] : tensors)
    specs.push_back({name, tensor.dtype(), tensor.shape()});
  sort_for_file(specs);
  std::string result = header_bytes(specs, std::move(metadata));
  for (const TensorSpec& spec : specs) {
    const Tensor& tensor = tensors.at(spec.name);
    result.append(reinterpret_cast<const char*>(tensor.data()), tensor.bytes());
  }
  return result;
}

void write_safetensors(const fs::path& path, const std::map<std::string, Tensor>& tensors,
                       Metadata metadata) {
  publish_text(path, safetensors_bytes(tensors, std::move(metadata)));
}

}  // namespace npu
