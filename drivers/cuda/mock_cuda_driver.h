// File: mock_cuda_driver.h
//
// A CudaDriver without a GPU, in the groups of cuda_driver.h.
#pragma once

#include <gmock/gmock.h>

#include "drivers/cuda/cuda_driver.h"

namespace tandem::cuda {

class MockCudaDriver : public CudaDriver {
 public:
  // --- start, devices, contexts ---
  MOCK_METHOD(Status, Init, (), (override));
  MOCK_METHOD(Result<int>, DeviceGetCount, (), (override));
  MOCK_METHOD(Result<CUdevice>, DeviceGet, (int), (override));
  MOCK_METHOD(Result<std::string>, DeviceGetName, (CUdevice), (override));
  MOCK_METHOD(Result<std::string>, DeviceGetUuid, (CUdevice), (override));
  MOCK_METHOD(Result<int>, DeviceGetAttribute, (CUdevice_attribute, CUdevice), (override));
  MOCK_METHOD(Result<CUcontext>, DevicePrimaryCtxRetain, (CUdevice), (override));
  MOCK_METHOD(Result<CUcontext>, CtxGetCurrent, (), (override));
  MOCK_METHOD(Status, CtxSetCurrent, (CUcontext), (override));
  MOCK_METHOD(Result<CUdevice>, CtxGetDevice, (), (override));
  MOCK_METHOD(Status, CtxGetStreamPriorityRange, (int*, int*), (override));

  // --- memory ---
  MOCK_METHOD(Result<size_t>, MemGetAllocationGranularity, (const CUmemAllocationProp&), (override));
  MOCK_METHOD(Result<CUmemGenericAllocationHandle>, MemCreate, (size_t, const CUmemAllocationProp&),
              (override));
  MOCK_METHOD(Status, MemRelease, (CUmemGenericAllocationHandle), (override));
  MOCK_METHOD(Result<int>, MemExportToFd, (CUmemGenericAllocationHandle), (override));
  MOCK_METHOD(Result<CUmemGenericAllocationHandle>, MemImportFromFd, (int), (override));
  MOCK_METHOD(Result<CUdeviceptr>, MemAddressReserve, (size_t, size_t), (override));
  MOCK_METHOD(Status, MemAddressFree, (CUdeviceptr, size_t), (override));
  MOCK_METHOD(Status, MemMap, (CUdeviceptr, size_t, CUmemGenericAllocationHandle), (override));
  MOCK_METHOD(Status, MemUnmap, (CUdeviceptr, size_t), (override));
  MOCK_METHOD(Status, MemSetAccess, (CUdeviceptr, size_t, const CUmemAccessDesc&), (override));
  MOCK_METHOD(Status, MemHostRegister, (void*, size_t, unsigned), (override));
  MOCK_METHOD(Status, MemHostUnregister, (void*), (override));
  MOCK_METHOD(Result<CUmemAllocationProp>, MemGetAllocationProperties, (CUmemGenericAllocationHandle),
              (override));
  MOCK_METHOD(Result<CUdeviceptr>, IpcOpenMemHandle, (const CUipcMemHandle&), (override));
  MOCK_METHOD(Status, IpcCloseMemHandle, (CUdeviceptr), (override));
  MOCK_METHOD(Status, MemGetAddressRange, (CUdeviceptr, CUdeviceptr*, size_t*), (override));
  MOCK_METHOD(Result<CUdeviceptr>, MemAlloc, (size_t), (override));
  MOCK_METHOD(Status, MemFree, (CUdeviceptr), (override));
  MOCK_METHOD(Status, MemGetInfo, (size_t*, size_t*), (override));
  MOCK_METHOD(Result<CUipcMemHandle>, IpcGetMemHandle, (CUdeviceptr), (override));
  MOCK_METHOD(Result<CUmemGenericAllocationHandle>, MemRetainAllocationHandle, (CUdeviceptr), (override));
  MOCK_METHOD(Status, PointerGetAttribute, (void*, CUpointer_attribute, CUdeviceptr), (override));

  // --- streams and events ---
  MOCK_METHOD(Result<CUstream>, StreamCreateWithPriority, (unsigned, int), (override));
  MOCK_METHOD(Status, StreamDestroy, (CUstream), (override));
  MOCK_METHOD(Result<bool>, StreamQuery, (CUstream), (override));
  MOCK_METHOD(Status, StreamSynchronize, (CUstream), (override));
  MOCK_METHOD(Status, StreamWaitEvent, (CUstream, CUevent), (override));
  MOCK_METHOD(Status, StreamWaitExternalEvent, (CUstream, CUevent), (override));
  MOCK_METHOD(Status, StreamWriteValue64, (CUstream, CUdeviceptr, uint64_t), (override));
  MOCK_METHOD(Status, StreamWaitValue64, (CUstream, CUdeviceptr, uint64_t, unsigned), (override));
  MOCK_METHOD(Status, StreamWaitValue32, (CUstream, CUdeviceptr, uint32_t, unsigned), (override));
  MOCK_METHOD(Status, StreamWriteValue32, (CUstream, CUdeviceptr, uint32_t), (override));
  MOCK_METHOD(Status, StreamBatchMemOp, (CUstream, CUstreamBatchMemOpParams*, unsigned), (override));
  MOCK_METHOD(Result<CUcontext>, StreamGetCtx, (CUstream), (override));
  MOCK_METHOD(Result<uint64_t>, StreamGetId, (CUstream), (override));
  MOCK_METHOD(Result<CUevent>, EventCreate, (unsigned), (override));
  MOCK_METHOD(Status, EventDestroy, (CUevent), (override));
  MOCK_METHOD(Status, EventRecord, (CUevent, CUstream), (override));
  MOCK_METHOD(Result<bool>, EventQuery, (CUevent), (override));
  MOCK_METHOD(Result<float>, EventElapsedTime, (CUevent, CUevent), (override));

