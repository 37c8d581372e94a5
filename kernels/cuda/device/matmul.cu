// The product for what cuBLASLt does not take: any strides, any types, the whole epilogue. fp32 on the CUDA
// cores; its place is small and odd shapes.
#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/cuda/device/elements.cuh"
#include "kernels/cuda/device/launch_status.h"
#include "tandem/op_request.h"

namespace tandem::cuda {

Status MatmulKernelsLoad();

namespace {

constexpr int kTile = 64;   // rows and columns of C a block
constexpr int kDepth = 16;  // of K at a time
constexpr int kSide = 16;   // 16 x 16 threads, 4 x 4 elements each
constexpr int kPerThread = kTile / kSide;

__device__ inline int64_t RowOffset(const MatmulLaunch& matmul, int64_t row, const Strides& strides) {
  int64_t offset = 0;
  for (int d = matmul.row_dims - 1; d >= 0; --d) {
    offset += row % matmul.row_extent[d] * strides.of[d];
    row /= matmul.row_extent[d];
  }
  return offset;
}

__device__ inline float Factor(const Factors& factors, int64_t index) {
  return LoadElement(factors.data, factors.type, index * factors.stride);
}

// kBlocks: every block of K is summed by itself and has its own factors.
template <bool kBlocks>
__global__ void __launch_bounds__(kSide* kSide) MatmulTiles(const __grid_constant__ MatmulLaunch matmul) {
  __shared__ float a_tile[kDepth][kTile + 1];
  __shared__ float b_tile[kDepth][kTile + 1];
  __shared__ int64_t a_rows[kTile];
  __shared__ int64_t scale_rows[kBlocks ? kTile : 1];
  int thread = static_cast<int>(threadIdx.y) * kSide + static_cast<int>(threadIdx.x);
  int64_t row0 = matmul.first_row + int64_t{blockIdx.y} * kTile;
  int64_t column0 = int64_t{blockIdx.x} * kTile;
  if (thread < kTile && row0 + thread < matmul.last_row) {
    a_rows[thread] = RowOffset(matmul, row0 + thread, matmul.a_row_stride);
    if (kBlocks) scale_rows[thread] = RowOffset(matmul, row0 + thread, matmul.blocks.a_row_stride);
  }
  __syncthreads();
  float sums[kPerThread][kPerThread] = {}, totals[kPerThread][kPerThread] = {};
  for (int64_t k0 = 0; k0 < matmul.k; k0 += kDepth) {
    for (int i = thread; i < kTile * kDepth; i += kSide * kSide) {
      int depth = i % kDepth, line = i / kDepth;
      bool in_k = k0 + depth < matmul.k;
      a_tile[depth][line] =
          in_k && row0 + line < matmul.last_row
              ? LoadElement(matmul.a, matmul.a_type, a_rows[line] + (k0 + depth) * matmul.a_column_stride)
              : 0.0f;
      b_tile[depth][line] =
          in_k && column0 + line < matmul.n
              ? LoadElement(matmul.b, matmul.b_type,
                            (k0 + depth) * matmul.b_row_stride + (column0 + line) * matmul.b_column_stride)
              : 0.0f;
    }
    __syncthreads();
#pragma unroll
    for (int depth = 0; depth < kDepth; ++depth) {
      float a[kPerThread], b[kPerThread];
#pragma unroll
      for (int i = 0; i < kPerThread; ++i) {
        a[i] = a_tile[depth][threadIdx.y + i * kSide];
        b[i] = b_tile[depth][threadIdx.x + i * kSide];
      }
#pragma unroll
      for (int i = 0; i < kPerThread; ++i) {
#pragma unroll
        for (int j = 0; j < kPerThread; ++j) sums[i][j] = fmaf(a[i], b[j], sums[i][j]);
      }
    }
    __syncthreads();
    if (!kBlocks || ((k0 + kDepth) % kScaleBlock != 0 && k0 + kDepth < matmul.k)) continue;
    const int64_t block = k0 / kScaleBlock;
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      const int line = static_cast<int>(threadIdx.y) + i * kSide;
      const bool inside = row0 + line < matmul.last_row;
      const float of_a =
          inside ? matmul.blocks.a[scale_rows[line] + block * matmul.blocks.a_block_stride] : 0.0f;
#pragma unroll
      for (int j = 0; j < kPerThread; ++j) {
        const int64_t column = column0 + threadIdx.x + j * kSide;
        const int64_t factor = (matmul.blocks.first_column + column) / matmul.blocks.columns;
        const float of_b =
            column < matmul.n
                ? matmul.blocks.b[block * matmul.blocks.b_block_stride + factor * matmul.blocks.b_stride]
                : 0.0f;
        totals[i][j] = fmaf(sums[i][j], of_a * of_b, totals[i][j]);
        sums[i][j] = 0.0f;
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    int64_t row = row0 + threadIdx.y + i * kSide;
    if (row >= matmul.last_row) continue;
    int64_t c_row = RowOffset(matmul, row, matmul.c_row_stride);
#pragma unroll
    for (int j = 0; j < kPerThread; ++j) {
      int64_t column = column0 + threadIdx.x + j * kSide;
      if (column >= matmul.n) continue;
      int64_t at = c_row + column * matmul.c_column_stride;
      float value = matmul.alpha * (kBlocks ? totals[i][j] : sums[i][j]);
      if (matmul.scale_a.data != nullptr) {
        value *= LoadElement(matmul.scale_a.data, matmul.scale_a.type,
                             row * matmul.scale_a.stride + RowOffset(matmul, row, matmul.scale_a_row_stride));
      }
      if (matmul.scale_b.data != nullptr) value *= Factor(matmul.scale_b, column);
      if (matmul.accumulate) value += LoadElement(matmul.c, matmul.c_type, at);
      if (matmul.bias.data != nullptr) value += Factor(matmul.bias, column);
      if (matmul.result_scale != nullptr) value *= *matmul.result_scale;
      StoreElement(matmul.c, matmul.c_type, at, value);
    }
  }
}

}  // namespace

Status LaunchMatmul(const MatmulLaunch& matmul, CUstream_st* stream) {
  int64_t rows = matmul.last_row - matmul.first_row;
  if (rows <= 0 || matmul.n == 0) return Status::Ok();
  // The grid's second dimension ends at 65535.
  constexpr int64_t kMaxRows = int64_t{65535} * kTile;
  MatmulLaunch part = matmul;
  for (; part.first_row < matmul.last_row; part.first_row = part.last_row) {
    part.last_row = std::min(matmul.last_row, part.first_row + kMaxRows);
    dim3 grid(static_cast<unsigned>((matmul.n + kTile - 1) / kTile),
              static_cast<unsigned>((part.last_row - part.first_row + kTile - 1) / kTile));
    if (matmul.blocks.a != nullptr) {
      MatmulTiles<true><<<grid, dim3(kSide, kSide), 0, stream>>>(part);
    } else {
      MatmulTiles<false><<<grid, dim3(kSide, kSide), 0, stream>>>(part);
    }
    TANDEM_RETURN_IF_ERROR(LaunchStatus("MatmulTiles"));
  }
  return Status::Ok();
}

Status MatmulKernelsLoad() {
  TANDEM_RETURN_IF_ERROR(LoadKernel("MatmulTiles", reinterpret_cast<const void*>(&MatmulTiles<false>)));
  return LoadKernel("MatmulTiles by blocks", reinterpret_cast<const void*>(&MatmulTiles<true>));
}

}  // namespace tandem::cuda
