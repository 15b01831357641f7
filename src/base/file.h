// Reading files as hostile input and publishing files so that a reader never sees half of one.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/error.h"

namespace npu {

namespace fs = std::filesystem;

// What a failed system call means for the user: a full, read-only or lost store and missing
// resources may mend by themselves (kRetriable), the rest won't (kBadInput).
ErrorKind errno_kind(int error);

// A read-only view of a whole file. Mapped where the store allows it, otherwise read by pread
// (network stores may refuse mmap). The bytes live as long as any copy of the pointer.
class FileBytes {
 public:
  // Errors: absent, a directory, unreadable (kBadInput), each with `path` as where.
  static std::shared_ptr<const FileBytes> open(const fs::path& path);
  ~FileBytes();
  FileBytes(const FileBytes&) = delete;
  FileBytes& operator=(const FileBytes&) = delete;

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  const fs::path& path() const { return path_; }
  // Tells the kernel that these pages need not stay resident (after weights were copied out).
  void release(std::span<const std::byte> part) const;

 private:
  FileBytes() = default;
  fs::path path_;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
  bool mapped_ = false;
};

// The whole file as text. Fails with kBadInput when absent or larger than `limit_bytes`.
std::string read_text(const fs::path& path, size_t limit_bytes = size_t{1} << 30);

// Writes to a temporary name in the same directory, fsyncs, then renames over `path`.
// A full or read-only disk is kRetriable and leaves the old file as it was.
void publish_file(const fs::path& path, std::span<const std::byte> bytes);
void publish_text(const fs::path& path, std::string_view text);

// A new directory beside `final_path`, renamed over it by commit(); removed by the destructor if
// never committed. An existing `final_path` is replaced as a whole.
class StagedDirectory {
 public:
  explicit StagedDirectory(fs::path final_path);
  ~StagedDirectory();
  StagedDirectory(const StagedDirectory&) = delete;
  StagedDirectory& operator=(const StagedDirectory&) = delete;
  const fs::path& path() const { return staging_; }
  void commit();

 private:
  fs::path final_, staging_;
  bool committed_ = false;
};

// Holds a directory for this process while it lives; leaves no file behind. Held by another one: a
// kRetriable UserError that says `why`. Where the file system has no locks it holds nothing.
class DirectoryLock {
 public:
  DirectoryLock(const fs::path& directory, const std::string& why);
  ~DirectoryLock();
  DirectoryLock(const DirectoryLock&) = delete;
  DirectoryLock& operator=(const DirectoryLock&) = delete;

 private:
  int descriptor_;
};

// A directory under the system's temporary directory that is removed with this object, and holds a
// lock until then.
class TempDir {
 public:
  TempDir();
  ~TempDir();
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
  int lock_ = -1;
};

// Removes those of processes that were killed. Never one whose owner lives, whatever container that
// is in.
void remove_abandoned_temp_dirs();

}  // namespace npu
