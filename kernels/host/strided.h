// File: strided.h
//
// Walking several strided views of equal extents in step: dimensions that are contiguous in all of them are
// merged, and the rest is visited row by row.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "kernels/backend.h"
#include "tandem/status.h"

namespace tandem::host {

// Dimensions that remain after merging; more are refused.
inline constexpr int kMaxBoxDims = 8;
// Views walked together: eight sources, a destination, a bias, and some room.
inline constexpr int kMaxBoxViews = 20;

// A box of elements seen through `views` sets of strides. After construction at least one dimension,
// outermost first; a box without elements has `count` 0.
struct StridedBox {
  int dims = 0;
  int views = 0;
  int64_t count = 0;  // elements in all
  std::array<int64_t, kMaxBoxDims> extent{};
  std::array<std::array<int64_t, kMaxBoxDims>, kMaxBoxViews> stride{};  // by view, in elements

  int64_t inner_extent() const { return extent[dims - 1]; }
  int64_t inner_stride(int view) const { return stride[view][dims - 1]; }
};

// INVALID_ARGUMENT unless extent and stride have equal lengths, extents are not negative, and the dtype is
// known; and, where there are elements, the address is set.
Status CheckView(const DeviceView& view, const char* name);

// Builds the box of `views`, whose extents must be equal. Dimensions of extent 1 vanish, and neighbours merge
// where all views allow it. INVALID_ARGUMENT on different extents, UNIMPLEMENTED on too many dimensions or
// views.
Result<StridedBox> MakeStridedBox(std::span<const DeviceView* const> views);

// Calls `row(offsets)` for each innermost row; offsets[v] is the row's first element in view v, in elements.
template <typename Row>
void ForEachRow(const StridedBox& box, Row&& row) {
  if (box.count == 0) return;
  std::array<int64_t, kMaxBoxDims> index{};
  std::array<int64_t, kMaxBoxViews> offsets{};
  while (true) {
    row(offsets);
    int d = box.dims - 2;
    for (; d >= 0; --d) {
      for (int v = 0; v < box.views; ++v) offsets[v] += box.stride[v][d];
      if (++index[d] < box.extent[d]) break;
      for (int v = 0; v < box.views; ++v) offsets[v] -= box.stride[v][d] * box.extent[d];
      index[d] = 0;
    }
    if (d < 0) return;
  }
}

}  // namespace tandem::host
