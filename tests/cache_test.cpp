// Keys, entries and bundles of the compile cache, and what damage does to them.
#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <functional>

#include "base/hash.h"
#include "compile/cache.h"
#include "compile/fields.h"

namespace npu {
namespace {

using Kind = CompileOutcome::Kind;

Error error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const UserError& e) {
    return e.error();
  }
  ADD_FAILURE() << "no UserError was thrown";
  return {};
}

// ---- messages ----------------------------------------------------------------------------------

TEST(Fields, RoundTripAndRefuseAnythingElse) {
  const std::vector<std::string> fields = {"", "a", std::string("\0b", 2), std::string(70000, 'x')};
  const std::string bytes = pack_fields(fields);
  const auto unpacked = unpack_fields(bytes);
  ASSERT_TRUE(unpacked);
  EXPECT_EQ(std::vector<std::string>(unpacked->begin(), unpacked->end()), fields);
  EXPECT_EQ(unpack_fields("")->size(), 0u);
  for (size_t cut = 1; cut < 40; ++cut) {
    const auto shorter = unpack_fields(std::string_view(bytes).substr(0, cut));
    EXPECT_TRUE(!shorter || shorter->size() < fields.size()) << cut;
  }
  EXPECT_FALSE(unpack_fields(std::string(8, '\xff')));
  EXPECT_FALSE(unpack_fields(bytes + "x"));
}

// ---- keys and cache ----------------------------------------------------------------------------

CacheKey sample_key(const std::string& part = "graph part", const std::string& threads = "1") {
  CacheKey key;
  key.add("part", part);
  key.add("compiler", "c 1");
  key.add("threads", threads);
  return key;
}

CompileOutcome built(const std::string& blob) {
  CompileOutcome outcome;
  outcome.kind = Kind::kBuilt;
  outcome.blob = blob;
  outcome.seconds = 1.5;
  return outcome;
}

TEST(CacheKey, DigestDependsOnEachItemAndOrder) {
  EXPECT_EQ(sample_key().digest(), sample_key().digest());
  EXPECT_NE(sample_key().digest(), sample_key("other").digest());
  EXPECT_NE(sample_key().digest(), sample_key("graph part", "2").digest());
  CacheKey a, b;
  a.add("x", "1");
  a.add("y", "2");
  b.add("y", "2");
  b.add("x", "1");
  EXPECT_NE(a.digest(), b.digest());
  EXPECT_THROW(a.add("x", "3"), InternalError);
}

TEST(CacheKey, ShowsShortLinesOnly) {
  CacheKey key;
  key.add("short", "v 1.2");
  key.add("long", std::string(200, 'x'));
  key.add("lines", "a\nb");
  EXPECT_EQ(key.items()[0].shown, "v 1.2");
  EXPECT_EQ(key.items()[1].shown, "");
  EXPECT_EQ(key.items()[2].shown, "");
  EXPECT_EQ(key.items()[1].sha256, sha256_hex(std::string(200, 'x')));
}

TEST(Cache, KeepsEveryKindOfOutcome) {
  const TempDir dir;
  const Cache cache(dir.path() / "new");
  EXPECT_FALSE(cache.get(sample_key()));
  cache.put(sample_key(), built(std::string("\0blob\xff", 6)), "fwd");
  const auto hit = cache.get(sample_key());
  ASSERT_TRUE(hit && hit->built());
  EXPECT_EQ(hit->blob, std::string("\0blob\xff", 6));
  EXPECT_TRUE(hit->from_cache);
  EXPECT_EQ(hit->seconds, 1.5);
  for (const Kind kind : {Kind::kRejected, Kind::kCrashed, Kind::kTimedOut, Kind::kOutOfMemory}) {
    CompileOutcome outcome;
    outcome.kind = kind;
    outcome.reason = "why\n";
    outcome.log_tail = "bytes \xff\xfe of a log";
    outcome.seconds_limit = 2.5;
    outcome.memory_limit_bytes = 77;
    outcome.peak_memory_bytes = 99;
    const CacheKey key = sample_key(std::string(outcome_name(kind)));
    cache.put(key, outcome, "fwd");
    const auto kept = cache.get(key);
    ASSERT_TRUE(kept);
    EXPECT_EQ(kept->kind, kind);
    EXPECT_EQ(kept->reason, "why\n");
    EXPECT_EQ(kept->log_tail, "bytes \xEF\xBF\xBD\xEF\xBF\xBD of a log");
    EXPECT_EQ(kept->seconds_limit, 2.5);
    EXPECT_EQ(kept->memory_limit_bytes, 77);
    EXPECT_EQ(kept->peak_memory_bytes, 99);
  }
}

