// From a product of few rows to its kernel's launch, without a GPU: addresses are made up and never read.
#include "kernels/cuda/skinny/skinny_plan.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>

#include "kernels/cuda/fused/fused_launch.h"

namespace tandem::cuda {
namespace {

constexpr int64_t kRows = 20, kN = 512, kK = 128;
constexpr int kWorld = 3, kRank = 1;

std::byte* At(uintptr_t address) { return reinterpret_cast<std::byte*>(address); }

DeviceView Dense(std::byte* data, DType type, std::vector<int64_t> extent) {
  std::vector<int64_t> stride = ContiguousStrides(extent);
  return {data, type, std::move(extent), std::move(stride)};
}

struct Launched {
  SkinnyParams params;
  const SkinnyVariant* variant;
  int ctas;
};
std::vector<Launched> launched;

Status Launch(const SkinnyParams& params, const SkinnyVariant& variant, int ctas, CUstream_st*) {
  launched.push_back({params, &variant, ctas});
  return Status::Ok();
}

class SkinnyPlanTest : public testing::Test {
 protected:
  SkinnyPlanTest() { launched.clear(); }

  // Operands an element off 16 bytes, so that no tensor map is made of them.
  CollectiveArgs Args(SkinnyKind kind, DType type = DType::kBf16, int64_t rows = kRows) {
    const bool float8 = IsFloat8(type);
    const int64_t all = rows * kWorld;
    CollectiveArgs args;
    args.rank = kRank;
    args.world_size = kWorld;
    args.launch_number = 7;
    SkinnyArgs& few = args.work.emplace<SkinnyArgs>();
    few.layout = *MakeSkinnyLayout(kind, kWorld, all, kN, kK, static_cast<int>(DTypeBytes(type)), 2, !float8);
    few.matmul.a = Dense(At(0x1000002), type, {kind == SkinnyKind::kGather ? rows : all, kK});
    few.matmul.b = Dense(At(0x2000002), type, {kK, kN});
    if (float8) few.matmul.b.stride = {1, kK};
    few.matmul.c =
        Dense(At(0x3000002), float8 ? DType::kBf16 : type, {kind == SkinnyKind::kScatter ? rows : all, kN});
    for (uintptr_t rank = 0; rank < kWorld; ++rank) {
      few.areas.push_back(Dense(At(0x4000000 + rank * 0x100000), DType::kU8, {few.layout.area_bytes()}));
      few.words.push_back(rank == kRank ? nullptr : &words_[rank]);
      few.arrived.push_back(rank == kRank ? nullptr : &words_[4 + rank]);
    }
    return args;
  }

