// Errors, log, files, digests and the thread pool.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <fstream>
#include <functional>
#include <numeric>
#include <stdexcept>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/thread_pool.h"
#include "test_environment.h"

namespace npu {
namespace {

Error error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const UserError& e) {
    return e.error();
  }
  ADD_FAILURE() << "no UserError was thrown";
  return {};
}

size_t entries(const fs::path& directory) {
  return static_cast<size_t>(
      std::distance(fs::directory_iterator(directory), fs::directory_iterator()));
}

// Runs `action` in a forked process and returns its exit code, so that limits and identities that
// it sets end with it. `action` returns "" or what went wrong.
int in_fork(const std::function<std::string()>& action) {
  const pid_t pid = fork();
  if (pid == 0) {
    std::string wrong;
    try {
      wrong = action();
    } catch (const std::exception& e) {
      wrong = e.what();
    }
    if (!wrong.empty()) fprintf(stderr, "%s\n", wrong.c_str());
    _exit(wrong.empty() ? 0 : 1);
  }
  int status = 0;
  waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

TEST(Error, TextHoldsPartsInOrder) {
  EXPECT_EQ(
      (Error{ErrorKind::kUsage, "a.json:3", "must be a number", "\"x\"", "drop the quotes"}).text(),
      "a.json:3: must be a number; got \"x\"; hint: drop the quotes");
  EXPECT_EQ((Error{ErrorKind::kUsage, "", "must be a number", "", ""}).text(), "must be a number");
  EXPECT_EQ((Error{ErrorKind::kUsage, "a", "b", "", "c"}).text(), "a: b; hint: c");
}

TEST(Error, ResultTakes) {
  Result<int> good = 3, bad = Error{ErrorKind::kRetriable, "device", "lost", "", ""};
  EXPECT_EQ(std::move(good).take(), 3);
  const Error error = error_of([&] { std::move(bad).take(); });
  EXPECT_EQ(error.kind, ErrorKind::kRetriable);
  EXPECT_EQ(error.text(), "device: lost");
}

TEST(Error, CheckNamesConditionAndValues) {
  try {
    NPU_CHECK(1 + 1 == 3, "sum " + std::to_string(1 + 1));
    FAIL();
  } catch (const InternalError& e) {
    EXPECT_NE(std::string(e.what()).find("1 + 1 == 3"), std::string::npos);
    EXPECT_NE(std::string(e.what()).find("sum 2"), std::string::npos);
    EXPECT_NE(std::string(e.what()).find("base_test.cpp"), std::string::npos);
  }
}

TEST(Log, LevelsAndChannels) {
  testing::internal::CaptureStderr();
  set_log_channels("cache,compile");
  EXPECT_TRUE(log_channel_open("cache"));
  EXPECT_TRUE(log_channel_open("compile"));
  EXPECT_FALSE(log_channel_open("train"));
  log(LogLevel::kDebug, "cache", "seen");
  log(LogLevel::kDebug, "train", "unseen");
  log(LogLevel::kInfo, "train", "two\nlines");
  set_log_level(LogLevel::kError);
  set_log_channels("");
  log_warn("train", "silenced");
  log(LogLevel::kError, "train", "told");
  set_log_level(LogLevel::kInfo);
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "debug cache: seen\ninfo train: two lines\nerror train: told\n");
}

TEST(File, ReadsWholeFile) {
  const TempDir dir;
  const fs::path path = dir.path() / "a.bin";
  std::string text(3 * 4096 + 17, 'x');
  text[5000] = '\0';
  publish_text(path, text);
  const auto file = FileBytes::open(path);
  ASSERT_EQ(file->bytes().size(), text.size());
  EXPECT_EQ(std::memcmp(file->bytes().data(), text.data(), text.size()), 0);
  file->release(file->bytes().subspan(100, 9000));
  EXPECT_EQ(std::memcmp(file->bytes().data(), text.data(), text.size()), 0);
  EXPECT_EQ(read_text(path), text);
  publish_text(path, "");
  EXPECT_EQ(FileBytes::open(path)->bytes().size(), 0u);
  EXPECT_EQ(read_text(path), "");
}

