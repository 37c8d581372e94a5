// The tuning table's file: what is written is read again, and what is not such a file is refused whole.
#include "daemon/planner/tuning/tuning_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "daemon/planner/tuning/tests/tuning_entries.h"

namespace tandem::daemon {
namespace {

using plan::TuningEntry;
using plan::TuningTable;
using testing::HasSubstr;

std::string Good() {
  TuningTable table;
  table.Put(MakeEntry(1024));
  return WriteTuning(table);
}

// `text` with `from` replaced by `to`.
std::string With(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return at == std::string::npos ? text : text.replace(at, from.size(), to);
}

std::string Refusal(const std::string& text) {
  Result<TuningTable> table = ParseTuning(text, "f.toml");
  if (table.ok()) return "";
  EXPECT_EQ(table.status().code(), Code::kInvalidArgument);
  EXPECT_THAT(table.status().message(), testing::StartsWith("f.toml"));
  EXPECT_EQ(table.status().message().find('\n'), std::string::npos) << "one line";
  return table.status().message();
}

TEST(TuningFile, IsReadAsItWasWritten) {
  TuningTable table;
  for (int64_t bytes : {1024, 4096, 65536}) table.Put(MakeEntry(bytes, static_cast<double>(bytes) / 100));
  TuningEntry matmul = MakeEntry(1);
  matmul.key.op = Op::kMatmulReduceScatter;
  matmul.key.scales = "row_wise";
  matmul.shape = {8192, 3584, 8192};
  matmul.candidates = {{Algorithm::kRing, 8, 3, 5, 700, 690, 712.125, ""}};
  table.Put(matmul);
  const std::string text = WriteTuning(table);
  Result<TuningTable> read = ParseTuning(text, "f.toml");
  ASSERT_TRUE(read.ok()) << read.status().ToString() << text;
  ASSERT_EQ(read->size(), 4u);
  EXPECT_EQ(WriteTuning(*read), text);
  const TuningEntry* found = read->Find(matmul.key, matmul.shape);
  ASSERT_NE(found, nullptr);
  EXPECT_EQ(found->candidates, matmul.candidates);
  EXPECT_EQ(found->source, "f.toml");
  EXPECT_EQ(read->Find(MakeEntry(1).key, {1024})->candidates[2].refused, "NCCL is \"not\" available");
}

TEST(TuningFile, AnEmptyTableIsAFileToo) {
  Result<TuningTable> read = ParseTuning(WriteTuning({}), "f.toml");
  ASSERT_TRUE(read.ok()) << read.status().ToString();
  EXPECT_EQ(read->size(), 0u);
}

TEST(TuningFile, WhatIsNoSuchFileIsRefused) {
  ASSERT_EQ(Refusal(Good()), "");
  EXPECT_THAT(Refusal(""), HasSubstr("format is missing"));
  EXPECT_NE(Refusal("\x01\x02 not toml"), "");
  EXPECT_THAT(Refusal(With(Good(), "format = 1", "format = 2")),
              HasSubstr("format 2; this tandemd reads format 1"));
  EXPECT_THAT(Refusal(With(Good(), "format = 1", "format = '1'")), HasSubstr("format is no integer"));
  EXPECT_THAT(Refusal(Good() + "\nsurprise = 1\n"), HasSubstr("not known"));
  EXPECT_THAT(Refusal(With(Good(), "op = \"all_reduce\"", "op = \"all_deduce\"")), HasSubstr("all_deduce"));
  EXPECT_THAT(Refusal(With(Good(), "\"one_shot\"", "\"one_short\"")), HasSubstr("one_short"));
  EXPECT_THAT(Refusal(With(Good(), "\"one_shot\"", "\"ring\"")), HasSubstr("no algorithm ring"));
  EXPECT_THAT(Refusal(With(Good(), "median_us = 12.500", "median_us = nan")), HasSubstr("p10"));
  EXPECT_THAT(Refusal(With(Good(), "median_us = 12.500", "median_us = 1e300")), HasSubstr("p10"));
  EXPECT_THAT(Refusal(With(Good(), "median_us = 12.500", "median_us = 'fast'")), HasSubstr("no number"));
  EXPECT_THAT(Refusal(With(Good(), "samples = 9", "samples = -9")), HasSubstr("samples"));
  EXPECT_THAT(Refusal(With(Good(), "shape = [1024]", "shape = [1024.5]")), HasSubstr("shape"));
  EXPECT_THAT(Refusal(With(Good(), "shape = [1024]", "shape = 1024")), HasSubstr("shape"));
  EXPECT_THAT(Refusal(With(Good(), "world_size = 4", "world_size = 400")), HasSubstr("world_size"));
  EXPECT_THAT(Refusal(With(Good(), "types", "tips")), HasSubstr("types is missing"));
  EXPECT_THAT(Refusal(Good() + With(Good(), "format = 1", "")), HasSubstr("entry 2: the same"));
  EXPECT_THAT(Refusal("format = 1\nentry = [1]\n"), HasSubstr("entry 1"));
  EXPECT_THAT(Refusal(Good() + "#" + std::string(kMaxTuningFile, 'x')), HasSubstr("1 MiB"));
}

// Cut anywhere, as by a machine that stopped in the middle of a write that was not atomic: never a crash, and
// never a part of an entry.
TEST(TuningFile, ACutFileIsRefusedOrWhole) {
  const std::string text = Good();
  for (size_t length = 0; length < text.size(); ++length) {
    Result<TuningTable> table = ParseTuning(std::string_view(text).substr(0, length), "f.toml");
    if (!table.ok() || table->size() == 0) continue;
    EXPECT_EQ(text.substr(length), "\n") << "cut at " << length;
  }
}

TEST(TuningFile, IsReplacedAtOnce) {
  TempDirectory directory;
  const std::string path = directory / "state/tuning.toml";
  EXPECT_EQ(LoadTuning(path).status().code(), Code::kNotFound);
  TuningTable table;
  table.Put(MakeEntry(1024));
  ASSERT_TRUE(SaveTuning(path, table).ok());
  table.Put(MakeEntry(2048));
  ASSERT_TRUE(SaveTuning(path, table).ok());
  EXPECT_EQ(LoadTuning(path)->size(), 2u);
  EXPECT_FALSE(std::filesystem::exists(path + ".new"));
}

TEST(TuningFile, IsBoundInSize) {
  TempDirectory directory;
  TuningTable table;
  TuningEntry entry = MakeEntry(1);
  entry.candidates.resize(1);
  entry.candidates.resize(plan::kMaxTuningCandidates, entry.candidates[0]);
  for (int64_t bytes = 1; bytes <= 256; ++bytes) {
    entry.shape = {bytes};
    table.Put(entry);
  }
  Status saved = SaveTuning(directory / "tuning.toml", table);
  EXPECT_EQ(saved.code(), Code::kResourceExhausted) << saved.ToString();
  EXPECT_EQ(saved.detail().reason, "TUNING_FULL");
  EXPECT_FALSE(std::filesystem::exists(directory / "tuning.toml"));
}

TEST(TuningFile, ClientsLeaveAPartToOperators) {
  TempDirectory directory;
  TuningTable table;
  TuningEntry entry = MakeEntry(1);
  entry.candidates.resize(1);
  entry.candidates.resize(plan::kMaxTuningCandidates, entry.candidates[0]);
  int64_t bytes = 0;
  while (WriteTuning(table).size() <= kMaxTuningOfClients) {
    entry.shape = {++bytes};
    table.Put(entry);
  }
  const std::string path = directory / "tuning.toml";
  const Status refused = SaveTuning(path, table, kMaxTuningOfClients);
  EXPECT_EQ(refused.detail().reason, "TUNING_FULL");
  EXPECT_EQ(refused.detail().limit, static_cast<int64_t>(kMaxTuningOfClients));
  EXPECT_TRUE(SaveTuning(path, table).ok());
}

}  // namespace
}  // namespace tandem::daemon
