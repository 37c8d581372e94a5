// The engine's memory on an emulated GPU: probes with data, foreign memory that begins inside its first
// chunk, and memory that can be released only while no lane works.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <set>
#include <thread>

#include "common/shared_memory.h"
#include "engine/launch/word_page.h"
#include "engine/memory/deferred_release.h"
#include "engine/memory/memory_table.h"
#include "engine/peer_probe.h"
#include "engine/tests/engine_node.h"
#include "kernels/host/host_backend.h"

namespace tandem::engine {
namespace {

using testing::HasSubstr;

constexpr uint64_t kSegment = uint64_t{2} << 20;

class EngineMemoryTest : public testing::Test {
 protected:
  void SetUp() override {
    auto made = MakeHostBackend({.gpu = 0, .hardware_queues = 4, .memory_bytes = uint64_t{64} << 20});
    ASSERT_TRUE(made.ok());
    backend_ = std::move(*made);
    memory_ = std::make_unique<MemoryTable>(backend_.get(), dead_);
  }
  void TearDown() override {
    memory_.reset();
    dead_->RunAll(backend_.get());
  }
  // A segment, and this test's own mapping of it.
  Mapping AddSegment(uint64_t id) {
    UniqueFd fd = std::move(*backend_->AllocateSegment(kSegment));
    EXPECT_TRUE(memory_->AddSegment(id, fd.get(), kSegment).ok());
    return std::move(*Mapping::Map(fd.get(), 0, kSegment, true));
  }

