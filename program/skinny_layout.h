// File: skinny_layout.h
//
// How the skinny kernel (kernels/cuda/skinny/skinny.h) cuts a product, and where its ranks exchange
// what they send each other. Planner, engine and kernel must agree on it, so it is a function of the request
// alone.
//
// A tile holds the same rows of every rank's part: `segment` rows of rank 0's, then of rank 1's, … So every
// CTA has as much to send as to keep.
#pragma once

#include <cstdint>
#include <optional>

namespace tandem {

enum class SkinnyKind : uint8_t { kGather, kScatter, kAllReduce };

struct SkinnyLayout {
  SkinnyKind kind = SkinnyKind::kGather;
  int world = 1;
  int64_t m = 0;          // rows of all ranks
  int64_t rows = 0;       // of each rank's part; the last ones of an all-reduce may have fewer, or none
  int64_t n = 0, k = 0;   // k in elements
  int element_bytes = 2;  // of A and B
  int out_bytes = 2;      // of an element of C, and of a partial sum that travels
  int segment = 16;       // rows of a rank in a tile
  int tile_n = 128;
  int cluster_m = 1, cluster_n = 1;  // CTAs that share loads of B, and of A
  int tiles_m = 1, tiles_n = 1;      // multiples of the cluster's
  bool one_step = false;  // an all-reduce whose ranks may send each other all that they have computed, not
                          // what the other owns

  // Rank `rank`'s part: its first row and how many there are.
  int64_t first_row(int rank) const { return rank * rows < m ? rank * rows : m; }
  int64_t rows_of(int rank) const { return first_row(rank + 1) - first_row(rank); }
  int ctas() const { return tiles_m * tiles_n; }
  // Gather: units of columns in which a shard is pushed, and the stages (of 128 bytes of K) in each but the
  // last.
  int k_blocks() const { return static_cast<int>((k * element_bytes + 127) / 128); }
  int blocks_per_unit() const { return (k_blocks() + kMaxUnits - 1) / kMaxUnits; }
  int units() const { return (k_blocks() + blocks_per_unit() - 1) / blocks_per_unit(); }
  static constexpr int kMaxUnits = 256;
  // Sums: bytes of a tile's segment in fragments (see skinny.cuh).
  int64_t fragment_bytes() const { return int64_t{segment} * tile_n * out_bytes; }
  // Bytes of a slot of the exchange area, one for each rank that sends: a shard, or a rank's partial sums;
  // for an all-reduce as many again, for what owners have summed. Multiple of 256.
  int64_t slot_bytes() const {
    const int64_t bytes =
        kind == SkinnyKind::kGather ? rows * k * element_bytes : int64_t{ctas()} * fragment_bytes();
    return (bytes + 255) / 256 * 256;
  }
  // Behind the slots: of an all-reduce the second half; of a gather the factors of all ranks' rows, if they
  // travel, as float32.
  int64_t behind_slots() const { return world * slot_bytes(); }
  int64_t area_bytes() const {
    switch (kind) {
      case SkinnyKind::kGather: return behind_slots() + world * rows * 4;
      case SkinnyKind::kScatter: return behind_slots();
      case SkinnyKind::kAllReduce: return 2 * behind_slots();
    }
    return 0;
  }
  // Words of each writer at each reader: one for each unit, or for each tile (all-reduce: then one for each
  // tile's sum).
  int words() const {
    return kind == SkinnyKind::kGather ? units() : ctas() * (kind == SkinnyKind::kAllReduce ? 2 : 1);
  }

