#include "kernels/cuda/native/tiling.h"

#include <algorithm>

namespace tandem::cuda {
namespace {

constexpr int kWideTile = 256, kNarrowTile = 224;
constexpr double kNarrowLoss = 1.03;
// For what must go on beside the kernel: it may be what its last pieces wait for.
constexpr int kReservedSms = 4;

int64_t Blocks(int64_t count, int64_t block) { return (count + block - 1) / block; }

bool Sums(const MatmulPiece& piece) { return piece.first_slot >= 0; }

int64_t Tiles(const FusedMatmul& matmul, int tile_n) {
  return static_cast<int64_t>(matmul.pieces.size()) * Blocks(matmul.rows, kTileRows) * Blocks(matmul.n, tile_n);
}

// The time of a tile row in columns: waves times their width.
double Cost(const FusedMatmul& matmul, int tile_n, int sms) {
  return static_cast<double>(Blocks(Tiles(matmul, tile_n), sms) * tile_n);
}

FusedTiling Tiling(int tile_n, int cluster_m) {
  FusedTiling tiling;
  tiling.tile_n = tile_n;
  tiling.cluster_m = cluster_m;
  return tiling;
}

bool PrefersNarrow(const FusedMatmul& matmul, int sms) {
  if (std::any_of(matmul.pieces.begin(), matmul.pieces.end(), Sums)) return false;
  return Cost(matmul, kNarrowTile, sms) * kNarrowLoss < Cost(matmul, kWideTile, sms) && FusedVariantFor(matmul, Tiling(kNarrowTile, 2)) != nullptr;
}

}  // namespace

FusedTiling ChooseTiling(const FusedMatmul& matmul, int sms) {
  FusedTiling tiling = Tiling(kWideTile, 1);
  // A cluster of two would waste a tile of every piece with an odd number of them. Single CTAs that sum
  // fp8 exactly were up to 2 % faster than clusters of two (H200).
  const bool pairs = Blocks(matmul.rows, kTileRows) % 2 == 0;
  if (pairs && !matmul.exact && FusedVariantFor(matmul, Tiling(kWideTile, 2)) != nullptr) tiling.cluster_m = 2;
  if (sms <= kReservedSms || matmul.pieces.empty()) return tiling;
  const int usable = sms - kReservedSms;
  if (pairs && PrefersNarrow(matmul, usable)) tiling = Tiling(kNarrowTile, 2);
  const int64_t tiles = Tiles(matmul, tiling.tile_n), waves = std::max<int64_t>(1, Blocks(tiles, usable));
  const int64_t cluster = tiling.cluster_m * tiling.cluster_n;
  tiling.ctas = static_cast<int>(std::min(Blocks(Blocks(tiles, waves), cluster), usable / cluster) * cluster);
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
