// From parts to the fused kernel's work, without a GPU: addresses are made up and never read.
#include "kernels/cuda/fused/fused_plan.h"

#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <limits>

namespace tandem::cuda {
namespace {

constexpr int64_t kRows = 200, kN = 512, kK = 128;

std::byte* At(uintptr_t address) { return reinterpret_cast<std::byte*>(address); }

DeviceView Dense(std::byte* data, DType type, std::vector<int64_t> extent) {
  std::vector<int64_t> stride = ContiguousStrides(extent);
  return {data, type, std::move(extent), std::move(stride)};
}

FusedArgs& Fused(CollectiveArgs& args) {
  if (args.As<FusedArgs>() == nullptr) args.work.emplace<FusedArgs>();
  return std::get<FusedArgs>(args.work);
}

class FusedPlanTest : public testing::Test {
 protected:
  // Three ranks' all-gather→matmul on rank 1: its own shard, then 2's and 0's from slots in the order of
  // arrival.
  CollectiveArgs Gather() {
    CollectiveArgs args;
    args.launch_number = 7;
    for (int i = 0; i < 3; ++i) {
      const int source = (1 + i) % 3;
      FusedPart part;
      part.matmul.b = Dense(At(0x9000000), DType::kBf16, {kK, kN});
      part.matmul.a = Dense(i == 0 ? At(0x1000000) : At(0x2000000 + 0x100000 * static_cast<uintptr_t>(i)),
                            DType::kBf16, {kRows, kK});
      part.matmul.c = Dense(At(0x5000000) + source * kRows * kN * 2, DType::kBf16, {kRows, kN});
      if (i > 0) part.waits = {&words_[static_cast<size_t>(source)]};
      Fused(args).parts.push_back(part);
    }
    return args;
  }
  // Three ranks' matmul→reduce-scatter on rank 1: slices of 2 and 0, then the own one, summed.
  CollectiveArgs Scatter() {
    CollectiveArgs args;
    for (int i = 0; i < 3; ++i) {
      const int owner = (2 + i) % 3;
      FusedPart part;
      part.matmul.b = Dense(At(0x9000000), DType::kBf16, {kK, kN});
      part.matmul.a = Dense(At(0x1000000) + owner * kRows * kK * 2, DType::kBf16, {kRows, kK});
      part.matmul.c = Dense(At(0x5000000 + 0x100000 * static_cast<uintptr_t>(i)), DType::kBf16, {kRows, kN});
      if (i < 2) {
        part.done = &words_[static_cast<size_t>(owner)];
      } else {
        part.sums = true;
        part.own = 1;
        part.sum.dst = part.matmul.c;
        // Slots lie in the order of arrival, not of ranks.
        part.sum.sources = {Dense(At(0x7100000), DType::kBf16, {kRows, kN}), part.matmul.c,
                            Dense(At(0x7000000), DType::kBf16, {kRows, kN})};
        part.sum_waits = {&words_[4], &words_[5]};
      }
      Fused(args).parts.push_back(part);
    }
    return args;
  }

  // Three ranks' matmul→all-reduce on rank 1, delivered by the kernel: the peers' parts in two words, the own
  // sum in one.
  CollectiveArgs AllReduce() {
    CollectiveArgs args;
    for (int owner : {2, 0, 1}) {
      FusedPart part;
      part.matmul.b = Dense(At(0x9000000), DType::kBf16, {kK, kN});
      part.matmul.a = Dense(At(0x1000000) + owner * kRows * kK * 2, DType::kBf16, {kRows, kK});
      part.matmul.c = Dense(At(0x5000000 + 0x100000 * static_cast<uintptr_t>((owner + 2) % 3)), DType::kBf16,
                            {kRows, kN});
      if (owner == 1) {
        part.matmul.c = Dense(At(0x3000000) + owner * kRows * kN * 2, DType::kBf16, {kRows, kN});
        part.sums = true;
        part.own = 1;
        part.sum.dst = part.matmul.c;
        part.sum.sources = {Dense(At(0x7100000), DType::kBf16, {kRows, kN}), part.matmul.c,
                            Dense(At(0x7000000), DType::kBf16, {kRows, kN})};
        part.sum_waits = {&arrived_[0], &arrived_[1], &arrived_[512], &arrived_[513]};
      }
      for (int rank : {2, 0}) {
        if (owner != 1 && rank != owner) continue;
        const auto area = 0x10000000 * static_cast<uintptr_t>(rank + 1) + (part.sums ? 0x4000000 : 0);
        part.deliveries.push_back({rank, Dense(At(area), DType::kBf16, {kRows, kN}),
                                   &reported_[static_cast<size_t>(4 * owner + rank)], part.sums ? 1 : 2});
      }
      Fused(args).parts.push_back(part);
    }
    Fused(args).entered = &words_[6];
    Fused(args).closing = {&arrived_[20], &arrived_[520]};
    return args;
  }

