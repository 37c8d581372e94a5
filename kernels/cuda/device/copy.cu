// Copies by SMs: dense ones in 16-byte words, strided ones element by element.
#include <cuda_runtime.h>

#include <algorithm>
#include <string>

#include "kernels/cuda/device/elements.cuh"
#include "kernels/cuda/device/launch_status.h"
#include "kernels/cuda/device/sync.cuh"

namespace tandem::cuda {

Status CopyKernelsLoad();
Status NormKernelsLoad();
Status ReduceKernelsLoad();
Status MatmulKernelsLoad();
Status TransposeKernelsLoad();
Status ScaleKernelsLoad();
Status AwaitKernelLoad();

namespace {

constexpr int kThreads = 512;

// Four independent 16-byte loads in flight a thread; a grid of a few blocks an SM leaves room for others.
__global__ void __launch_bounds__(kThreads)
    CopyWords(const uint4* __restrict__ source, uint4* __restrict__ destination, int64_t words,
              DeviceGuard guard) {
  if (IsCancelled(guard)) return;
  int64_t step = int64_t{gridDim.x} * kThreads;
  int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  for (; i + 3 * step < words; i += 4 * step) {
    uint4 a = source[i], b = source[i + step], c = source[i + 2 * step], d = source[i + 3 * step];
    destination[i] = a;
    destination[i + step] = b;
    destination[i + 2 * step] = c;
    destination[i + 3 * step] = d;
  }
  for (; i < words; i += step) destination[i] = source[i];
}

template <typename Element>
__global__ void __launch_bounds__(kThreads) CopyStrided(CopyLaunch copy) {
  if (IsCancelled(copy.guard)) return;
  int64_t step = int64_t{gridDim.x} * kThreads;
  const Strides* const strides[2] = {&copy.source_stride, &copy.destination_stride};
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < copy.count; i += step) {
    int64_t offsets[2];
    Offsets<2>(i, copy.dims, copy.extent, strides, offsets);
    static_cast<Element*>(copy.destination)[offsets[1]] =
        static_cast<const Element*>(copy.source)[offsets[0]];
  }
}

__global__ void FillRandom(void* data, uint8_t type, int64_t count, uint32_t seed) {
  int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    // A 64-bit finaliser (SplitMix64) of index and seed.
    uint64_t x = static_cast<uint64_t>(i) * 0x9E3779B97F4A7C15ull + seed;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
    x ^= x >> 31;
    StoreElement(data, type, i, static_cast<float>(x >> 40) * (2.0f / 16777216.0f) - 1.0f);
  }
}

unsigned Blocks(int64_t items) {
  int64_t blocks = (items + kThreads - 1) / kThreads;
  return static_cast<unsigned>(std::clamp<int64_t>(blocks, 1, 132 * 4));
}

bool IsDense(const CopyLaunch& copy) {
  return copy.dims == 1 && copy.source_stride.of[0] == 1 && copy.destination_stride.of[0] == 1;
}

}  // namespace

Status LaunchCopy(const CopyLaunch& copy, CUstream_st* stream) {
  auto address = reinterpret_cast<uintptr_t>(copy.source) | reinterpret_cast<uintptr_t>(copy.destination);
  int64_t bytes = copy.count * copy.element_bytes;
  if (IsDense(copy) && address % 16 == 0) {
    int64_t words = bytes / 16;
    if (words > 0) {
      CopyWords<<<Blocks(words / 2), kThreads, 0, stream>>>(
          static_cast<const uint4*>(copy.source), static_cast<uint4*>(copy.destination), words, copy.guard);
    }
    if (bytes % 16 == 0) return LaunchStatus("CopyWords");
    CopyLaunch tail = copy;
    tail.source = static_cast<const char*>(copy.source) + words * 16;
    tail.destination = static_cast<char*>(copy.destination) + words * 16;
    tail.element_bytes = 1;
    tail.count = tail.extent[0] = bytes % 16;
    CopyStrided<uint8_t><<<1, kThreads, 0, stream>>>(tail);
    return LaunchStatus("CopyWords");
  }
  switch (copy.element_bytes) {
    case 1: CopyStrided<uint8_t><<<Blocks(copy.count), kThreads, 0, stream>>>(copy); break;
    case 2: CopyStrided<uint16_t><<<Blocks(copy.count), kThreads, 0, stream>>>(copy); break;
    case 4: CopyStrided<uint32_t><<<Blocks(copy.count), kThreads, 0, stream>>>(copy); break;
    default: CopyStrided<uint64_t><<<Blocks(copy.count), kThreads, 0, stream>>>(copy); break;
  }
  return LaunchStatus("CopyStrided");
}

Status LaunchRandom(void* data, DType type, int64_t count, uint32_t seed, CUstream_st* stream) {
  if (count == 0) return Status::Ok();
  FillRandom<<<Blocks(count), kThreads, 0, stream>>>(data, static_cast<uint8_t>(type), count, seed);
  return LaunchStatus("FillRandom");
}

Status CopyKernelsLoad() {
  TANDEM_RETURN_IF_ERROR(LoadKernel("CopyWords", reinterpret_cast<const void*>(&CopyWords)));
  TANDEM_RETURN_IF_ERROR(LoadKernel("CopyStrided", reinterpret_cast<const void*>(&CopyStrided<uint8_t>)));
  TANDEM_RETURN_IF_ERROR(LoadKernel("CopyStrided", reinterpret_cast<const void*>(&CopyStrided<uint16_t>)));
  TANDEM_RETURN_IF_ERROR(LoadKernel("CopyStrided", reinterpret_cast<const void*>(&CopyStrided<uint32_t>)));
  TANDEM_RETURN_IF_ERROR(LoadKernel("CopyStrided", reinterpret_cast<const void*>(&CopyStrided<uint64_t>)));
  return LoadKernel("FillRandom", reinterpret_cast<const void*>(&FillRandom));
}

Status LoadLocalKernels() {
  TANDEM_RETURN_IF_ERROR(CopyKernelsLoad());
  TANDEM_RETURN_IF_ERROR(NormKernelsLoad());
  TANDEM_RETURN_IF_ERROR(ReduceKernelsLoad());
  TANDEM_RETURN_IF_ERROR(MatmulKernelsLoad());
  TANDEM_RETURN_IF_ERROR(TransposeKernelsLoad());
  TANDEM_RETURN_IF_ERROR(ScaleKernelsLoad());
  return AwaitKernelLoad();
}

}  // namespace tandem::cuda
