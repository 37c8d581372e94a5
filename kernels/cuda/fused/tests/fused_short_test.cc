// A fused matmul with a part of fewer rows than the others, without a GPU: addresses are made up and never
// read.
#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <vector>

#include "kernels/cuda/fused/fused_plan.h"
#include "kernels/cuda/fused/tiling.h"

namespace tandem::cuda {
namespace {

constexpr int64_t kRows = 640, kShort = 37, kN = 512, kK = 128;
constexpr int kSms = 132;

std::byte* At(uintptr_t address) { return reinterpret_cast<std::byte*>(address); }

DeviceView Dense(std::byte* data, std::vector<int64_t> extent, DType type = DType::kBf16) {
  std::vector<int64_t> stride = ContiguousStrides(extent);
  return {data, type, std::move(extent), std::move(stride)};
}

FusedArgs& Fused(CollectiveArgs& args) {
  if (args.As<FusedArgs>() == nullptr) args.work.emplace<FusedArgs>();
  return std::get<FusedArgs>(args.work);
}

// Three ranks' matmul→all-reduce on rank `rank`: rank 2's part of it has kShort rows. Parts' rows are [owner
// * kRows, …).
class FusedShort : public testing::Test {
 protected:
  CollectiveArgs AllReduce(int rank) {
    CollectiveArgs args;
    for (int i = 1; i <= 3; ++i) {
      const int owner = (rank + i) % 3;
      const int64_t rows = owner == 2 ? kShort : kRows;
      FusedPart part;
      part.matmul.a = Dense(At(0x1000000) + owner * kRows * kK * 2, {rows, kK});
      part.matmul.b = Dense(At(0x9000000), {kK, kN});
      part.matmul.c = Dense(At(0x5000000 + 0x100000 * static_cast<uintptr_t>(owner)), {rows, kN});
      part.done = &words_[static_cast<size_t>(owner)];
      if (owner == rank) {
        part.matmul.c = Dense(At(0x3000000) + owner * kRows * kN * 2, {rows, kN});
        part.sums = true;
        part.own = rank;
        part.sum.dst = part.matmul.c;
        for (int source = 0; source < 3; ++source) {
          const auto slot = static_cast<uintptr_t>((source - rank + 2) % 3);
          part.sum.sources.push_back(source == rank ? part.matmul.c
                                                    : Dense(At(0x7000000 + 0x100000 * slot), {rows, kN}));
          if (source != rank) part.sum_waits.push_back(&arrived_[static_cast<size_t>(source)]);
        }
      }
      Fused(args).parts.push_back(part);
    }
    return args;
  }