TEST(Cache, ExplainsMisses) {
  const TempDir dir;
  const Cache cache(dir.path());
  const std::string nothing = "no entry for this part or any like it";
  EXPECT_EQ(cache.explain_miss(sample_key(), "fwd"), nothing);
  cache.put(sample_key(), built("b"), "fwd");
  EXPECT_EQ(cache.explain_miss(sample_key("graph part", "2"), "fwd"), "threads changed: 2 (was 1)");
  EXPECT_EQ(cache.explain_miss(sample_key("graph part", "2"), "bwd"), "threads changed: 2 (was 1)");
  EXPECT_EQ(cache.explain_miss(sample_key(std::string(100, 'x')), "fwd"), "part changed");
  EXPECT_EQ(cache.explain_miss(sample_key("other"), "bwd"), nothing);
  CacheKey more = sample_key();
  more.add("option tactic", "7");
  EXPECT_EQ(cache.explain_miss(more, "fwd"), "option tactic added: 7");
  cache.put(more, built("b"), "fwd");
  CacheKey changed = sample_key();
  changed.add("option tactic", "8");
  EXPECT_EQ(cache.explain_miss(changed, "fwd"), "option tactic changed: 8 (was 7)");
}

// The options under which parts were built explain why the text of a part is another.
TEST(Cache, NamesTheOptionsThatDiffer) {
  const TempDir dir;
  const Cache cache(dir.path());
  const PartOrigin first = {{"rank", "16"}, {"seq-len", "512"}, {"gone", "1"}};
  cache.put(sample_key("p16"), built("b"), "fwd.0", first);
  PartOrigin now = first;
  now[0].second = "8";
  EXPECT_EQ(cache.explain_miss(sample_key("p8"), "fwd.0", now), "rank changed: 8 (was 16)");
  now[1].second = "128";
  EXPECT_EQ(cache.explain_miss(sample_key("p8", "2"), "fwd.0", now),
            "rank changed: 8 (was 16); seq-len changed: 128 (was 512); threads changed: 2 (was 1)");
  // Another place in the same graph is near enough; another graph is not.
  EXPECT_EQ(cache.explain_miss(sample_key("p8"), "fwd.3", now),
            "rank changed: 8 (was 16); seq-len changed: 128 (was 512)");
  EXPECT_EQ(cache.explain_miss(sample_key("p8"), "fwd_x.0", now),
            "no entry for this part or any like it");
  // Options say nothing about a part that is the same.
  EXPECT_EQ(cache.explain_miss(sample_key("p16", "2"), "fwd.0", now), "threads changed: 2 (was 1)");
  // Nor when none of those that both name differs.
  EXPECT_EQ(cache.explain_miss(sample_key(std::string(100, 'x')), "fwd.0",
                               {{"rank", "16"}, {"seq-len", "512"}, {"new", "2"}}),
            "part changed");
  // The nearest entry is the one with the fewest differences.
  cache.put(sample_key("p8"), built("b"), "fwd.0", now);
  now[0].second = "4";
  EXPECT_EQ(cache.explain_miss(sample_key("p4"), "fwd.0", now), "rank changed: 4 (was 8)");
}

TEST(Cache, DoesNotCompareWithEntriesOfAnotherUse) {
  const TempDir dir;
  const Cache cache(dir.path());
  CacheKey other;
  other.add("use", "diagnose");
  for (const char* label : {"part", "backend"}) other.add(label, "x");
  cache.put(other, built("b"), "diagnose");
  CacheKey key;
  for (const char* label : {"part", "backend", "threads"}) key.add(label, "x");
  EXPECT_EQ(cache.explain_miss(key, "fwd.0"), "no entry for this part or any like it");
}

TEST(Cache, ReadsEntriesWithoutOrigin) {
  const TempDir dir;
  const Cache cache(dir.path());
  cache.put(sample_key(), built("b"), "fwd.0", {{"rank", "16"}});
  const fs::path path = dir.path() / "parts" / (sample_key().digest() + ".json");
  std::string text = read_text(path);
  const size_t begin = text.find(" \"origin\""), end = text.find("]\n ],\n", begin) + 6;
  ASSERT_LT(begin, end);
  publish_text(path, text.erase(begin, end - begin));
  EXPECT_TRUE(cache.get(sample_key()));
  EXPECT_EQ(cache.explain_miss(sample_key(std::string(100, 'x')), "fwd.0", {{"rank", "8"}}),
            "part changed");
}

