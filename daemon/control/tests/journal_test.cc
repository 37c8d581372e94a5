// The journal: what is written is read again, what was cut short is not.
#include "daemon/control/restart/journal.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>

#include "daemon/control/restart/state_records.h"

namespace tandem::daemon {
namespace {

class JournalTest : public ::testing::Test {
 protected:
  void SetUp() override { file = *Journal::Create(); }
  Result<Journal> Open() { return Journal::Open(UniqueFd(::dup(file.get()))); }
  std::map<std::string, std::string> Records() {
    Result<Journal> journal = Open();
    EXPECT_TRUE(journal.ok()) << journal.status().ToString();
    return journal.ok() ? journal->TakeRecords() : std::map<std::string, std::string>();
  }
  off_t Size() {
    struct stat status {};
    ::fstat(file.get(), &status);
    return status.st_size;
  }

  UniqueFd file;
};

TEST_F(JournalTest, TheLastValueOfEachRecordIsRead) {
  {
    Journal journal = *Open();
    journal.Put("a", "1");
    journal.Put("b", "2");
    journal.Put("a", "3");
    journal.Put("c", "");
    journal.Erase("b");
    EXPECT_EQ(journal.Get("a"), "3");
  }
  const std::map<std::string, std::string> expected = {{"a", "3"}, {"c", ""}};
  EXPECT_EQ(Records(), expected);
}

TEST_F(JournalTest, ARecordThatWasCutShortIsNotReadAndTheNextWriterGoesOn) {
  {
    Journal journal = *Open();
    journal.Put("a", "1");
    journal.Put("b", std::string(1000, 'b'));
  }
  ASSERT_EQ(::ftruncate(file.get(), Size() - 1), 0);
  EXPECT_EQ(Records(), (std::map<std::string, std::string>{{"a", "1"}}));
  {
    Journal journal = *Open();
    journal.Put("c", "3");
  }
  EXPECT_EQ(Records(), (std::map<std::string, std::string>{{"a", "1"}, {"c", "3"}}));
}

TEST_F(JournalTest, ADamagedRecordEndsTheReading) {
  {
    Journal journal = *Open();
    journal.Put("a", "1");
    journal.Put("b", "2");
  }
  ASSERT_EQ(::pwrite(file.get(), "x", 1, Size() - 1), 1);
  EXPECT_EQ(Records(), (std::map<std::string, std::string>{{"a", "1"}}));
}

TEST_F(JournalTest, AnEqualValueIsNotWrittenAgain) {
  Journal journal = *Open();
  journal.Put("a", "1");
  const off_t size = Size();
  journal.Put("a", "1");
  EXPECT_EQ(Size(), size);
}

TEST_F(JournalTest, OutdatedRecordsGiveTheirMemoryBack) {
  const std::string large(100 << 10, 'l');
  uint64_t most = 0;
  {
    Journal journal = *Open();
    journal.Put("kept", "k");
    for (int i = 0; i < 200; ++i) {
      journal.Put("a", large + std::to_string(i));
      most = std::max(most, journal.bytes());
    }
  }
  EXPECT_LT(most, uint64_t{4} << 20);
  struct stat status {};
  ::fstat(file.get(), &status);
  EXPECT_LT(status.st_blocks * 512, 4 << 20);
  const auto records = Records();
  ASSERT_EQ(records.size(), 2u);
  EXPECT_EQ(records.at("kept"), "k");
  EXPECT_EQ(records.at("a"), large + "199");
}

TEST_F(JournalTest, AnotherFileIsNoJournal) {
  ASSERT_EQ(::pwrite(file.get(), "x", 1, 0), 1);
  EXPECT_EQ(Open().status().code(), Code::kDataLoss);
}

TEST(NodeCountersTest, AKeptCounterPassesTheJournalAndNoOtherHasAField) {
  NodeCounters counters;
  uint64_t value = 10;
  for (const NodeCounter& counter : kNodeCounters) {
    counters.*counter.value = ++value;
    const bool has_field =
        state::v1::Node::descriptor()->FindFieldByName(std::string(counter.name())) != nullptr;
    ASSERT_EQ(has_field, counter.kept) << counter.metric;
  }
  state::v1::Node node;
  SetCounters(counters, &node);
  const NodeCounters restored = CountersOf(node);
  for (const NodeCounter& counter : kNodeCounters) {
    EXPECT_EQ(restored.*counter.value, counter.kept ? counters.*counter.value : 0) << counter.metric;
  }
}

}  // namespace
}  // namespace tandem::daemon
