// Copies a launch's tables to device memory, out of the parameters of a kernel: in the stream's order, from no memory of the host's
// that would have to stay.
#include <cuda_runtime.h>

#include "kernels/cuda/native/fused_matmul.h"

namespace tandem::cuda {
namespace {

__global__ void KeepTables(const __grid_constant__ FusedTables from, FusedTables* to) {
  static_assert(sizeof(FusedTables) % sizeof(uint4) == 0 && alignof(FusedTables) >= alignof(uint4));
  const auto* source = reinterpret_cast<const uint4*>(&from);
  auto* target = reinterpret_cast<uint4*>(to);
  for (size_t i = threadIdx.x; i < sizeof(FusedTables) / sizeof(uint4); i += blockDim.x) target[i] = source[i];
  // For the fences of those who read it as tensor maps (ptx::AcquireMap).
  asm volatile("fence.proxy.tensormap::generic.release.gpu;" ::: "memory");
}

}  // namespace

const void* KeepTablesKernel() { return reinterpret_cast<const void*>(&KeepTables); }

}  // namespace tandem::cuda