  // --- host functions, capture and graphs ---
  MOCK_METHOD(Status, LaunchHostFunc, (CUstream, CUhostFn, void*), (override));
  MOCK_METHOD(Status, StreamBeginCapture, (CUstream, CUstreamCaptureMode), (override));
  MOCK_METHOD(Result<CUgraph>, StreamEndCapture, (CUstream), (override));
  MOCK_METHOD(Result<CUstreamCaptureStatus>, StreamIsCapturing, (CUstream), (override));
  MOCK_METHOD(Result<CUgraph>, StreamGetCaptureGraph, (CUstream), (override));
  MOCK_METHOD(Result<CaptureInfo>, StreamGetCaptureInfo, (CUstream), (override));
  MOCK_METHOD(Status, StreamAddCaptureDependency, (CUstream, CUgraphNode), (override));
  MOCK_METHOD(Result<CUgraphNode>, GraphAddEventRecordNode, (CUgraph, CUgraphNode, CUevent), (override));
  MOCK_METHOD(Status, GraphAddDependency, (CUgraph, CUgraphNode, CUgraphNode), (override));
  MOCK_METHOD(Status, GraphRemoveDependency, (CUgraph, CUgraphNode, CUgraphNode), (override));
  MOCK_METHOD(Result<CUstreamCaptureMode>, ThreadExchangeStreamCaptureMode, (CUstreamCaptureMode),
              (override));
  MOCK_METHOD(Result<CUuserObject>, UserObjectCreate, (void*, CUhostFn), (override));
  MOCK_METHOD(Status, UserObjectRelease, (CUuserObject), (override));
  MOCK_METHOD(Status, GraphRetainUserObject, (CUgraph, CUuserObject), (override));
  MOCK_METHOD(Result<CUgraphExec>, GraphInstantiate, (CUgraph, uint64_t), (override));
  MOCK_METHOD(Status, GraphLaunch, (CUgraphExec, CUstream), (override));
  MOCK_METHOD(Status, GraphExecDestroy, (CUgraphExec), (override));
  MOCK_METHOD(Status, GraphDestroy, (CUgraph), (override));

  // --- copies ---
  MOCK_METHOD(Status, MemcpyAsync, (CUdeviceptr, CUdeviceptr, size_t, CUstream), (override));
  MOCK_METHOD(Status, MemcpyBesideKernelsAsync, (CUdeviceptr, CUdeviceptr, size_t, CUstream), (override));
  MOCK_METHOD(Status, Memcpy3DBesideKernelsAsync, (const CUDA_MEMCPY3D&, CUstream), (override));
  MOCK_METHOD(Status, MemsetD32Async, (CUdeviceptr, uint32_t, size_t, CUstream), (override));
  MOCK_METHOD(Status, MemsetD8Async, (CUdeviceptr, unsigned char, size_t, CUstream), (override));
};

// Lets `driver` have one device that CudaDevice takes, with streams, events and memory whose address is
// `granularity`.
inline void MakeUsable(testing::NiceMock<MockCudaDriver>& driver, size_t granularity, CUcontext context,
                       CUstream stream, CUevent event) {
  using testing::_;
  using testing::Return;
  ON_CALL(driver, DeviceGetCount()).WillByDefault(Return(Result<int>(1)));
  ON_CALL(driver, DeviceGet(_)).WillByDefault(Return(Result<CUdevice>(0)));
  ON_CALL(driver, DeviceGetName(_)).WillByDefault(Return(Result<std::string>("a GPU")));
  ON_CALL(driver, DeviceGetAttribute(_, _)).WillByDefault(Return(Result<int>(1)));
  ON_CALL(driver, DevicePrimaryCtxRetain(_)).WillByDefault(Return(Result<CUcontext>(context)));
  ON_CALL(driver, CtxGetCurrent()).WillByDefault(Return(Result<CUcontext>(context)));
  ON_CALL(driver, MemGetAllocationGranularity(_)).WillByDefault(Return(Result<size_t>(granularity)));
  ON_CALL(driver, CtxGetStreamPriorityRange(_, _))
      .WillByDefault(
          testing::DoAll(testing::SetArgPointee<0>(0), testing::SetArgPointee<1>(-5), Return(Status::Ok())));
  ON_CALL(driver, StreamCreateWithPriority(_, _)).WillByDefault(Return(Result<CUstream>(stream)));
  ON_CALL(driver, EventCreate(_)).WillByDefault(Return(Result<CUevent>(event)));
  ON_CALL(driver, EventQuery(_)).WillByDefault(Return(Result<bool>(true)));
  ON_CALL(driver, MemCreate(_, _)).WillByDefault(Return(Result<CUmemGenericAllocationHandle>(1)));
  ON_CALL(driver, MemAddressReserve(_, _)).WillByDefault(Return(Result<CUdeviceptr>(granularity)));
}

}  // namespace tandem::cuda