TEST(File, MappedBytesOutliveReplacement) {
  const TempDir dir;
  const fs::path path = dir.path() / "a";
  publish_text(path, "old");
  const auto file = FileBytes::open(path);
  publish_text(path, "new!");
  EXPECT_EQ(std::memcmp(file->bytes().data(), "old", 3), 0);
  EXPECT_EQ(read_text(path), "new!");
}

TEST(File, RefusalsNameThePath) {
  const TempDir dir;
  const fs::path absent = dir.path() / "absent", pipe = dir.path() / "pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  for (const auto& read : std::vector<std::function<void(const fs::path&)>>{
           [](const fs::path& p) { FileBytes::open(p); },
           [](const fs::path& p) { read_text(p); }}) {
    Error error = error_of([&] { read(absent); });
    EXPECT_EQ(error.kind, ErrorKind::kBadInput);
    EXPECT_EQ(error.where, absent.string());
    EXPECT_EQ(error.got, "No such file or directory");
    error = error_of([&] { read(dir.path()); });
    EXPECT_EQ(error.kind, ErrorKind::kBadInput);
    EXPECT_EQ(error.got, "a directory");
  }
  EXPECT_EQ(error_of([&] { FileBytes::open(pipe); }).kind, ErrorKind::kBadInput);
}

TEST(File, ReadTextBoundsSizeAndTakesPipes) {
  const TempDir dir;
  const fs::path path = dir.path() / "a";
  publish_text(path, "12345");
  EXPECT_EQ(read_text(path, 5), "12345");
  EXPECT_EQ(error_of([&] { read_text(path, 4); }).kind, ErrorKind::kBadInput);
  EXPECT_EQ(error_of([&] { read_text("/dev/zero", 100000); }).kind, ErrorKind::kBadInput);
  const fs::path pipe = dir.path() / "pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  std::thread writer([&] { std::ofstream(pipe) << "through a pipe"; });
  EXPECT_EQ(read_text(pipe), "through a pipe");
  writer.join();
}

TEST(File, PublishReplacesAtomicallyAndLeavesNoLitter) {
  const TempDir dir;
  const fs::path path = dir.path() / "a";
  const std::string old(1 << 16, 'o'), fresh(1 << 16, 'n');
  publish_text(path, old);
  std::atomic<bool> stop = false;
  std::thread writer([&] {
    for (int i = 0; !stop; ++i) publish_text(path, i % 2 ? old : fresh);
  });
  for (int i = 0; i < 200; ++i) {
    const std::string text = read_text(path);
    EXPECT_TRUE(text == old || text == fresh) << text.size();
  }
  stop = true;
  writer.join();
  EXPECT_EQ(entries(dir.path()), 1u);
}

TEST(File, FullDiskKeepsTheOldFile) {
  const TempDir dir;
  const fs::path path = dir.path() / "a";
  publish_text(path, "old");
  // A file size limit fails write() half-way, as a full disk does.
  EXPECT_EQ(in_fork([&]() -> std::string {
              signal(SIGXFSZ, SIG_IGN);
              const rlimit limit{4096, 4096};
              setrlimit(RLIMIT_FSIZE, &limit);
              try {
                publish_text(path, std::string(10000, 'n'));
              } catch (const UserError& e) {
                if (e.error().kind != ErrorKind::kRetriable) return "wrong kind";
                return e.error().where == path.string() ? "" : "wrong place " + e.error().where;
              }
              return "no error";
            }),
            0);
  EXPECT_EQ(read_text(path), "old");
  EXPECT_EQ(entries(dir.path()), 1u);
}