TEST(Cache, KnowsWhoseCodeItHolds) {
  const TempDir dir;
  const Cache cache(dir.path());
  const std::string longer = "compiler 2 " + std::string(120, '.');
  const auto hour = [](int n) {
    return fs::file_time_type::clock::now() - std::chrono::hours(24 - n);
  };
  const auto store = [&](const std::string& part, const std::string& compiler, int stored) {
    CacheKey key;
    key.add("part", part);
    key.add("backend", "chip");
    key.add("compiler", compiler, 240);
    cache.put(key, built("b"), "fwd.0");
    fs::last_write_time(dir.path() / "parts" / (key.digest() + ".json"), hour(stored));
    return dir.path() / "parts" / (key.digest() + ".json");
  };
  store("a", "compiler 1", 1);
  const fs::path newest = store("b", longer, 3);
  store("c", "compiler 1", 2);
  store("d", "", 4);
  EXPECT_EQ(cache.compilers_of("chip"), (std::vector<std::string>{longer, "compiler 1"}));
  EXPECT_TRUE(cache.compilers_of("chip:0").empty());
  // What an entry says of itself is held against the key.
  std::string text = read_text(newest);
  text.replace(text.find("compiler 2"), 10, "compiler 3");
  publish_text(newest, text);
  EXPECT_EQ(cache.compilers_of("chip"), (std::vector<std::string>{"compiler 1"}));
}

TEST(Cache, WritesNoOriginThatItWouldRefuse) {
  const TempDir dir;
  const Cache cache(dir.path());
  PartOrigin origin(kOriginLimit + 9, {"label", "value"});
  origin[0].second = "\x1b[2J";
  origin[1].second = std::string(300, 'x');
  cache.put(sample_key(), built("b"), "fwd.0", origin);
  EXPECT_TRUE(cache.get(sample_key()));
}

// Each change to the entry's files must cost a warning and a recompile, and nothing else.
struct Damage {
  const char* name;
  std::function<void(const fs::path& manifest, const fs::path& blob)> apply;
};

std::string replaced(const fs::path& path, const std::string& from, const std::string& to) {
  std::string text = read_text(path);
  const size_t at = text.find(from);
  NPU_CHECK(at != std::string::npos, from);
  return text.replace(at, from.size(), to);
}

