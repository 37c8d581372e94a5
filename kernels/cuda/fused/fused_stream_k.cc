#include "kernels/cuda/fused/fused_stream_k.h"

#include <algorithm>

#include "kernels/cuda/fused/blocks.h"

namespace tandem::cuda {
namespace {

int64_t Even(int64_t count) { return (count + 1) / 2 * 2; }

}  // namespace

StreamKSplit SplitLastWave(int64_t units, int64_t clusters, int64_t k_blocks, int tile_n, int cost) {
  if (clusters <= 0 || units % clusters == 0) return {};
  const int64_t shared = units % clusters, of_unit = Even(k_blocks);
  const int64_t least =
      Even(Blocks(of_unit, kMaxPeerCtas - 1));  // a unit's stages begin and end within a segment
  const int64_t blocks =
      std::max(Even(Blocks(shared * of_unit, std::min<int64_t>(clusters, kMaxSegments))), least);
  if ((of_unit - blocks) * tile_n <= cost * 256) return {};
  const int64_t segments = Blocks(shared * of_unit, blocks);
  if (segments > kMaxSegments || of_unit > UINT16_MAX || shared * of_unit > INT32_MAX / 2) return {};
  return {.from = static_cast<int32_t>(units - shared),
          .units = static_cast<int32_t>(shared),
          .k_blocks = static_cast<int32_t>(of_unit),
          .blocks = static_cast<int32_t>(blocks),
          .segments = static_cast<int32_t>(segments)};
}

double WavesOf(int64_t units, int64_t clusters, int64_t k_blocks, int tile_n, bool splits) {
  const StreamKSplit split = splits ? SplitLastWave(units, clusters, k_blocks, tile_n) : StreamKSplit{};
  if (split.units == 0) return static_cast<double>(Blocks(units, clusters));
  const double cost = kPartCost * 256.0 / tile_n;
  const int64_t whole_waves = split.from / clusters;
  return static_cast<double>(whole_waves) + (split.blocks + cost) / split.k_blocks;
}

}  // namespace tandem::cuda
