#include "drivers/cuda/cuda_driver.h"

#include "drivers/cuda/driver_functions.h"
#include "drivers/dynamic_library.h"

namespace tandem::cuda {
namespace {

class LoadedDriver : public CudaDriver {
 public:
  explicit LoadedDriver(const DriverFunctions& functions) : f_(functions) {}

  Status Init() override { return Check("cuInit", f_.cuInit_(0)); }
  Result<int> DeviceGetCount() override {
    int count = 0;
    TANDEM_RETURN_IF_ERROR(Check("cuDeviceGetCount", f_.cuDeviceGetCount_(&count)));
    return count;
  }
  Result<CUdevice> DeviceGet(int ordinal) override {
    CUdevice device = 0;
    TANDEM_RETURN_IF_ERROR(Check("cuDeviceGet", f_.cuDeviceGet_(&device, ordinal)));
    return device;
  }
  Result<std::string> DeviceGetName(CUdevice device) override {
    char name[256] = {};
    TANDEM_RETURN_IF_ERROR(Check("cuDeviceGetName", f_.cuDeviceGetName_(name, sizeof(name) - 1, device)));
    return std::string(name);
  }
  Result<std::string> DeviceGetUuid(CUdevice device) override {
    CUuuid uuid = {};
    TANDEM_RETURN_IF_ERROR(Check("cuDeviceGetUuid", f_.cuDeviceGetUuid_(&uuid, device)));
    std::string text = "GPU";
    for (int i = 0; i < 16; ++i) {
      if (i == 0 || i == 4 || i == 6 || i == 8 || i == 10) text += '-';
      const auto byte = static_cast<unsigned char>(uuid.bytes[i]);
      text += "0123456789abcdef"[byte >> 4];
      text += "0123456789abcdef"[byte & 15];
    }
    return text;
  }
  Result<int> DeviceGetAttribute(CUdevice_attribute attribute, CUdevice device) override {
    int value = 0;
    TANDEM_RETURN_IF_ERROR(
        Check("cuDeviceGetAttribute", f_.cuDeviceGetAttribute_(&value, attribute, device)));
    return value;
  }
  Result<CUcontext> DevicePrimaryCtxRetain(CUdevice device) override {
    CUcontext context = nullptr;
    TANDEM_RETURN_IF_ERROR(Check("cuDevicePrimaryCtxRetain", f_.cuDevicePrimaryCtxRetain_(&context, device)));
    return context;
  }
  Result<CUcontext> CtxGetCurrent() override {
    CUcontext context = nullptr;
    TANDEM_RETURN_IF_ERROR(Check("cuCtxGetCurrent", f_.cuCtxGetCurrent_(&context)));
    return context;
  }
  Status CtxSetCurrent(CUcontext context) override {
    return Check("cuCtxSetCurrent", f_.cuCtxSetCurrent_(context));
  }
  Result<CUdevice> CtxGetDevice() override {
    CUdevice device = 0;
    TANDEM_RETURN_IF_ERROR(Check("cuCtxGetDevice", f_.cuCtxGetDevice_(&device)));
    return device;
  }
  Status CtxGetStreamPriorityRange(int* least, int* greatest) override {
    return Check("cuCtxGetStreamPriorityRange", f_.cuCtxGetStreamPriorityRange_(least, greatest));
  }