TEST(File, UnwritableAndAbsentDirectories) {
  const TempDir dir;
  const fs::path locked = dir.path() / "locked";
  fs::create_directory(locked);
  fs::permissions(dir.path(), fs::perms::owner_all | fs::perms::others_exec);
  fs::permissions(locked, fs::perms::owner_read | fs::perms::owner_exec | fs::perms::others_read |
                              fs::perms::others_exec);
  EXPECT_EQ(in_fork([&]() -> std::string {
              if (geteuid() == 0 && seteuid(65534) != 0) return "seteuid failed";
              try {
                publish_text(locked / "a", "x");
              } catch (const UserError& e) {
                return e.error().got == "Permission denied" ? "" : e.error().text();
              }
              return "no error";
            }),
            0);
  EXPECT_EQ(entries(locked), 0u);
  EXPECT_EQ(error_of([&] { publish_text(dir.path() / "no" / "a", "x"); }).kind,
            ErrorKind::kBadInput);
  EXPECT_EQ(error_of([&] { publish_text(locked, "x"); }).where, locked.string());
}

TEST(File, KindsOfSystemErrors) {
  for (const int error : {ENOSPC, EDQUOT, EROFS, EIO, EMFILE}) {
    EXPECT_EQ(errno_kind(error), ErrorKind::kRetriable) << error;
  }
  for (const int error : {ENOENT, EACCES, EISDIR, ENOTDIR}) {
    EXPECT_EQ(errno_kind(error), ErrorKind::kBadInput) << error;
  }
}

TEST(StagedDirectory, AppearsOnlyWhenCommitted) {
  const TempDir dir;
  const fs::path out = dir.path() / "deep" / "out";
  {
    const StagedDirectory staged(out);
    publish_text(staged.path() / "a", "1");
    EXPECT_FALSE(fs::exists(out));
  }
  EXPECT_EQ(entries(out.parent_path()), 0u);
  StagedDirectory staged(out / "");  // a trailing slash means the same
  publish_text(staged.path() / "a", "1");
  staged.commit();
  EXPECT_EQ(read_text(out / "a"), "1");
  EXPECT_EQ(entries(out.parent_path()), 1u);
}

TEST(StagedDirectory, ReplacesAsAWhole) {
  const TempDir dir;
  const fs::path out = dir.path() / "out";
  fs::create_directories(out / "sub");
  publish_text(out / "old", "1");
  StagedDirectory staged(out);
  fs::create_directory(staged.path() / "sub");
  publish_text(staged.path() / "sub" / "new", "2");
  EXPECT_EQ(read_text(out / "old"), "1");
  staged.commit();
  EXPECT_FALSE(fs::exists(out / "old"));
  EXPECT_EQ(read_text(out / "sub" / "new"), "2");
  EXPECT_EQ(entries(dir.path()), 1u);
  publish_text(dir.path() / "file", "x");
  EXPECT_EQ(error_of([&] { StagedDirectory bad(dir.path() / "file"); }).got, "a file");
}

TEST(TempDir, GoesWithItsContent) {
  fs::path path;
  {
    const TempDir dir;
    path = dir.path();
    publish_text(path / "a", "x");
  }
  EXPECT_FALSE(fs::exists(path));
}

TEST(TempDir, AbandonedOnesAreRemoved) {
  const TempDir parent;
  Environment variables;
  variables.set("TMPDIR", parent.path().string());
  const auto long_ago = fs::file_time_type::clock::now() - std::chrono::hours(1);
  const auto made = [&](const std::string& name) {
    fs::create_directory(parent.path() / name);
    publish_text(parent.path() / name / "part.tc", "x");
    fs::last_write_time(parent.path() / name, long_ago);
    return parent.path() / name;
  };
  const fs::path abandoned = made("npu-lora-tmp-aaaaaa"), foreign = made("npu-lora-bbbbbb");
  fs::create_directory(parent.path() / "npu-lora-tmp-cccccc");  // just made
  fs::create_directory_symlink(foreign, parent.path() / "npu-lora-tmp-dddddd");
  {
    const TempDir owned;
    fs::last_write_time(owned.path(), long_ago);
    remove_abandoned_temp_dirs();
    EXPECT_TRUE(fs::exists(owned.path()));
  }
  EXPECT_FALSE(fs::exists(abandoned));
  EXPECT_TRUE(fs::exists(foreign / "part.tc"));
  EXPECT_TRUE(fs::exists(parent.path() / "npu-lora-tmp-cccccc"));
  EXPECT_TRUE(fs::exists(parent.path() / "npu-lora-tmp-dddddd"));
}

