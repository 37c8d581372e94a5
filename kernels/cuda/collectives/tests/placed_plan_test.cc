// The parameters of client-placed kernels: which addresses have a half, and what no kernel takes.
#include "kernels/cuda/collectives/placed_plan.h"

#include <gtest/gtest.h>

#include <array>
#include <variant>
#include <vector>

namespace tandem::cuda {
namespace {

constexpr uint64_t kHalf = 4096;

std::byte* At(uintptr_t address) { return reinterpret_cast<std::byte*>(address); }

DeviceView Floats(uintptr_t address, int64_t count) {
  return {.data = At(address), .dtype = DType::kF32, .extent = {count}, .stride = {1}};
}

PlacedHalves Halves() {
  PlacedHalves halves;
  halves.workspace[0] = At(0x10000);
  halves.workspace[1] = At(0x20000);
  halves.half_bytes = kHalf;
  return halves;
}

// One phase that copies `from` to `to`.
CollectiveArgs Copy(uintptr_t from, uintptr_t to) {
  CollectiveArgs args;
  args.dtype = DType::kF32;
  args.blocks = 2;
  args.world_size = 2;
  CollectivePhase phase;
  phase.items.push_back({.sources = {Floats(from, 64)}, .destinations = {Floats(to, 64)}});
  args.phases.push_back(phase);
  return args;
}

TEST(PlacedPlan, AddressesInWorkspaceHaveAHalf) {
  const auto launch = MakePlacedLaunch(Copy(0x90000, 0x20000 + kHalf - 256), Halves());
  ASSERT_TRUE(launch.ok()) << launch.status().ToString();
  const auto& phases = std::get<PlacedPhasesLaunch>(*launch);
  EXPECT_EQ(phases.halved[0], 2u);  // the destination
  EXPECT_EQ(phases.half_bytes, static_cast<int64_t>(kHalf));
  // The bulk area lies behind the halves and has none.
  const auto bulk = MakePlacedLaunch(Copy(0x90000, 0x20000 + 2 * kHalf), Halves());
  ASSERT_TRUE(bulk.ok());
  EXPECT_EQ(std::get<PlacedPhasesLaunch>(*bulk).halved[0], 0u);
}

TEST(PlacedPlan, PacketsStayBetweenOperands) {
  CollectiveArgs args;
  args.dtype = DType::kF32;
  args.world_size = 2;
  args.exchange = PacketExchange::kSum;
  args.pieces = {64, 64};
  args.source = {Floats(0x90000, 64), Floats(0x90000, 64)};
  args.destination = {Floats(0x91000, 64), Floats(0x91000, 64)};
  args.packets = {At(0x40000), At(0x50000)};
  args.packet_bytes = 8192;
  const auto launch = MakePlacedLaunch(args, Halves());
  ASSERT_TRUE(launch.ok()) << launch.status().ToString();
  EXPECT_EQ(std::get<PlacedPacketsLaunch>(*launch).half_packets, 512);
  args.destination[0].data = At(0x10000);
  EXPECT_EQ(MakePlacedLaunch(args, Halves()).status().code(), Code::kUnimplemented);
}

TEST(PlacedPlan, OtherKernelsAreRefused) {
  CollectiveArgs fused = Copy(0x90000, 0x91000);
  fused.parts.emplace_back();
  EXPECT_EQ(MakePlacedLaunch(fused, Halves()).status().code(), Code::kUnimplemented);
  CollectiveArgs wide = Copy(0x90000, 0x91000);
  wide.blocks = kLaunchCounters + 1;
  EXPECT_EQ(MakePlacedLaunch(wide, Halves()).status().code(), Code::kUnimplemented);
  PlacedHalves odd = Halves();
  odd.half_bytes = kHalf + 8;
  EXPECT_EQ(MakePlacedLaunch(Copy(0x90000, 0x91000), odd).status().code(), Code::kInvalidArgument);
}

TEST(PlacedPlan, TheFrameIsSetLast) {
  auto launch = MakePlacedLaunch(Copy(0x90000, 0x91000), Halves());
  ASSERT_TRUE(launch.ok());
  LaunchFrame frame = {};
  frame.tag = 9;
  frame.timeout_ns = 5;
  SetFrame(*launch, frame);
  EXPECT_EQ(std::get<PlacedPhasesLaunch>(*launch).frame.tag, 9u);
}

}  // namespace
}  // namespace tandem::cuda
