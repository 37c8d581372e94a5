#include <cuda.h>
#include <cuda_runtime.h>

#include "tests/gpu/fault_kernels.h"

namespace tandem::faults {
namespace {

__global__ void StoreNowhere(int* anywhere) { *(anywhere + (1ull << 40)) = 1; }

__global__ void SpinFor(int64_t nanoseconds, volatile int* running) {
  uint64_t start, now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    *running = 1;
    __threadfence_system();
  }
  do {
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  } while (static_cast<int64_t>(now - start) < nanoseconds);
}

__global__ void CountUp(int* counter) { ++*counter; }

// Memory of the device, and memory of the host that it can reach; made once by UseDevice.
int device = 0;
int* device_memory = nullptr;
volatile int* host_memory = nullptr;
cudaStream_t probe_stream = nullptr;

// The driver's stream operations, looked up at run time: nothing links libcuda.
template <typename Function>
Function Driver(const char* name) {
  void* entry = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  if (cudaGetDriverEntryPointByVersion(name, &entry, 12000, cudaEnableDefault, &found) != cudaSuccess)
    return nullptr;
  return reinterpret_cast<Function>(entry);
}

}  // namespace

int UseDevice(int ordinal) {
  cudaError_t error = ordinal == kCurrentDevice ? cudaSuccess : cudaSetDevice(ordinal);
  if (error == cudaSuccess) error = cudaGetDevice(&device);
  if (error == cudaSuccess) error = cudaMalloc(&device_memory, 1 << 20);
  if (error == cudaSuccess) error = cudaMemset(device_memory, 0, 1 << 20);
  if (error == cudaSuccess) {
    error = cudaHostAlloc(const_cast<int**>(&host_memory), 4096, cudaHostAllocMapped | cudaHostAllocPortable);
  }
  if (error == cudaSuccess) error = cudaStreamCreateWithFlags(&probe_stream, cudaStreamNonBlocking);
  // Kernels are loaded before anything waits or spins.
  if (error == cudaSuccess) error = static_cast<cudaError_t>(ProbeByKernel());
  cudaFuncAttributes attributes;
  if (error == cudaSuccess) error = cudaFuncGetAttributes(&attributes, SpinFor);
  if (error == cudaSuccess) error = cudaFuncGetAttributes(&attributes, StoreNowhere);
  return error;
}

int EnterDevice() { return cudaSetDevice(device); }

const char* ErrorName(int error) { return cudaGetErrorName(static_cast<cudaError_t>(error)); }

int IllegalAccess() {
  StoreNowhere<<<1, 1>>>(device_memory);
  return cudaDeviceSynchronize();
}

int Spin(int64_t milliseconds) {
  cudaStream_t stream;
  if (cudaError_t error = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking); error != cudaSuccess)
    return error;
  *host_memory = 0;
  SpinFor<<<264, 256, 0, stream>>>(milliseconds * 1000000, host_memory);
  if (cudaError_t error = cudaGetLastError(); error != cudaSuccess) return error;
  while (*host_memory == 0) {
    if (cudaError_t error = cudaStreamQuery(stream); error != cudaErrorNotReady) return error;
  }
  return cudaSuccess;
}

int WaitForEver() {
  cudaStream_t stream;
  if (cudaError_t error = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking); error != cudaSuccess)
    return error;
  auto wait = Driver<decltype(&cuStreamWaitValue32)>("cuStreamWaitValue32");
  if (wait == nullptr) return cudaErrorSymbolNotFound;
  return wait(stream, reinterpret_cast<CUdeviceptr>(device_memory) + 4096, 1, CU_STREAM_WAIT_VALUE_EQ);
}

int ProbeByKernel() {
  CountUp<<<1, 1, 0, probe_stream>>>(device_memory);
  if (cudaError_t error = cudaGetLastError(); error != cudaSuccess) return error;
  return cudaStreamSynchronize(probe_stream);
}

int ProbeByWrite() {
  static const auto write = Driver<decltype(&cuStreamWriteValue32)>("cuStreamWriteValue32");
  if (write == nullptr) return cudaErrorSymbolNotFound;
  int error = write(probe_stream, reinterpret_cast<CUdeviceptr>(device_memory) + 8192, 1, 0);
  return error != 0 ? error : static_cast<int>(cudaStreamSynchronize(probe_stream));
}

int ProbeByQuery() { return cudaStreamQuery(probe_stream); }

}  // namespace tandem::faults