TEST(Sha256, PublishedVectors) {  // FIPS 180-4 examples
  EXPECT_EQ(sha256_hex(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256_hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(sha256_hex("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  Sha256 million;
  for (int i = 0; i < 1000; ++i) million.update(std::string(1000, 'a'));
  EXPECT_EQ(million.hex(), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
  EXPECT_THROW(million.update("x"), InternalError);
}

class Pool : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Threads, Pool, testing::Values(1, 2, 4));

TEST_P(Pool, RunsEachTaskOnce) {
  ThreadPool pool(GetParam());
  EXPECT_EQ(pool.threads(), GetParam());
  for (int64_t count : {0, 1, 2, 3, 1000}) {
    for (int repeat = 0; repeat < 200; ++repeat) {
      std::vector<std::atomic<int>> calls(static_cast<size_t>(count));
      pool.run(count, [&](int64_t i) { ++calls[static_cast<size_t>(i)]; });
      for (const auto& c : calls) ASSERT_EQ(c, 1);
    }
  }
}

TEST_P(Pool, RangesCoverAndRespectGrain) {
  ThreadPool pool(GetParam());
  for (int64_t size : {0, 1, 63, 64, 1000, 12345}) {
    std::vector<std::atomic<int>> seen(static_cast<size_t>(size));
    pool.for_range(size, 64, [&](int64_t begin, int64_t end) {
      EXPECT_TRUE(end - begin >= 64 || (begin == 0 && end == size)) << begin << " " << end;
      for (int64_t i = begin; i < end; ++i) ++seen[static_cast<size_t>(i)];
    });
    for (const auto& s : seen) ASSERT_EQ(s, 1);
  }
}

TEST_P(Pool, RethrowsAndStaysUsable) {
  ThreadPool pool(GetParam());
  for (int repeat = 0; repeat < 50; ++repeat) {
    EXPECT_THROW(pool.run(100,
                          [](int64_t i) {
                            if (i % 7 == 3) throw std::runtime_error("task");
                          }),
                 std::runtime_error);
    std::atomic<int64_t> sum = 0;
    pool.run(100, [&](int64_t i) { sum += i; });
    EXPECT_EQ(sum, 4950);
  }
}

TEST_P(Pool, NestedAndConcurrentCallsFinish) {
  ThreadPool pool(GetParam()), other(2);
  std::atomic<int> calls = 0;
  const auto nest = [&] {
    pool.run(8, [&](int64_t) {
      other.run(3, [&](int64_t) { pool.run(5, [&](int64_t) { ++calls; }); });
    });
  };
  std::thread beside(nest);
  nest();
  beside.join();
  EXPECT_EQ(calls, 2 * 8 * 3 * 5);
}

TEST(PoolThreads, IdleWorkersSleep) {
  const ThreadPool pool(4);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // let them start
  const auto cpu_seconds = [] {
    rusage use{};
    getrusage(RUSAGE_SELF, &use);
    return static_cast<double>(use.ru_utime.tv_sec + use.ru_stime.tv_sec) +
           static_cast<double>(use.ru_utime.tv_usec + use.ru_stime.tv_usec) / 1e6;
  };
  const double before = cpu_seconds();
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  EXPECT_LT(cpu_seconds() - before, 0.1);
}

TEST(PoolThreads, WorkersTakePart) {
  ThreadPool pool(2);
  std::atomic<int> inside = 0;
  std::atomic<bool> met = false;
  pool.run(2, [&](int64_t) {
    ++inside;
    const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (!met && std::chrono::steady_clock::now() < give_up) {
      if (inside == 2) met = true;
    }
  });
  EXPECT_TRUE(met);
}

TEST(PoolThreads, DefaultIsUsableCpus) {
  EXPECT_GE(usable_cpus(), 1);
  EXPECT_EQ(ThreadPool().threads(), usable_cpus());
}

}  // namespace
}  // namespace npu