  std::array<Word, 8> words_{};
  std::array<Word, 1024> arrived_{};  // of two writers
  std::array<Word, 16> reported_{};
};

const uint64_t* Plain(const Word& word) { return reinterpret_cast<const uint64_t*>(&word); }

// Pieces of peers are stored here on the way and in the peers' memory, a map for each peer; pieces of this
// rank in C and in the peers'.
// Not every width of tiles has a kernel that sums fp8 in the tensor cores.
TEST_F(FusedPlanTest, AFixedOrderSumsFp8ExactlyAndSharesNoTile) {
  CollectiveArgs args = Gather();
  for (FusedPart& part : Fused(args).parts) {
    part.matmul.a.dtype = part.matmul.b.dtype = DType::kF8E4M3;
    part.matmul.b.stride = {1, kK};
  }
  EXPECT_FALSE(MakeFusedMatmul(args, {})->exact);
  for (FusedPart& part : Fused(args).parts) part.matmul.fixed_order = true;
  const auto fixed = MakeFusedMatmul(args, {});
  ASSERT_TRUE(fixed.ok()) << fixed.status().ToString();
  EXPECT_TRUE(fixed->exact);
  EXPECT_TRUE(fixed->fixed_order);
  Fused(args).parts[1].matmul.fixed_order = false;
  EXPECT_FALSE(TakesFused(args));
}

TEST_F(FusedPlanTest, AllReduceDeliversToPeers) {
  CollectiveArgs args = AllReduce();
  ASSERT_TRUE(TakesFused(args));
  auto fused = MakeFusedMatmul(args, {});
  ASSERT_TRUE(fused.ok()) << fused.status().ToString();
  ASSERT_EQ(fused->pieces.size(), 3u);
  EXPECT_EQ(fused->out[0].data, At(0x3000000) + kRows * kN * 2);
  EXPECT_EQ(fused->out[1].slices, 2);  // of the staging areas, 0x100000 bytes each
  EXPECT_EQ(fused->out[2].data, At(0x30000000));
  EXPECT_EQ(fused->out[3].data, At(0x10000000));
  EXPECT_EQ(fused->out[4].data, At(0x34000000));
  EXPECT_EQ(fused->out[5].data, At(0x14000000));
  EXPECT_EQ(fused->out[6].data, nullptr);
  const MatmulPiece &remote = fused->pieces[1], &own = fused->pieces[2];
  EXPECT_EQ(remote.out_map, 1);
  EXPECT_EQ(remote.on_the_way, 1);
  EXPECT_EQ(remote.done, nullptr);
  EXPECT_EQ(remote.words, 2);
  EXPECT_EQ(remote.first_slot, -1);
  ASSERT_EQ(remote.copies, 1);
  const MatmulCopy& sent = fused->copies[static_cast<size_t>(remote.first_copy)];
  EXPECT_EQ(sent.map, 3);
  EXPECT_EQ(sent.slice, 0);
  EXPECT_EQ(sent.done, Plain(reported_[0]));
  EXPECT_EQ(own.out_map, 0);
  EXPECT_EQ(own.on_the_way, 0);
  EXPECT_EQ(own.words, 1);
  EXPECT_EQ(own.first_slot, 0);
  ASSERT_EQ(own.copies, 2);
  EXPECT_EQ(fused->copies[static_cast<size_t>(own.first_copy) + 1].map, 5);
  EXPECT_EQ(fused->copies[static_cast<size_t>(own.first_copy) + 1].done, Plain(reported_[4]));
  EXPECT_EQ(fused->position, 1);
  EXPECT_EQ(fused->word_bands, 2);
  EXPECT_EQ(fused->arrived, (std::vector<const uint64_t*>{Plain(arrived_[0]), Plain(arrived_[512])}));
  EXPECT_EQ(fused->slot_of, (std::vector<int16_t>{1, 0}));
  EXPECT_EQ(fused->entered, Plain(words_[6]));
  EXPECT_EQ(fused->closing, (std::vector<const uint64_t*>{Plain(arrived_[20]), Plain(arrived_[520])}));
}

TEST_F(FusedPlanTest, RefusesDeliveriesAndSumsThatDoNotFitTogether) {
  const auto takes = [this](const std::function<void(CollectiveArgs*)>& change) {
    CollectiveArgs args = AllReduce();
    change(&args);
    return TakesFused(args);
  };
  const auto code = [this](const std::function<void(CollectiveArgs*)>& change) {
    CollectiveArgs args = AllReduce();
    change(&args);
    return MakeFusedMatmul(args, {}).status().code();
  };
  EXPECT_EQ(code([](CollectiveArgs*) {}), Code::kOk);
  EXPECT_FALSE(takes([](CollectiveArgs* args) {
    Fused(*args).parts[0].deliveries.push_back(Fused(*args).parts[0].deliveries[0]);
  })) << "one place";
  EXPECT_FALSE(
      takes([](CollectiveArgs* args) { Fused(*args).parts[0].deliveries[0].to.extent[0] = kRows - 8; }));
  EXPECT_EQ(code([](CollectiveArgs* args) { Fused(*args).parts[2].deliveries[0].to.stride[0] = 2 * kN + 4; }),
            Code::kUnimplemented);
  EXPECT_EQ(code([this](CollectiveArgs* args) { Fused(*args).parts[2].sum_waits[1] = &arrived_[7]; }),
            Code::kUnimplemented)
      << "not beside the first";
  EXPECT_EQ(code([](CollectiveArgs* args) { Fused(*args).parts[2].sum_waits.pop_back(); }),
            Code::kUnimplemented);
  EXPECT_EQ(code([](CollectiveArgs* args) { Fused(*args).parts[0].deliveries[0].words = 3; }),
            Code::kUnimplemented)
      << "others are told in two";
  EXPECT_EQ(code([](CollectiveArgs* args) { Fused(*args).parts[2].deliveries[0].words = 2; }),
            Code::kUnimplemented);
  EXPECT_EQ(code([](CollectiveArgs* args) {
              for (int i : {0, 1})
                Fused(*args).parts[static_cast<size_t>(i)].deliveries[0].words = kMaxWordBands + 1;
            }),
            Code::kUnimplemented);
  EXPECT_NE(code([](CollectiveArgs* args) { Fused(*args).parts.push_back(Fused(*args).parts.back()); }),
            Code::kOk)
      << "two sums";
}

TEST_F(FusedPlanTest, ManyRowsGetHigherBandsRatherThanTooMany) {
  CollectiveArgs args = Gather();
  for (FusedPart& part : Fused(args).parts) part.matmul.a.extent[0] = part.matmul.c.extent[0] = 64 * 128 * 16;
  auto fused = MakeFusedMatmul(args, {});
  ASSERT_TRUE(fused.ok()) << fused.status().ToString();
  int most = 0, tiles = 0;
  const std::vector<MatmulBand> bands = CutBands(*fused, 64 * 16, 1, 2);
  for (const MatmulBand& band : bands) {
    EXPECT_EQ(band.first_m, tiles);
    EXPECT_EQ(band.first_unit, tiles * 2);
    tiles += band.m_tiles;
    most = std::max<int>(most, band.m_tiles);
  }
  EXPECT_EQ(tiles, 3 * 64 * 16);
  EXPECT_LE(bands.size(), static_cast<size_t>(kMaxBands));
  EXPECT_LE(most, 128);
}

TEST_F(FusedPlanTest, MoreTilesThanBandsCanNumberRunStepByStep) {
  // Three parts of 10922 tiles are 32766, one tile less than the most; whatever clusters may halve.
  for (const int64_t rows : {int64_t{10922} * 128, int64_t{10922} * 128 + 1, int64_t{2} * 10922 * 128}) {
    CollectiveArgs args = Gather();
    for (FusedPart& part : Fused(args).parts) part.matmul.a.extent[0] = part.matmul.c.extent[0] = rows;
    const bool fits = rows == int64_t{10922} * 128;
    EXPECT_EQ(TakesFused(args), fits) << rows;
    EXPECT_EQ(MakeFusedMatmul(args, {}).status().code(), fits ? Code::kOk : Code::kUnimplemented) << rows;
  }
}

TEST_F(FusedPlanTest, GatherReadsTheOwnShardInPlaceAndWaitsForTheOthers) {
  auto fused = MakeFusedMatmul(Gather(), {});
  ASSERT_TRUE(fused.ok()) << fused.status().ToString();
  EXPECT_EQ(fused->rows, kRows);
  EXPECT_EQ(fused->k, kK);
  EXPECT_EQ(fused->n, kN);
  EXPECT_TRUE(fused->b_along_n);
  EXPECT_EQ(fused->launch_number, 7u);
  EXPECT_EQ(fused->timeout_ns, kUnabortedLimitNs) << "nothing else ends its waits";
  EXPECT_EQ(fused->a[0].data, At(0x1000000));
  EXPECT_EQ(fused->a[0].slices, 1);
  EXPECT_EQ(fused->a[1].data, At(0x2100000));
  EXPECT_EQ(fused->a[1].slices, 2);
  EXPECT_EQ(fused->a[1].slice_pitch, 0x100000 / 2);
  EXPECT_EQ(fused->out[0].slices, 3);
  ASSERT_EQ(fused->pieces.size(), 3u);
  EXPECT_EQ(fused->pieces[0].ready, nullptr);
  EXPECT_EQ(fused->pieces[0].out_slice, 1);
  EXPECT_EQ(fused->pieces[1].ready, reinterpret_cast<const uint64_t*>(&words_[2]));
  EXPECT_EQ(fused->pieces[1].a_map, 1);
  EXPECT_EQ(fused->pieces[1].a_slice, 0);
  EXPECT_EQ(fused->pieces[1].out_slice, 2);
  EXPECT_EQ(fused->pieces[2].a_slice, 1);
  EXPECT_EQ(fused->pieces[2].out_slice, 0);
  EXPECT_EQ(fused->pieces[2].first_slot, -1);
}

TEST_F(FusedPlanTest, ScatterAnnouncesSlicesAndSumsItsOwnInRankOrder) {
  auto fused = MakeFusedMatmul(Scatter(), {});
  ASSERT_TRUE(fused.ok()) << fused.status().ToString();
  ASSERT_EQ(fused->pieces.size(), 3u);
  EXPECT_EQ(fused->pieces[0].done, reinterpret_cast<uint64_t*>(&words_[2]));
  EXPECT_EQ(fused->pieces[0].out_map, 1);
  EXPECT_EQ(fused->pieces[0].a_slice, 2);
  EXPECT_EQ(fused->pieces[2].done, nullptr);
  EXPECT_EQ(fused->pieces[2].out_map, 0);
  EXPECT_EQ(fused->pieces[2].first_slot, 0);
  EXPECT_EQ(fused->position, 1);
  EXPECT_EQ(fused->slots.data, At(0x7000000));
  EXPECT_EQ(fused->slot_of, (std::vector<int16_t>{1, 0}));
  EXPECT_EQ(fused->arrived[0], reinterpret_cast<const uint64_t*>(&words_[4]));
}

TEST_F(FusedPlanTest, ScalesAndBiasGoWhereTheyBelong) {
  CollectiveArgs args = Scatter();
  for (FusedPart& part : Fused(args).parts) {
    part.matmul.has_scale_a = part.matmul.has_scale_b = true;
    part.matmul.scale_a = Dense(At(0x100), DType::kF32, {kRows});
    part.matmul.scale_b = Dense(At(0x200), DType::kF32, {});
  }
  Fused(args).parts[2].sum.has_bias = true;
  Fused(args).parts[2].sum.bias = Dense(At(0x300), DType::kF32, {kN});
  auto fused = MakeFusedMatmul(args, {});
  ASSERT_TRUE(fused.ok()) << fused.status().ToString();
  EXPECT_TRUE(fused->row_scales);
  EXPECT_FALSE(fused->column_scales);
  EXPECT_TRUE(fused->bias_is_float);
  EXPECT_EQ(fused->pieces[0].finish, 0);
  EXPECT_EQ(fused->pieces[2].finish, 1);
}

TEST_F(FusedPlanTest, ScalesByBlocksKeepTheirStrides) {
  CollectiveArgs args = Gather();
  const auto scaled = [](CollectiveArgs* all) {
    for (size_t i = 0; i < Fused(*all).parts.size(); ++i) {
      MatmulArgs& matmul = Fused(*all).parts[i].matmul;
      matmul.a.dtype = matmul.b.dtype = DType::kF8E4M3;
      matmul.b.stride = {1, kK};
      matmul.has_scale_a = matmul.has_scale_b = matmul.block_scales = true;
      matmul.scale_a = Dense(At(0x100000 + 0x1000 * i), DType::kF32, {kRows, 1});
      matmul.scale_a.stride = {1, kRows};
      matmul.scale_b = Dense(At(0x200000), DType::kF32, {1, 4});
      matmul.scale_b.stride = {1, 8};
    }
  };
  scaled(&args);
  ASSERT_TRUE(TakesFused(args));
  auto fused = MakeFusedMatmul(args, {});
  ASSERT_TRUE(fused.ok()) << fused.status().ToString();
  EXPECT_TRUE(fused->blocks);
  EXPECT_TRUE(fused->exact) << "however it may be summed";
  EXPECT_EQ(fused->row_scale_step, 1);
  EXPECT_EQ(fused->row_scale_block_step, kRows);
  EXPECT_EQ(fused->column_scale_block_step, 1);
  EXPECT_EQ(fused->column_scale_step, 8);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(fused->column_scale), 0x200000u);
  for (size_t i = 0; i < fused->pieces.size(); ++i) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(fused->pieces[i].row_scale), 0x100000 + 0x1000 * i);
  }
  auto variant = FindFusedVariant(*fused);
  ASSERT_TRUE(variant.ok()) << variant.status().ToString();
  EXPECT_TRUE((*variant)->blocks);
  EXPECT_EQ(fused->tiling.tile_n, 256);
  // A collective without a fused kernel runs step by step.
  const auto takes = [&](const std::function<void(CollectiveArgs*)>& change) {
    CollectiveArgs other = Gather();
    scaled(&other);
    change(&other);
    return TakesFused(other);
  };
  EXPECT_TRUE(takes([](CollectiveArgs*) {}));
  EXPECT_FALSE(takes([](CollectiveArgs* all) {
    Fused(*all).parts[1].matmul.scale_a.stride = {2, kRows};
  })) << "shards that lie otherwise";
  EXPECT_TRUE(takes([](CollectiveArgs* all) {
    Fused(*all).parts[1].matmul.scale_a.stride = {1, 2 * kRows};
  })) << "one block's factors lie alike at any step from block to block";
  // The kernel reads two rows' factors, 8 apart, and counts in 32 bits.
  constexpr int64_t kMaxStep = std::numeric_limits<int32_t>::max() / 8;
  for (const int64_t step : {kMaxStep, kMaxStep + 1}) {
    const auto spread = [step](CollectiveArgs* all) {
      for (FusedPart& part : Fused(*all).parts) part.matmul.scale_a.stride = {step, 1};
    };
    EXPECT_EQ(takes(spread), step == kMaxStep);
  }
  EXPECT_TRUE(takes([](CollectiveArgs* all) {
    for (FusedPart& part : Fused(*all).parts) part.matmul.scale_a.stride = {1, 8 * kMaxStep};
  })) << "from block to block of K one at a time";
  EXPECT_FALSE(takes([](CollectiveArgs* all) {
    for (FusedPart& part : Fused(*all).parts) part.matmul.scale_b = Dense(At(0x200000), DType::kF32, {1, kN});
  })) << "a factor a column";
  EXPECT_FALSE(takes([](CollectiveArgs* all) {
    for (FusedPart& part : Fused(*all).parts) part.matmul.b.dtype = DType::kF8E5M2;
  }));
  EXPECT_FALSE(takes([](CollectiveArgs* all) {
    for (FusedPart& part : Fused(*all).parts) part.matmul.first_column = 64;
  }));
  EXPECT_FALSE(takes([](CollectiveArgs* all) { Fused(*all).parts[0].matmul.block_scales = false; }));
}