class Corrupted : public testing::TestWithParam<Damage> {};
INSTANTIATE_TEST_SUITE_P(
    Entries, Corrupted,
    testing::Values(
        Damage{"BlobTruncated",
               [](const fs::path&, const fs::path& b) { fs::resize_file(b, 3); }},
        Damage{"BlobLonger",
               [](const fs::path&, const fs::path& b) { std::ofstream(b, std::ios::app) << "x"; }},
        Damage{"BlobChanged",
               [](const fs::path&, const fs::path& b) { publish_text(b, "blab content"); }},
        Damage{"BlobAbsent", [](const fs::path&, const fs::path& b) { fs::remove(b); }},
        Damage{"BlobIsDirectory",
               [](const fs::path&, const fs::path& b) {
                 fs::remove(b);
                 fs::create_directory(b);
               }},
        Damage{"ManifestTruncated",
               [](const fs::path& m, const fs::path&) { fs::resize_file(m, 40); }},
        Damage{"ManifestEmpty", [](const fs::path& m, const fs::path&) { publish_text(m, ""); }},
        Damage{"ManifestIsDirectory",
               [](const fs::path& m, const fs::path&) {
                 fs::remove(m);
                 fs::create_directory(m);
               }},
        Damage{"ManifestNotJson",
               [](const fs::path& m, const fs::path&) { publish_text(m, "\xff\x00\x01{"); }},
        Damage{"ManifestIsList", [](const fs::path& m, const fs::path&) { publish_text(m, "[1]"); }},
        Damage{"ManifestDeep",
               [](const fs::path& m, const fs::path&) {
                 publish_text(m, std::string(500000, '[') + std::string(500000, ']'));
               }},
        Damage{"ManifestHuge",
               [](const fs::path& m, const fs::path&) {
                 publish_text(m, std::string(3 << 20, ' ') + read_text(m));
               }},
        Damage{"WrongType",
               [](const fs::path& m, const fs::path&) {
                 publish_text(m, replaced(m, "\"seconds\": 1.5", "\"seconds\": {}"));
               }},
        Damage{"NegativeSize",
               [](const fs::path& m, const fs::path&) {
                 publish_text(m, replaced(m, "\"blob_bytes\": 12", "\"blob_bytes\": -1"));
               }},
        Damage{"UnknownOutcome",
               [](const fs::path& m, const fs::path&) {
                 publish_text(m, replaced(m, "\"built\"", "\"perfect\""));
               }},
        Damage{"OtherFormat",
               [](const fs::path& m, const fs::path&) {
                 publish_text(m, replaced(m, "\"format\": 1", "\"format\": 99"));
               }},
        Damage{"OriginIsText",
               [](const fs::path& m, const fs::path&) {
                 publish_text(m, replaced(m, "\"origin\": []", "\"origin\": \"rank\""));
               }},
        Damage{"OriginOfOne",
               [](const fs::path& m, const fs::path&) {
                 publish_text(m, replaced(m, "\"origin\": []", "\"origin\": [[\"rank\"]]"));
               }},
        Damage{"OriginWithEscapes",
               [](const fs::path& m, const fs::path&) {
                 publish_text(m, replaced(m, "\"origin\": []",
                                          "\"origin\": [[\"rank\", \"\\u001b[2J\"]]"));
               }},
        Damage{"OriginTooLong",
               [](const fs::path& m, const fs::path&) {
                 std::string pairs = "[\"a\",\"b\"]";
                 for (int i = 0; i < 100; ++i) pairs += ",[\"a\",\"b\"]";
                 publish_text(m, replaced(m, "\"origin\": []", "\"origin\": [" + pairs + "]"));
               }},
        Damage{"OtherKey",
               [](const fs::path& m, const fs::path&) {
                 publish_text(m, replaced(m, sha256_hex("graph part"), sha256_hex("else")));
               }}),
    [](const auto& damage) { return std::string(damage.param.name); });

TEST_P(Corrupted, EntryIsDroppedWithAWarning) {
  const TempDir dir;
  const Cache cache(dir.path());
  cache.put(sample_key(), built("blob content"), "fwd");
  const fs::path stem = dir.path() / "parts" / sample_key().digest();
  GetParam().apply(stem.string() + ".json", stem.string() + ".blob");
  testing::internal::CaptureStderr();
  EXPECT_FALSE(cache.get(sample_key()));
  EXPECT_NE(testing::internal::GetCapturedStderr().find("warning cache: entry dropped"),
            std::string::npos);
  EXPECT_FALSE(cache.get(sample_key()));  // gone, so silent
  cache.put(sample_key(), built("blob content"), "fwd");
  EXPECT_EQ(cache.get(sample_key()).value().blob, "blob content");
}

// ---- bundles
// -------------------------------------------------------------------------------------

TEST(Bundle, AnyChangedByteIsRefusedOrHarmless) {
  const TempDir dir;
  const Cache cache(dir.path() / "a");
  cache.put(sample_key(), built("blob content"), "fwd");
  const fs::path file = dir.path() / "bundle", bad = dir.path() / "bad";
  cache.export_bundle({sample_key().digest()}, file);
  const std::string good = read_text(file);
  for (size_t i = 0; i < good.size(); i += 3) {
    std::string changed = good;
    changed[i] = static_cast<char>(changed[i] ^ 0x21);
    publish_text(bad, changed);
    const Cache target(dir.path() / ("t" + std::to_string(i)));
    try {
      target.import_bundle(bad);
    } catch (const UserError& e) {
      EXPECT_EQ(e.error().where.substr(0, bad.string().size()), bad.string());
      EXPECT_FALSE(fs::exists(target.directory()));
    }
    // What the change may have done to notes and labels, the blob under our key is the blob.
    const auto hit = target.get(sample_key());
    EXPECT_EQ(hit && hit->built() ? hit->blob : "blob content", "blob content");
  }
  for (const size_t size : {size_t{0}, size_t{5}, good.size() / 2, good.size() - 1}) {
    publish_text(bad, good.substr(0, size));
    EXPECT_EQ(error_of([&] { cache.import_bundle(bad); }).kind, ErrorKind::kBadInput);
  }
  EXPECT_EQ(error_of([&] { cache.import_bundle(dir.path() / "no"); }).kind, ErrorKind::kBadInput);
}

}  // namespace
}  // namespace npu