  std::array<Word, 16> words_{};
  std::array<Word, 8> arrived_{};
};

TEST_F(FusedShort, HasMapsOfItsOwn) {
  // A peer's part is short: it alone is staged short, and what is summed is whole.
  const CollectiveArgs args = AllReduce(0);
  ASSERT_TRUE(TakesFused(args));
  auto fused = MakeFusedMatmul(args, {});
  ASSERT_TRUE(fused.ok()) << fused.status().ToString();
  EXPECT_EQ(fused->rows, kRows);
  std::vector<int32_t> rows;
  for (const MatmulPiece& piece : fused->pieces) rows.push_back(piece.rows);
  EXPECT_EQ(rows, (std::vector<int32_t>{kRows, kShort, kRows}));
  const MatmulPiece &remote = fused->pieces[0], &end = fused->pieces[1], &own = fused->pieces[2];
  EXPECT_EQ(end.a_map, 1);
  EXPECT_EQ(end.ready, nullptr);
  EXPECT_EQ(fused->a[1].data, At(0x1000000) + 2 * kRows * kK * 2);
  EXPECT_EQ(fused->a[1].rows, kShort);
  EXPECT_EQ(fused->a[1].slices, 1);
  EXPECT_EQ(remote.a_map, 0);
  EXPECT_EQ(fused->a[0].rows, 0);
  EXPECT_EQ(fused->a[0].slices, 2);  // what is whole: none of it reaches beyond A
  EXPECT_EQ(remote.out_map, 1);
  EXPECT_EQ(fused->out[1].rows, 0);
  EXPECT_EQ(end.out_map, 2);
  EXPECT_EQ(fused->out[2].rows, kShort);
  EXPECT_EQ(own.out_map, 0);
  EXPECT_EQ(fused->out[0].rows, 0);
  EXPECT_EQ(fused->slots.rows, kRows);
}

TEST_F(FusedShort, SumsNoMoreThanItsRows) {
  auto fused = MakeFusedMatmul(AllReduce(2), {});
  ASSERT_TRUE(fused.ok()) << fused.status().ToString();
  const MatmulPiece& end = fused->pieces[2];
  EXPECT_EQ(end.rows, kShort);
  EXPECT_EQ(end.out_map, 0);
  EXPECT_EQ(fused->out[0].rows, kShort);
  EXPECT_EQ(fused->out[0].data, At(0x3000000) + 2 * kRows * kN * 2);
  EXPECT_EQ(fused->slots.rows, kShort);
  EXPECT_EQ(fused->slots.slices, 2);
  EXPECT_EQ(end.first_slot, 0);
}

// A single row's factor lies as one for all does.
TEST_F(FusedShort, KeepsAFactorForEachRow) {
  for (int rank : {0, 2}) {
    CollectiveArgs args = AllReduce(rank);
    for (FusedPart& part : Fused(args).parts) {
      const bool is_short = part.matmul.a.extent[0] == kShort;
      if (is_short) {
        for (DeviceView* view : {&part.matmul.a, &part.matmul.c}) view->extent[0] = 1;
        if (part.sums) part.sum.dst.extent[0] = 1;
        for (DeviceView& source : part.sum.sources) source.extent[0] = 1;
      }
      part.matmul.has_scale_a = true;
      part.matmul.scale_a = Dense(At(0x100), {is_short ? 1 : kRows}, DType::kF32);
    }
    auto fused = MakeFusedMatmul(args, {});
    ASSERT_TRUE(fused.ok()) << fused.status().ToString();
    EXPECT_TRUE(fused->row_scales) << rank;
  }
}

TEST_F(FusedShort, OthersRunStepByStep) {
  const auto takes = [this](const std::function<void(CollectiveArgs*)>& change) {
    CollectiveArgs args = AllReduce(0);
    change(&args);
    return TakesFused(args);
  };
  EXPECT_TRUE(takes([](CollectiveArgs*) {}));
  EXPECT_FALSE(takes([](CollectiveArgs* args) {
    for (DeviceView* view : {&Fused(*args).parts[0].matmul.a, &Fused(*args).parts[0].matmul.c})
      view->extent[0] = 100;
  })) << "three heights";
  EXPECT_FALSE(takes([this](CollectiveArgs* args) { Fused(*args).parts[1].waits = {&words_[9]}; }))
      << "A that arrives";
  EXPECT_FALSE(takes([](CollectiveArgs* args) { Fused(*args).parts[1].matmul.c.extent[0] = kRows; }))
      << "a C of other rows";
}

// All places of eight ranks' direct deliveries fit into the maps with a short tile, whoever owns it.
TEST_F(FusedShort, DeliversAmongEightRanks) {
  for (int rank : {0, 7}) {
    CollectiveArgs args;
    std::array<Word, 32> reported{};
    for (int i = 0; i < 8; ++i) {
      const int owner = (rank + 1 + i) % 8;
      const int64_t rows = owner == 7 ? kShort : kRows;
      FusedPart part;
      part.matmul.a = Dense(At(0x1000000) + owner * kRows * kK * 2, {rows, kK});
      part.matmul.b = Dense(At(0x9000000), {kK, kN});
      part.matmul.c = Dense(At(0x3000000) + owner * kRows * kN * 2, {rows, kN});
      part.sums = owner == rank;
      if (part.sums) {
        part.own = rank;
        part.sum.dst = part.matmul.c;
        for (int source = 0; source < 8; ++source) {
          const auto slot = static_cast<uintptr_t>((source - rank + 7) % 8);
          part.sum.sources.push_back(source == rank ? part.matmul.c
                                                    : Dense(At(0x7000000 + 0x100000 * slot), {rows, kN}));
          if (source != rank) part.sum_waits.push_back(&reported[static_cast<size_t>(source)]);
        }
      }
      for (int peer = 0; peer < 8; ++peer) {
        if (peer == rank || (!part.sums && peer != owner)) continue;
        const auto area = 0x100000000 * static_cast<uintptr_t>(peer + 1) + (part.sums ? 0x1000000 : 0);
        part.deliveries.push_back({peer, Dense(At(area), {rows, kN}),
                                   &reported[8 + static_cast<size_t>(peer) + (part.sums ? 8 : 0)]});
      }
      Fused(args).parts.push_back(part);
    }
    ASSERT_TRUE(TakesFused(args));
    auto fused = MakeFusedMatmul(args, {});
    ASSERT_TRUE(fused.ok()) << fused.status().ToString();
    int low = 0, used = 0;
    for (const MatrixSlices& out : fused->out) {
      used += out.data != nullptr;
      low += out.rows == kShort;
    }
    EXPECT_EQ(used, rank == 7 ? 16 : 17);  // what is on the way of either height
    EXPECT_EQ(low, rank == 7 ? 8 : 2);
  }
}

FusedMatmul Product(std::vector<int32_t> rows, bool last_sums) {
  FusedMatmul matmul;
  matmul.b_along_n = false;
  matmul.rows = 512;
  matmul.n = 4096;
  matmul.k = 128;
  for (size_t i = 0; i < rows.size(); ++i) {
    MatmulPiece piece = {};
    piece.rows = rows[i];
    piece.first_slot = last_sums && i + 1 == rows.size() ? 0 : -1;
    matmul.pieces.push_back(piece);
  }
  return matmul;
}

// Tiles of a short piece that would be empty are in no band, and a run ends behind it: numbers go on with the
// next piece's.
TEST_F(FusedShort, HasNoEmptyTiles) {
  FusedMatmul matmul = Product({512, 130, 512, 512, 512}, true);
  matmul.runs = ChooseRuns(matmul);
  std::vector<std::pair<int, int>> runs;
  for (const PieceRun& run : matmul.runs) runs.emplace_back(run.first, run.count);
  EXPECT_EQ(runs, (std::vector<std::pair<int, int>>{{0, 2}, {2, 1}, {3, 1}, {4, 1}}));
  for (const int cluster : {1, 2}) {
    const int64_t units_m = 4 / cluster;
    std::vector<int> drawn(static_cast<size_t>(5 * units_m));
    int units = 0;
    for (const MatmulBand& band : CutBands(matmul, units_m, cluster, 16)) {
      EXPECT_EQ(band.first_unit, units);
      units += band.m_tiles * 16;
      for (int i = 0; i < band.m_tiles; ++i) ++drawn[static_cast<size_t>(band.first_m + i)];
    }
    for (size_t unit = 0; unit < drawn.size(); ++unit) {
      const int piece = static_cast<int>(unit) / static_cast<int>(units_m),
                row = static_cast<int>(unit) % static_cast<int>(units_m) * cluster * 128;
      EXPECT_EQ(drawn[unit], piece == 1 && row >= 130 ? 0 : 1) << unit;
    }
  }
  // 9 tiles of rows, not 12, of 19 of 224 columns: two waves.
  const FusedTiling tiling = ChooseTiling(Product({512, 512, 1}, false), kSms);
  EXPECT_EQ(tiling.tile_n, 224);
  EXPECT_EQ(tiling.ctas, (9 * 19 + 1) / 2);
}

}  // namespace
}  // namespace tandem::cuda