  Result<size_t> MemGetAllocationGranularity(const CUmemAllocationProp& properties) override {
    size_t bytes = 0;
    TANDEM_RETURN_IF_ERROR(
        Check("cuMemGetAllocationGranularity",
              f_.cuMemGetAllocationGranularity_(&bytes, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM)));
    return bytes;
  }
  Result<CUmemGenericAllocationHandle> MemCreate(size_t bytes,
                                                 const CUmemAllocationProp& properties) override {
    CUmemGenericAllocationHandle handle = 0;
    TANDEM_RETURN_IF_ERROR(Check("cuMemCreate", f_.cuMemCreate_(&handle, bytes, &properties, 0)));
    return handle;
  }
  Status MemRelease(CUmemGenericAllocationHandle handle) override {
    return Check("cuMemRelease", f_.cuMemRelease_(handle));
  }
  Result<int> MemExportToFd(CUmemGenericAllocationHandle handle) override {
    int fd = -1;
    TANDEM_RETURN_IF_ERROR(
        Check("cuMemExportToShareableHandle",
              f_.cuMemExportToShareableHandle_(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0)));
    return fd;
  }
  Result<CUmemGenericAllocationHandle> MemImportFromFd(int fd) override {
    CUmemGenericAllocationHandle handle = 0;
    TANDEM_RETURN_IF_ERROR(
        Check("cuMemImportFromShareableHandle",
              f_.cuMemImportFromShareableHandle_(&handle, reinterpret_cast<void*>(static_cast<uintptr_t>(fd)),
                                                 CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)));
    return handle;
  }
  Result<CUdeviceptr> MemAddressReserve(size_t bytes, size_t alignment) override {
    CUdeviceptr address = 0;
    TANDEM_RETURN_IF_ERROR(
        Check("cuMemAddressReserve", f_.cuMemAddressReserve_(&address, bytes, alignment, 0, 0)));
    return address;
  }
  Status MemAddressFree(CUdeviceptr address, size_t bytes) override {
    return Check("cuMemAddressFree", f_.cuMemAddressFree_(address, bytes));
  }
  Status MemMap(CUdeviceptr address, size_t bytes, CUmemGenericAllocationHandle handle) override {
    return Check("cuMemMap", f_.cuMemMap_(address, bytes, 0, handle, 0));
  }
  Status MemUnmap(CUdeviceptr address, size_t bytes) override {
    return Check("cuMemUnmap", f_.cuMemUnmap_(address, bytes));
  }
  Status MemSetAccess(CUdeviceptr address, size_t bytes, const CUmemAccessDesc& access) override {
    return Check("cuMemSetAccess", f_.cuMemSetAccess_(address, bytes, &access, 1));
  }
  Status MemHostRegister(void* address, size_t bytes, unsigned flags) override {
    return Check("cuMemHostRegister", f_.cuMemHostRegister_(address, bytes, flags));
  }
  Status MemHostUnregister(void* address) override {
    return Check("cuMemHostUnregister", f_.cuMemHostUnregister_(address));
  }
  Result<CUmemAllocationProp> MemGetAllocationProperties(CUmemGenericAllocationHandle handle) override {
    CUmemAllocationProp properties = {};
    TANDEM_RETURN_IF_ERROR(Check("cuMemGetAllocationPropertiesFromHandle",
                                 f_.cuMemGetAllocationPropertiesFromHandle_(&properties, handle)));
    return properties;
  }
  Result<CUdeviceptr> IpcOpenMemHandle(const CUipcMemHandle& handle) override {
    CUdeviceptr address = 0;
    TANDEM_RETURN_IF_ERROR(Check(
        "cuIpcOpenMemHandle", f_.cuIpcOpenMemHandle_(&address, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)));
    return address;
  }
  Status IpcCloseMemHandle(CUdeviceptr address) override {
    return Check("cuIpcCloseMemHandle", f_.cuIpcCloseMemHandle_(address));
  }
  Status MemGetAddressRange(CUdeviceptr address, CUdeviceptr* base, size_t* bytes) override {
    return Check("cuMemGetAddressRange", f_.cuMemGetAddressRange_(base, bytes, address));
  }
  Result<CUdeviceptr> MemAlloc(size_t bytes) override {
    CUdeviceptr address = 0;
    TANDEM_RETURN_IF_ERROR(Check("cuMemAlloc", f_.cuMemAlloc_(&address, bytes)));
    return address;
  }
  Status MemFree(CUdeviceptr address) override { return Check("cuMemFree", f_.cuMemFree_(address)); }
  Status MemGetInfo(size_t* free, size_t* total) override {
    return Check("cuMemGetInfo", f_.cuMemGetInfo_(free, total));
  }

