// File: fake_gpus.h
//
// A CudaDriver of two GPUs that only keeps books: contexts of threads, streams and their captures, what lies
// at which address. Stream operations are recorded, writes done at once; nothing waits. Calls can be expected
// on top, as on any mock.
#pragma once

#include <atomic>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "common/shared_memory.h"
#include "drivers/cuda/mock_cuda_driver.h"

namespace tandem::client {

class FakeGpus : public ::testing::NiceMock<cuda::MockCudaDriver> {
 public:
  struct Stream {
    CUdevice device = 0;
    uint64_t id = 0;
    CUgraph capturing = nullptr;
    std::vector<CUstreamBatchMemOpParams> operations;
  };
  // The memory at an address. `kind`: "malloc", "chunk", "managed", "host", "pool".
  struct Memory {
    std::string kind;
    size_t bytes = 0;
    uint64_t id = 0;
    CUdevice device = 0;
    bool exportable = true;
  };

  FakeGpus();

  CUcontext ContextOf(CUdevice device) const {
    return reinterpret_cast<CUcontext>(static_cast<uintptr_t>(device) + 1);
  }
  CUstream MakeStream(CUdevice device) {
    streams_.push_back(std::make_unique<Stream>(Stream{device, streams_.size() + 100, nullptr, {}}));
    return reinterpret_cast<CUstream>(streams_.back().get());
  }
  static Stream& Of(CUstream stream) { return *reinterpret_cast<Stream*>(stream); }
  void Put(uintptr_t address, Memory memory) { memory_[address] = std::move(memory); }
  void Remove(uintptr_t address) { memory_.erase(address); }
  // The default result of StreamBatchMemOp.
  static Status Enqueue(CUstream stream, CUstreamBatchMemOpParams* operations, unsigned count) {
    for (unsigned i = 0; i < count; ++i) {
      const CUstreamBatchMemOpParams& operation = operations[i];
      bool real = reinterpret_cast<uintptr_t>(stream) >= 16;
      if (real) Of(stream).operations.push_back(operation);
      if (operation.operation == CU_STREAM_MEM_OP_WRITE_VALUE_64 &&
          !(real && Of(stream).capturing != nullptr)) {
        reinterpret_cast<std::atomic<uint64_t>*>(operation.writeValue.address)
            ->store(operation.writeValue.value64);
      }
    }
    return Status::Ok();
  }
  // The graph under capture is gone.
  void DropGraph() {
    for (auto& [object, destroy] : std::exchange(objects_, {})) destroy(object);
  }

  static inline thread_local CUcontext current = nullptr;
  std::set<void*> registered;
  std::atomic<int> unregistered{0};
  int attribute_queries = 0;

 private:
  const std::pair<const uintptr_t, Memory>* At(uintptr_t address) const {
    auto it = memory_.upper_bound(address);
    if (it == memory_.begin() || address - (--it)->first >= it->second.bytes) return nullptr;
    return &*it;
  }
  Status Attribute(void* value, CUpointer_attribute attribute, CUdeviceptr address);

