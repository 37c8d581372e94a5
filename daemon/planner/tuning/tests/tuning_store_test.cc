// The node's table: shipped files under what was measured here.
#include "daemon/planner/tuning/tuning_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <thread>
#include <vector>

#include "daemon/planner/tuning/tests/tuning_entries.h"
#include "daemon/planner/tuning/tuning_file.h"

namespace tandem::daemon {
namespace {

using plan::TuningTable;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class TuningStoreTest : public testing::Test {
 protected:
  std::unique_ptr<TuningStore> Open() { return std::make_unique<TuningStore>(state_, shipped_); }
  static double Time(const TuningStore& store, int64_t bytes) {
    const auto snapshot = store.Snapshot();
    const plan::TuningEntry* entry = snapshot->Find(MakeEntry(1).key, {bytes});
    return entry == nullptr ? 0 : entry->candidates[0].median_us;
  }
  void Ship(const std::string& name, const std::vector<plan::TuningEntry>& entries) {
    TuningTable table;
    for (const auto& entry : entries) table.Put(entry);
    WriteText(shipped_ + "/" + name, WriteTuning(table));
  }

  TempDirectory directory_;
  const std::string state_ = directory_ / "state/tuning.toml";
  const std::string shipped_ = directory_ / "share/tuning";
};

TEST_F(TuningStoreTest, NothingThereIsAnEmptyTable) {
  auto store = Open();
  EXPECT_EQ(store->Snapshot()->size(), 0u);
  EXPECT_THAT(store->refused(), IsEmpty());
}

TEST_F(TuningStoreTest, WhatIsPutOutlivesARestart) {
  auto store = Open();
  const auto before = store->Snapshot();
  ASSERT_TRUE(store->Put(MakeEntry(1024, 20)).ok());
  ASSERT_TRUE(store->Put(MakeEntry(1024, 30)).ok());
  ASSERT_TRUE(store->Put(MakeEntry(65536, 40)).ok());
  EXPECT_EQ(before->size(), 0u) << "a snapshot changes";
  store = Open();
  EXPECT_EQ(store->Snapshot()->size(), 2u);
  EXPECT_EQ(Time(*store, 1024), 30);
  EXPECT_EQ(store->Snapshot()->Entries()[0]->source, state_);
}

TEST_F(TuningStoreTest, WhatIsMeasuredHereGoesOverWhatIsShipped) {
  Ship("a.toml", {MakeEntry(1024, 10), MakeEntry(65536, 11)});
  Ship("b.toml", {MakeEntry(1024, 12)});
  WriteText(shipped_ + "/README", "no table");
  auto store = Open();
  EXPECT_THAT(store->refused(), IsEmpty());
  EXPECT_EQ(Time(*store, 1024), 12) << "the later name wins";
  ASSERT_TRUE(store->Put(MakeEntry(1024, 99)).ok());
  EXPECT_EQ(Time(*store, 1024), 99);
  EXPECT_EQ(Time(*store, 65536), 11);
  EXPECT_EQ(LoadTuning(state_)->size(), 1u) << "shipped entries are not copied";
  EXPECT_EQ(Time(*Open(), 1024), 99);
}

TEST_F(TuningStoreTest, ForgettingBringsTheShippedEntryBack) {
  Ship("a.toml", {MakeEntry(1024, 10)});
  auto store = Open();
  ASSERT_TRUE(store->Put(MakeEntry(1024, 99)).ok());
  ASSERT_TRUE(store->Put(MakeEntry(65536, 5)).ok());
  const std::string id = TuningId(MakeEntry(1024));
  ASSERT_TRUE(store->Forget(id).ok());
  EXPECT_EQ(Time(*store, 1024), 10);
  const Status shipped = store->Forget(id).status();
  EXPECT_EQ(shipped.code(), Code::kFailedPrecondition);
  EXPECT_THAT(shipped.message(), HasSubstr("a.toml"));
  EXPECT_EQ(store->Forget("0123456789abcdef").status().code(), Code::kNotFound);
  EXPECT_EQ(*store->ForgetAll(), 1u);
  EXPECT_EQ(Open()->Snapshot()->size(), 1u);
}

TEST_F(TuningStoreTest, ARefusedFileIsNamedLeftOutAndKept) {
  Ship("good.toml", {MakeEntry(1024, 10)});
  WriteText(shipped_ + "/other.toml", "format = 7\n");
  WriteText(state_, "format = 1\n[[entry]]\ngpu = \"half an entr");
  auto store = Open();
  EXPECT_THAT(store->refused(), ElementsAre(HasSubstr("other.toml: format 7"), HasSubstr(state_)));
  EXPECT_THAT(store->refused().back(), HasSubstr("tuning.toml.refused")) << "where it is now";
  EXPECT_EQ(Time(*store, 1024), 10);
  EXPECT_THAT(ReadText(state_ + ".refused"), HasSubstr("half an entr")) << "set aside at once";
  EXPECT_FALSE(std::filesystem::exists(state_));
  EXPECT_THAT(Open()->refused(), ElementsAre(HasSubstr("other.toml"))) << "the next start is not told again";
  ASSERT_TRUE(store->Put(MakeEntry(65536, 5)).ok());
  EXPECT_THAT(ReadText(state_ + ".refused"), HasSubstr("half an entr"));
  EXPECT_EQ(Open()->Snapshot()->size(), 2u);
}

TEST_F(TuningStoreTest, WhatCannotBeWrittenChangesNothing) {
  WriteText(directory_ / "state", "a file where the directory should be");
  auto store = Open();
  EXPECT_EQ(store->Put(MakeEntry(1024)).code(), Code::kUnavailable);
  EXPECT_EQ(store->Snapshot()->size(), 0u);
}

TEST_F(TuningStoreTest, WhatIsWantedIsRememberedUntilItIsThere) {
  auto store = Open();
  const auto want = [&store](int64_t bytes) {
    WantedTuning wanted;
    wanted.entry.key = MakeEntry(1).key;
    wanted.entry.shape = {bytes};
    store->Want(std::move(wanted));
  };
  want(1024);
  want(65536);
  want(65536);
  ASSERT_EQ(store->Wanted().size(), 2u);
  EXPECT_EQ(store->Wanted()[0].entry.shape, plan::TuningShape{65536});
  EXPECT_EQ(store->Wanted()[0].plans, 2u);
  ASSERT_TRUE(store->Put(MakeEntry(60000)).ok());  // near enough
  ASSERT_EQ(store->Wanted().size(), 1u);
  EXPECT_EQ(store->Wanted()[0].entry.shape, plan::TuningShape{1024});
  want(65536);  // by a plan that was made before
  EXPECT_EQ(store->Wanted().size(), 1u);
  for (int64_t i = 0; i < 300; ++i) want((int64_t{1} << 30) + i);
  EXPECT_EQ(store->Wanted().size(), kMaxWantedTuning);
}

TEST_F(TuningStoreTest, ReadersAndWritersMeet) {
  auto store = Open();
  std::thread writer([&] {
    for (int64_t i = 0; i < 20; ++i) ASSERT_TRUE(store->Put(MakeEntry(int64_t{1} << i)).ok());
  });
  size_t last = 0;
  while (last < 20) {
    const size_t now = store->Snapshot()->size();
    EXPECT_GE(now, last);
    last = now;
    std::this_thread::yield();
  }
  writer.join();
}

}  // namespace
}  // namespace tandem::daemon
