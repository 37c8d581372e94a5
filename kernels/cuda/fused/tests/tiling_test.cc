#include "kernels/cuda/fused/tiling.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <tuple>
#include <vector>

namespace tandem::cuda {
namespace {

constexpr int kSms = 132;  // H200

// A product of `world` pieces of `rows` rows; the last one is summed in a reduce-scatter.
FusedMatmul Product(int world, int64_t rows, int64_t n, bool scatter) {
  FusedMatmul matmul;
  matmul.b_along_n = false;
  matmul.rows = rows;
  matmul.n = n;
  matmul.k = 8192;
  for (int i = 0; i < world; ++i) {
    MatmulPiece piece = {};
    piece.first_slot = scatter && i == world - 1 ? 0 : -1;
    matmul.pieces.push_back(piece);
  }
  return matmul;
}

std::vector<std::pair<int, int>> Runs(const FusedMatmul& matmul) {
  std::vector<std::pair<int, int>> runs;
  for (const PieceRun& run : ChooseRuns(matmul)) runs.emplace_back(run.first, run.count);
  return runs;
}

TEST(ChooseTiling, TakesNarrowTilesWhereTheyFillTheLastWave) {
  // 448 tiles of 256 take four waves on 132 SMs, 512 of 224 take four as well: an eighth less.
  const FusedTiling narrow = ChooseTiling(Product(4, 512, 7168, false), kSms);
  EXPECT_EQ(narrow.tile_n, 224);
  EXPECT_EQ(narrow.cluster_m, 2);
  EXPECT_EQ(narrow.ctas, 128);
  // Seven waves of 256 and eight of 224 are as long: the wide ones are faster then.
  const FusedTiling wide = ChooseTiling(Product(2, 1024, 14336, false), kSms);
  EXPECT_EQ(wide.tile_n, 256);
  EXPECT_EQ(wide.cluster_m, 2);
  EXPECT_EQ(wide.ctas, 128);
  // Nine of 224 for eight of 256 are 1.6 % less, which is more than what narrow ones lose.
  EXPECT_EQ(ChooseTiling(Product(2, 2048, 7680, false), kSms).tile_n, 224);
}

// Memory for sums of shared tiles; only looked at for being there.
FusedMatmul Sharing(FusedMatmul matmul) {
  static float partials;
  matmul.memory.partials = &partials;
  return matmul;
}

TEST(ChooseTiling, SharesTheLastWaveAmongAllSms) {
  // 896 units on 65 clusters leave 51, which all clusters share.
  const FusedTiling shared = ChooseTiling(Sharing(Product(4, 2048, 7168, false)), kSms);
  EXPECT_EQ(shared.tile_n, 256);
  EXPECT_EQ(shared.ctas, 130);
  EXPECT_EQ(ChooseTiling(Product(4, 2048, 7168, false), kSms).ctas, 128) << "no memory to share by";
  // A last wave of 29 of 65 clusters: wide tiles are as soon done as narrow ones that fill it, and lose
  // nothing.
  const FusedTiling wide = ChooseTiling(Sharing(Product(4, 512, 7168, false)), kSms);
  EXPECT_EQ(wide.tile_n, 256);
  EXPECT_EQ(wide.ctas, 130);
  // Fewer tiles than clusters are shared as well: 32 of 65.
  EXPECT_EQ(ChooseTiling(Sharing(Product(1, 256, 8192, false)), kSms).ctas, 130);
  FusedMatmul exact = Product(4, 2048, 7168, false);
  exact.type = exact.b_type = DType::kF8E4M3;
  exact.exact = true;
  EXPECT_EQ(ChooseTiling(Sharing(exact), kSms).ctas, 130);
  // Kernels that cannot share take as many CTAs as their waves want.
  FusedMatmul blocks = exact;
  blocks.blocks = true;
  EXPECT_EQ(ChooseTiling(Sharing(blocks), kSms).ctas, ChooseTiling(blocks, kSms).ctas);
  // Short products save less than sharing costs.
  FusedMatmul shallow = Product(4, 2048, 7168, false);
  shallow.k = 512;
  EXPECT_EQ(ChooseTiling(Sharing(shallow), kSms).ctas, ChooseTiling(shallow, kSms).ctas);
}

// The number of rows decides about the tiles that are shared.
TEST(ChooseTiling, SharesNoTileInAFixedOrder) {
  FusedMatmul fixed = Sharing(Product(4, 2048, 7168, false));
  const FusedVariant* variant = FusedVariantFor(fixed, ChooseTiling(fixed, kSms));
  ASSERT_NE(variant, nullptr);
  EXPECT_TRUE(SharesTiles(fixed, *variant));
  fixed.fixed_order = true;
  EXPECT_FALSE(SharesTiles(fixed, *variant));
  EXPECT_EQ(ChooseTiling(fixed, kSms).ctas, ChooseTiling(Product(4, 2048, 7168, false), kSms).ctas);
}

// The first piece has 112 tiles of 256 columns for 130 CTAs, or 128 of 224 for 128.
TEST(ChooseTiling, FillsWholeWavesWhereCtasWaitForTheSecondPiece) {
  static const uint64_t word = 0;
  FusedMatmul gather = Sharing(Product(4, 512, 7168, false));
  for (size_t i = 1; i < gather.pieces.size(); ++i) gather.pieces[i].ready = &word;
  EXPECT_EQ(ChooseTiling(gather, kSms).tile_n, 224);
  EXPECT_EQ(ChooseTiling(gather, kSms).ctas, 128);
  // A first piece of 224 tiles keeps all busy until the second one is there.
  gather.rows = 1024;
  EXPECT_EQ(ChooseTiling(gather, kSms).ctas, ChooseTiling(Sharing(Product(4, 1024, 7168, false)), kSms).ctas);
  // All 32 tiles of both pieces are shared: else 100 SMs would compute nothing.
  FusedMatmul few = Sharing(Product(2, 512, 1024, false));
  few.pieces[1].ready = &word;
  EXPECT_EQ(ChooseTiling(few, kSms).ctas, 130);
}

TEST(ChooseTiling, KeepsWideTilesForSumsOddPiecesAndTypesWithoutOthers) {
  EXPECT_EQ(ChooseTiling(Product(4, 512, 7168, true), kSms).tile_n, 256);
  const FusedTiling odd = ChooseTiling(Product(4, 384, 7168, false), kSms);
  EXPECT_EQ(odd.tile_n, 256);
  EXPECT_EQ(odd.cluster_m, 1);
  FusedMatmul f16 = Product(4, 512, 7168, false);
  f16.type = f16.b_type = f16.out_type = DType::kF16;
  EXPECT_EQ(ChooseTiling(f16, kSms).tile_n, 256);
  EXPECT_EQ(ChooseTiling(f16, kSms).cluster_m, 1);
}

FusedMatmul Float8(int world, int64_t rows, int64_t n, bool scatter, bool exact) {
  FusedMatmul fp8 = Product(world, rows, n, scatter);
  fp8.type = fp8.b_type = DType::kF8E4M3;
  fp8.exact = exact;
  return fp8;
}

TEST(ChooseTiling, GivesFastFloat8TheTilesOfBf16) {
  EXPECT_EQ(ChooseTiling(Float8(4, 512, 7168, false, false), kSms).tile_n, 224);
  EXPECT_EQ(ChooseTiling(Float8(4, 512, 8192, false, false), kSms).tile_n, 256);
  EXPECT_EQ(ChooseTiling(Float8(4, 512, 8192, false, false), kSms).cluster_m, 2);
  EXPECT_EQ(ChooseTiling(Float8(4, 512, 7168, true, false), kSms).tile_n, 256);
}

// The fastest width on an H200, in pieces of several ranks or whole; the wide one where pieces are summed.
TEST(ChooseTiling, TakesTheMeasuredWidthsForExactFloat8) {
  struct Case {
    int64_t m, n;
    int tile_n, with_blocks;
  };
  for (const Case& c : {Case{2048, 7168, 192, 192},
                        {4096, 7168, 256, 256},
                        {8192, 7168, 192, 192},
                        {2048, 8192, 256, 256},
                        {2048, 14336, 256, 256},
                        {8192, 8192, 192, 192},
                        {8192, 3584, 256, 256},
                        {4096, 14336, 192, 192},
                        {8192, 14336, 192, 192},
                        {512, 14336, 224, 256}}) {
    for (int world : {1, 2, 4}) {
      for (bool scatter : {false, true}) {
        for (bool blocks : {false, true}) {
          SCOPED_TRACE(std::to_string(c.m) + "×" + std::to_string(c.n) + " in " + std::to_string(world));
          FusedMatmul matmul = Float8(world, c.m / world, c.n, scatter, true);
          matmul.blocks = blocks;
          const FusedTiling tiling = ChooseTiling(matmul, kSms);
          EXPECT_EQ(tiling.tile_n, scatter ? 256 : blocks ? c.with_blocks : c.tile_n);
          EXPECT_EQ(tiling.cluster_m, 1);
        }
      }
    }
  }
}

TEST(ChooseTiling, ExactFloat8OfOddPiecesAndOtherTypes) {
  // 18 rows of tiles: 504 of 256 columns in four waves of 128, 684 of 192 in six; of 6720 columns 486 in
  // four, 630 in five.
  EXPECT_EQ(ChooseTiling(Float8(2, 1152, 7168, false, true), kSms).tile_n, 256);
  const FusedTiling odd = ChooseTiling(Float8(2, 1152, 6720, false, true), kSms);
  EXPECT_EQ(odd.tile_n, 192);
  EXPECT_EQ(odd.cluster_m, 1);
  // Two waves of 256 tiles of 224 columns are shorter than three of 304 of 192; summed they are not taken.
  EXPECT_EQ(ChooseTiling(Float8(2, 1024, 3584, false, true), kSms).tile_n, 224);
  EXPECT_EQ(ChooseTiling(Float8(2, 1024, 3584, true, true), kSms).tile_n, 256);
  // Seven waves of 256 columns against ten of 192: other types' kernel of 256 can add peers' sums, which
  // costs it something.
  for (DType b : {DType::kF8E4M3, DType::kF8E5M2}) {
    FusedMatmul close = Float8(2, 1024, 14336, false, true);
    close.b_type = b;
    EXPECT_EQ(ChooseTiling(close, kSms).tile_n, b == DType::kF8E4M3 ? 256 : 192);
  }
  for (DType b : {DType::kF8E4M3, DType::kF8E5M2}) {
    for (DType out : {DType::kBf16, DType::kF32}) {
      FusedMatmul other = Float8(4, 512, 7168, false, true);
      other.b_type = b;
      other.out_type = out;
      EXPECT_EQ(ChooseTiling(other, kSms).tile_n, out == DType::kBf16 ? 192 : 256);  // there are no others
      EXPECT_EQ(ChooseTiling(other, kSms).cluster_m, 1);
    }
  }
}

TEST(FindFusedVariant, SumsAsIsAskedAndMoreExactlyWhereThereIsNothingElse) {
  using enum DType;
  for (auto [a, b] :
       {std::pair(kF8E4M3, kF8E4M3), {kF8E4M3, kF8E5M2}, {kF8E5M2, kF8E4M3}, {kF8E5M2, kF8E5M2}}) {
    for (DType out : {kBf16, kF16, kF32}) {
      for (bool exact : {false, true}) {
        for (bool sums : {false, true}) {
          FusedMatmul matmul = Product(2, 128, 256, sums);
          matmul.type = a;
          matmul.b_type = b;
          matmul.out_type = out;
          matmul.exact = exact;
          matmul.tiling = ChooseTiling(matmul, 0);
          auto variant = FindFusedVariant(matmul);
          ASSERT_TRUE(variant.ok()) << variant.status().ToString();
          EXPECT_EQ((*variant)->type, static_cast<uint8_t>(a));
          EXPECT_EQ((*variant)->b_type, static_cast<uint8_t>(b));
          EXPECT_EQ((*variant)->out_type, static_cast<uint8_t>(out));
          EXPECT_EQ((*variant)->k_block, 128);
          EXPECT_EQ((*variant)->exact, exact || (a != b && out != kBf16) || (a == kF8E5M2 && b == kF8E5M2));
        }
      }
    }
  }
  FusedMatmul none = Product(2, 128, 256, false);
  none.type = none.b_type = kF8E5M2;
  none.out_type = kF8E5M2;
  none.exact = true;
  EXPECT_THAT(FindFusedVariant(none).status().message(),
              testing::HasSubstr("f8e5m2 and f8e5m2 to f8e5m2, exact"));
}

TEST(ChooseTiling, LeavesSmsToOthers) {
  EXPECT_EQ(ChooseTiling(Product(4, 2048, 7168, true), kSms).ctas, 128);
  EXPECT_EQ(ChooseTiling(Product(4, 512, 8192, true), kSms).ctas, 128);
  EXPECT_EQ(ChooseTiling(Float8(2, 4096, 14336, false, true), kSms).ctas,
            130);  // 4800 tiles of 192 columns: 37 waves, one fewer than on 128
  // What the last wave makes is stored in peers' memory directly; a clusters' tile counts once.
  const FusedTiling four_waves = ChooseTiling(Product(4, 512, 8192, true), kSms);
  EXPECT_EQ(four_waves.direct_tiles * four_waves.cluster_m, 128);
  EXPECT_EQ(ChooseTiling(Product(3, 128, 256, false), kSms).ctas, 3);  // a tile each
  EXPECT_EQ(ChooseTiling(Product(2, 1152, 3840, false), kSms).ctas,
            90);                                                    // 270 tiles: 90 in each of three waves
  EXPECT_EQ(ChooseTiling(Product(4, 512, 8192, true), 0).ctas, 0);  // nobody knows how many there are
}

TEST(ChooseRuns, MergesWhatAReduceScatterComputesFirst) {
  using testing::ElementsAre;
  using testing::Pair;
  EXPECT_THAT(Runs(Product(4, 512, 8192, true)), ElementsAre(Pair(0, 2), Pair(2, 1), Pair(3, 1)));
  EXPECT_THAT(Runs(Product(8, 512, 8192, true)), ElementsAre(Pair(0, 6), Pair(6, 1), Pair(7, 1)));
  EXPECT_THAT(Runs(Product(3, 512, 8192, true)), ElementsAre(Pair(0, 1), Pair(1, 1), Pair(2, 1)));
  EXPECT_THAT(Runs(Product(4, 512, 7168, false)),
              ElementsAre(Pair(0, 1), Pair(1, 1), Pair(2, 1), Pair(3, 1)));
  EXPECT_THAT(Runs(Product(1, 512, 7168, false)), ElementsAre(Pair(0, 1)));
}

// As an all-reduce, or a reduce-scatter, that its kernel delivers: what peers own is on the way, and the own
// sum, if it goes to all.
FusedMatmul Delivered(int64_t rows, int64_t n, int bands, bool sums_for_all) {
  FusedMatmul matmul = Product(4, rows, n, true);
  for (MatmulPiece& piece : matmul.pieces) {
    const bool own = piece.first_slot >= 0;
    piece.on_the_way = own ? 0 : 1;
    piece.copies = static_cast<int16_t>(!own ? 1 : sums_for_all ? 3 : 0);
    piece.words = static_cast<int16_t>(own ? 1 : bands);
  }
  matmul.word_bands = bands;
  matmul.tiling = ChooseTiling(matmul, kSms);
  return matmul;
}

TEST(ChooseTiling, DeliversTheLastWaveDirectly) {
  for (bool sums_for_all : {false, true}) {
    FusedMatmul matmul = Delivered(1024, 8192, 8, sums_for_all);
    EXPECT_EQ(matmul.tiling.ctas, sums_for_all ? 132 : 128);
    EXPECT_EQ(matmul.tiling.direct_tiles * matmul.tiling.cluster_m, matmul.tiling.ctas);
    matmul.k = 1024;
    EXPECT_EQ(ChooseTiling(matmul, kSms).direct_tiles == std::numeric_limits<int>::max(), sums_for_all)
        << "short products";
  }
}

// Each tile is in one band; a word band's own rows come behind what peers own of the next.
TEST(ChooseRuns, GoesByWordBandsWhereTheKernelDelivers) {
  using Run = std::tuple<int, int, int>;
  const auto runs_of = [](const FusedMatmul& matmul) {
    std::vector<Run> runs;
    for (const PieceRun& run : ChooseRuns(matmul)) runs.emplace_back(run.first, run.count, run.word_band);
    return runs;
  };
  FusedMatmul matmul = Delivered(512, 8192 - 256, 4, true);
  EXPECT_EQ(runs_of(matmul),
            (std::vector<Run>{
                {0, 3, 0}, {0, 3, 1}, {3, 1, 0}, {0, 3, 2}, {3, 1, 1}, {0, 3, 3}, {3, 1, 2}, {3, 1, 3}}));
  EXPECT_EQ(WordBandColumns(matmul), 8 * 256);
  matmul.runs = ChooseRuns(matmul);
  const int cluster = matmul.tiling.cluster_m, units_m = 4 / cluster;
  constexpr int kUnitsN = 31;
  std::vector<int> drawn(static_cast<size_t>(4 * units_m * kUnitsN));
  int units = 0;
  for (const MatmulBand& band : CutBands(matmul, units_m, cluster, kUnitsN)) {
    EXPECT_EQ(band.first_unit, units);
    units += band.m_tiles * band.n_tiles;
    for (int i = 0; i < band.m_tiles * band.n_tiles; ++i) {
      ++drawn[static_cast<size_t>((band.first_m + i % band.m_tiles) * kUnitsN + band.first_n +
                                  i / band.m_tiles)];
    }
  }
  EXPECT_THAT(drawn, testing::Each(1));
  // Told at once: a reduce-scatter; tiles of which word bands are no multiple.
  EXPECT_EQ(runs_of(Delivered(512, 8192, 1, false)), (std::vector<Run>{{0, 3, -1}, {3, 1, -1}}));
  matmul.tiling.tile_n = 192;
  EXPECT_EQ(runs_of(matmul), (std::vector<Run>{{0, 3, -1}, {3, 1, -1}}));
  // A short part ends its run.
  matmul = Delivered(512, 2048, 2, true);
  matmul.pieces[1].rows = 100;
  EXPECT_EQ(runs_of(matmul),
            (std::vector<Run>{{0, 2, 0}, {2, 1, 0}, {0, 2, 1}, {2, 1, 1}, {3, 1, 0}, {3, 1, 1}}));
}

// As many rows as bands can number; more are refused before any map is made.
TEST(CutBands, NumbersAllTilesOfTheHighestPieces) {
  constexpr int kPieces = 7, kUnits = kMaxTilesM / kPieces;  // without a rest
  FusedMatmul matmul = Product(kPieces, int64_t{kUnits} * kTileRows, 256, false);
  matmul.runs = ChooseRuns(matmul);
  ASSERT_EQ(TilesM(kPieces, matmul.rows), kMaxTilesM);
  int next = 0;
  for (const MatmulBand& band : CutBands(matmul, kUnits, 1, 1)) {
    EXPECT_EQ(band.first_m, next);
    EXPECT_GT(band.m_tiles, 0);
    next += band.m_tiles;
  }
  EXPECT_EQ(next, kMaxTilesM);
  ++matmul.rows;
  const FusedVariant* variant = FusedVariantFor(matmul, ChooseTiling(matmul, kSms));
  ASSERT_NE(variant, nullptr);
  EXPECT_EQ(MakeFusedParams(matmul, *variant).status().code(), Code::kInvalidArgument);
  EXPECT_THAT(MakeFusedParams(matmul, *variant).status().message(),
              testing::HasSubstr("7 pieces of 599169 rows"));
}

// Their epilogue has no scales: they would be dropped without a word.
TEST(MakeFusedParams, RefusesScalesOfOperandsThatHaveNone) {
  const float scale = 1;
  for (bool of_rows : {false, true}) {
    FusedMatmul matmul = Product(2, 256, 512, false);
    if (of_rows) {
      matmul.pieces[1].row_scale = &scale;
    } else {
      matmul.column_scale = &scale;
    }
    const FusedVariant* variant = FusedVariantFor(matmul, ChooseTiling(matmul, kSms));
    ASSERT_NE(variant, nullptr);
    EXPECT_EQ(MakeFusedParams(matmul, *variant).status().code(), Code::kUnimplemented);
    EXPECT_THAT(MakeFusedParams(matmul, *variant).status().message(),
                testing::HasSubstr("scales of 16-bit operands"));
  }
}

}  // namespace
}  // namespace tandem::cuda