TEST_F(FusedPlanTest, Float8AddsExactlyUnlessItMayAddFast) {
  CollectiveArgs args = Gather();
  for (FusedPart& part : Fused(args).parts) {
    part.matmul.a.dtype = DType::kF8E5M2;
    part.matmul.b.dtype = DType::kF8E4M3;
    part.matmul.b.stride = {1, kK};
    part.matmul.fast_accumulation = false;
  }
  ASSERT_TRUE(TakesFused(args));
  auto fused = MakeFusedMatmul(args, {});
  ASSERT_TRUE(fused.ok()) << fused.status().ToString();
  EXPECT_EQ(fused->type, DType::kF8E5M2);
  EXPECT_EQ(fused->b_type, DType::kF8E4M3);
  EXPECT_TRUE(fused->exact);
  EXPECT_FALSE(fused->b_along_n);
  Fused(args).parts[1].matmul.fast_accumulation = true;
  EXPECT_FALSE(TakesFused(args)) << "parts that add differently";
  for (FusedPart& part : Fused(args).parts) part.matmul.fast_accumulation = true;
  fused = MakeFusedMatmul(args, {});
  ASSERT_TRUE(fused.ok()) << fused.status().ToString();
  EXPECT_FALSE(fused->exact);
  for (FusedPart& part : Fused(args).parts) part.matmul.b.dtype = DType::kF16;
  EXPECT_FALSE(TakesFused(args));
  args = Gather();
  for (FusedPart& part : Fused(args).parts) part.matmul.fast_accumulation = false;  // of bf16 it says nothing
  fused = MakeFusedMatmul(args, {});
  ASSERT_TRUE(fused.ok()) << fused.status().ToString();
  EXPECT_FALSE(fused->exact);
}