  Result<CUipcMemHandle> IpcGetMemHandle(CUdeviceptr address) override {
    CUipcMemHandle handle = {};
    TANDEM_RETURN_IF_ERROR(Check("cuIpcGetMemHandle", f_.cuIpcGetMemHandle_(&handle, address)));
    return handle;
  }
  Result<CUmemGenericAllocationHandle> MemRetainAllocationHandle(CUdeviceptr address) override {
    CUmemGenericAllocationHandle handle = 0;
    TANDEM_RETURN_IF_ERROR(Check("cuMemRetainAllocationHandle",
                                 f_.cuMemRetainAllocationHandle_(&handle, reinterpret_cast<void*>(address))));
    return handle;
  }
  Status PointerGetAttribute(void* value, CUpointer_attribute attribute, CUdeviceptr address) override {
    return Check("cuPointerGetAttribute", f_.cuPointerGetAttribute_(value, attribute, address));
  }

  Result<CUstream> StreamCreateWithPriority(unsigned flags, int priority) override {
    CUstream stream = nullptr;
    TANDEM_RETURN_IF_ERROR(
        Check("cuStreamCreateWithPriority", f_.cuStreamCreateWithPriority_(&stream, flags, priority)));
    return stream;
  }
  Status StreamDestroy(CUstream stream) override {
    return Check("cuStreamDestroy", f_.cuStreamDestroy_(stream));
  }
  Result<bool> StreamQuery(CUstream stream) override {
    return Ready("cuStreamQuery", f_.cuStreamQuery_(stream));
  }
  Status StreamSynchronize(CUstream stream) override {
    return Check("cuStreamSynchronize", f_.cuStreamSynchronize_(stream));
  }
  Status StreamWaitEvent(CUstream stream, CUevent event) override {
    return Check("cuStreamWaitEvent", f_.cuStreamWaitEvent_(stream, event, CU_EVENT_WAIT_DEFAULT));
  }
  Status StreamWaitExternalEvent(CUstream stream, CUevent event) override {
    return Check("cuStreamWaitEvent", f_.cuStreamWaitEvent_(stream, event, CU_EVENT_WAIT_EXTERNAL));
  }
  Status StreamWriteValue64(CUstream stream, CUdeviceptr address, uint64_t value) override {
    return Check("cuStreamWriteValue64",
                 f_.cuStreamWriteValue64_(stream, address, value, CU_STREAM_WRITE_VALUE_DEFAULT));
  }
  Status StreamWaitValue64(CUstream stream, CUdeviceptr address, uint64_t value, unsigned flags) override {
    return Check("cuStreamWaitValue64", f_.cuStreamWaitValue64_(stream, address, value, flags));
  }
  Status StreamWaitValue32(CUstream stream, CUdeviceptr address, uint32_t value, unsigned flags) override {
    return Check("cuStreamWaitValue32", f_.cuStreamWaitValue32_(stream, address, value, flags));
  }
  Status StreamWriteValue32(CUstream stream, CUdeviceptr address, uint32_t value) override {
    return Check("cuStreamWriteValue32",
                 f_.cuStreamWriteValue32_(stream, address, value, CU_STREAM_WRITE_VALUE_DEFAULT));
  }
  Status StreamBatchMemOp(CUstream stream, CUstreamBatchMemOpParams* operations, unsigned count) override {
    return Check("cuStreamBatchMemOp", f_.cuStreamBatchMemOp_(stream, count, operations, 0));
  }
  Result<CUcontext> StreamGetCtx(CUstream stream) override {
    CUcontext context = nullptr;
    TANDEM_RETURN_IF_ERROR(Check("cuStreamGetCtx", f_.cuStreamGetCtx_(stream, &context)));
    return context;
  }
  Result<uint64_t> StreamGetId(CUstream stream) override {
    unsigned long long id = 0;
    TANDEM_RETURN_IF_ERROR(Check("cuStreamGetId", f_.cuStreamGetId_(stream, &id)));
    return id;
  }
  Result<CUevent> EventCreate(unsigned flags) override {
    CUevent event = nullptr;
    TANDEM_RETURN_IF_ERROR(Check("cuEventCreate", f_.cuEventCreate_(&event, flags)));
    return event;
  }
  Status EventDestroy(CUevent event) override { return Check("cuEventDestroy", f_.cuEventDestroy_(event)); }
  Status EventRecord(CUevent event, CUstream stream) override {
    return Check("cuEventRecord", f_.cuEventRecord_(event, stream));
  }
  Result<bool> EventQuery(CUevent event) override { return Ready("cuEventQuery", f_.cuEventQuery_(event)); }
  Result<float> EventElapsedTime(CUevent start, CUevent end) override {
    float milliseconds = 0;
    TANDEM_RETURN_IF_ERROR(Check("cuEventElapsedTime", f_.cuEventElapsedTime_(&milliseconds, start, end)));
    return milliseconds;
  }

