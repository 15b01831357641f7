// Finds libopenvino_c.so.*: the release is part of the file's name, so the dynamic loader cannot.
#include <algorithm>
#include <cctype>
#include <cstdlib>

#include "backend/openvino_api.h"
#include "base/process.h"

namespace npu {
namespace {

constexpr std::string_view kLibraryPrefix = "libopenvino_c.so";
constexpr std::string_view kInstallHint =
    "pip install openvino==2026.4.1, or set NPU_LORA_OPENVINO to libopenvino_c.so.*";

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// Names of `directory`'s entries that start with `prefix`, sorted; none when it cannot be read.
std::vector<fs::path> entries(const fs::path& directory, std::string_view prefix) {
  std::vector<fs::path> found;
  std::error_code failed;
  for (fs::directory_iterator it(directory, failed), end; !failed && it != end;
       it.increment(failed)) {
    if (it->path().filename().native().starts_with(prefix)) found.push_back(it->path());
  }
  std::sort(found.begin(), found.end());
  return found;
}

// The wheel's library folder in each Python under `prefix` (/usr, a virtual environment, ~/.local).
void add_python_prefix(const fs::path& prefix, std::vector<fs::path>& directories) {
  for (const char* lib : {"lib", "lib64"}) {
    for (const fs::path& python : entries(prefix / lib, "python3")) {
      for (const char* packages : {"site-packages", "dist-packages"}) {
        directories.push_back(python / packages / "openvino" / "libs");
      }
    }
  }
}

void add_path_list(const std::string& list, std::vector<fs::path>& directories) {
  for (size_t begin = 0; begin < list.size();) {
    const size_t end = std::min(list.find(':', begin), list.size());
    if (end > begin) directories.emplace_back(list.substr(begin, end - begin));
    begin = end + 1;
  }
}

// "libopenvino_c.so.2641" and "libopenvino_c.so.2026.4.1" → {26, 4, 1}; {} without a number.
std::vector<int> release_of(const fs::path& library) {
  std::vector<int> numbers;
  const std::string name = library.filename().string();
  bool in_number = false;
  for (const char c : std::string_view(name).substr(kLibraryPrefix.size())) {
    const bool digit = std::isdigit(static_cast<unsigned char>(c)) != 0;
    if (digit && !in_number) numbers.push_back(0);
    if (digit) numbers.back() = std::min(numbers.back(), 99999) * 10 + (c - '0');
    in_number = digit;
  }
  if (numbers.size() == 1 && numbers[0] >= 1000) {
    const int packed = numbers[0];
    numbers = {packed / 100, packed / 10 % 10, packed % 10};
  } else if (!numbers.empty() && numbers[0] >= 2000) {
    numbers[0] -= 2000;
  }
  return numbers;
}

std::vector<fs::path> libraries_in(const std::vector<fs::path>& directories) {
  std::vector<fs::path> found;
  for (const fs::path& directory : directories) {
    for (fs::path& library : entries(directory, kLibraryPrefix))
      found.push_back(std::move(library));
  }
  // Stable: among equal releases the place that was searched first wins.
  std::stable_sort(found.begin(), found.end(), [](const fs::path& a, const fs::path& b) {
    return release_of(a) > release_of(b);
  });
  return found;
}

}  // namespace

OpenVinoSearch search_openvino() {
  OpenVinoSearch search;
  std::vector<fs::path>& directories = search.directories;
  const fs::path program = fs::path(self_executable()).parent_path();
  add_python_prefix(program.parent_path(), directories);
  for (fs::path above = program; above != above.root_path(); above = above.parent_path()) {
    add_python_prefix(above / ".venv", directories);
  }
  if (const std::string active = environment("VIRTUAL_ENV"); !active.empty()) {
    add_python_prefix(active, directories);
  }
  if (const std::string home = environment("HOME"); !home.empty()) {
    add_python_prefix(fs::path(home) / ".local", directories);
  }
  add_python_prefix("/usr/local", directories);
  add_python_prefix("/usr", directories);
  add_path_list(environment("LD_LIBRARY_PATH"), directories);
  for (const fs::path& intel : entries("/opt/intel", "openvino")) {
    directories.push_back(intel / "runtime/lib/intel64");
  }
  for (const char* system : {"/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu",
                             "/usr/lib64", "/usr/lib", "/usr/local/lib"}) {
    directories.emplace_back(system);
  }
  search.libraries = libraries_in(directories);
  return search;
}

Result<fs::path> find_openvino_library() {
  const std::string named = environment("NPU_LORA_OPENVINO");
  std::error_code failed;
  if (!named.empty() && !fs::is_directory(named, failed)) {
    if (fs::exists(named, failed)) return fs::path(named);
    return Error{ErrorKind::kBadInput, "NPU_LORA_OPENVINO", "must name libopenvino_c.so.*", named,
                 std::string(kInstallHint)};
  }
  const std::vector<fs::path> libraries =
      named.empty() ? search_openvino().libraries : libraries_in({fs::path(named)});
  if (!libraries.empty()) return libraries.front();
  return Error{ErrorKind::kBadInput, named.empty() ? "openvino" : "NPU_LORA_OPENVINO",
               "OpenVINO's C library was not found", named, std::string(kInstallHint)};
}

}  // namespace npu