  std::shared_ptr<DeferredRelease> dead_ = std::make_shared<DeferredRelease>();
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<MemoryTable> memory_;
};

v1::Probe MakeProbe(bool check, bool copy_engine) {
  v1::Probe probe;
  for (uint64_t offset : {uint64_t{1} << 20, uint64_t{8192}}) {
    v1::ProbeTarget* target = probe.add_targets();
    target->set_segment_id(2);
    target->set_offset(offset);
    target->set_seed(offset + 77);
  }
  probe.set_bytes(65536);
  probe.set_check(check);
  probe.set_copy_engine(copy_engine);
  probe.set_staging_segment(1);
  return probe;
}

TEST_F(EngineMemoryTest, AProbeFindsOneWrongBit) {
  Mapping own = AddSegment(1), peer = AddSegment(2);
  for (bool copy_engine : {true, false}) {
    ASSERT_TRUE(RunProbe(MakeProbe(false, copy_engine), backend_.get(), *memory_, dead_.get()).ok());
    EXPECT_EQ(*peer.As<uint64_t>(8192 + 8 * 100), ProbeWord(8192 + 77, 100));
    EXPECT_EQ(*peer.As<uint64_t>(8192 - 8), 0u);
    EXPECT_EQ(*peer.As<uint64_t>(8192 + 65536), 0u);
    EXPECT_TRUE(RunProbe(MakeProbe(true, copy_engine), backend_.get(), *memory_, dead_.get()).ok());
    *peer.As<uint64_t>(8192 + 8 * 4321) ^= 1;
    Status found = RunProbe(MakeProbe(true, copy_engine), backend_.get(), *memory_, dead_.get());
    EXPECT_EQ(found.code(), Code::kDataLoss);
    EXPECT_THAT(found.message(), HasSubstr("word 4321 of 8192"));
    EXPECT_EQ(found.detail().field, "1");
  }
  EXPECT_FALSE(dead_->empty());
}

TEST_F(EngineMemoryTest, AProbeStaysInItsSegment) {
  Mapping own = AddSegment(1), peer = AddSegment(2);
  v1::Probe probe = MakeProbe(true, true);
  probe.mutable_targets(1)->set_offset(kSegment - 4096);
  EXPECT_EQ(RunProbe(probe, backend_.get(), *memory_, dead_.get()).code(), Code::kOutOfRange);
  probe = MakeProbe(false, true);
  probe.set_staging_segment(9);
  EXPECT_EQ(RunProbe(probe, backend_.get(), *memory_, dead_.get()).code(), Code::kNotFound);
  probe = MakeProbe(true, true);
  probe.set_bytes(100);
  EXPECT_EQ(RunProbe(probe, backend_.get(), *memory_, dead_.get()).code(), Code::kInvalidArgument);
}

TEST_F(EngineMemoryTest, ForeignMemoryMayBeginInsideItsFirstChunk) {
  std::vector<UniqueFd> fds;
  for (int i = 0; i < 2; ++i) fds.push_back(std::move(*CreateSealedMemfd("chunk", 8192)));
  const std::vector<SlotRule> rules = {
      {.span_bytes = 4096, .alignment = 16, .symmetric = false, .alias_of = -1}};
  auto resolve = [&](uint64_t offset, runtime::SlotAddress* address) {
    const std::vector<LaunchBinding> bindings = {{5, offset}};
    std::vector<runtime::SlotAddress> addresses;
    std::vector<std::shared_ptr<Registration>> pins;
    uint64_t digest = 0;
    Status status = memory_->Resolve(bindings, rules, {.session_id = 3}, &addresses, &pins, &digest);
    if (status.ok()) *address = addresses[0];
    return status;
  };
  const auto dups = [&fds](size_t from, size_t to) {
    std::vector<UniqueFd> made;
    for (size_t i = from; i < to; ++i) made.emplace_back(::dup(fds[i].get()));
    return made;
  };
  EXPECT_EQ(memory_->AddForeign(5, 3, 8192, dups(0, 2), {8192, 8192}, 8193).code(), Code::kInvalidArgument);
  // Pieces that came ahead go with the refused registration.
  ASSERT_TRUE(memory_->AddChunks(5, dups(0, 1)).ok());
  EXPECT_EQ(memory_->AddForeign(5, 3, 12289, dups(1, 2), {8192, 8192}, 4096).code(), Code::kInvalidArgument);
  EXPECT_EQ(memory_->AddForeign(5, 3, 12288, dups(1, 2), {8192, 8192}, 4096).code(), Code::kInvalidArgument);
  ASSERT_TRUE(memory_->AddChunks(5, dups(0, 1)).ok());
  ASSERT_TRUE(memory_->AddForeign(5, 3, 12288, dups(1, 2), {8192, 8192}, 4096).ok());
  Mapping first = std::move(*Mapping::Map(fds[0].get(), 0, 8192, true));
  Mapping second = std::move(*Mapping::Map(fds[1].get(), 0, 8192, true));
  first.data()[4096] = std::byte{41};
  second.data()[0] = std::byte{42};
  runtime::SlotAddress address;
  ASSERT_TRUE(resolve(0, &address).ok());
  EXPECT_EQ(address.own[0], std::byte{41});
  ASSERT_TRUE(resolve(4096, &address).ok());
  EXPECT_EQ(address.own[0], std::byte{42});
  ASSERT_TRUE(resolve(8192, &address).ok());
  EXPECT_EQ(resolve(8208, &address).code(), Code::kOutOfRange) << "beyond the registration";
  EXPECT_EQ(resolve(2048, &address).code(), Code::kOutOfRange) << "straddles two chunks on the host";
}

TEST_F(EngineMemoryTest, SlotsOfAnOperationInPlaceAreBoundAlike) {
  for (uint64_t id : {5, 6}) {
    std::vector<UniqueFd> fds;
    fds.push_back(std::move(*CreateSealedMemfd("whole", 8192)));
    ASSERT_TRUE(memory_->AddForeign(id, 3, 8192, std::move(fds), {8192}, 0).ok());
  }
  // A gather of two ranks: both slots are the whole output.
  const SlotRule whole{.span_bytes = 4096, .alignment = 4, .symmetric = false, .alias_of = -1};
  std::vector<SlotRule> rules = {whole, whole};
  rules[1].alias_of = 0;
  const auto resolve = [&](LaunchBinding input, LaunchBinding output) {
    std::vector<runtime::SlotAddress> addresses;
    std::vector<std::shared_ptr<Registration>> pins;
    uint64_t digest = 0;
    return memory_->Resolve(std::vector<LaunchBinding>{input, output}, rules, {.session_id = 3}, &addresses,
                            &pins, &digest);
  };
  EXPECT_TRUE(resolve({5, 4096}, {5, 4096}).ok());
  // The own part of it as input, as NCCL is given it; and another buffer.
  for (const LaunchBinding& input : {LaunchBinding{5, 2048}, LaunchBinding{6, 0}}) {
    const Status status = resolve(input, {5, 0});
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    EXPECT_THAT(status.message(), HasSubstr("operand 1 must be bound like operand 0"));
  }
}

TEST_F(EngineMemoryTest, IpcHandlesNeedCuda) {
  EXPECT_EQ(memory_->AddIpc(5, 3, 4096, std::string(64, 'h'), 0).code(), Code::kUnimplemented);
}

TEST(StepTraceTest, SampledLaunchesTellTheTimeOfEachStep) {
  EngineNode node(2);
  TestGroup group = node.AddGroup(100, {0, 1});
  const uint64_t plan = node.AddBarrierPlan(&group);
  std::vector<std::unique_ptr<TestChannel>> channels;
  for (int gpu : {0, 1}) channels.push_back(node.OpenChannel(gpu));
  constexpr uint64_t kLaunches = 70;
  for (uint64_t i = 1; i <= kLaunches; ++i) {
    for (auto& channel : channels) ASSERT_EQ(channel->Launch(Entry(plan)), i);
    for (auto& channel : channels) ASSERT_TRUE(channel->Wait(i));
  }
  // A client sees its launch done before the engine has noticed it: the last record may still be on its way.
  auto ended = [&node] {
    return std::ranges::count_if(node.stats(0).ReadTrace(),
                                 [](const TraceRecord& record) { return record.step < 0; });
  };
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (ended() < static_cast<int64_t>(kLaunches) && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  std::set<uint64_t> sampled, launches;
  for (const TraceRecord& record : node.stats(0).ReadTrace()) {
    if (record.step < 0) {
      launches.insert(record.launch);
      continue;
    }
    sampled.insert(record.launch);
    EXPECT_EQ(record.plan_id, plan);
    EXPECT_LE(record.start_ns, record.end_ns);
    EXPECT_GT(record.start_ns, 0u);
  }
  EXPECT_EQ(launches.size(), kLaunches);
  EXPECT_EQ(sampled, (std::set<uint64_t>{1, 2, 4, 8, 16, 32, 64}));
}

TEST(DeferredReleaseTest, LetsGoInOrderOneAtATimeAndOfAllAtItsEnd) {
  std::vector<int> gone;
  {
    DeferredRelease dead;
    for (int i = 0; i < 3; ++i)
      dead.Add([&gone, i](Backend* backend) { gone.push_back(backend == nullptr ? -i : i); });
    EXPECT_FALSE(dead.crowded());
    auto backend = MakeHostBackend({.gpu = 0, .hardware_queues = 1, .memory_bytes = 1 << 20});
    dead.RunOne(backend->get());
    EXPECT_THAT(gone, testing::ElementsAre(0));
    for (size_t i = 0; i < DeferredRelease::kCrowded; ++i) dead.Add([](Backend*) {});
    EXPECT_TRUE(dead.crowded());
  }
  EXPECT_THAT(gone, testing::ElementsAre(0, -1, -2));
}

}  // namespace
}  // namespace tandem::engine