  Status LaunchHostFunc(CUstream stream, CUhostFn function, void* argument) override {
    return Check("cuLaunchHostFunc", f_.cuLaunchHostFunc_(stream, function, argument));
  }
  Status StreamBeginCapture(CUstream stream, CUstreamCaptureMode mode) override {
    return Check("cuStreamBeginCapture", f_.cuStreamBeginCapture_(stream, mode));
  }
  Result<CUgraph> StreamEndCapture(CUstream stream) override {
    CUgraph graph = nullptr;
    TANDEM_RETURN_IF_ERROR(Check("cuStreamEndCapture", f_.cuStreamEndCapture_(stream, &graph)));
    return graph;
  }
  Result<CUstreamCaptureStatus> StreamIsCapturing(CUstream stream) override {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    TANDEM_RETURN_IF_ERROR(Check("cuStreamIsCapturing", f_.cuStreamIsCapturing_(stream, &status)));
    return status;
  }
  Result<CUgraph> StreamGetCaptureGraph(CUstream stream) override {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    CUgraph graph = nullptr;
    TANDEM_RETURN_IF_ERROR(
        Check("cuStreamGetCaptureInfo",
              f_.cuStreamGetCaptureInfo_(stream, &status, nullptr, &graph, nullptr, nullptr, nullptr)));
    return status == CU_STREAM_CAPTURE_STATUS_ACTIVE ? graph : nullptr;
  }
  Result<CaptureInfo> StreamGetCaptureInfo(CUstream stream) override {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    CaptureInfo info;
    cuuint64_t id = 0;
    const CUgraphNode* nodes = nullptr;
    size_t count = 0;
    TANDEM_RETURN_IF_ERROR(
        Check("cuStreamGetCaptureInfo",
              f_.cuStreamGetCaptureInfo_(stream, &status, &id, &info.graph, &nodes, nullptr, &count)));
    if (status != CU_STREAM_CAPTURE_STATUS_ACTIVE) return FailedPrecondition("the stream does not capture");
    info.id = id;
    info.dependencies = {nodes, count};
    return info;
  }
  Status StreamAddCaptureDependency(CUstream stream, CUgraphNode node) override {
    return Check(
        "cuStreamUpdateCaptureDependencies",
        f_.cuStreamUpdateCaptureDependencies_(stream, &node, nullptr, 1, CU_STREAM_ADD_CAPTURE_DEPENDENCIES));
  }
  Result<CUgraphNode> GraphAddEventRecordNode(CUgraph graph, CUgraphNode after, CUevent event) override {
    CUgraphNode node = nullptr;
    TANDEM_RETURN_IF_ERROR(
        Check("cuGraphAddEventRecordNode", f_.cuGraphAddEventRecordNode_(&node, graph, &after, 1, event)));
    return node;
  }
  Status GraphAddDependency(CUgraph graph, CUgraphNode from, CUgraphNode to) override {
    return Check("cuGraphAddDependencies", f_.cuGraphAddDependencies_(graph, &from, &to, nullptr, 1));
  }
  Status GraphRemoveDependency(CUgraph graph, CUgraphNode from, CUgraphNode to) override {
    return Check("cuGraphRemoveDependencies", f_.cuGraphRemoveDependencies_(graph, &from, &to, nullptr, 1));
  }
  Result<CUstreamCaptureMode> ThreadExchangeStreamCaptureMode(CUstreamCaptureMode mode) override {
    TANDEM_RETURN_IF_ERROR(
        Check("cuThreadExchangeStreamCaptureMode", f_.cuThreadExchangeStreamCaptureMode_(&mode)));
    return mode;
  }
  Result<CUuserObject> UserObjectCreate(void* object, CUhostFn destroy) override {
    CUuserObject made = nullptr;
    TANDEM_RETURN_IF_ERROR(
        Check("cuUserObjectCreate",
              f_.cuUserObjectCreate_(&made, object, destroy, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC)));
    return made;
  }
  Status UserObjectRelease(CUuserObject object) override {
    return Check("cuUserObjectRelease", f_.cuUserObjectRelease_(object, 1));
  }
  Status GraphRetainUserObject(CUgraph graph, CUuserObject object) override {
    return Check("cuGraphRetainUserObject",
                 f_.cuGraphRetainUserObject_(graph, object, 1, CU_GRAPH_USER_OBJECT_MOVE));
  }
  Result<CUgraphExec> GraphInstantiate(CUgraph graph, uint64_t flags) override {
    CUgraphExec executable = nullptr;
    TANDEM_RETURN_IF_ERROR(Check("cuGraphInstantiate", f_.cuGraphInstantiate_(&executable, graph, flags)));
    return executable;
  }
  Status GraphLaunch(CUgraphExec graph, CUstream stream) override {
    return Check("cuGraphLaunch", f_.cuGraphLaunch_(graph, stream));
  }
  Status GraphExecDestroy(CUgraphExec graph) override {
    return Check("cuGraphExecDestroy", f_.cuGraphExecDestroy_(graph));
  }
  Status GraphDestroy(CUgraph graph) override { return Check("cuGraphDestroy", f_.cuGraphDestroy_(graph)); }

