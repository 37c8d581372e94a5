#include "kernels/cuda/native/tiling.h"

#include <algorithm>

namespace tandem::cuda {
namespace {

constexpr int64_t kTileRows = 128;
constexpr int kNarrowTile = 224;
constexpr double kNarrowLoss = 1.03;
// With more waves a CTA less costs more than the last wave's gaps.
constexpr int64_t kFewWaves = 8;

int64_t Blocks(int64_t count, int64_t block) { return (count + block - 1) / block; }

bool Sums(const MatmulPiece& piece) { return piece.first_slot >= 0; }

int64_t Tiles(const FusedMatmul& matmul, int tile_n) {
  return static_cast<int64_t>(matmul.pieces.size()) * Blocks(matmul.rows, kTileRows) * Blocks(matmul.n, tile_n);
}

// The time of a tile row in columns: waves times their width.
double Cost(const FusedMatmul& matmul, int tile_n, int sms) {
  return static_cast<double>(Blocks(Tiles(matmul, tile_n), sms) * tile_n);
}

FusedTiling Narrow() {
  FusedTiling tiling;
  tiling.tile_n = kNarrowTile;
  tiling.cluster_m = 2;
  return tiling;
}

bool PrefersNarrow(const FusedMatmul& matmul, int sms) {
  if (std::any_of(matmul.pieces.begin(), matmul.pieces.end(), Sums)) return false;
  if (Blocks(matmul.rows, kTileRows) % 2 != 0) return false;  // a cluster of two would waste a tile of every piece
  if (Cost(matmul, kNarrowTile, sms) * kNarrowLoss >= Cost(matmul, FusedTiling().tile_n, sms)) return false;
  FusedMatmul narrow = matmul;
  narrow.tiling = Narrow();
  return FindFusedVariant(narrow).ok();
}

}  // namespace

FusedTiling ChooseTiling(const FusedMatmul& matmul, int sms) {
  FusedTiling tiling;
  tiling.cluster_m = 1;
  if (sms <= 0 || matmul.pieces.empty()) return tiling;
  if (PrefersNarrow(matmul, sms)) tiling = Narrow();
  const int64_t tiles = Tiles(matmul, tiling.tile_n), waves = Blocks(tiles, sms);
  const int64_t cluster = tiling.cluster_m * tiling.cluster_n;
  if (waves >= 1 && waves <= kFewWaves) {
    const int64_t needed = Blocks(Blocks(tiles, waves), cluster) * cluster;
    tiling.ctas = static_cast<int>(std::min<int64_t>(needed, sms / cluster * cluster));
  }
  return tiling;
}

std::vector<PieceRun> ChooseRuns(const FusedMatmul& matmul) {
  const auto& pieces = matmul.pieces;
  const int count = static_cast<int>(pieces.size());
  std::vector<PieceRun> runs;
  const bool scatters = count >= 4 && Sums(pieces.back()) && std::none_of(pieces.begin(), pieces.end() - 1, Sums);
  const int merged = scatters ? count - 2 : 1;
  runs.push_back({0, std::min(merged, count)});
  for (int i = merged; i < count; ++i) runs.push_back({i, 1});
  return runs;
}

}  // namespace tandem::cuda
