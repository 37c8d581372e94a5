// The order of an fp8 product's scales by blocks of K.
#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/cuda/device/elements.cuh"
#include "kernels/cuda/device/launch_status.h"

namespace tandem::cuda {

Status ScaleKernelsLoad();

namespace {

constexpr int kThreads = 256;

struct Arrangement {
  ArrangeScales of[kMaxArranged];
};

// A thread a factor, neighbours at neighbouring outputs; row y of the grid has the y-th tensor.
__global__ void __launch_bounds__(kThreads) ArrangeFactors(const __grid_constant__ Arrangement arrangement) {
  const ArrangeScales& scales = arrangement.of[blockIdx.y];
  const int64_t count = scales.lines * scales.padded;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * kThreads) {
    const bool by_line = scales.line_pitch == 1;
    const int64_t line = by_line ? i % scales.lines : i / scales.padded;
    const int64_t block = by_line ? i / scales.lines : i % scales.padded;
    float factor = 0.0f;
    if (block < scales.blocks) {
      int64_t index = (scales.first + line) / scales.shared, offset = block * scales.in_block_stride;
      for (int d = scales.dims - 1; d >= 0; --d) {
        offset += index % scales.extent[d] * scales.stride.of[d];
        index /= scales.extent[d];
      }
      factor = scales.in[offset];
    }
    scales.out[line * scales.line_pitch + block * scales.block_pitch] = factor;
  }
}

}  // namespace

Status LaunchArrangeScales(const ArrangeScales* scales, int count, CUstream_st* stream) {
  constexpr int64_t kMaxBlocks = 1024;  // a loop does the rest
  if (count <= 0) return Status::Ok();
  if (count > kMaxArranged) return InvalidArgument("too many tensors of factors");
  Arrangement arrangement = {};
  int64_t most = 0;
  for (int i = 0; i < count; ++i) {
    arrangement.of[i] = scales[i];
    most = std::max(most, scales[i].lines * scales[i].padded);
  }
  if (most == 0) return Status::Ok();
  const int64_t blocks = std::min(kMaxBlocks, (most + kThreads - 1) / kThreads);
  ArrangeFactors<<<dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(count)), kThreads, 0, stream>>>(
      arrangement);
  return LaunchStatus("ArrangeFactors");
}

Status ScaleKernelsLoad() {
  return LoadKernel("ArrangeFactors", reinterpret_cast<const void*>(&ArrangeFactors));
}

}  // namespace tandem::cuda
