#include "daemon/planner/problem/fused_checks.h"

#include <algorithm>

#include "daemon/planner/problem/scale_checks.h"
#include "program/text.h"
#include "program/views.h"

namespace tandem::plan {
namespace {

// TMA's addresses and pitches are multiples of this.
constexpr int64_t kTmaBytes = 16;
constexpr int64_t kSms = 132;          // of an H100 or H200
constexpr int64_t kMaxTilesM = 32767;  // see fused_launch.h of the CUDA kernels

int64_t ElementBytes(const View& view) { return static_cast<int64_t>(DTypeBytes(view.dtype)); }

int64_t Pitch(const View& view) {
  for (int d = static_cast<int>(view.extent.size()) - 2; d >= 0; --d) {
    if (view.extent[d] != 1) return view.stride[d];
  }
  return view.extent.back();
}

// Why a matrix whose rows must be contiguous cannot be loaded or stored by TMA.
std::string WhyNoRows(const char* name, const View& view) {
  if (view.extent.back() != 1 && view.stride.back() != 1) return Text(name, "'s rows are not contiguous");
  if (!HasOnePitch(view)) return Text(name, "'s rows have no common pitch");
  // Expanded ones do: TMA takes no pitch below the rows' own length.
  if (Pitch(view) < view.extent.back()) return Text(name, "'s rows overlap");
  if (Pitch(view) * ElementBytes(view) % kTmaBytes != 0) {
    return Text(name, "'s pitch is no multiple of ", kTmaBytes, " bytes");
  }
  return {};
}

// Why factors or a bias cannot be read one after another.
std::string WhyNoRow(const Problem& problem, const char* name, int slot) {
  if (slot < 0) return {};
  const View view = problem.Slot(0, slot);
  return Elements(view) == 1 || IsContiguous(view) ? std::string() : Text(name, " are not contiguous");
}

// The types that there are kernels for (B is of A's, or both are float8): see
// kernels/cuda/fused/CMakeLists.txt.
std::string WhyNotTypes(DType a, DType c) {
  if (a != DType::kBf16 && a != DType::kF16 && !IsFloat8(a)) return Text("no kernel for ", DTypeName(a));
  const bool half = c == DType::kBf16 || c == DType::kF16;
  if (c != DType::kF32 && (IsFloat8(a) ? !half : c != a)) {
    return Text("no kernel for ", DTypeName(a), " to ", DTypeName(c));
  }
  return {};
}

std::string WhyNotB(const View& b, bool float8) {
  const bool columns = b.stride[0] == 1, rows = b.stride[1] == 1;
  if (!columns && !rows) return "neither B's rows nor its columns are contiguous";
  if (float8 && !columns) return "float8 needs contiguous columns of B";
  const int along = columns ? 0 : 1;
  if (b.extent[1 - along] > 1 && b.stride[1 - along] < b.extent[along])
    return Text("B's ", columns ? "columns" : "rows", " overlap");
  if ((columns ? b.stride[1] : b.stride[0]) * ElementBytes(b) % kTmaBytes != 0) {
    return Text("B's pitch is no multiple of ", kTmaBytes, " bytes");
  }
  return {};
}

// Scales by blocks, which one kernel takes.
std::string WhyNotBlocks(const Problem& problem) {
  const View a = problem.Slot(0, problem.slots.a);
  if (a.extent.size() != 2) return "scales by blocks of an A of more than two dimensions";
  for (size_t i = 0; i < problem.slots.b.size(); ++i) {
    const View b = problem.Slot(0, problem.slots.b[i]), c = problem.Slot(0, problem.slots.c[i]);
    if (a.dtype != DType::kF8E4M3 || b.dtype != DType::kF8E4M3 || c.dtype != DType::kBf16) {
      return Text("no kernel for scales by blocks of ", DTypeName(a.dtype), " and ", DTypeName(b.dtype),
                  " to ", DTypeName(c.dtype));
    }
    const View scale = problem.Slot(0, problem.slots.scale_b[i]);
    if (Elements(scale) != ScaleBlocks(b.extent[0]) * ScaleBlocks(b.extent[1])) {
      return Text("B's scales are not those of blocks of ", kScaleBlock, " columns");
    }
  }
  // Shards are packed on their way, so they would lie otherwise than the own shard.
  const View scale = problem.Slot(0, problem.slots.scale_a);
  if (ScalesTravel(problem.scale_mode) && !LieAlike(scale, PackedInOrder(scale, scale.ref)))
    return "A's scales are not packed";
  return {};
}

// The kernel numbers the tiles of all parts in 16 bits.
std::string WhyNotRows(const Problem& problem) {
  const int world = problem.world_size;
  FusedTileCut cut{problem.rows / world, problem.rows, world, 1};  // a shard's or a slice's rows
  if (problem.request->op == Op::kMatmulAllReduce) cut = CutFusedTiles(problem.rows, problem.n, world);
  if (FusedTiles(cut.parts(), cut.rows, 1) <= kMaxTilesM) return {};
  return Text(cut.parts(), " parts of ", cut.rows, " rows have more than ", kMaxTilesM, " tiles of 128 rows");
}

}  // namespace

int64_t FusedTiles(int64_t pieces, int64_t rows, int64_t n) {
  constexpr int64_t kTileRows = 128, kTileColumns = 256;
  const auto tiles = [](int64_t extent, int64_t tile) { return (extent + tile - 1) / tile; };
  return pieces * tiles(rows, kTileRows) * tiles(n, kTileColumns);
}

bool IsOneFusedWave(int64_t pieces, int64_t rows, int64_t n) { return FusedTiles(pieces, rows, n) <= kSms; }

FusedTileCut CutFusedTiles(int64_t rows, int64_t n, int world_size) {
  constexpr int64_t kKernelRows = 128, kKernelColumns = 256, kMaxBands = 16, kLeastTiles = 4;
  const auto divide = [](int64_t extent, int64_t part) { return (extent + part - 1) / part; };
  FusedTileCut cut{divide(rows, world_size), rows, world_size, 1};
  const int64_t whole = divide(cut.rows, kKernelRows) * kKernelRows;
  const bool equal = rows % world_size == 0;
  if (!equal && world_size * whole - rows <= rows / 8 && !IsOneFusedWave(divide(rows, whole), whole, n))
    cut.rows = whole;
  if (IsOneFusedWave(cut.parts(), cut.rows, n)) return cut;
  const int64_t high = FusedTiles(cut.parts(), cut.rows, kKernelColumns), wide = divide(n, kKernelColumns);
  const int64_t band = std::max(kLeastTiles, kSms / high);  // in tiles along N
  cut.bands = static_cast<int>(std::min(divide(wide, band), kMaxBands));
  return cut;
}

View FoldedRows(const View& view) {
  View folded = view;
  folded.extent = {view.extent.back() == 0 ? 0 : Elements(view) / view.extent.back(), view.extent.back()};
  folded.stride = {Pitch(view), view.stride.back()};
  return folded;
}

std::string WhyNoFusedKernel(const Problem& problem) {
  const OpRequest& request = *problem.request;
  if (problem.world_size == 1) return "one rank: nothing to overlap";
  const View a = problem.Slot(0, problem.slots.a);
  if (!problem.first_dim()) return "its pieces are rows: the dimension must be the first";
  if (problem.rows == 0 || problem.n == 0 || problem.k == 0) return "an empty product";
  const bool blocks = IsBlockWise(problem.scale_mode);
  const bool float8 = IsFloat8(a.dtype);
  if (problem.k * ElementBytes(a) % kTmaBytes != 0) return Text("K is no multiple of ", kTmaBytes, " bytes");
  if (blocks) {
    if (std::string why = WhyNotBlocks(problem); !why.empty()) return why;
  } else if (std::string why = WhyNoRow(problem, "A's scales", problem.slots.scale_a); !why.empty()) {
    return why;
  }
  const bool reduces = request.op != Op::kAllGatherMatmul;
  for (size_t i = 0; i < problem.slots.b.size(); ++i) {
    const View b = problem.Slot(0, problem.slots.b[i]), c = problem.Slot(0, problem.slots.c[i]);
    if (std::string why = WhyNotTypes(a.dtype, c.dtype); !why.empty()) return why;
    if (std::string why = WhyNotB(b, float8); !why.empty()) return why;
    if (!problem.slots.scale_b.empty() && !blocks) {
      if (std::string why = WhyNoRow(problem, "B's scales", problem.slots.scale_b[i]); !why.empty())
        return why;
    }
    if (!problem.slots.bias.empty()) {
      if (std::string why = WhyNoRow(problem, "the bias's elements", problem.slots.bias[i]); !why.empty())
        return why;
    }
    if (reduces) {
      if (problem.wire != c.dtype) return "partial sums travel in another type than C's";
      if (problem.mean != 1.0f) return "it does not average";
      if (c.extent.back() * ElementBytes(c) % kTmaBytes != 0)
        return Text("N is no multiple of ", kTmaBytes, " bytes");
    }
  }
  return {};
}

std::string WhyNotFused(const Problem& problem) {
  if (std::string why = WhyNoFusedKernel(problem); !why.empty()) return why;
  if (std::string why = WhyNotRows(problem); !why.empty()) return why;
  if (std::string why = WhyNoRows("A", problem.Slot(0, problem.slots.a)); !why.empty()) return why;
  for (int slot : problem.slots.c) {
    if (std::string why = WhyNoRows("C", problem.Slot(0, slot)); !why.empty()) return why;
  }
  return {};
}

}  // namespace tandem::plan
