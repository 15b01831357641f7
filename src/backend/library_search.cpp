// Finds vendors' libraries: the release is part of the file's name, so the dynamic loader cannot.
#include "backend/library_search.h"

#include <algorithm>
#include <cctype>

#include "backend/environment.h"
#include "base/process.h"

namespace npu {
namespace {

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
void add_python_prefix(const fs::path& prefix, std::string_view package,
                       std::vector<fs::path>& directories) {
  for (const char* lib : {"lib", "lib64"}) {
    for (const fs::path& python : entries(prefix / lib, "python3")) {
      for (const char* packages : {"site-packages", "dist-packages"}) {
        directories.push_back(python / packages / package);
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

// "lib….so.2641" and "lib….so.2026.4.1" → {26, 4, 1}, "lib….so.1.31.1" → {1, 31, 1}; {} without a
// number.
std::vector<int> release_of(const fs::path& library, std::string_view prefix) {
  std::vector<int> numbers;
  const std::string name = library.filename().string();
  bool in_number = false;
  for (const char c : std::string_view(name).substr(prefix.size())) {
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

std::vector<fs::path> libraries_in(const std::vector<fs::path>& directories,
                                   std::string_view prefix) {
  std::vector<fs::path> found;
  for (const fs::path& directory : directories) {
    for (fs::path& library : entries(directory, prefix)) found.push_back(std::move(library));
  }
  // Stable: among equal releases the place that was searched first wins.
  std::stable_sort(found.begin(), found.end(), [&](const fs::path& a, const fs::path& b) {
    return release_of(a, prefix) > release_of(b, prefix);
  });
  return found;
}

}  // namespace

LibrarySearch search_library(const VendorLibrary& wanted) {
  LibrarySearch search;
  std::vector<fs::path>& directories = search.directories;
  const auto add_python = [&](const fs::path& prefix) {
    add_python_prefix(prefix, wanted.package, directories);
  };
  const fs::path program = fs::path(self_executable()).parent_path();
  add_python(program.parent_path());
  for (fs::path above = program; above != above.root_path(); above = above.parent_path()) {
    add_python(above / ".venv");
  }
  if (const std::string active = environment("VIRTUAL_ENV"); !active.empty()) add_python(active);
  if (const std::string home = environment("HOME"); !home.empty()) {
    add_python(fs::path(home) / ".local");
  }
  add_python("/usr/local");
  add_python("/usr");
  add_path_list(environment("LD_LIBRARY_PATH"), directories);
  for (const fs::path& intel : entries("/opt/intel", "openvino")) {
    directories.push_back(intel / "runtime/lib/intel64");
  }
  for (const char* system : {"/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu",
                             "/usr/lib64", "/usr/lib", "/usr/local/lib"}) {
    directories.emplace_back(system);
  }
  search.libraries = libraries_in(directories, wanted.prefix);
  return search;
}

Result<fs::path> find_library(const VendorLibrary& wanted) {
  const std::string named = environment(wanted.variable);
  std::error_code failed;
  if (!named.empty() && !fs::is_directory(named, failed)) {
    if (fs::exists(named, failed)) return fs::path(named);
    return Error{ErrorKind::kBadInput, wanted.variable,
                 "must name " + std::string(wanted.prefix) + ".*", named, wanted.hint};
  }
  const std::vector<fs::path> libraries = named.empty()
                                              ? search_library(wanted).libraries
                                              : libraries_in({fs::path(named)}, wanted.prefix);
  if (!libraries.empty()) return libraries.front();
  return Error{ErrorKind::kBadInput, named.empty() ? wanted.name : wanted.variable,
               std::string(wanted.prefix) + ".* was not found", named, wanted.hint};
}

}  // namespace npu
