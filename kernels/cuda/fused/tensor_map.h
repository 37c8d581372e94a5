// File: tensor_map.h
//
// TMA's descriptions of matrices: `MatrixSlices` and the tensor map of one.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "tandem/dtype.h"
#include "tandem/status.h"

namespace tandem::cuda {

// The alignment of matrices' addresses and pitches.
inline constexpr int64_t kTmaBytes = 16;

// Slices of a matrix whose rows are contiguous: element (slice, row, column) lies at data + slice *
// slice_pitch + row * pitch + column, in elements. Addresses and pitches must be multiples of kTmaBytes.
struct MatrixSlices {
  const void* data = nullptr;
  int64_t pitch = 0;
  int64_t slices = 1;
  int64_t slice_pitch = 0;
  int64_t rows = 0;  // of a slice; 0: as many as whoever makes the map says
};

// A map of `slices` of rows × columns, in boxes of box_rows × box_bytes that are swizzled over their width
// (64 or 128 bytes). INVALID_ARGUMENT, with `what` in its text, when an address or a pitch is not aligned, or
// the driver refuses.
Status MakeTensorMap(const char* what, const MatrixSlices& matrix, DType type, int64_t columns, int64_t rows,
                     int box_rows, CUtensorMap* map, int box_bytes = 128);

}  // namespace tandem::cuda
