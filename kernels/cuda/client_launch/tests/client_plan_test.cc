// The parameters of client-placed kernels: which addresses have a half, and what no kernel takes.
#include "kernels/cuda/client_launch/client_plan.h"

#include <gtest/gtest.h>

#include <array>
#include <utility>
#include <variant>
#include <vector>

#include "kernels/cuda/collectives/packet_grid.h"
#include "program/program.h"

namespace tandem::cuda {
namespace {

constexpr uint64_t kHalf = 4096;

std::byte* At(uintptr_t address) { return reinterpret_cast<std::byte*>(address); }

DeviceView Floats(uintptr_t address, int64_t count) {
  return {.data = At(address), .dtype = DType::kF32, .extent = {count}, .stride = {1}};
}

ClientHalves Halves() {
  ClientHalves halves;
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
  std::get<PhasesArgs>(args.work).phases.push_back(phase);
  return args;
}

TEST(ClientPlan, AddressesInWorkspaceHaveAHalf) {
  const auto launch = MakeClientLaunch(Copy(0x90000, 0x20000 + kHalf - 256), Halves());
  ASSERT_TRUE(launch.ok()) << launch.status().ToString();
  const auto& phases = std::get<ClientPhasesLaunch>(*launch);
  EXPECT_EQ(phases.halved[0], 2u);  // the destination
  EXPECT_EQ(phases.half_bytes, static_cast<int64_t>(kHalf));
  // The bulk area lies behind the halves and has none.
  const auto bulk = MakeClientLaunch(Copy(0x90000, 0x20000 + 2 * kHalf), Halves());
  ASSERT_TRUE(bulk.ok());
  EXPECT_EQ(std::get<ClientPhasesLaunch>(*bulk).halved[0], 0u);
}

TEST(ClientPlan, PacketsStayBetweenOperands) {
  CollectiveArgs args;
  args.dtype = DType::kF32;
  args.world_size = 2;
  auto& packets = args.work.emplace<PacketsArgs>();
  packets.exchange = plan::PacketExchange::kSum;
  packets.pieces = {64, 64};
  packets.source = {Floats(0x90000, 64), Floats(0x90000, 64)};
  packets.destination = {Floats(0x91000, 64), Floats(0x91000, 64)};
  packets.packets = {At(0x40000), At(0x50000)};
  packets.packet_bytes = 8192;
  const auto launch = MakeClientLaunch(args, Halves());
  ASSERT_TRUE(launch.ok()) << launch.status().ToString();
  EXPECT_EQ(std::get<ClientPacketsLaunch>(*launch).half_packets, 512);
  packets.destination[0].data = At(0x10000);
  EXPECT_EQ(MakeClientLaunch(args, Halves()).status().code(), Code::kUnimplemented);
}

TEST(ClientPlan, DensePacketsLieBehindTheOthers) {
  CollectiveArgs args;
  args.dtype = DType::kF32;
  args.world_size = 2;
  auto& packets = args.work.emplace<PacketsArgs>();
  packets.exchange = plan::PacketExchange::kTwoShot;
  packets.pieces = {64, 64};
  packets.source = {Floats(0x90000, 64), Floats(0x90100, 64)};
  packets.destination = {Floats(0x91000, 64), Floats(0x91100, 64)};
  packets.packets = {At(0x40000), At(0x50000)};
  packets.packet_bytes = plan::kPacketHalfBytes;
  packets.dense = true;
  const auto launch = MakeClientLaunch(args, Halves());
  ASSERT_TRUE(launch.ok()) << launch.status().ToString();
  const auto& made = std::get<ClientPacketsLaunch>(*launch);
  EXPECT_TRUE(made.dense);
  EXPECT_EQ(made.dense_offset * 16, static_cast<int64_t>(2 * plan::kPacketHalfBytes));
  EXPECT_EQ(made.dense_half * 16, static_cast<int64_t>(plan::kDensePacketHalfBytes));
  EXPECT_EQ(made.dense_slot * 16, static_cast<int64_t>(plan::kDensePacketHalfBytes / 2)) << "of a shot";
  packets.pieces = {static_cast<int64_t>(plan::kDensePacketHalfBytes), 64};
  EXPECT_EQ(MakeClientLaunch(args, Halves()).status().code(), Code::kInvalidArgument) << "does not fit";
  packets.pieces = {64, 64};
  args.dtype = DType::kI32;
  EXPECT_EQ(MakeClientLaunch(args, Halves()).status().code(), Code::kInvalidArgument) << "no NaN to mark";
}

// A sum by dense packets, two rows of 32 floats, and the norm of it with a residual.
struct NormedSum {
  CollectiveArgs sum;
  NormArgs norm;
};
NormedSum MakeNormedSum(uintptr_t residual = 0x92000) {
  NormedSum made;
  CollectiveArgs& args = made.sum;
  args.dtype = DType::kF32;
  args.rank = 1;
  args.world_size = 2;
  args.blocks = 4;
  auto& packets = args.work.emplace<PacketsArgs>();
  packets.exchange = plan::PacketExchange::kSum;
  packets.pieces = {64, 64};
  packets.source = {Floats(0x90000, 64), Floats(0x90000, 64)};
  packets.destination = {Floats(0x91000, 64), Floats(0x91000, 64)};
  packets.packets = {At(0x40000), At(0x50000)};
  packets.packet_bytes = plan::kPacketHalfBytes;
  packets.dense = true;
  const auto rows = [](uintptr_t address) {
    return DeviceView{.data = At(address), .dtype = DType::kF32, .extent = {2, 32}, .stride = {32, 1}};
  };
  made.norm.sum = made.norm.out = rows(0x91000);
  made.norm.weight = Floats(0x93000, 32);
  made.norm.has_residual = true;
  made.norm.residual = made.norm.residual_out = rows(residual);
  made.norm.epsilon = 0.5f;
  made.norm.row_blocks = 1;
  return made;
}

TEST(ClientPlan, ANormIsMergedIntoTheKernelOfItsSum) {
  const auto merged = [](const NormedSum& made) {
    const auto launch = MakeClientLaunch(made.sum, Halves());
    EXPECT_TRUE(launch.ok()) << launch.status().ToString();
    return WithNorm(*launch, made.norm);
  };
  const auto both = merged(MakeNormedSum());
  ASSERT_TRUE(both.has_value());
  const auto& launch = std::get<ClientNormLaunch>(*both);
  EXPECT_EQ(launch.norm.rows, 2);
  EXPECT_EQ(launch.norm.columns, 32);
  EXPECT_EQ(launch.norm.epsilon, 0.5f);
  EXPECT_EQ(launch.words, 1);
  EXPECT_FALSE(launch.manner.fixed_order);
  EXPECT_FALSE(launch.manner.unrounded);
  EXPECT_EQ(launch.sum.packets.blocks, 4);
  EXPECT_EQ(launch.row_blocks, 1);
  NormedSum shared = MakeNormedSum();
  shared.norm.row_blocks = 4;
  const auto both_shared = merged(shared);
  ASSERT_TRUE(both_shared.has_value());
  EXPECT_EQ(std::get<ClientNormLaunch>(*both_shared).row_blocks, 4);
  NormedSum fixed = MakeNormedSum();
  fixed.norm.fixed_order = true;
  const auto both_fixed = merged(fixed);
  ASSERT_TRUE(both_fixed.has_value());
  EXPECT_TRUE(std::get<ClientNormLaunch>(*both_fixed).manner.fixed_order);
  NormedSum once = MakeNormedSum();
  once.norm.unrounded = true;
  const auto both_once = merged(once);
  ASSERT_TRUE(both_once.has_value());
  EXPECT_TRUE(std::get<ClientNormLaunch>(*both_once).manner.unrounded);
  // Other launches stay two kernels: the planner's, other addresses, another sum's norm, other packets.
  NormedSum apart = MakeNormedSum();
  apart.norm.row_blocks = 0;
  EXPECT_FALSE(merged(apart).has_value());
  EXPECT_FALSE(merged(MakeNormedSum(0x92004)).has_value());
  NormedSum other = MakeNormedSum();
  other.norm.sum.data = At(0x91010);
  EXPECT_FALSE(merged(other).has_value());
  other = MakeNormedSum();
  std::get<PacketsArgs>(other.sum.work).dense = false;
  EXPECT_FALSE(merged(other).has_value());
  other = MakeNormedSum();
  other.norm.sum.extent = other.norm.out.extent = {1, 32};
  EXPECT_FALSE(merged(other).has_value()) << "a part of the sum";
  other = MakeNormedSum();
  for (DeviceView* view :
       {&other.norm.sum, &other.norm.out, &other.norm.residual, &other.norm.residual_out}) {
    view->extent = {32, 2};
    view->stride = {2, 1};
  }
  other.norm.weight = Floats(0x93000, 2);
  EXPECT_FALSE(merged(other).has_value()) << "rows of eight bytes";
  const auto phases = MakeClientLaunch(Copy(0x90000, 0x91000), Halves());
  ASSERT_TRUE(phases.ok());
  EXPECT_FALSE(WithNorm(*phases, MakeNormedSum().norm).has_value());
}

TEST(ClientPlan, AMergedNormIsQuantisedInRowsOf16BitsOnly) {
  const auto merged = [](DType type, uintptr_t quantized, bool blocks) {
    NormedSum made = MakeNormedSum();
    made.sum.dtype = type;
    auto& packets = std::get<PacketsArgs>(made.sum.work);
    for (auto* views : {&packets.source, &packets.destination}) {
      for (DeviceView& view : *views) view.dtype = type;
    }
    NormArgs& norm = made.norm;
    for (DeviceView* view : {&norm.sum, &norm.out, &norm.weight, &norm.residual, &norm.residual_out})
      view->dtype = type;
    norm.has_quantized = norm.has_scales = true;
    norm.quantized = {At(quantized), DType::kF8E4M3, {2, 32}, {32, 1}};
    norm.scales = {At(0x95000), DType::kF32, {2, blocks ? 2 : 1}, {1, 4}};
    const auto launch = MakeClientLaunch(made.sum, Halves());
    EXPECT_TRUE(launch.ok()) << launch.status().ToString();
    return WithNorm(*launch, norm);
  };
  for (const bool blocks : {false, true}) {
    const auto both = merged(DType::kBf16, 0x94000, blocks);
    ASSERT_TRUE(both.has_value());
    const NormQuantization& to = std::get<ClientNormLaunch>(*both).quantization;
    EXPECT_EQ(to.out, At(0x94000));
    EXPECT_EQ(to.static_scale, nullptr);
    EXPECT_EQ(to.row_pitch, 1);
    EXPECT_EQ(to.block_pitch, 4);
    EXPECT_EQ(to.by_blocks, blocks);
  }
  EXPECT_FALSE(merged(DType::kF32, 0x94000, false).has_value());
  EXPECT_FALSE(merged(DType::kBf16, 0x94004, false).has_value()) << "its words are stored whole";
}

// A product of few rows of two ranks, its exchange areas `area` bytes into each half. Operands lie an element
// off 16 bytes, so that no tensor map is made of them.
CollectiveArgs SkinnyProduct(SkinnyKind kind, DType type, uintptr_t area = 0) {
  static std::array<Word, 4> words;
  const auto view = [&](uintptr_t at, std::vector<int64_t> extent, std::vector<int64_t> stride) {
    return DeviceView{
        .data = At(at), .dtype = type, .extent = std::move(extent), .stride = std::move(stride)};
  };
  CollectiveArgs args;
  args.rank = 0;
  args.world_size = 2;
  SkinnyArgs& few = args.work.emplace<SkinnyArgs>();
  few.layout = *MakeSkinnyLayout(kind, 2, 32, 128, 64, static_cast<int>(DTypeBytes(type)), 2, false);
  few.matmul.a = view(0x1000002, {32, 64}, {64, 1});
  few.matmul.b = view(0x2000002, {64, 128}, {1, 64});
  few.matmul.c = view(0x3000002, {kind == SkinnyKind::kScatter ? 16 : 32, 128}, {128, 1});
  for (uintptr_t rank = 0; rank < 2; ++rank) {
    few.areas.push_back({At(0x10000 * (rank + 1) + area), DType::kU8, {few.layout.area_bytes()}, {1}});
    few.words.push_back(rank == 0 ? nullptr : &words[rank]);
    few.arrived.push_back(rank == 0 ? nullptr : &words[2 + rank]);
  }
  return args;
}

TEST(ClientPlan, SkinnyProductsHaveAKernel) {
  for (const SkinnyKind kind : {SkinnyKind::kScatter, SkinnyKind::kAllReduce}) {
    for (const DType type : {DType::kBf16, DType::kF16}) {
      const CollectiveArgs args = SkinnyProduct(kind, type, 256);
      auto made = MakeClientLaunch(args, Halves());
      ASSERT_TRUE(made.ok()) << made.status().ToString();
      GroupDeviceState group_state = {};
      group_state.tag = 9;
      SetGroupState(*made, group_state);
      const auto& kernel = std::get<ClientSkinnyKernel>(*made);
      EXPECT_EQ(kernel.ctas, args.As<SkinnyArgs>()->layout.ctas());
      EXPECT_EQ(kernel.launch.group_state.tag, 9u);
      EXPECT_EQ(kernel.launch.half_bytes, static_cast<int64_t>(kHalf));
      EXPECT_EQ(kernel.launch.area[1], At(0x20100)) << "of even launches";
      EXPECT_EQ(kernel.variant->type, static_cast<uint8_t>(type));
      EXPECT_EQ(kernel.variant->tile_n, args.As<SkinnyArgs>()->layout.tile_n);
      EXPECT_EQ(kernel.launch.failure, nullptr);
    }
  }
}

// Each shape that the planner may cut has a kernel: a plan that clients agreed on must not fail at Prepare.
TEST(ClientPlan, ClientsHaveTheKernelsOfEngines) {
  for (const DType type : {DType::kBf16, DType::kF16, DType::kF8E4M3}) {
    for (const bool along_n : {false, true}) {
      for (const int64_t rows : {2, 64, 200, 512, 1024}) {
        for (const int64_t n : {64, 1000, 4096, 7168, 14336, 28000}) {
          const int bytes = static_cast<int>(DTypeBytes(type));
          const auto layout = MakeSkinnyLayout(SkinnyKind::kScatter, 2, rows, n, 512, bytes, 2, along_n);
          if (!layout || (along_n && bytes == 1)) continue;
          SkinnyMatmul matmul;
          matmul.layout = *layout;
          matmul.type = matmul.b_type = type;
          matmul.out_type = bytes == 1 ? DType::kBf16 : type;
          matmul.b_along_n = along_n;
          for (const bool exact : {false, true}) {
            matmul.exact = exact && bytes == 1;
            const auto found = FindSkinnyVariant(matmul, ClientSkinnyVariants());
            EXPECT_TRUE(found.ok()) << found.status().ToString();
          }
        }
      }
    }
  }
}

TEST(ClientPlan, ProductsThatNoKernelTakes) {
  EXPECT_EQ(MakeClientLaunch(SkinnyProduct(SkinnyKind::kScatter, DType::kBf16, 2 * kHalf), Halves())
                .status()
                .code(),
            Code::kInvalidArgument)
      << "areas in the bulk area";
  CollectiveArgs wide = SkinnyProduct(SkinnyKind::kScatter, DType::kBf16);
  std::get<SkinnyArgs>(wide.work).matmul.c.dtype = DType::kF32;
  EXPECT_EQ(MakeClientLaunch(wide, Halves()).status().code(), Code::kUnimplemented);
  CollectiveArgs strided = SkinnyProduct(SkinnyKind::kScatter, DType::kBf16);
  std::get<SkinnyArgs>(strided.work).matmul.a.stride = {1, 32};
  EXPECT_EQ(MakeClientLaunch(strided, Halves()).status().code(), Code::kUnimplemented);
  CollectiveArgs unbound = SkinnyProduct(SkinnyKind::kScatter, DType::kBf16);
  std::get<SkinnyArgs>(unbound.work).matmul.b.data = nullptr;
  EXPECT_EQ(MakeClientLaunch(unbound, Halves()).status().code(), Code::kInvalidArgument);
}

TEST(ClientPlan, OtherKernelsAreRefused) {
  CollectiveArgs fused = Copy(0x90000, 0x91000);
  fused.work.emplace<FusedArgs>().parts.emplace_back();
  EXPECT_EQ(MakeClientLaunch(fused, Halves()).status().code(), Code::kUnimplemented);
  CollectiveArgs wide = Copy(0x90000, 0x91000);
  wide.blocks = kLaunchCounters + 1;
  EXPECT_EQ(MakeClientLaunch(wide, Halves()).status().code(), Code::kUnimplemented);
  ClientHalves odd = Halves();
  odd.half_bytes = kHalf + 8;
  EXPECT_EQ(MakeClientLaunch(Copy(0x90000, 0x91000), odd).status().code(), Code::kInvalidArgument);
}

// An idle block would count a launch that another block gives up.
TEST(ClientPlan, EveryBlockOfPacketsHasOne) {
  PacketsLaunch launch = {};
  launch.type = static_cast<uint8_t>(DType::kBf16);
  launch.world = 2;
  launch.shape = PacketShape::kSum;
  for (const int64_t count : {1, 1000, 16384, 300001, 5000000}) {
    for (launch.blocks = 1; launch.blocks <= 128; ++launch.blocks) {
      launch.count[0] = count - 1;
      launch.count[1] = count;
      const PacketGrid grid = PacketGridOf(launch, kDensePacketDataBytes);
      const int64_t packets = (count + 7) / 8;
      ASSERT_LE(grid.blocks, static_cast<unsigned>(launch.blocks));
      ASSERT_LT((grid.blocks - 1) * grid.threads, packets) << count << " on " << launch.blocks;
      ASSERT_TRUE(grid.threads % 32 == 0 && grid.threads <= kCollectiveThreads);
      const bool fits = packets <= int64_t{launch.blocks} * kCollectiveThreads;
      ASSERT_TRUE(!fits || grid.blocks * grid.threads >= packets) << count << " on " << launch.blocks;
    }
  }
}

TEST(ClientPlan, TheFrameIsSetLast) {
  auto launch = MakeClientLaunch(Copy(0x90000, 0x91000), Halves());
  ASSERT_TRUE(launch.ok());
  GroupDeviceState group_state = {};
  group_state.tag = 9;
  group_state.timeout_ns = 5;
  SetGroupState(*launch, group_state);
  EXPECT_EQ(std::get<ClientPhasesLaunch>(*launch).group_state.tag, 9u);
}

}  // namespace
}  // namespace tandem::cuda
