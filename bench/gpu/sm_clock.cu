#include <cuda_runtime_api.h>

#include <string>

#include "bench/gpu/sm_clock.h"

namespace tandem::bench {
namespace {

__global__ void Stamp(ClockStamp* stamp) {
  uint32_t sm;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
  uint64_t ns;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
  *stamp = {static_cast<uint64_t>(clock64()), ns, sm};
}

}  // namespace

Status StampClock(ClockStamp* stamp, CUstream_st* stream) {
  Stamp<<<1, 1, 0, stream>>>(stamp);
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? Status::Ok()
                              : Internal(std::string("a clock's stamp: ") + cudaGetErrorString(error));
}

}  // namespace tandem::bench
