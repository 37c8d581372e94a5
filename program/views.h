// File: views.h
//
// Making and cutting `View`s: the slices, splits and flattenings of operands that programs are written with.
// All functions are pure; none checks bounds against a buffer (the request's validation and the verifier do).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "program/program.h"

namespace tandem::plan {

// A packed view of `shape` at `ref`, last dimension fastest.
View Packed(const Ref& ref, DType dtype, std::vector<int64_t> shape);

// The packed view with `view`'s shape and dtype at `ref`.
View PackedLike(const View& view, const Ref& ref);

// The same with its dimensions in the order in which they lie in `view`: a column-major matrix stays one.
View PackedInOrder(const View& view, const Ref& ref);

// Elements [start, start + length) along dimension `dim`.
View Slice(const View& view, int dim, int64_t start, int64_t length);

// Dimension `dim` of extent outer * inner as two dimensions (outer, inner); dim becomes outer, dim + 1 inner.
View SplitDim(const View& view, int dim, int64_t outer);

// Dimension `from` moved to position `to`, the others in their order.
View MoveDim(const View& view, int from, int to);

// Without dimension `dim`, whose extent is one.
View DropDim(const View& view, int dim);

// One dimension of all elements; the view must be contiguous.
View Flatten(const View& view);

// A view of one element at the view's first element.
View FirstElement(const View& view);

// True when all dimensions but the last lie as rows at one pitch, so that they are one (extents of one are
// ignored).
bool HasOnePitch(const View& view);

// True when elements of two views of one shape lie alike: the same strides wherever there are several.
bool LieAlike(const View& a, const View& b);

// How many dimensions remain of views of one shape, walked together: those of one element vanish, neighbours
// merge where all views allow it.
int JoinedDims(std::span<const View* const> views);

// The same place in another rank's memory.
View OnRank(View view, int rank);

// Part `index` of [0, total) cut into `parts` balanced parts: sizes differ by at most one, larger ones first.
struct Range {
  int64_t begin = 0;
  int64_t length = 0;
};
Range BalancedPart(int64_t total, int parts, int index);

// Part `index` with every begin a multiple of `granule`: for kernels that work in 16 B. The last parts may be
// empty.
Range AlignedPart(int64_t total, int parts, int index, int64_t granule);

}  // namespace tandem::plan