  std::array<Word, 8> words_{};
  alignas(256) std::array<std::byte, kFusedStateBytes> state_{};
};

// As many CTAs as there are SMs for, and a kernel for each width; B's rows come in boxes of 64 columns.
TEST_F(SkinnyPlanTest, TilesAreAsNarrowAsOneWaveAllows) {
  struct Wanted {
    int64_t rows, n;
    bool b_along_n;
    int tile_n, cluster_m, cluster_n, ctas;
  };
  for (const Wanted& wanted : {Wanted{64, 8192, false, 64, 1, 2, 128},
                               {64, 8192, true, 64, 1, 2, 128},
                               {64, 14336, false, 112, 1, 2, 128},
                               {64, 14336, true, 128, 1, 2, 112},
                               {256, 7168, false, 112, 2, 1, 128},
                               {256, 7168, true, 128, 2, 1, 112},
                               {256, 14336, false, 224, 2, 1, 128},
                               {256, 14336, true, 256, 2, 1, 112},
                               {64, 28000, false, 224, 1, 2, 126},
                               {64, 32000, false, 256, 1, 2, 126},
                               {512, 8192, false, 256, 2, 1, 128}}) {
    SCOPED_TRACE(std::to_string(wanted.rows) + "x" + std::to_string(wanted.n) +
                 (wanted.b_along_n ? " rows" : " columns"));
    const auto layout =
        MakeSkinnyLayout(SkinnyKind::kGather, 2, wanted.rows, wanted.n, kK, 2, 2, wanted.b_along_n);
    ASSERT_TRUE(layout.has_value());
    EXPECT_EQ(layout->tile_n, wanted.tile_n);
    EXPECT_EQ(layout->cluster_m, wanted.cluster_m);
    EXPECT_EQ(layout->cluster_n, wanted.cluster_n);
    EXPECT_EQ(layout->ctas(), wanted.ctas);
    SkinnyMatmul matmul;
    matmul.layout = *layout;
    matmul.b_along_n = wanted.b_along_n;
    EXPECT_TRUE(FindSkinnyVariant(matmul).ok());
  }
  EXPECT_FALSE(MakeSkinnyLayout(SkinnyKind::kGather, 2, 512, 14336, kK, 2, 2, false).has_value())
      << "two waves";
}

TEST_F(SkinnyPlanTest, TwoRanksSumInOneStepWhereThatGains) {
  const auto layout = [](SkinnyKind kind, int world, int64_t rows) {
    return *MakeSkinnyLayout(kind, world, rows, kN, kK, 2, 2, true);
  };
  EXPECT_TRUE(layout(SkinnyKind::kAllReduce, 2, 256).one_step);
  EXPECT_FALSE(layout(SkinnyKind::kAllReduce, 2, 257).one_step);
  EXPECT_FALSE(layout(SkinnyKind::kAllReduce, 3, 96).one_step);
  EXPECT_FALSE(layout(SkinnyKind::kScatter, 2, 64).one_step);
  SkinnyMatmul matmul;
  matmul.layout = layout(SkinnyKind::kAllReduce, 2, 64);
  matmul.b_along_n = true;
  matmul.a = matmul.b = At(0x1000002);  // off 16 bytes: no tensor maps
  matmul.c = At(0x2000000);
  matmul.a_pitch = kK;
  matmul.b_pitch = matmul.c_pitch = kN;
  matmul.state = state_.data();
  for (DType type : {DType::kBf16, DType::kF16}) {
    matmul.type = matmul.b_type = matmul.out_type = type;
    const auto params = MakeSkinnyParams(matmul);
    ASSERT_TRUE(params.ok()) << params.status().ToString();
    EXPECT_EQ(params->one_step, 1);
  }
}

TEST_F(SkinnyPlanTest, TakesWhatThereIsAKernelFor) {
  for (SkinnyKind kind : {SkinnyKind::kGather, SkinnyKind::kScatter, SkinnyKind::kAllReduce}) {
    for (DType type : {DType::kBf16, DType::kF16, DType::kF8E4M3}) {
      for (bool fast : {false, true}) {
        CollectiveArgs args = Args(kind, type);
        std::get<SkinnyArgs>(args.work).matmul.fast_accumulation = fast;
        EXPECT_TRUE(TakesSkinny(std::get<SkinnyArgs>(args.work))) << DTypeName(type);
        if (IsFloat8(type)) continue;
        std::get<SkinnyArgs>(args.work).matmul.b.stride = {1, kK};
        EXPECT_TRUE(TakesSkinny(std::get<SkinnyArgs>(args.work))) << DTypeName(type) << ", B's columns";
      }
    }
  }
  const auto refuses = [this](auto change) {
    CollectiveArgs args = Args(SkinnyKind::kScatter);
    change(std::get<SkinnyArgs>(args.work));
    return !TakesSkinny(std::get<SkinnyArgs>(args.work));
  };
  EXPECT_TRUE(refuses([](SkinnyArgs& few) { few.matmul.c.dtype = DType::kF32; }));
  EXPECT_TRUE(refuses([](SkinnyArgs& few) { few.matmul.b.dtype = DType::kF16; }));
  EXPECT_TRUE(refuses([](SkinnyArgs& few) { few.matmul.a.dtype = few.matmul.b.dtype = DType::kF8E5M2; }));
  EXPECT_TRUE(refuses(
      [](SkinnyArgs& few) { few.matmul.a.dtype = few.matmul.b.dtype = DType::kF8E4M3; }));  // B's rows
  EXPECT_TRUE(refuses([](SkinnyArgs& few) { few.matmul.a.stride = {2 * kK, 2}; }));
  EXPECT_TRUE(refuses([](SkinnyArgs& few) { few.matmul.b.stride = {2 * kN, 2}; }));
  EXPECT_TRUE(refuses([](SkinnyArgs& few) { few.layout.k = 4; }));
  EXPECT_TRUE(refuses([](SkinnyArgs& few) { few.matmul.accumulate = true; }));
  EXPECT_TRUE(refuses([](SkinnyArgs& few) {
    few.matmul.has_scale_a = true;
    few.matmul.scale_a = {nullptr, DType::kF32, {kRows}, {2}};
  }));
  EXPECT_TRUE(refuses([](SkinnyArgs& few) {
    few.matmul.has_bias = true;
    few.matmul.bias = Dense(nullptr, DType::kF16, {kN});
  }));
}

TEST_F(SkinnyPlanTest, TellsTheKernelWhereEverythingLies) {
  CollectiveArgs args = Args(SkinnyKind::kAllReduce);
  MatmulArgs& matmul = std::get<SkinnyArgs>(args.work).matmul;
  matmul.b.stride = {1, kK};
  matmul.c.stride[0] = kN + 8;
  matmul.alpha = 0.5f;
  matmul.has_scale_b = matmul.has_bias = matmul.has_result_scale = true;
  matmul.scale_b = Dense(At(0x5000000), DType::kF32, {kN});
  matmul.bias = Dense(At(0x5100000), DType::kF32, {kN});
  matmul.result_scale = Dense(At(0x5200000), DType::kF32, {});
  auto few = MakeSkinnyMatmul(args, state_.data());
  ASSERT_TRUE(few.ok()) << few.status().ToString();
  EXPECT_FALSE(few->b_along_n);
  EXPECT_EQ(few->a_pitch, kK);
  EXPECT_EQ(few->b_pitch, kK);
  EXPECT_EQ(few->c_pitch, kN + 8);
  EXPECT_EQ(few->rank, kRank);
  EXPECT_EQ(few->area[2], At(0x4200000));
  EXPECT_EQ(few->area[kRank], At(0x4100000));
  EXPECT_EQ(few->words[2], reinterpret_cast<uint64_t*>(&words_[2]));
  EXPECT_EQ(few->arrived[0], reinterpret_cast<const uint64_t*>(&words_[4]));
  EXPECT_EQ(few->alpha, 0.5f);
  EXPECT_EQ(few->row_scale, nullptr);
  EXPECT_TRUE(few->column_scales);
  EXPECT_TRUE(few->bias_is_float);
  EXPECT_EQ(few->bias, At(0x5100000));
  EXPECT_EQ(few->result_scale, reinterpret_cast<const float*>(At(0x5200000)));
  EXPECT_EQ(few->state, state_.data());
  EXPECT_FALSE(few->exact);

  matmul.b.data = nullptr;
  EXPECT_EQ(MakeSkinnyMatmul(args, state_.data()).status().code(), Code::kInvalidArgument);
}

// A shard of one row has one scale, which is not one for all.
TEST_F(SkinnyPlanTest, ScalesThatTravelAreOneForEachRow) {
  CollectiveArgs args = Args(SkinnyKind::kGather, DType::kF8E4M3, 1);
  MatmulArgs& matmul = std::get<SkinnyArgs>(args.work).matmul;
  matmul.has_scale_a = true;
  matmul.scale_a = Dense(At(0x5000000), DType::kF32, {1});
  matmul.fast_accumulation = false;
  auto few = MakeSkinnyMatmul(args, state_.data());
  ASSERT_TRUE(few.ok()) << few.status().ToString();
  EXPECT_FALSE(few->row_scales);
  EXPECT_TRUE(few->exact);
  std::get<SkinnyArgs>(args.work).scales_travel = true;
  few = MakeSkinnyMatmul(args, state_.data());
  ASSERT_TRUE(few.ok()) << few.status().ToString();
  EXPECT_TRUE(few->row_scales && few->row_scales_travel);
}

// Launches with the same addresses differ in their launch number, their abort word and their guard only.
TEST_F(SkinnyPlanTest, KeepsItsParameters) {
  CollectiveArgs args = Args(SkinnyKind::kScatter);
  std::unique_ptr<PreparedWork> prepared;
  args.prepared = &prepared;
  ASSERT_TRUE(EnqueueSkinny(args, state_.data(), nullptr, &Launch).ok());
  ASSERT_NE(prepared, nullptr);
  const PreparedWork* kept = prepared.get();
  args.launch_number = 9;
  args.abort_word = &words_[3];
  args.guard = {.word = &words_[0], .value = 9};
  std::get<SkinnyArgs>(args.work).matmul.a.data = nullptr;  // not looked at again
  ASSERT_TRUE(EnqueueSkinny(args, state_.data(), nullptr, &Launch).ok());
  EXPECT_EQ(prepared.get(), kept);
  ASSERT_EQ(launched.size(), 2u);
  const SkinnyLayout& layout = std::get<SkinnyArgs>(args.work).layout;
  for (const Launched& each : launched) {
    EXPECT_EQ(each.ctas, layout.ctas());
    EXPECT_EQ(each.variant->tile_n, layout.tile_n);
    EXPECT_GT(each.variant->shared_bytes, 0u);
    EXPECT_EQ(each.params.failure, reinterpret_cast<uint32_t*>(state_.data()) + 1);
    EXPECT_EQ(each.params.plain_a, 1);
    EXPECT_EQ(each.params.plain_b, 1);
    EXPECT_EQ(each.params.c_vectors, 0);
    EXPECT_EQ(each.params.rows, kRows);
  }
  EXPECT_EQ(launched[0].params.launch_number, 7u);
  EXPECT_EQ(launched[1].params.launch_number, 9u);
  EXPECT_EQ(launched[0].params.abort_word, nullptr);
  EXPECT_EQ(launched[0].params.timeout_ns, kUnabortedLimitNs) << "nothing else ends its waits";
  EXPECT_EQ(launched[1].params.timeout_ns, kNoTimeLimit) << "the abort word ends its waits, or nothing";
  EXPECT_EQ(launched[1].params.abort_word, reinterpret_cast<const uint64_t*>(&words_[3]));
  EXPECT_EQ(launched[0].params.guard_word, nullptr);
  EXPECT_EQ(launched[1].params.guard_word, reinterpret_cast<const uint64_t*>(&words_[0]));
  EXPECT_EQ(launched[1].params.guard_value, 9u);
  // A guard is of one launch: the next has none again.
  args.guard = {};
  ASSERT_TRUE(EnqueueSkinny(args, state_.data(), nullptr, &Launch).ok());
  EXPECT_EQ(launched[2].params.guard_word, nullptr);
  launched[1].params.guard_word = nullptr;
  launched[1].params.guard_value = 0;
  launched[1].params.launch_number = launched[0].params.launch_number;
  launched[1].params.abort_word = nullptr;
  launched[1].params.timeout_ns = kUnabortedLimitNs;
  EXPECT_EQ(std::memcmp(&launched[0].params, &launched[1].params, sizeof(SkinnyParams)), 0);
}

}  // namespace
}  // namespace tandem::cuda
