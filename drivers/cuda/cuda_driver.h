// File: cuda_driver.h
//
// `CudaDriver`: the one wrapper of the CUDA driver API. Thin: one virtual function a call, named as the
// driver names it, each returning a Status that carries the call, the code's name and number, and its text.
// Virtual, so that error paths are tested without a GPU (tests/mock_cuda_driver.h).
//
// Thread rule: as the driver's: everything may be called from any thread; most calls act on the thread's
// current context.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "tandem/status.h"

namespace tandem::cuda {

// The status of a failed call: "cuMemCreate: CUDA_ERROR_OUT_OF_MEMORY (2): out of memory", with the code's
// name as its detail's reason. OK for CUDA_SUCCESS. RESOURCE_EXHAUSTED when memory is short, INVALID_ARGUMENT
// for bad values and handles, UNAVAILABLE when the device or an MPS server is gone or not ready, ABORTED when
// the context has been lost to a fault, else INTERNAL.
Status CudaStatus(const char* call, CUresult result, const char* name, const char* text);

// A stream's part of a capture.
struct CaptureInfo {
  uint64_t id = 0;  // of the capture, among all of the process
  CUgraph graph = nullptr;
  std::span<const CUgraphNode> dependencies;
};

class CudaDriver {
 public:
  virtual ~CudaDriver() = default;

  // --- start, devices, contexts ---
  virtual Status Init() = 0;
  virtual Result<int> DeviceGetCount() = 0;
  virtual Result<CUdevice> DeviceGet(int ordinal) = 0;
  virtual Result<std::string> DeviceGetName(CUdevice device) = 0;
  // As NVML writes it: "GPU-" and 32 hexadecimal digits in five groups.
  virtual Result<std::string> DeviceGetUuid(CUdevice device) = 0;
  virtual Result<int> DeviceGetAttribute(CUdevice_attribute attribute, CUdevice device) = 0;
  virtual Result<CUcontext> DevicePrimaryCtxRetain(CUdevice device) = 0;
  virtual Result<CUcontext> CtxGetCurrent() = 0;
  virtual Status CtxSetCurrent(CUcontext context) = 0;
  // The device of the current context.
  virtual Result<CUdevice> CtxGetDevice() = 0;
  // {greatest, least}: the greatest priority is the lowest number.
  virtual Status CtxGetStreamPriorityRange(int* least, int* greatest) = 0;

  // --- memory: VMM, registration, information ---
  virtual Result<size_t> MemGetAllocationGranularity(const CUmemAllocationProp& properties) = 0;
  virtual Result<CUmemGenericAllocationHandle> MemCreate(size_t bytes,
                                                         const CUmemAllocationProp& properties) = 0;
  virtual Status MemRelease(CUmemGenericAllocationHandle handle) = 0;
  virtual Result<int> MemExportToFd(CUmemGenericAllocationHandle handle) = 0;
  virtual Result<CUmemGenericAllocationHandle> MemImportFromFd(int fd) = 0;
  virtual Result<CUdeviceptr> MemAddressReserve(size_t bytes, size_t alignment) = 0;
  virtual Status MemAddressFree(CUdeviceptr address, size_t bytes) = 0;
  virtual Status MemMap(CUdeviceptr address, size_t bytes, CUmemGenericAllocationHandle handle) = 0;
  virtual Status MemUnmap(CUdeviceptr address, size_t bytes) = 0;
  virtual Status MemSetAccess(CUdeviceptr address, size_t bytes, const CUmemAccessDesc& access) = 0;
  virtual Status MemHostRegister(void* address, size_t bytes, unsigned flags) = 0;
  virtual Status MemHostUnregister(void* address) = 0;
  virtual Result<CUmemAllocationProp> MemGetAllocationProperties(CUmemGenericAllocationHandle handle) = 0;
  virtual Result<CUdeviceptr> IpcOpenMemHandle(const CUipcMemHandle& handle) = 0;
  virtual Status IpcCloseMemHandle(CUdeviceptr address) = 0;
  // The allocation that `address` lies in.
  virtual Status MemGetAddressRange(CUdeviceptr address, CUdeviceptr* base, size_t* bytes) = 0;
  // cudaMalloc's memory; MemFree waits for all work of the device.
  virtual Result<CUdeviceptr> MemAlloc(size_t bytes) = 0;
  virtual Status MemFree(CUdeviceptr address) = 0;
  virtual Status MemGetInfo(size_t* free, size_t* total) = 0;
  virtual Result<CUipcMemHandle> IpcGetMemHandle(CUdeviceptr address) = 0;
  // The allocation that is mapped at `address`; release it. INVALID_ARGUMENT for memory that is none of
  // MemCreate's.
  virtual Result<CUmemGenericAllocationHandle> MemRetainAllocationHandle(CUdeviceptr address) = 0;
  // `value` has the attribute's type.
  virtual Status PointerGetAttribute(void* value, CUpointer_attribute attribute, CUdeviceptr address) = 0;

