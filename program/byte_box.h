// File: byte_box.h
//
// `ByteBox`: the bytes that a strided view touches, as nested runs, and the exact test whether two such sets
// meet. Column splits of one matrix interleave without meeting, so comparing first and last bytes is not
// enough.
#pragma once

#include <array>
#include <cstdint>

#include "program/program.h"
#include "tandem/status.h"

namespace tandem::plan {

inline constexpr int kMaxBoxDims = 12;

// The bytes begin + sum(i_d * dims[d].stride) + [0, run) for all 0 <= i_d < dims[d].count; offsets within one
// buffer.
struct ByteBox {
  struct Dim {
    uint64_t count = 1;
    uint64_t stride = 0;  // bytes
  };
  uint64_t begin = 0;
  uint64_t end = 0;                     // one past the last byte; equal to begin when the box is empty
  uint64_t run = 0;                     // contiguous bytes of the innermost piece
  int rank = 0;                         // dimensions used
  std::array<Dim, kMaxBoxDims> dims{};  // largest stride first; contiguous neighbours are merged
  bool repeats = false;  // some byte is reached by two elements (a broadcast, or strides that overlap)

  bool empty() const { return begin == end; }
};

// The box of `view`. INVALID_ARGUMENT: extents and strides differ in length, a negative one, an offset that
// is not a multiple of the element's size, more than kMaxBoxDims dimensions that do not merge. OUT_OF_RANGE:
// an overflow.
Result<ByteBox> BoxOf(const View& view);

// True if and only if the boxes, in the same buffer, have a byte in common. (Gives up after some millions of
// steps on adversarial strides and then says true.)
bool Intersect(const ByteBox& a, const ByteBox& b);

}  // namespace tandem::plan
