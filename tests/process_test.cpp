// Children: how they end, limits, and that nothing of them stays behind.
#include "base/process.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "base/error.h"
#include "base/file.h"
#include "base/resident_child.h"

namespace npu {
namespace {

using End = ChildResult::End;

ChildResult shell(const std::string& script, const ChildOptions& options = {}) {
  return run_child({"/bin/sh", "-c", script}, options);
}

bool alive(pid_t pid) {
  // A zombie nobody waits for still answers kill(pid, 0); its state says that it is dead.
  try {
    const std::string stat = read_text("/proc/" + std::to_string(pid) + "/stat");
    const size_t state = stat.rfind(") ") + 2;
    return stat[state] != 'Z' && stat[state] != 'X';
  } catch (const UserError&) {
    return false;
  }
}

bool dies_soon(pid_t pid) {
  for (int i = 0; i < 200 && alive(pid); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return !alive(pid);
}

TEST(Child, OutputErrorAndExitCode) {
  const ChildResult r = shell("echo out; echo err >&2; exit 3");
  EXPECT_EQ(r.end, End::kExited);
  EXPECT_EQ(r.exit_code, 3);
  EXPECT_EQ(r.out, "out\n");
  EXPECT_EQ(r.err_tail, "err\n");
  EXPECT_EQ(r.describe(), "exited with 3");
  EXPECT_FALSE(r.ok());
  EXPECT_TRUE(shell("true").ok());
  EXPECT_GT(r.peak_memory_bytes, 0);
}

TEST(Child, LargeInputComesBack) {
  std::string input(5 << 20, 'x');
  for (size_t i = 0; i < input.size(); i += 7) input[i] = static_cast<char>(i);
  ChildOptions options;
  options.input = input;
  const ChildResult r = run_child({"cat"}, options);
  EXPECT_TRUE(r.ok()) << r.describe();
  EXPECT_TRUE(r.out == input);
}

TEST(Child, InputThatNobodyReads) {
  ChildOptions options;
  options.input.assign(5 << 20, 'x');
  const ChildResult r = shell("exec 0<&-; echo done", options);
  EXPECT_TRUE(r.ok()) << r.describe();
  EXPECT_EQ(r.out, "done\n");
}

TEST(Child, Signals) {
  const ChildResult r = shell("kill -SEGV $$");
  EXPECT_EQ(r.end, End::kSignaled);
  EXPECT_EQ(r.signal, SIGSEGV);
  EXPECT_EQ(r.describe(), "killed by SIGSEGV");
}

TEST(Child, NotStarted) {
  const ChildResult r = run_child({"/no/such/program", "x"});
  EXPECT_EQ(r.end, End::kNotStarted);
  EXPECT_NE(r.describe().find("/no/such/program: No such file"), std::string::npos);
}

TEST(Child, TimeoutEndsTheWholeGroup) {
  ChildOptions options;
  options.limits.seconds = 0.3;
  const ChildResult r = shell("sleep 100 & echo $!; wait", options);
  EXPECT_EQ(r.end, End::kTimedOut);
  EXPECT_GE(r.seconds, 0.3);
  EXPECT_LT(r.seconds, 10);
  EXPECT_NE(r.describe().find("timed out after"), std::string::npos);
  EXPECT_TRUE(dies_soon(std::stoi(r.out)));
}

TEST(Child, TimeoutEndsAChildThatNeverStopsWriting) {
  for (const char* script : {"exec yes", "exec yes >&2"}) {
    ChildOptions options;
    options.limits.seconds = 0.3;
    options.max_output_bytes = 1 << 20;
    const ChildResult r = shell(script, options);
    EXPECT_EQ(r.end, End::kTimedOut);
    EXPECT_LT(r.seconds, 10);
  }
}

TEST(Child, LeftBehindProcessesEndToo) {
  const ChildResult r = shell("sleep 100 & echo $!");  // it would hold stdout open for 100 s
  EXPECT_TRUE(r.ok());
  EXPECT_LT(r.seconds, 10);
  EXPECT_TRUE(dies_soon(std::stoi(r.out)));
}

TEST(Child, MemoryLimit) {
  ChildOptions options;
  options.limits = {60, int64_t{64} << 20};
  // dd holds its block in memory; the grandchild counts as well.
  const ChildResult r = shell("dd if=/dev/zero bs=400M count=100 of=/dev/null; true", options);
  EXPECT_EQ(r.end, End::kOutOfMemory) << r.describe();
  EXPECT_NE(r.describe().find("out of memory"), std::string::npos);
  EXPECT_GT(r.peak_memory_bytes, options.limits.memory_bytes);
  EXPECT_TRUE(shell("sleep 0.2", options).ok());
}

TEST(Child, OutputIsBounded) {
  ChildOptions options;
  options.max_output_bytes = 1000;
  const ChildResult r = shell("head -c 3000000 /dev/zero; head -c 100000 /dev/zero >&2", options);
  EXPECT_TRUE(r.ok()) << r.describe();
  EXPECT_EQ(r.out.size(), 1000u);
  EXPECT_TRUE(r.out_cut);
  EXPECT_EQ(r.err_tail.size(), 8192u);
  EXPECT_FALSE(shell("echo", options).out_cut);
}

TEST(Child, ErrorLinesAsTheyCome) {
  std::vector<std::string> lines;
  ChildOptions options;
  options.on_error_line = [&](std::string_view line) { lines.emplace_back(line); };
  EXPECT_TRUE(shell("printf 'a\\nb' >&2; sleep 0.1; printf 'c\\n\\nd' >&2", options).ok());
  EXPECT_EQ(lines, (std::vector<std::string>{"a", "bc", "", "d"}));
}

TEST(Child, CallbackThatThrowsLeavesNoChild) {
  ChildOptions options;
  options.on_error_line = [](std::string_view line) { throw std::stoi(std::string(line)); };
  pid_t pid = 0;
  try {
    shell("echo $$ >&2; sleep 100", options);
  } catch (int thrown) {
    pid = thrown;
  }
  ASSERT_GT(pid, 0);
  EXPECT_FALSE(alive(pid));
}

TEST(Child, EnvironmentIsAddedAndReplaced) {
  ChildOptions options;
  options.environment = {"NPU_TEST_VALUE=a b", "HOME=/elsewhere"};
  const ChildResult r = shell("echo \"$NPU_TEST_VALUE|$HOME|$PATH\"", options);
  EXPECT_EQ(r.out.substr(0, 15), "a b|/elsewhere|");
  EXPECT_GT(r.out.size(), 17u);  // ours is still there
}

// A process that dies without cleaning up takes the children of its children along.
TEST(Child, DiesWithItsParent) {
  int fds[2];
  ASSERT_EQ(pipe(fds), 0);
  const pid_t middle = fork();
  if (middle == 0) {
    ChildOptions options;
    options.on_error_line = [&](std::string_view line) {
      const std::string text = std::string(line) + "\n";
      if (write(fds[1], text.data(), text.size()) < 0) _exit(1);
    };
    shell("sleep 100 & echo $$ $! >&2; wait", options);
    _exit(0);
  }
  char text[64] = {};
  ASSERT_GT(read(fds[0], text, sizeof text - 1), 0);
  int child = 0, grandchild = 0;
  ASSERT_EQ(sscanf(text, "%d %d", &child, &grandchild), 2);
  EXPECT_TRUE(alive(child));
  EXPECT_TRUE(alive(grandchild));
  kill(middle, SIGKILL);
  waitpid(middle, nullptr, 0);
  EXPECT_TRUE(dies_soon(child));
  EXPECT_TRUE(dies_soon(grandchild));
  kill(grandchild, SIGKILL);
  close(fds[0]);
  close(fds[1]);
}

// A child that stays in its parent's group, and what it started, fall with that group.
TEST(Child, InOurGroupEndsWithTheGroup) {
  int fds[2];
  ASSERT_EQ(pipe(fds), 0);
  const pid_t middle = fork();
  if (middle == 0) {
    setpgid(0, 0);
    ChildOptions options;
    options.in_our_group = true;
    options.on_error_line = [&](std::string_view line) {
      const std::string text = std::string(line) + "\n";
      if (write(fds[1], text.data(), text.size()) < 0) _exit(1);
    };
    shell("sleep 100 & echo $$ $! >&2; wait", options);
    _exit(0);
  }
  char text[64] = {};
  ASSERT_GT(read(fds[0], text, sizeof text - 1), 0);
  int child = 0, grandchild = 0;
  ASSERT_EQ(sscanf(text, "%d %d", &child, &grandchild), 2);
  EXPECT_EQ(getpgid(child), middle);
  EXPECT_EQ(getpgid(grandchild), middle);
  kill(-middle, SIGKILL);
  waitpid(middle, nullptr, 0);
  EXPECT_TRUE(dies_soon(child));
  EXPECT_TRUE(dies_soon(grandchild));
  close(fds[0]);
  close(fds[1]);
}

TEST(Child, InOurGroupHasLimitsOfItsOwn) {
  ChildOptions options;
  options.in_our_group = true;
  options.limits.seconds = 0.2;
  EXPECT_EQ(shell("sleep 60", options).end, End::kTimedOut);
  EXPECT_TRUE(shell("exit 0", options).ok());
  EXPECT_EQ(shell("kill -SEGV $$", options).signal, SIGSEGV);
}

TEST(Child, ManyAtOnce) {
  std::vector<std::thread> threads;
  std::atomic<int> good = 0;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 20; ++i) {
        ChildOptions options;
        options.input = std::to_string(t * 100 + i);
        const ChildResult r = run_child({"cat"}, options);
        if (r.ok() && r.out == options.input) ++good;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(good, 80);
}

using Io = ResidentChild::Io;

ResidentChild::Deadline soon(double seconds = 20) {
  return std::chrono::steady_clock::now() +
         std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
}

std::unique_ptr<ResidentChild> resident(const std::string& script,
                                        const ResidentChild::Options& options = {}) {
  return ResidentChild::start({"/bin/sh", "-c", script}, options).take();
}

// Until `bytes` have come.
std::string answer(ResidentChild& child, size_t bytes) {
  while (child.received().size() < bytes && child.receive(soon()) == Io::kOk) {
  }
  return std::exchange(child.received(), "");
}

TEST(Resident, AnswersOverItsStdinAndLogsTheRest) {
  const auto child =
      resident("echo printed; while read line; do echo \"$line!\" >&0; done", {{"A=b"}, {}});
  EXPECT_EQ(child->send("one\n", soon()), Io::kOk);
  EXPECT_EQ(answer(*child, 5), "one!\n");
  EXPECT_EQ(child->send("two\n", soon()), Io::kOk);
  EXPECT_EQ(answer(*child, 5), "two!\n");
  EXPECT_EQ(child->log_tail(), "printed\n");
  EXPECT_EQ(child->stop().describe(), "exited with 0") << "the end of its input ends it";
  EXPECT_EQ(child->send("three\n", soon()), Io::kClosed);
}

// Neither side waits for the other, however much is on its way in both directions.
TEST(Resident, MovesMuchBothWays) {
  const auto child = resident("cat >&0");
  const std::string much(8 << 20, 'x');
  EXPECT_EQ(child->send(much, soon()), Io::kOk);
  EXPECT_EQ(answer(*child, much.size()), much);
}

TEST(Resident, TimesOutAndIsKilled) {
  const auto child = resident("echo $$ >&0; exec sleep 1000");
  const pid_t pid = std::stoi(answer(*child, 2));
  EXPECT_EQ(child->receive(soon(0.05)), Io::kTimedOut);
  EXPECT_EQ(child->stop().describe(), "killed by SIGKILL");
  EXPECT_FALSE(alive(pid));
}

TEST(Resident, SaysHowItDied) {
  const auto child = resident("echo last words >&2; kill -SEGV $$");
  EXPECT_EQ(child->receive(soon()), Io::kClosed);
  EXPECT_EQ(child->stop().describe(), "killed by SIGSEGV");
  EXPECT_EQ(child->log_tail(), "last words\n");
}

TEST(Resident, OutlivesTheThreadThatStartedIt) {
  std::unique_ptr<ResidentChild> child;
  std::thread([&] { child = resident("cat >&0"); }).join();
  EXPECT_EQ(child->send("still here", soon()), Io::kOk);
  EXPECT_EQ(answer(*child, 10), "still here");
}

// As a process in a call of a driver's that nothing interrupts: the helper that traces the child
// never takes note of its end, so neither can its parent.
TEST(Resident, OneThatCannotBeEndedIsLeftAlone) {
  auto child =
      resident("echo $$; read line", {.environment = {}, .keep = {}, .abandon_seconds = 0.3});
  while (child->log_tail().find('\n') == std::string::npos) child->receive(soon(0.01));
  const pid_t pid = std::stoi(child->log_tail());
  int seized[2];
  ASSERT_EQ(pipe(seized), 0);
  const pid_t helper = fork();
  if (helper == 0) {
    const char done = ptrace(PTRACE_SEIZE, pid, nullptr, nullptr) == 0 ? 'y' : 'n';
    if (write(seized[1], &done, 1) != 1) _exit(1);
    pause();
    _exit(0);
  }
  char done = 0;
  ASSERT_EQ(read(seized[0], &done, 1), 1);
  ASSERT_EQ(done, 'y') << "this machine lets nobody trace";
  const auto began = std::chrono::steady_clock::now();
  EXPECT_EQ(child->stop().end, ChildResult::End::kAbandoned);
  EXPECT_NE(child->stop().describe().find("does not end"), std::string::npos);
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(5));
  kill(helper, SIGKILL);
  waitpid(helper, nullptr, 0);
  waitpid(pid, nullptr, 0);
  close(seized[0]);
  close(seized[1]);
}

TEST(Resident, AProgramThatIsNotThereIsAnError) {
  const auto child = ResidentChild::start({"/nonexistent/program"});
  ASSERT_FALSE(child.ok());
  EXPECT_EQ(child.error().text(),
            "/nonexistent/program: can't be started; got No such file or directory");
}

TEST(Process, SelfAndMemory) {
  EXPECT_EQ(fs::path(self_executable()).filename(), "process_test");
  const MemoryUse before = memory_use();
  EXPECT_GT(before.resident_bytes, 0);
  std::vector<char> block(64 << 20, 1);
  EXPECT_GT(memory_use().resident_bytes, before.resident_bytes + (48 << 20));
  EXPECT_GE(memory_use().peak_resident_bytes, memory_use().resident_bytes + block[0] - (1 << 20));
}

}  // namespace
}  // namespace npu