  // --- streams and events ---
  virtual Result<CUstream> StreamCreateWithPriority(unsigned flags, int priority) = 0;
  virtual Status StreamDestroy(CUstream stream) = 0;
  // True when all work is done.
  virtual Result<bool> StreamQuery(CUstream stream) = 0;
  virtual Status StreamSynchronize(CUstream stream) = 0;
  virtual Status StreamWaitEvent(CUstream stream, CUevent event) = 0;
  // In a capture: each launch of the graph waits for the event's latest record, as a call made then would.
  virtual Status StreamWaitExternalEvent(CUstream stream, CUevent event) = 0;
  virtual Status StreamWriteValue64(CUstream stream, CUdeviceptr address, uint64_t value) = 0;
  virtual Status StreamWaitValue64(CUstream stream, CUdeviceptr address, uint64_t value, unsigned flags) = 0;
  virtual Status StreamWaitValue32(CUstream stream, CUdeviceptr address, uint32_t value, unsigned flags) = 0;
  virtual Status StreamWriteValue32(CUstream stream, CUdeviceptr address, uint32_t value) = 0;
  virtual Status StreamBatchMemOp(CUstream stream, CUstreamBatchMemOpParams* operations, unsigned count) = 0;
  virtual Result<CUcontext> StreamGetCtx(CUstream stream) = 0;
  // Unlike the handle, never given to another stream of the process.
  virtual Result<uint64_t> StreamGetId(CUstream stream) = 0;
  virtual Result<CUevent> EventCreate(unsigned flags) = 0;
  virtual Status EventDestroy(CUevent event) = 0;
  virtual Status EventRecord(CUevent event, CUstream stream) = 0;
  // True when the latest record has been reached, or none was made.
  virtual Result<bool> EventQuery(CUevent event) = 0;
  // Milliseconds from `start` to `end`; negative when `end` came first.
  virtual Result<float> EventElapsedTime(CUevent start, CUevent end) = 0;

  // --- host functions, capture and graphs ---
  virtual Status LaunchHostFunc(CUstream stream, CUhostFn function, void* argument) = 0;
  virtual Status StreamBeginCapture(CUstream stream, CUstreamCaptureMode mode) = 0;
  virtual Result<CUgraph> StreamEndCapture(CUstream stream) = 0;
  virtual Result<CUstreamCaptureStatus> StreamIsCapturing(CUstream stream) = 0;
  // The graph under capture; null if the stream does not capture.
  virtual Result<CUgraph> StreamGetCaptureGraph(CUstream stream) = 0;
  // The capture's number, its graph, and the nodes that the stream's next work will follow; the nodes are
  // good until the stream's next call. FAILED_PRECONDITION if the stream does not capture.
  virtual Result<CaptureInfo> StreamGetCaptureInfo(CUstream stream) = 0;
  // The stream's next work in the capture follows `node` too.
  virtual Status StreamAddCaptureDependency(CUstream stream, CUgraphNode node) = 0;
  // A node behind `after` that records `event` at each launch of the graph.
  virtual Result<CUgraphNode> GraphAddEventRecordNode(CUgraph graph, CUgraphNode after, CUevent event) = 0;
  virtual Status GraphAddDependency(CUgraph graph, CUgraphNode from, CUgraphNode to) = 0;
  // Also while the graph is under capture.
  virtual Status GraphRemoveDependency(CUgraph graph, CUgraphNode from, CUgraphNode to) = 0;
  // Sets the thread's mode and returns the one before.
  virtual Result<CUstreamCaptureMode> ThreadExchangeStreamCaptureMode(CUstreamCaptureMode mode) = 0;
  // `destroy` is called with `object`, on a thread of the driver's, when the last reference is gone; it must
  // not call CUDA. The caller has one reference.
  virtual Result<CUuserObject> UserObjectCreate(void* object, CUhostFn destroy) = 0;
  virtual Status UserObjectRelease(CUuserObject object) = 0;
  // Moves the caller's reference to the graph.
  virtual Status GraphRetainUserObject(CUgraph graph, CUuserObject object) = 0;
  virtual Result<CUgraphExec> GraphInstantiate(CUgraph graph, uint64_t flags) = 0;
  virtual Status GraphLaunch(CUgraphExec graph, CUstream stream) = 0;
  virtual Status GraphExecDestroy(CUgraphExec graph) = 0;
  virtual Status GraphDestroy(CUgraph graph) = 0;

  // --- copies ---
  virtual Status MemcpyAsync(CUdeviceptr destination, CUdeviceptr source, size_t bytes, CUstream stream) = 0;
  // Copies that must go on beside kernels that hold every SM. They carry
  // CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE, since by default the driver may copy device memory by a
  // kernel, which then waits for an SM. Before CUDA 12.8, which lacks these calls, they are plain copies.
  // `stream` is not the default one. 3D: both sides unified device addresses, no offsets.
  virtual Status MemcpyBesideKernelsAsync(CUdeviceptr destination, CUdeviceptr source, size_t bytes,
                                          CUstream stream) = 0;
  virtual Status Memcpy3DBesideKernelsAsync(const CUDA_MEMCPY3D& copy, CUstream stream) = 0;
  virtual Status MemsetD8Async(CUdeviceptr destination, unsigned char value, size_t bytes,
                               CUstream stream) = 0;
  virtual Status MemsetD32Async(CUdeviceptr destination, uint32_t value, size_t count, CUstream stream) = 0;
};

// Loads libcuda.so.1. UNAVAILABLE where there is no driver. One instance a process is enough; it is never
// destroyed.
Result<CudaDriver*> LoadCudaDriver();

}  // namespace tandem::cuda