  std::vector<std::unique_ptr<Stream>> streams_;
  std::map<uintptr_t, Memory> memory_;
  std::vector<std::pair<void*, CUhostFn>> objects_;
};

inline Status BadValue() { return InvalidArgument("CUDA_ERROR_INVALID_VALUE (1)"); }

inline FakeGpus::FakeGpus() {
  using ::testing::Return;
  ON_CALL(*this, DeviceGetCount).WillByDefault(Return(Result<int>(2)));
  ON_CALL(*this, DeviceGet).WillByDefault([](int ordinal) { return Result<CUdevice>(ordinal); });
  ON_CALL(*this, DeviceGetName).WillByDefault(Return(Result<std::string>("a GPU")));
  ON_CALL(*this, DeviceGetUuid).WillByDefault([](CUdevice device) {
    return Result<std::string>("GPU-" + std::to_string(device));
  });
  ON_CALL(*this, DeviceGetAttribute).WillByDefault(Return(Result<int>(1)));
  ON_CALL(*this, DevicePrimaryCtxRetain).WillByDefault([this](CUdevice device) {
    return Result<CUcontext>(ContextOf(device));
  });
  ON_CALL(*this, CtxGetCurrent).WillByDefault([] { return Result<CUcontext>(current); });
  ON_CALL(*this, CtxSetCurrent).WillByDefault([](CUcontext context) {
    current = context;
    return Status::Ok();
  });
  ON_CALL(*this, CtxGetDevice).WillByDefault([]() -> Result<CUdevice> {
    if (current == nullptr) return FailedPrecondition("no context");
    return static_cast<CUdevice>(reinterpret_cast<uintptr_t>(current) - 1);
  });
  ON_CALL(*this, MemGetAllocationGranularity).WillByDefault(Return(Result<size_t>(size_t{2} << 20)));
  ON_CALL(*this, StreamCreateWithPriority).WillByDefault([this](unsigned, int) {
    return Result<CUstream>(MakeStream(static_cast<CUdevice>(reinterpret_cast<uintptr_t>(current) - 1)));
  });
  ON_CALL(*this, EventCreate).WillByDefault([](unsigned) { return Result<CUevent>(CUevent{}); });
  ON_CALL(*this, EventQuery).WillByDefault([](CUevent) { return Result<bool>(true); });
  ON_CALL(*this, StreamQuery).WillByDefault(Return(Result<bool>(true)));
  ON_CALL(*this, ThreadExchangeStreamCaptureMode).WillByDefault([](CUstreamCaptureMode mode) {
    return Result<CUstreamCaptureMode>(mode);
  });
  ON_CALL(*this, StreamGetCtx).WillByDefault([this](CUstream stream) {
    return Result<CUcontext>(ContextOf(Of(stream).device));
  });
  ON_CALL(*this, StreamGetId).WillByDefault([](CUstream stream) -> Result<uint64_t> {
    // As the driver has it.
    if (reinterpret_cast<uintptr_t>(stream) >= 16 && Of(stream).capturing != nullptr)
      return Internal("capturing");
    return Result<uint64_t>(reinterpret_cast<uintptr_t>(stream) < 16 ? uint64_t{0} : Of(stream).id);
  });
  ON_CALL(*this, StreamIsCapturing).WillByDefault([](CUstream stream) {
    bool capturing = reinterpret_cast<uintptr_t>(stream) >= 16 && Of(stream).capturing != nullptr;
    return Result<CUstreamCaptureStatus>(capturing ? CU_STREAM_CAPTURE_STATUS_ACTIVE
                                                   : CU_STREAM_CAPTURE_STATUS_NONE);
  });
  ON_CALL(*this, StreamGetCaptureGraph).WillByDefault([](CUstream stream) {
    return Result<CUgraph>(Of(stream).capturing);
  });
  ON_CALL(*this, UserObjectCreate).WillByDefault([this](void* object, CUhostFn destroy) {
    objects_.emplace_back(object, destroy);
    return Result<CUuserObject>(reinterpret_cast<CUuserObject>(object));
  });
  ON_CALL(*this, StreamBatchMemOp).WillByDefault(Enqueue);
  ON_CALL(*this, MemHostRegister).WillByDefault([this](void* address, size_t, unsigned) {
    registered.insert(address);
    return Status::Ok();
  });
  ON_CALL(*this, MemHostUnregister).WillByDefault([this](void*) {
    ++unregistered;
    return Status::Ok();
  });
  ON_CALL(*this, PointerGetAttribute)
      .WillByDefault([this](void* value, CUpointer_attribute attribute, CUdeviceptr address) {
        return Attribute(value, attribute, address);
      });
  ON_CALL(*this, MemGetAddressRange)
      .WillByDefault([this](CUdeviceptr address, CUdeviceptr* base, size_t* bytes) {
        const auto* found = At(address);
        if (found == nullptr) return BadValue();
        *base = found->first;
        *bytes = found->second.bytes;
        return Status::Ok();
      });
  ON_CALL(*this, IpcGetMemHandle).WillByDefault([](CUdeviceptr) {
    return Result<CUipcMemHandle>(CUipcMemHandle{});
  });
  ON_CALL(*this, MemRetainAllocationHandle).WillByDefault([](CUdeviceptr address) {
    return Result<CUmemGenericAllocationHandle>(address);
  });
  ON_CALL(*this, MemExportToFd).WillByDefault([](CUmemGenericAllocationHandle) -> Result<int> {
    TANDEM_ASSIGN_OR_RETURN(UniqueFd fd, CreateSealedMemfd("chunk", 4096));
    return fd.Release();
  });
}

inline Status FakeGpus::Attribute(void* value, CUpointer_attribute attribute, CUdeviceptr address) {
  ++attribute_queries;
  const auto* found = At(address);
  if (found == nullptr) return BadValue();
  const Memory& memory = found->second;
  auto* number = static_cast<uint64_t*>(value);
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      *number = memory.kind == "host" ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
      break;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED: *number = memory.kind == "managed"; break;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: *number = static_cast<uint64_t>(memory.device); break;
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE: *number = memory.kind == "malloc"; break;
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE: *number = memory.kind == "pool" ? 0x77 : 0; break;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID: *number = memory.id; break;
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
      *number = memory.exportable ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR : 0;
      break;
    default: return BadValue();
  }
  return Status::Ok();
}

}  // namespace tandem::client