  // Rows of a tile that are loaded at a time. With two ranks at least, CTAs that share A have a box each.
  int box_rows() const { return segment; }
};

// The number of CTAs that the kernel may have on a GPU of `sms` SMs (0: those of an H100 or H200). Each has
// an SM; the remaining SMs are for work that must go on beside the kernel.
inline constexpr int kSkinnyCtas = 128;
constexpr int MaxSkinnyCtas(int sms) { return sms <= 0 || sms - 4 > kSkinnyCtas ? kSkinnyCtas : sms - 4; }
inline constexpr int kSkinnyTileRows = 128;
// Rows up to which two ranks sum in one step. As many bytes go either way, so that of more rows nothing is
// gained; and owners need not round their own parts.
inline constexpr int64_t kMaxOneStepRows = 256;
// Rows of all ranks together: of more, transfers take as long as a wave of tiles, and other forms hide them.
inline constexpr int64_t kMaxSkinnyRows = 1024;

// Whether the rows of a B, [K, N], are what is contiguous, not its columns. (A single column is contiguous,
// however far the next one would be.)
template <class AnyView>
bool RunsAlongN(const AnyView& b) {
  return b.stride[0] != 1;
}

// The layout for `m` rows of all `world` ranks together, if all tiles are computed at once. Gathered shards
// and scattered parts are equal; an all-reduce's parts are as equal as can be with the first ones of ceil(m /
// world) rows. `b_along_n`: B's rows are contiguous, not its columns. `most_ctas`: what the GPUs have room
// for.
inline std::optional<SkinnyLayout> MakeSkinnyLayout(SkinnyKind kind, int world, int64_t m, int64_t n,
                                                    int64_t k, int element_bytes, int out_bytes,
                                                    bool b_along_n, int most_ctas = kSkinnyCtas) {
  if (world < 2 || world > 8 || m <= 0 || n <= 0 || k <= 0) return std::nullopt;
  const int64_t rows = m / world + (m % world == 0 ? 0 : 1);
  if (rows > kMaxSkinnyRows / world || (m % world != 0 && kind != SkinnyKind::kAllReduce))
    return std::nullopt;
  SkinnyLayout layout;
  layout.kind = kind;
  layout.world = world;
  layout.m = m;
  layout.rows = rows;
  layout.n = n;
  layout.k = k;
  layout.element_bytes = element_bytes;
  layout.out_bytes = out_bytes;
  layout.one_step = kind == SkinnyKind::kAllReduce && world == 2 && m <= kMaxOneStepRows;
  int most = 64;  // rows of a warpgroup
  while (most * world > kSkinnyTileRows) most /= 2;
  while (layout.segment < most && layout.segment < rows) layout.segment *= 2;
  const int64_t tiles_m = (rows + layout.segment - 1) / layout.segment;
  if (tiles_m > most_ctas) return std::nullopt;
  layout.tiles_m = static_cast<int>(tiles_m);
  // The narrowest tiles of one wave: the more SMs load B and multiply, the sooner they are done. 14336
  // columns, which models have, are 112 tiles of 128 or 56 of 256, but 128 of 112 and 64 of 224. B's rows
  // come in boxes of 64 columns, of which such tiles would waste a part. Clusters of two: only 30 of four run
  // at once on an H200.
  struct Shape {
    int tile_n, cluster_m, cluster_n;
  };
  for (const Shape shape :
       {Shape{64, 1, 2}, Shape{112, 2, 1}, Shape{112, 1, 2}, Shape{128, 2, 1}, Shape{128, 1, 2},
        Shape{224, 2, 1}, Shape{224, 1, 2}, Shape{256, 2, 1}, Shape{256, 1, 2}}) {
    if (tiles_m % shape.cluster_m != 0 || (b_along_n && shape.tile_n % 64 != 0)) continue;
    const int64_t columns = int64_t{shape.tile_n} * shape.cluster_n,
                  tiles_n = (n + columns - 1) / columns * shape.cluster_n;
    if (tiles_n * tiles_m > most_ctas) continue;
    layout.tile_n = shape.tile_n;
    layout.cluster_m = shape.cluster_m;
    layout.cluster_n = shape.cluster_n;
    layout.tiles_n = static_cast<int>(tiles_n);
    return layout;
  }
  return std::nullopt;
}

}  // namespace tandem
