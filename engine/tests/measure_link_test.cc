// The engine's figures of a link, on a device whose copies take as long as the test sets.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "common/shared_memory.h"
#include "engine/memory/deferred_release.h"
#include "engine/memory/memory_table.h"
#include "engine/peer_probe.h"
#include "engine/tests/wrapped_backend.h"
#include "kernels/host/host_backend.h"

namespace tandem::engine {
namespace {

constexpr uint64_t kLinkSegment = uint64_t{2} << 20;
constexpr uint64_t kBytes = 65536;

// The device's clock: each copy takes the next of these times, the later ones the last.
struct DeviceClock {
  std::vector<int64_t> copy_ns;
  int64_t now_ns = 1'000'000;
  size_t copies = 0;
};

class ClockEvent : public Event {
 public:
  bool Done() const override { return true; }
  int64_t TimeNs() const override { return at_ns; }
  int64_t at_ns = 0;
};

class ClockLane : public WrappedLane {
 public:
  ClockLane(std::unique_ptr<Lane> lane, DeviceClock* clock) : WrappedLane(std::move(lane)), clock_(clock) {}
  Status Copy(const CopyArgs& args) override {
    EXPECT_TRUE(args.copy_engine);
    std::memcpy(args.dst.data, args.src.data, static_cast<size_t>(args.src.extent.at(0)) * sizeof(uint64_t));
    clock_->now_ns += clock_->copy_ns.at(std::min(clock_->copies++, clock_->copy_ns.size() - 1));
    return Status::Ok();
  }
  Status Record(Event* event) override {
    static_cast<ClockEvent*>(event)->at_ns = clock_->now_ns;
    return Status::Ok();
  }

 private:
  DeviceClock* clock_;
};

class ClockBackend : public WrappedBackend {
 public:
  ClockBackend(std::unique_ptr<Backend> backend, DeviceClock* clock)
      : WrappedBackend(std::move(backend),
                       [clock](std::unique_ptr<Lane> lane, int, WrappedBackend&) -> std::unique_ptr<Lane> {
                         return std::make_unique<ClockLane>(std::move(lane), clock);
                       }) {}
  Result<std::unique_ptr<Event>> MakeEvent() override { return std::unique_ptr<Event>(new ClockEvent()); }
};

class MeasureLinkTest : public testing::Test {
 protected:
  void SetUp() override {
    auto host = MakeHostBackend({.gpu = 0, .hardware_queues = 4, .memory_bytes = uint64_t{64} << 20});
    ASSERT_TRUE(host.ok());
    backend_ = std::make_unique<ClockBackend>(std::move(*host), &clock_);
    Use(backend_.get());
  }
  void TearDown() override {
    memory_.reset();
    dead_->RunAll(backend_.get());
  }
  // Segments 1 (own) and 2 (the peer's) on `backend`, and this test's mappings of them.
  void Use(Backend* backend) {
    memory_ = std::make_unique<MemoryTable>(backend, dead_);
    for (uint64_t id : {1, 2}) {
      UniqueFd fd = std::move(*backend->AllocateSegment(kLinkSegment));
      ASSERT_TRUE(memory_->AddSegment(id, fd.get(), kLinkSegment).ok());
      (id == 1 ? own_ : peer_) = std::move(*Mapping::Map(fd.get(), 0, kLinkSegment, true));
    }
  }
  static v1::MeasureLink Link() {
    v1::MeasureLink link;
    link.set_segment_id(2);
    link.set_offset(8192);
    link.set_bytes(kBytes);
    link.set_staging_segment(1);
    link.set_staging_offset(4096);
    return link;
  }
  Result<uint64_t> Measure(const v1::MeasureLink& link) {
    return MeasureLink(link, backend_.get(), *memory_, dead_.get());
  }

  DeviceClock clock_;
  std::shared_ptr<DeferredRelease> dead_ = std::make_shared<DeferredRelease>();
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<MemoryTable> memory_;
  Mapping own_, peer_;
};

TEST_F(MeasureLinkTest, IsTheBytesOfACopyOverItsTimeOnTheDevice) {
  clock_.copy_ns = {2 * 65536};
  std::memset(own_.data() + 4096, 0x5a, kBytes);
  auto rate = Measure(Link());
  ASSERT_TRUE(rate.ok()) << rate.status().ToString();
  EXPECT_EQ(*rate, 500'000'000u);
  EXPECT_EQ(std::memcmp(own_.data() + 4096, peer_.data() + 8192, kBytes), 0)
      << "it is the link that was timed";
  EXPECT_EQ(peer_.data()[8191], std::byte{0});
  EXPECT_EQ(peer_.data()[8192 + kBytes], std::byte{0});
}

TEST_F(MeasureLinkTest, TheFirstRoundIsForWakingUpAndTheBestOfTheOthersCounts) {
  // Rounds are as long as each other: what follows is found by the count of all copies.
  clock_.copy_ns = {1000};
  ASSERT_TRUE(Measure(Link()).ok());
  const size_t copies = clock_.copies;
  ASSERT_EQ(copies % 4, 0u);
  const size_t round = copies / 4;
  const auto rate_of = [&](std::vector<int64_t> round_ns) {
    clock_.copies = 0;
    clock_.copy_ns.clear();
    for (int64_t ns : round_ns) clock_.copy_ns.insert(clock_.copy_ns.end(), round, ns);
    return *Measure(Link());
  };
  EXPECT_EQ(rate_of({65536, 3 * 65536, 65536 * 2, 4 * 65536}), 500'000'000u)
      << "the first round is no result";
  EXPECT_EQ(rate_of({9 * 65536, 3 * 65536, 2 * 65536, 65536}), 1'000'000'000u);
}

TEST_F(MeasureLinkTest, ADeviceThatTellsNoTimeHasNoRate) {
  clock_.copy_ns = {0};
  EXPECT_EQ(Measure(Link()).status().code(), Code::kInternal);
}

TEST_F(MeasureLinkTest, StaysInItsSegments) {
  clock_.copy_ns = {1000};
  v1::MeasureLink link = Link();
  link.set_offset(kLinkSegment - kBytes + 4096);
  EXPECT_EQ(Measure(link).status().code(), Code::kOutOfRange);
  link = Link();
  link.set_staging_offset(kLinkSegment - kBytes + 4096);
  EXPECT_EQ(Measure(link).status().code(), Code::kOutOfRange);
  link = Link();
  link.set_staging_segment(9);
  EXPECT_EQ(Measure(link).status().code(), Code::kNotFound);
  for (uint64_t bytes : {uint64_t{0}, uint64_t{100}, uint64_t{1} << 30}) {
    link = Link();
    link.set_bytes(bytes);
    EXPECT_EQ(Measure(link).status().code(), Code::kInvalidArgument) << bytes;
  }
  EXPECT_EQ(clock_.copies, 0u);
}

TEST_F(MeasureLinkTest, TheHostBackendHasARate) {
  memory_.reset();
  backend_ =
      std::move(*MakeHostBackend({.gpu = 0, .hardware_queues = 4, .memory_bytes = uint64_t{64} << 20}));
  Use(backend_.get());
  auto rate = Measure(Link());
  ASSERT_TRUE(rate.ok()) << rate.status().ToString();
  EXPECT_GT(*rate, 0u);
  EXPECT_FALSE(dead_->empty()) << "the lane is kept until nothing can be using it";
}

}  // namespace
}  // namespace tandem::engine
