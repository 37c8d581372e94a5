// Transposed copies of matrices of bytes, for fp8 operands that do not lie dense along K.
#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/cuda/device/elements.cuh"
#include "kernels/cuda/device/launch_status.h"

namespace tandem::cuda {

Status TransposeKernelsLoad();

namespace {

constexpr int kTile = 64;
constexpr int kThreads = 256;

// A tile through shared memory, four bytes a thread on both sides. A row of the tile is padded by four bytes,
// so that the column reads of a warp meet in few banks.
__global__ void __launch_bounds__(kThreads)
    TransposeBytes(const uint8_t* __restrict__ in, uint8_t* __restrict__ out, int64_t rows, int64_t columns,
                   int64_t in_pitch, int64_t out_pitch, bool words) {
  __shared__ uint8_t tile[kTile][kTile + 4];
  const int64_t row0 = int64_t{blockIdx.y} * kTile, column0 = int64_t{blockIdx.x} * kTile;
  const bool whole = words && row0 + kTile <= rows && column0 + kTile <= columns;
  if (whole) {
    for (int i = static_cast<int>(threadIdx.x); i < kTile * kTile / 4; i += kThreads) {
      const int r = i / (kTile / 4), c = i % (kTile / 4) * 4;
      *reinterpret_cast<uint32_t*>(&tile[r][c]) =
          *reinterpret_cast<const uint32_t*>(in + (row0 + r) * in_pitch + column0 + c);
    }
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < kTile * kTile / 4; i += kThreads) {
      const int c = i / (kTile / 4), r = i % (kTile / 4) * 4;
      const uint32_t word = tile[r][c] | uint32_t{tile[r + 1][c]} << 8 | uint32_t{tile[r + 2][c]} << 16 |
                            uint32_t{tile[r + 3][c]} << 24;
      *reinterpret_cast<uint32_t*>(out + (column0 + c) * out_pitch + row0 + r) = word;
    }
    return;
  }
  for (int i = static_cast<int>(threadIdx.x); i < kTile * kTile; i += kThreads) {
    const int r = i / kTile, c = i % kTile;
    if (row0 + r < rows && column0 + c < columns) tile[r][c] = in[(row0 + r) * in_pitch + column0 + c];
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < kTile * kTile; i += kThreads) {
    const int c = i / kTile, r = i % kTile;
    if (row0 + r < rows && column0 + c < columns) out[(column0 + c) * out_pitch + row0 + r] = tile[r][c];
  }
}

}  // namespace

Status LaunchTransposeBytes(const void* in, void* out, int64_t rows, int64_t columns, int64_t in_pitch,
                            int64_t out_pitch, CUstream_st* stream) {
  const bool words = (reinterpret_cast<uintptr_t>(in) | reinterpret_cast<uintptr_t>(out) |
                      static_cast<uintptr_t>(in_pitch) | static_cast<uintptr_t>(out_pitch)) %
                         4 ==
                     0;
  // The grid's second dimension ends at 65535.
  constexpr int64_t kMaxRows = int64_t{65535} * kTile;
  for (int64_t first = 0; first < rows; first += kMaxRows) {
    const int64_t count = std::min(kMaxRows, rows - first);
    const dim3 grid(static_cast<unsigned>((columns + kTile - 1) / kTile),
                    static_cast<unsigned>((count + kTile - 1) / kTile));
    TransposeBytes<<<grid, kThreads, 0, stream>>>(static_cast<const uint8_t*>(in) + first * in_pitch,
                                                  static_cast<uint8_t*>(out) + first, count, columns,
                                                  in_pitch, out_pitch, words);
    TANDEM_RETURN_IF_ERROR(LaunchStatus("TransposeBytes"));
  }
  return Status::Ok();
}

Status TransposeKernelsLoad() {
  return LoadKernel("TransposeBytes", reinterpret_cast<const void*>(&TransposeBytes));
}

}  // namespace tandem::cuda
