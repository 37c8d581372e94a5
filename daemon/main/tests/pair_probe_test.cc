// Probing pairs of GPUs, with engines that are a map of memory and a link that corrupts.
#include "daemon/main/pair_probe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <set>

#include "common/shared_memory.h"
#include "tandem/engine/v1/engine.pb.h"

namespace tandem::daemon {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

// A probe writes its seed into a map; a bad link writes another one.
class FakeEngines : public Engines {
 public:
  explicit FakeEngines(int gpus) : gpus_(gpus) {}
  int count() const override { return gpus_; }
  EngineStatus StatusOf(int) const override { return {}; }
  Result<std::unique_ptr<engine::v1::Queue>> QueueSnapshot(int) override { return Unimplemented("no queue"); }
  Result<UniqueFd> AllocateSegment(int gpu, uint64_t id, uint64_t bytes) override {
    std::lock_guard lock(mutex_);
    if (gpu == down) return Unavailable("the engine is down");
    owner_[id] = gpu;
    mapped.insert({id, gpu});
    return CreateSealedMemfd("segment", bytes);
  }
  Result<std::string> Ask(int, engine::v1::Command, std::chrono::milliseconds) override {
    return Unimplemented("nothing is asked");
  }
  Status Call(int gpu, engine::v1::Command command, const std::vector<int>& fds,
              std::chrono::milliseconds) override {
    std::lock_guard lock(mutex_);
    if (command.has_add_segment()) {
      EXPECT_EQ(fds.size(), 1u);
      int owner = owner_.at(command.add_segment().segment_id());
      if (unmappable.contains({gpu, owner})) return Internal("no mapping");
      mapped.insert({command.add_segment().segment_id(), gpu});
      return Status::Ok();
    }
    if (command.has_remove_segment()) {
      EXPECT_EQ(mapped.erase({command.remove_segment().segment_id(), gpu}), 1u);
      return Status::Ok();
    }
    for (int i = 0; i < command.probe().targets_size(); ++i) {
      Status status = ProbeOne(gpu, command.probe(), command.probe().targets(i));
      if (!status.ok()) return status.WithDetail({.reason = {}, .who = {}, .field = std::to_string(i)});
    }
    return Status::Ok();
  }

  int down = -1;
  std::set<std::pair<int, int>> unmappable;      // {who maps, owner}
  std::set<std::tuple<int, int, bool>> corrupt;  // {writer, owner, by copy engine}
  std::set<std::tuple<int, int, bool>> corrupt_reads;
  std::set<std::pair<uint64_t, int>> mapped;
  int writes = 0;

 private:
  Status ProbeOne(int gpu, const engine::v1::Probe& probe, const engine::v1::ProbeTarget& target) {
    EXPECT_TRUE(mapped.contains({target.segment_id(), gpu}));
    int owner = owner_.at(target.segment_id());
    auto where = std::pair(target.segment_id(), target.offset());
    bool by = probe.copy_engine();
    if (!probe.check()) {
      ++writes;
      EXPECT_TRUE(mapped.contains({probe.staging_segment(), gpu}));
      memory_[where] = target.seed() + (corrupt.contains({gpu, owner, by}) ? 1 : 0);
      return Status::Ok();
    }
    if (gpu != owner && corrupt_reads.contains({gpu, owner, by}))
      return Status(Code::kDataLoss, "word 3 differs");
    return memory_[where] == target.seed() ? Status::Ok() : Status(Code::kDataLoss, "word 0 differs");
  }

