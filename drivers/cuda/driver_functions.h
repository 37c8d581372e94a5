// File: driver_functions.h
//
// `DriverFunctions`: the entry points of libcuda, as its loader finds them. For the wrapper alone.
#pragma once

#include <cuda.h>

#include "drivers/dynamic_library.h"
#include "tandem/status.h"

namespace tandem::cuda {

// The driver's entry points. cuda.h maps some names to versioned ones ("cuMemcpyAsync",
// "cuStreamWriteValue64_v2"); both the type and the symbol looked up follow it.
// clang-format off
#define TANDEM_CUDA_FUNCTIONS(X) \
  X(cuInit) \
  X(cuGetErrorName) \
  X(cuGetErrorString) \
  X(cuDeviceGetCount) \
  X(cuDeviceGet) \
  X(cuDeviceGetName) \
  X(cuDeviceGetUuid) \
  X(cuLaunchHostFunc) \
  X(cuStreamBeginCapture) \
  X(cuStreamEndCapture) \
  X(cuGraphInstantiate) \
  X(cuGraphLaunch) \
  X(cuGraphExecDestroy) \
  X(cuGraphDestroy) \
  X(cuDeviceGetAttribute) \
  X( cuDevicePrimaryCtxRetain) \
  X(cuCtxGetCurrent) \
  X(cuCtxSetCurrent) \
  X(cuCtxGetStreamPriorityRange) \
  X(cuMemGetAllocationGranularity) \
  X(cuMemCreate) \
  X(cuMemRelease) \
  X(cuMemExportToShareableHandle) \
  X( cuMemImportFromShareableHandle) \
  X(cuMemAddressReserve) \
  X(cuMemAddressFree) \
  X(cuMemMap) \
  X(cuMemUnmap) \
  X(cuMemSetAccess) \
  X(cuMemHostRegister) \
  X(cuMemHostUnregister) \
  X(cuMemGetInfo) \
  X( cuStreamCreateWithPriority) \
  X(cuStreamDestroy) \
  X(cuStreamQuery) \
  X(cuStreamSynchronize) \
  X(cuStreamWaitEvent) \
  X(cuStreamWriteValue64) \
  X(cuStreamWaitValue64) \
  X(cuStreamWaitValue32) \
  X(cuEventCreate) \
  X(cuEventDestroy) \
  X(cuEventRecord) \
  X(cuEventQuery) \
  X(cuEventElapsedTime) \
  X(cuMemcpyAsync) \
  X(cuMemcpy3DAsync) \
  X(cuMemsetD8Async) \
  X(cuIpcOpenMemHandle) \
  X(cuIpcCloseMemHandle) \
  X(cuMemGetAddressRange) \
  X(cuMemGetAllocationPropertiesFromHandle) \
  X(cuCtxGetDevice) \
  X(cuIpcGetMemHandle) \
  X(cuMemRetainAllocationHandle) \
  X(cuPointerGetAttribute) \
  X(cuStreamWriteValue32) \
  X(cuStreamBatchMemOp) \
  X(cuStreamGetCtx) \
  X(cuStreamGetId) \
  X(cuStreamIsCapturing) \
  X(cuStreamGetCaptureInfo) \
  X(cuThreadExchangeStreamCaptureMode) \
  X(cuUserObjectCreate) \
  X(cuUserObjectRelease) \
  X(cuGraphRetainUserObject) \
  X(cuGraphAddEventRecordNode) \
  X(cuGraphAddDependencies) \
  X(cuGraphRemoveDependencies) \
  X(cuStreamUpdateCaptureDependencies) \
  X(cuMemsetD32Async) \
  X(cuMemAlloc) \
  X(cuMemFree)
// clang-format on

// Functions that older drivers lack; nullptr then.
#define TANDEM_NEWER_CUDA_FUNCTIONS(X) X(cuMemcpyBatchAsync) X(cuMemcpy3DBatchAsync)

#define TANDEM_SYMBOL_TEXT(symbol) #symbol

struct DriverFunctions {
#define TANDEM_MEMBER(name) decltype(&::name) name##_ = nullptr;
  TANDEM_CUDA_FUNCTIONS(TANDEM_MEMBER)
  TANDEM_NEWER_CUDA_FUNCTIONS(TANDEM_MEMBER)
#undef TANDEM_MEMBER

  Status Load(const DynamicLibrary& library) {
#define TANDEM_FIND(name) TANDEM_RETURN_IF_ERROR(library.Find(TANDEM_SYMBOL_TEXT(name), &name##_));
    TANDEM_CUDA_FUNCTIONS(TANDEM_FIND)
#undef TANDEM_FIND
#define TANDEM_FIND(name) (void)library.Find(TANDEM_SYMBOL_TEXT(name), &name##_);
    TANDEM_NEWER_CUDA_FUNCTIONS(TANDEM_FIND)
#undef TANDEM_FIND
    return Status::Ok();
  }
};

}  // namespace tandem::cuda