TEST_F(FusedPlanTest, WhatAddressesForbidRunsStepByStep) {
  CollectiveArgs args = Gather();
  Fused(args).parts[0].matmul.a.data += 2;
  EXPECT_EQ(MakeFusedMatmul(args, {}).status().code(), Code::kUnimplemented);
  args = Gather();
  for (FusedPart& part : Fused(args).parts) part.matmul.b.data += 8;
  EXPECT_EQ(MakeFusedMatmul(args, {}).status().code(), Code::kUnimplemented);
  args = Scatter();  // three slots that are no multiple of a distance apart
  Fused(args).parts[0].matmul.a.data += 16;
  EXPECT_EQ(MakeFusedMatmul(args, {}).status().code(), Code::kUnimplemented);
}

TEST_F(FusedPlanTest, WhatShapesForbidIsRefusedAtOnce) {
  EXPECT_TRUE(TakesFused(Gather()));
  EXPECT_TRUE(TakesFused(Scatter()));
  EXPECT_FALSE(TakesFused(CollectiveArgs{}));
  CollectiveArgs args = Gather();
  Fused(args).parts[1].matmul.a.extent[0] = kRows - 1;
  EXPECT_FALSE(TakesFused(args));
  args = Gather();
  for (FusedPart& part : Fused(args).parts) part.matmul.a.stride[1] = 2;
  EXPECT_FALSE(TakesFused(args));
  args = Gather();
  for (FusedPart& part : Fused(args).parts) part.matmul.a.dtype = part.matmul.b.dtype = DType::kF32;
  EXPECT_FALSE(TakesFused(args));
  args = Scatter();
  Fused(args).parts[2].sum.scale = 0.5f;
  EXPECT_FALSE(TakesFused(args));
  args = Scatter();
  Fused(args).parts[2].own = -1;
  EXPECT_FALSE(TakesFused(args));
}

}  // namespace
}  // namespace tandem::cuda
