// Files by plain POSIX calls, so that every failure keeps its errno.
#include "base/file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

namespace npu {

ErrorKind errno_kind(int error) {
  switch (error) {
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
    case EROFS:
    case EIO:
    case ESTALE:
    case ETIMEDOUT:
    case EMFILE:
    case ENFILE:
    case ENOMEM:
    case EAGAIN:
    case EBUSY:
      return ErrorKind::kRetriable;
    default:
      return ErrorKind::kBadInput;
  }
}

namespace {

std::string hint_for(int error) {
  switch (error) {
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
      return "free some space, or write to another disk";
    case EROFS:
      return "the disk is mounted read-only; write to another place";
    case EACCES:
    case EPERM:
      return "check owner and permissions";
    case EMFILE:
      return "raise the limit of open files (ulimit -n)";
    default:
      return "";
  }
}

[[noreturn]] void fail_errno(const fs::path& path, std::string what, int error) {
  fail(errno_kind(error), path.string(), std::move(what), std::strerror(error), hint_for(error));
}

// A file descriptor that closes itself.
class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }
  int close() { return ::close(std::exchange(fd_, -1)); }

 private:
  int fd_;
};

int open_for_reading(const fs::path& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) fail_errno(path, "file can't be opened", errno);
  struct stat info {};
  if (::fstat(fd, &info) == 0 && S_ISDIR(info.st_mode)) {
    ::close(fd);
    fail_input(path.string(), "a file is needed here", "a directory");
  }
  return fd;
}

// A name that no other process picks: publishing must never share a temporary.
fs::path sibling(const fs::path& path, std::string_view label) {
  uint64_t random = 0;
  NPU_CHECK(::getrandom(&random, sizeof random, 0) == sizeof random, "no random numbers");
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string name = ".";  // hidden, so that listings of results don't show it
  name.append(path.filename().string()).append(".").append(label).append("-");
  for (int i = 0; i < 16; ++i) name += kDigits[(random >> (4 * i)) & 15];
  return path.parent_path() / name;
}

void write_all(int fd, std::span<const std::byte> bytes, const fs::path& path) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd, bytes.data(), bytes.size());
    if (written < 0) {
      if (errno == EINTR) continue;
      fail_errno(path, "file can't be written", errno);
    }
    bytes = bytes.subspan(static_cast<size_t>(written));
  }
}

// Makes renames and new names in `directory` last; stores without directory sync refuse harmlessly.
void sync_path(const fs::path& path, int flags) {
  const Descriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | flags));
  if (fd.get() < 0) fail_errno(path, "can't be opened for fsync", errno);
  if (::fsync(fd.get()) != 0 && errno != EINVAL && errno != ENOTSUP) {
    fail_errno(path, "fsync failed", errno);
  }
}

fs::path parent_of(const fs::path& path) {
  return path.has_parent_path() ? path.parent_path() : fs::path(".");
}

}  // namespace

std::shared_ptr<const FileBytes> FileBytes::open(const fs::path& path) {
  // Non-blocking, so that a named pipe is refused below and not waited for.
  const Descriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (fd.get() < 0) fail_errno(path, "file can't be opened", errno);
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) fail_errno(path, "file can't be examined", errno);
  if (S_ISDIR(info.st_mode)) fail_input(path.string(), "a file is needed here", "a directory");
  if (!S_ISREG(info.st_mode)) fail_input(path.string(), "a regular file is needed here");

  std::shared_ptr<FileBytes> file(new FileBytes());
  file->path_ = path;
  file->size_ = static_cast<size_t>(info.st_size);
  if (file->size_ == 0) return file;
  void* mapped = ::mmap(nullptr, file->size_, PROT_READ, MAP_PRIVATE, fd.get(), 0);
  if (mapped != MAP_FAILED) {
    file->data_ = static_cast<const std::byte*>(mapped);
    file->mapped_ = true;
    return file;
  }
  auto* data = static_cast<std::byte*>(std::malloc(file->size_));
  if (data == nullptr) fail_errno(path, "no memory for the file", ENOMEM);
  file->data_ = data;
  for (size_t done = 0; done < file->size_;) {
    const ssize_t got =
        ::pread(fd.get(), data + done, file->size_ - done, static_cast<off_t>(done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail_errno(path, "file can't be read", errno);
    if (got == 0) fail_input(path.string(), "file became shorter while it was read");
    done += static_cast<size_t>(got);
  }
  return file;
}

FileBytes::~FileBytes() {
  auto* data = const_cast<std::byte*>(data_);
  if (mapped_) {
    ::munmap(data, size_);
  } else {
    std::free(data);
  }
}

void FileBytes::release(std::span<const std::byte> part) const {
  if (!mapped_ || part.empty()) return;
  NPU_CHECK(part.data() >= data_ && part.data() + part.size() <= data_ + size_,
            "release() outside of " + path_.string());
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<uintptr_t>(part.data());
  const uintptr_t first = (begin + page - 1) / page * page;  // whole pages only
  const uintptr_t last = (begin + part.size()) / page * page;
  if (first < last) ::madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);
}

std::string read_text(const fs::path& path, size_t limit_bytes) {
  const Descriptor fd(open_for_reading(path));
  std::string text;
  // Read to the end and not by size: pipes and /proc have none.
  constexpr size_t kStep = size_t{1} << 16;
  for (;;) {
    const size_t old = text.size();
    text.resize(old + kStep);
    const ssize_t got = ::read(fd.get(), text.data() + old, kStep);
    text.resize(old + (got > 0 ? static_cast<size_t>(got) : 0));
    if (got < 0 && errno != EINTR) fail_errno(path, "file can't be read", errno);
    if (text.size() > limit_bytes) {
      fail_input(path.string(), "file is larger than " + std::to_string(limit_bytes) + " bytes");
    }
    if (got == 0) return text;
  }
}