  Status MemcpyAsync(CUdeviceptr destination, CUdeviceptr source, size_t bytes, CUstream stream) override {
    return Check("cuMemcpyAsync", f_.cuMemcpyAsync_(destination, source, bytes, stream));
  }
  Status MemcpyBesideKernelsAsync(CUdeviceptr destination, CUdeviceptr source, size_t bytes,
                                  CUstream stream) override {
    if (f_.cuMemcpyBatchAsync_ == nullptr) return MemcpyAsync(destination, source, bytes, stream);
    CUmemcpyAttributes attributes = {};
    attributes.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
    attributes.flags = CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE;
    size_t first = 0;
    const CUresult result =
        f_.cuMemcpyBatchAsync_(&destination, &source, &bytes, 1, &attributes, &first, 1, stream);
    if (result == CUDA_ERROR_NOT_SUPPORTED) return MemcpyAsync(destination, source, bytes, stream);
    return Check("cuMemcpyBatchAsync", result);
  }
  Status Memcpy3DBesideKernelsAsync(const CUDA_MEMCPY3D& copy, CUstream stream) override {
    if (f_.cuMemcpy3DBatchAsync_ == nullptr)
      return Check("cuMemcpy3DAsync", f_.cuMemcpy3DAsync_(&copy, stream));
    const auto operand = [](CUdeviceptr address, size_t pitch, size_t height) {
      CUmemcpy3DOperand made = {};
      made.type = CU_MEMCPY_OPERAND_TYPE_POINTER;
      made.op.ptr.ptr = address;
      made.op.ptr.rowLength = pitch;
      made.op.ptr.layerHeight = height;
      return made;
    };
    CUDA_MEMCPY3D_BATCH_OP operation = {};
    operation.src = operand(copy.srcDevice, copy.srcPitch, copy.srcHeight);
    operation.dst = operand(copy.dstDevice, copy.dstPitch, copy.dstHeight);
    operation.extent = {copy.WidthInBytes, copy.Height, copy.Depth};
    operation.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
    operation.flags = CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE;
    const CUresult result = f_.cuMemcpy3DBatchAsync_(1, &operation, 0, stream);
    if (result == CUDA_ERROR_NOT_SUPPORTED)
      return Check("cuMemcpy3DAsync", f_.cuMemcpy3DAsync_(&copy, stream));
    return Check("cuMemcpy3DBatchAsync", result);
  }
  Status MemsetD8Async(CUdeviceptr destination, unsigned char value, size_t bytes, CUstream stream) override {
    return Check("cuMemsetD8Async", f_.cuMemsetD8Async_(destination, value, bytes, stream));
  }
  Status MemsetD32Async(CUdeviceptr destination, uint32_t value, size_t count, CUstream stream) override {
    return Check("cuMemsetD32Async", f_.cuMemsetD32Async_(destination, value, count, stream));
  }