  int gpus_;
  std::mutex mutex_;
  std::map<uint64_t, int> owner_;
  std::map<std::pair<uint64_t, uint64_t>, uint64_t> memory_;
};

TEST(PairProbeTest, GoodLinksAreProbedBothWaysAndMemoryIsGivenBack) {
  FakeEngines engines(4);
  Result<std::vector<PairFailure>> failures = ProbePairs(engines, EmulatedTopology(4));
  ASSERT_TRUE(failures.ok()) << failures.status().ToString();
  EXPECT_THAT(*failures, IsEmpty());
  EXPECT_EQ(engines.writes, 4 * 3 * 2) << "each ordered pair by copy engine and by kernel";
  EXPECT_THAT(engines.mapped, IsEmpty());
}

TEST(PairProbeTest, ALinkThatCorruptsOneWayIsFoundAndItsPairDropped) {
  for (bool copy_engine : {true, false}) {
    for (bool reads : {true, false}) {
      FakeEngines engines(3);
      (reads ? engines.corrupt_reads : engines.corrupt).insert({2, 0, copy_engine});
      Topology topology = EmulatedTopology(3);
      Result<std::vector<PairFailure>> failures = ProbePairs(engines, topology);
      ASSERT_TRUE(failures.ok());
      ASSERT_EQ(failures->size(), 1u);
      EXPECT_EQ((*failures)[0].from, topology.gpus[2].uuid);
      EXPECT_EQ((*failures)[0].to, topology.gpus[0].uuid);
      EXPECT_THAT((*failures)[0].reason, HasSubstr(copy_engine ? "by copy engine" : "by kernel"));
      EXPECT_THAT((*failures)[0].reason, HasSubstr(reads ? "reading back" : "checking"));
      DropFailedPairs(*failures, &topology);
      EXPECT_FALSE(topology.p2p[0][2] || topology.p2p[2][0]);
      EXPECT_TRUE(topology.p2p[0][1] && topology.p2p[1][2]);
      EXPECT_EQ(topology.LinkCount(0, 2), 0);
      EXPECT_THAT(engines.mapped, IsEmpty());
    }
  }
}

TEST(PairProbeTest, OneFailureHidesNoOther) {
  FakeEngines engines(4);
  engines.corrupt = {{0, 1, true}, {0, 3, true}, {0, 2, false}, {3, 2, true}};
  Result<std::vector<PairFailure>> failures = ProbePairs(engines, EmulatedTopology(4));
  ASSERT_TRUE(failures.ok());
  EXPECT_EQ(failures->size(), 4u);
}

TEST(PairProbeTest, MemoryThatCannotBeMappedIsAFailedPair) {
  FakeEngines engines(2);
  engines.unmappable.insert({1, 0});
  Result<std::vector<PairFailure>> failures = ProbePairs(engines, EmulatedTopology(2));
  ASSERT_TRUE(failures.ok());
  ASSERT_EQ(failures->size(), 1u);
  EXPECT_THAT((*failures)[0].reason, HasSubstr("cannot be mapped"));
}

TEST(PairProbeTest, WithoutAnEngineNothingIsKnown) {
  FakeEngines engines(3);
  engines.down = 1;
  EXPECT_EQ(ProbePairs(engines, EmulatedTopology(3)).status().code(), Code::kUnavailable);
  EXPECT_THAT(engines.mapped, IsEmpty());
}

TEST(PairProbeTest, PairsWithoutPeerAccessAreLeftAlone) {
  FakeEngines engines(2);
  Topology topology = EmulatedTopology(2);
  topology.p2p[0][1] = false;
  ASSERT_TRUE(ProbePairs(engines, topology).ok());
  EXPECT_EQ(engines.writes, 0);
}

class ProbeFileTest : public testing::Test {
 protected:
  ~ProbeFileTest() override { std::filesystem::remove_all(folder_); }
  const std::string folder_ = testing::TempDir() + "/probe" + std::to_string(::getpid());
  const std::string path_ = folder_ + "/state/pair-probe.txt";
  const Topology topology_ = EmulatedTopology(2);
};

TEST_F(ProbeFileTest, KeepsTheOutcomeForTheBoot) {
  EXPECT_EQ(LoadProbe(path_, "boot", topology_).status().code(), Code::kNotFound);
  const std::string a = topology_.gpus[0].uuid, b = topology_.gpus[1].uuid;
  const ProbeOutcome outcome = {.failures = {{a, b, "reading\nback: word 1"}},
                                .links = {{a, b, 391.5}, {b, a, 24.25}}};
  ASSERT_TRUE(SaveProbe(path_, "boot", topology_, outcome).ok());
  Result<ProbeOutcome> loaded = LoadProbe(path_, "boot", topology_);
  ASSERT_TRUE(loaded.ok()) << loaded.status().ToString();
  ASSERT_EQ(loaded->failures.size(), 1u);
  EXPECT_EQ(loaded->failures[0].to, topology_.gpus[1].uuid);
  EXPECT_EQ(loaded->failures[0].reason, "reading back: word 1");
  ASSERT_EQ(loaded->links.size(), 2u);
  EXPECT_EQ(loaded->links[1].from, topology_.gpus[1].uuid);
  EXPECT_EQ(loaded->links[1].to, topology_.gpus[0].uuid);
  EXPECT_DOUBLE_EQ(loaded->links[0].gb_per_second, 391.5);
  EXPECT_DOUBLE_EQ(loaded->links[1].gb_per_second, 24.25);
  EXPECT_EQ(LoadProbe(path_, "another", topology_).status().code(), Code::kNotFound);
  EXPECT_EQ(LoadProbe(path_, "boot", EmulatedTopology(3)).status().code(), Code::kNotFound);
  ASSERT_TRUE(SaveProbe(path_, "boot", topology_, {}).ok());
  EXPECT_THAT(LoadProbe(path_, "boot", topology_)->failures, IsEmpty());
  EXPECT_THAT(LoadProbe(path_, "boot", topology_)->links, IsEmpty())
      << "what has not been measured is no failure";
}

TEST_F(ProbeFileTest, ARateThatIsNoneMakesTheFileNone) {
  for (const char* rate : {"", " x", " 0", " -3"}) {
    ASSERT_TRUE(SaveProbe(path_, "boot", topology_, {}).ok());
    std::filesystem::resize_file(path_, std::filesystem::file_size(path_) - 4);
    std::ofstream(path_, std::ios::app)
        << "link " << topology_.gpus[0].uuid << " " << topology_.gpus[1].uuid << rate << "\nend\n";
    EXPECT_EQ(LoadProbe(path_, "boot", topology_).status().code(), Code::kNotFound) << rate;
  }
}

TEST_F(ProbeFileTest, ACutOffFileIsNone) {
  ASSERT_TRUE(SaveProbe(path_, "boot", topology_, {}).ok());
  std::filesystem::resize_file(path_, std::filesystem::file_size(path_) - 4);
  EXPECT_EQ(LoadProbe(path_, "boot", topology_).status().code(), Code::kNotFound);
  ASSERT_TRUE(SaveProbe(path_, "", topology_, {}).ok());
  EXPECT_EQ(LoadProbe(path_, "", topology_).status().code(), Code::kNotFound);
}

}  // namespace
}  // namespace tandem::daemon