void publish_file(const fs::path& path, std::span<const std::byte> bytes) {
  const fs::path temporary = sibling(path, "tmp");
  Descriptor fd(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  if (fd.get() < 0) fail_errno(path, "file can't be created", errno);
  try {
    write_all(fd.get(), bytes, path);
    if (::fsync(fd.get()) != 0) fail_errno(path, "file can't be written", errno);
    if (fd.close() != 0) fail_errno(path, "file can't be written", errno);
    if (::rename(temporary.c_str(), path.c_str()) != 0) {
      fail_errno(path, "file can't be put in place", errno);
    }
  } catch (...) {
    ::unlink(temporary.c_str());
    throw;
  }
  sync_path(parent_of(path), O_DIRECTORY);
}

void publish_text(const fs::path& path, std::string_view text) {
  publish_file(path, std::as_bytes(std::span(text)));
}

StagedDirectory::StagedDirectory(fs::path final_path) : final_(std::move(final_path)) {
  final_ = final_.lexically_normal();
  if (!final_.has_filename()) final_ = final_.parent_path();  // "out/" means "out"
  std::error_code error;
  if (fs::exists(final_, error) && !fs::is_directory(final_, error)) {
    fail_input(final_.string(), "a directory is needed here", "a file");
  }
  fs::create_directories(parent_of(final_), error);
  if (error) fail_errno(parent_of(final_), "directory can't be created", error.value());
  staging_ = sibling(final_, "staging");
  if (::mkdir(staging_.c_str(), 0777) != 0) {
    fail_errno(final_, "directory can't be created", errno);
  }
}

StagedDirectory::~StagedDirectory() {
  std::error_code ignored;  // nothing to report to from a destructor
  if (!committed_) fs::remove_all(staging_, ignored);
}

void StagedDirectory::commit() {
  NPU_CHECK(!committed_, "commit() called twice");
  for (const auto& entry : fs::recursive_directory_iterator(staging_)) {
    if (entry.is_regular_file()) sync_path(entry.path(), 0);
    if (entry.is_directory()) sync_path(entry.path(), O_DIRECTORY);
  }
  sync_path(staging_, O_DIRECTORY);
  if (::rename(staging_.c_str(), final_.c_str()) != 0) {
    if (errno != ENOTEMPTY && errno != EEXIST) {
      fail_errno(final_, "directory can't be put in place", errno);
    }
    // There is one with content: swap the two in one step, or in two where the store can't.
    fs::path old = staging_;
    if (::renameat2(AT_FDCWD, staging_.c_str(), AT_FDCWD, final_.c_str(), RENAME_EXCHANGE) != 0) {
      old = sibling(final_, "old");
      if (::rename(final_.c_str(), old.c_str()) != 0) {
        fail_errno(final_, "old directory can't be moved away", errno);
      }
      if (::rename(staging_.c_str(), final_.c_str()) != 0) {
        const int error = errno;
        ::rename(old.c_str(), final_.c_str());
        fail_errno(final_, "directory can't be put in place", error);
      }
    }
    std::error_code ignored;  // the new content stands; what is left of the old is only litter
    fs::remove_all(old, ignored);
  }
  committed_ = true;
  sync_path(parent_of(final_), O_DIRECTORY);
}

namespace {

constexpr const char* kTempPrefix = "npu-lora-tmp-";
constexpr auto kTempAge = std::chrono::minutes(1);  // by then its owner has the lock

int open_directory(const fs::path& path) {
  return ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

}  // namespace

TempDir::TempDir() {
  std::string pattern =
      (fs::temp_directory_path() / (kTempPrefix + std::string("XXXXXX"))).string();
  if (::mkdtemp(pattern.data()) == nullptr) {
    fail_errno(fs::temp_directory_path(), "temporary directory can't be created", errno);
  }
  path_ = pattern;
  lock_ = open_directory(path_);
  if (lock_ >= 0) ::flock(lock_, LOCK_SH | LOCK_NB);
}

TempDir::~TempDir() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
  if (lock_ >= 0) ::close(lock_);
}

void remove_abandoned_temp_dirs() {
  std::error_code error;
  for (fs::directory_iterator it(fs::temp_directory_path(error), error), end; !error && it != end;
       it.increment(error)) {
    if (!it->path().filename().string().starts_with(kTempPrefix)) continue;
    const int directory = open_directory(it->path());
    if (directory < 0) continue;
    struct stat status {};
    const bool ours = ::fstat(directory, &status) == 0 && status.st_uid == ::geteuid();
    const auto made = std::chrono::system_clock::from_time_t(status.st_mtime);
    if (ours && std::chrono::system_clock::now() - made > kTempAge &&
        ::flock(directory, LOCK_EX | LOCK_NB) == 0) {
      std::error_code ignored;
      fs::remove_all(it->path(), ignored);
    }
    ::close(directory);
  }
}

DirectoryLock::DirectoryLock(const fs::path& directory, const std::string& why)
    : descriptor_(open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
  if (descriptor_ < 0 || flock(descriptor_, LOCK_EX | LOCK_NB) == 0) return;
  const bool held = errno == EWOULDBLOCK;
  if (!held) return;
  close(descriptor_);
  fail(ErrorKind::kRetriable, directory.string(), why, "",
       "wait for it, or give another directory");
}

DirectoryLock::~DirectoryLock() {
  if (descriptor_ >= 0) close(descriptor_);
}

}  // namespace npu