 private:
  Status Check(const char* call, CUresult result) const {
    if (result == CUDA_SUCCESS) return Status::Ok();
    const char* name = nullptr;
    const char* text = nullptr;
    f_.cuGetErrorName_(result, &name);
    f_.cuGetErrorString_(result, &text);
    return CudaStatus(call, result, name, text);
  }
  Result<bool> Ready(const char* call, CUresult result) const {
    if (result == CUDA_ERROR_NOT_READY) return false;
    TANDEM_RETURN_IF_ERROR(Check(call, result));
    return true;
  }

  const DriverFunctions f_;
};

Code CodeOf(CUresult result) {
  switch (result) {
    case CUDA_ERROR_OUT_OF_MEMORY: return Code::kResourceExhausted;
    case CUDA_ERROR_INVALID_VALUE:
    case CUDA_ERROR_INVALID_HANDLE:
    case CUDA_ERROR_INVALID_DEVICE: return Code::kInvalidArgument;
    case CUDA_ERROR_NOT_SUPPORTED: return Code::kUnimplemented;
    case CUDA_ERROR_NO_DEVICE:
    case CUDA_ERROR_DEVICE_UNAVAILABLE:
    case CUDA_ERROR_MPS_CONNECTION_FAILED:
    case CUDA_ERROR_MPS_SERVER_NOT_READY:
    case CUDA_ERROR_MPS_MAX_CLIENTS_REACHED:
    case CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED: return Code::kUnavailable;
    // Sticky: every later call on the context fails, and only a new process mends it.
    case CUDA_ERROR_ECC_UNCORRECTABLE:
    case CUDA_ERROR_ILLEGAL_ADDRESS:
    case CUDA_ERROR_LAUNCH_TIMEOUT:
    case CUDA_ERROR_ASSERT:
    case CUDA_ERROR_HARDWARE_STACK_ERROR:
    case CUDA_ERROR_ILLEGAL_INSTRUCTION:
    case CUDA_ERROR_MISALIGNED_ADDRESS:
    case CUDA_ERROR_INVALID_ADDRESS_SPACE:
    case CUDA_ERROR_INVALID_PC:
    case CUDA_ERROR_LAUNCH_FAILED:
    case CUDA_ERROR_CONTEXT_IS_DESTROYED:
    case CUDA_ERROR_MPS_RPC_FAILURE:
    case CUDA_ERROR_MPS_CLIENT_TERMINATED: return Code::kAborted;
    default: return Code::kInternal;
  }
}

}  // namespace

Status CudaStatus(const char* call, CUresult result, const char* name, const char* text) {
  if (result == CUDA_SUCCESS) return Status::Ok();
  std::string message = std::string(call) + ": " + (name != nullptr ? name : "unknown error") + " (" +
                        std::to_string(static_cast<int>(result)) + ")";
  if (text != nullptr) message += std::string(": ") + text;
  return Status(CodeOf(result), message,
                {.reason = name != nullptr ? name : "CUDA_ERROR_UNKNOWN", .who = {}, .field = {}});
}

Result<CudaDriver*> LoadCudaDriver() {
  static const Result<CudaDriver*> driver = []() -> Result<CudaDriver*> {
    TANDEM_ASSIGN_OR_RETURN(DynamicLibrary library, DynamicLibrary::Open({"libcuda.so.1"}));
    DriverFunctions functions;
    TANDEM_RETURN_IF_ERROR(functions.Load(library));
    return static_cast<CudaDriver*>(new LoadedDriver(functions));
  }();
  return driver;
}

}  // namespace tandem::cuda
