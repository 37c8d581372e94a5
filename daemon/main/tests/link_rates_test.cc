// Measuring links, with engines that have a rate for each.
#include "daemon/main/link_rates.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "common/shared_memory.h"
#include "tandem/engine/v1/engine.pb.h"

namespace tandem::daemon {
namespace {

constexpr uint64_t kBytes = uint64_t{3} << 20;

class MeasuringEngines : public Engines {
 public:
  explicit MeasuringEngines(int gpus) : gpus_(gpus) {}
  int count() const override { return gpus_; }
  EngineStatus StatusOf(int) const override { return {}; }
  Result<std::unique_ptr<engine::v1::Queue>> QueueSnapshot(int) override { return Unimplemented("no queue"); }
  Result<UniqueFd> AllocateSegment(int gpu, uint64_t id, uint64_t bytes) override {
    if (gpu == full) return ResourceExhausted("no room");
    EXPECT_GE(bytes, 2 * kBytes);
    EXPECT_EQ(bytes % (uint64_t{2} << 20), 0u);
    owner_[id] = gpu;
    mapped.insert({gpu, id});
    return CreateSealedMemfd("segment", bytes);
  }
  Status Call(int gpu, engine::v1::Command command, const std::vector<int>& fds,
              std::chrono::milliseconds) override {
    if (command.has_remove_segment()) {
      EXPECT_EQ(mapped.erase({gpu, command.remove_segment().segment_id()}), 1u);
      return Status::Ok();
    }
    EXPECT_TRUE(command.has_add_segment());
    EXPECT_EQ(fds.size(), 1u);
    mapped.insert({gpu, command.add_segment().segment_id()});
    return Status::Ok();
  }
  Result<std::string> Ask(int gpu, engine::v1::Command command, std::chrono::milliseconds) override {
    if (gpu == down) return Unavailable("the engine has ended");
    const engine::v1::MeasureLink& link = command.measure_link();
    EXPECT_TRUE(mapped.contains({gpu, link.segment_id()}));
    EXPECT_TRUE(mapped.contains({gpu, link.staging_segment()}));
    EXPECT_EQ(owner_[link.staging_segment()], gpu);
    EXPECT_EQ(link.bytes(), kBytes);
    EXPECT_GE(link.offset(), link.staging_offset() + kBytes) << "what is sent must not be written by a peer";
    return answer.empty() ? std::to_string((10 * gpu + owner_[link.segment_id()] + 1) * 1'000'000'000ull)
                          : answer;
  }

  int full = -1, down = -1;
  std::string answer;
  std::set<std::pair<int, uint64_t>> mapped;

 private:
  int gpus_;
  std::map<uint64_t, int> owner_;
};

TEST(LinkRatesTest, EachOrderedPairIsMeasuredAndMemoryIsGivenBack) {
  MeasuringEngines engines(3);
  const Topology topology = EmulatedTopology(3);
  auto rates = MeasureLinks(engines, topology, kBytes);
  ASSERT_TRUE(rates.ok()) << rates.status().ToString();
  ASSERT_EQ(rates->size(), 6u);
  EXPECT_TRUE(HasAllLinks(*rates, topology));
  for (const LinkRate& rate : *rates) {
    EXPECT_DOUBLE_EQ(rate.gb_per_second, 10 * *topology.Find(rate.from) + *topology.Find(rate.to) + 1);
  }
  EXPECT_THAT(engines.mapped, testing::IsEmpty());
  rates->pop_back();
  EXPECT_FALSE(HasAllLinks(*rates, topology));
}

TEST(LinkRatesTest, PairsWithoutPeerAccessAreLeftAlone) {
  MeasuringEngines engines(3);
  Topology topology = EmulatedTopology(3);
  topology.p2p[0][1] = topology.p2p[1][0] = false;
  topology.p2p[2][1] = false;  // one way is none
  auto rates = MeasureLinks(engines, topology, kBytes);
  ASSERT_TRUE(rates.ok());
  ASSERT_EQ(rates->size(), 2u);
  EXPECT_TRUE(HasAllLinks(*rates, topology));
  EXPECT_TRUE(HasAllLinks({}, EmulatedTopology(1)));
  EXPECT_THAT(*MeasureLinks(engines, EmulatedTopology(1), kBytes), testing::IsEmpty());
}

TEST(LinkRatesTest, WhatFailsLeavesNoMemoryBehind) {
  MeasuringEngines engines(3);
  engines.full = 2;
  EXPECT_EQ(MeasureLinks(engines, EmulatedTopology(3), kBytes).status().code(), Code::kResourceExhausted);
  EXPECT_THAT(engines.mapped, testing::IsEmpty());
  engines.full = -1;
  engines.down = 1;
  EXPECT_EQ(MeasureLinks(engines, EmulatedTopology(3), kBytes).status().code(), Code::kUnavailable);
  EXPECT_THAT(engines.mapped, testing::IsEmpty());
  engines.down = -1;
  for (const char* none : {"0", "x", "12x", "-4"}) {
    engines.answer = none;
    EXPECT_EQ(MeasureLinks(engines, EmulatedTopology(3), kBytes).status().code(), Code::kInternal) << none;
  }
}

}  // namespace
}  // namespace tandem::daemon
