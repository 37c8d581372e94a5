#include "kernels/cuda/fused/tiling.h"

#include <algorithm>
#include <span>

#include "kernels/cuda/fused/blocks.h"

namespace tandem::cuda {
namespace {

constexpr int kWideTile = 256, kNarrowTile = 224;
// A width of tiles, and its time a column and wave beside the fastest width's.
struct Width {
  int tile_n;
  double loss;
};
// Over six bf16 shapes those of 224 columns lost 0.8 to 1.9 % (H200,
// bench/results/gpu-1xH200.jsonl).
constexpr Width kWidths[] = {{kWideTile, 1.0}, {kNarrowTile, 1.015}};
// With 192 columns registers hold both halves' exact sums, so that one is added while the other is
// multiplied, and shared memory holds all results. Over six shapes tiles of 256 lost 1.059 to 1.117, of 224
// 1.10 to 1.12 (H200, bench/results/gpu-2xH200.jsonl).
constexpr Width kExactWidths[] = {{kWideTile, 1.07}, {192, 1.0}, {kNarrowTile, 1.11}};
// The same with scales by blocks: 1.01 to 1.08 (bench/results/gpu-2xH200.jsonl).
constexpr Width kBlockScaledWidths[] = {{kWideTile, 1.045}, {192, 1.0}};
// For what must go on beside the kernel: it may be what its last pieces wait for. Two, for clusters take SMs
// by pairs.
constexpr int kReservedSms = 2;

bool Sums(const MatmulPiece& piece) { return piece.first_slot >= 0; }

int64_t Tiles(const FusedMatmul& matmul, int tile_n) {
  int64_t tiles_m = 0;
  for (const MatmulPiece& piece : matmul.pieces) tiles_m += Blocks(RowsOf(matmul, piece), kTileRows);
  return tiles_m * Blocks(matmul.n, tile_n);
}

FusedTiling Tiling(int tile_n, int cluster_m) {
  FusedTiling tiling;
  tiling.tile_n = tile_n;
  tiling.cluster_m = cluster_m;
  return tiling;
}

// The kernel for tiles of `tile_n` columns; null if there is none. There is none in clusters of two for exact
// sums: single CTAs were as fast or faster by up to 3 %. None adds peers' sums in narrow tiles: they do not
// fit word bands, and their owner would wait for all of them.
const FusedVariant* VariantOf(const FusedMatmul& matmul, int tile_n) {
  // Two would waste a tile of every piece with an odd number of them.
  const bool pairs = Blocks(matmul.rows, kTileRows) % 2 == 0;
  const FusedVariant* two = pairs ? FusedVariantFor(matmul, Tiling(tile_n, 2)) : nullptr;
  return two != nullptr ? two : FusedVariantFor(matmul, Tiling(tile_n, 1));
}

int64_t Cluster(const FusedVariant& variant) { return int64_t{variant.cluster_m} * variant.cluster_n; }
int64_t Stages(const FusedMatmul& matmul, const FusedVariant& variant) {
  return Blocks(matmul.k, variant.k_block);
}
// Whether some CTAs of `sms` find no tile of the first piece, so that they wait for the second one's rows.
// With few tiles that does not matter: sharing them at least halves the product's time. On two H200s 1024 x
// 1024 x 16384 took 110 us, and 254 without.
bool StartsLate(const FusedMatmul& matmul, int tile_n, int sms) {
  if (matmul.pieces.size() < 2 || matmul.pieces[1].ready == nullptr) return false;
  if (2 * Tiles(matmul, tile_n) <= sms) return false;
  return Blocks(RowsOf(matmul, matmul.pieces[0]), kTileRows) * Blocks(matmul.n, tile_n) < sms;
}
// Whether sharing the last wave saves time. CTAs that start late are late for it, and all that share wait for
// them. Gathers of 2048 rows on four H200s took as long as without sharing (bench/figures/kernels.md).
bool Splits(const FusedMatmul& matmul, const FusedVariant& variant, int sms) {
  return SharesTiles(matmul, variant) && !StartsLate(matmul, variant.tile_n, sms);
}

struct Widths {
  std::span<const Width> of;
  double idle_sums = 1.0;  // a kernel's further loss by code that adds peers' sums, where there are none
};

Widths WidthsFor(const FusedMatmul& matmul) {
  if (matmul.blocks) return {kBlockScaledWidths};
  if (matmul.exact) return {kExactWidths, 1.018};  // 1.013 to 1.021 in the runs of these widths
  return {kWidths};
}

// The width whose waves are over first on `sms` SMs.
FusedTiling FastestWidth(const FusedMatmul& matmul, int sms) {
  const FusedVariant* wide = VariantOf(matmul, kWideTile);
  FusedTiling fastest = Tiling(kWideTile, wide != nullptr ? wide->cluster_m : 1);
  if (sms <= 0) return fastest;
  const bool adds = std::any_of(matmul.pieces.begin(), matmul.pieces.end(), Sums);
  double least = 0;
  const Widths widths = WidthsFor(matmul);
  for (const Width& width : widths.of) {
    const FusedVariant* variant = VariantOf(matmul, width.tile_n);
    if (variant == nullptr) continue;
    const double loss = width.loss * (variant->sums && !adds ? widths.idle_sums : 1.0);
    const double time = WavesOf(Tiles(matmul, width.tile_n) / Cluster(*variant), sms / Cluster(*variant),
                                Stages(matmul, *variant), width.tile_n, Splits(matmul, *variant, sms)) *
                        width.tile_n * loss;
    if (least != 0 && time >= least) continue;
    least = time;
    fastest = Tiling(width.tile_n, variant->cluster_m);
  }
  return fastest;
}

bool Delivers(const FusedMatmul& matmul) {
  return std::any_of(matmul.pieces.begin(), matmul.pieces.end(),
                     [](const MatmulPiece& piece) { return piece.on_the_way != 0; });
}

// The pieces that peers own, in runs that a short one ends: behind it, tiles are not numbered on.
std::vector<PieceRun> RunsOfDelivered(const FusedMatmul& matmul, int count) {
  std::vector<PieceRun> runs;
  for (int i = 0, first = 0; i < count; ++i) {
    if (i + 1 < count && RowsOf(matmul, matmul.pieces[static_cast<size_t>(i)]) == matmul.rows) continue;
    runs.push_back({first, i + 1 - first});
    first = i + 1;
  }
  return runs;
}

// For each word band: first the peers' pieces, then this rank's sums of the band before, whose inputs have
// had one band's time to arrive.
std::vector<PieceRun> RunsByWordBands(const FusedMatmul& matmul) {
  const int count = static_cast<int>(matmul.pieces.size());
  const int sums = Sums(matmul.pieces.back()) ? 1 : 0;
  const bool fits = WordBandColumns(matmul) % (int64_t{matmul.tiling.tile_n} * matmul.tiling.cluster_n) == 0;
  const int bands = fits ? matmul.word_bands : 1;
  std::vector<PieceRun> runs;
  for (int band = 0; band <= bands; ++band) {
    for (PieceRun run : RunsOfDelivered(matmul, count - sums)) {
      run.word_band = bands > 1 ? band : -1;
      if (band < bands) runs.push_back(run);
    }
    if (band > 0 && sums != 0) runs.push_back({count - 1, 1, bands > 1 ? band - 1 : -1});
  }
  return runs;
}

}  // namespace

FusedTiling ChooseTiling(const FusedMatmul& matmul, int sms) {
  const int usable = matmul.pieces.empty() ? 0 : sms - kReservedSms;
  FusedTiling tiling = FastestWidth(matmul, usable);
  if (usable <= 0) return tiling;
  const int64_t tiles = Tiles(matmul, tiling.tile_n), waves = std::max<int64_t>(1, Blocks(tiles, usable));
  const int64_t cluster = tiling.cluster_m * tiling.cluster_n;
  tiling.ctas = static_cast<int>(std::min(Blocks(Blocks(tiles, waves), cluster), usable / cluster) * cluster);
  const bool sums_for_all = Sums(matmul.pieces.back()) && matmul.pieces.back().copies > 0;
  // Nobody waits for its pieces' ends, and its own waits need nobody's SMs.
  if (sums_for_all) tiling.ctas = static_cast<int>(std::min(Blocks(tiles, cluster), sms / cluster) * cluster);
  // Tiles that are shared make use of all.
  const FusedVariant* variant = FusedVariantFor(matmul, tiling);
  const int64_t most = (sums_for_all ? sms : usable) / cluster;
  if (variant != nullptr && Splits(matmul, *variant, usable) &&
      SplitLastWave(Blocks(tiles, cluster), most, Stages(matmul, *variant), tiling.tile_n).units > 0) {
    tiling.ctas = static_cast<int>(most * cluster);
  }
  // Where sums go to all, store warps take longer for their tiles than products with less than this of K.
  constexpr int64_t kLeastCarriedBytes = 4096;
  const bool carries =
      matmul.k * static_cast<int64_t>(DTypeBytes(matmul.type)) >= kLeastCarriedBytes || !sums_for_all;
  if (carries)
    tiling.direct_tiles =
        static_cast<int>(tiling.ctas / cluster);  // a wave: behind its tiles nothing is computed
  return tiling;
}

std::vector<PieceRun> ChooseRuns(const FusedMatmul& matmul) {
  const auto& pieces = matmul.pieces;
  if (Delivers(matmul)) return RunsByWordBands(matmul);
  const int count = static_cast<int>(pieces.size());
  std::vector<PieceRun> runs;
  const bool scatters =
      count >= 4 && Sums(pieces.back()) && std::none_of(pieces.begin(), pieces.end() - 1, Sums);
  const int merged = scatters ? count - 2 : 1;
  for (int i = 0, first = 0; i < count; ++i) {
    // A short piece ends its run: behind it, tiles are not numbered on.
    if (i + 1 < merged && RowsOf(matmul, pieces[static_cast<size_t>(i)]) == matmul.rows) continue;
    runs.push_back({first, i + 1 - first});
    first = i + 1;
  }
  return runs;
}

}  // namespace tandem::cuda
