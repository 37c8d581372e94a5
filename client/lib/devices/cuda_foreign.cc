// The memory behind device pointers, and how another process gets it: cudaMalloc's allocations by CUDA IPC,
// virtual memory ranges (PyTorch's expandable segments) chunk by chunk as POSIX descriptors.
#include <cstdio>
#include <string>

#include "client/lib/cuda/context_scope.h"
#include "client/lib/devices/cuda_client_device.h"

namespace tandem::client {
namespace {

std::string Hex(uintptr_t address) {
  char text[2 + 16 + 1];
  std::snprintf(text, sizeof(text), "0x%zx", static_cast<size_t>(address));
  return text;
}

Status NotRegistrable(const std::string& what) {
  return InvalidArgument(what).WithDetail(
      {.reason = "NOT_REGISTRABLE", .who = {}, .field = "device_pointer"});
}

constexpr const char* kUseInstead =
    "; use cudaMalloc, memory of AllocateRegistered, or VMM memory created with "
    "CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR";

}  // namespace

// All attributes asked for here fit into 64 bits; shorter ones leave the rest zero.
Result<uint64_t> CudaClientDevice::Attribute(CUpointer_attribute attribute, uintptr_t address) const {
  uint64_t value = 0;
  TANDEM_RETURN_IF_ERROR(driver_.PointerGetAttribute(&value, attribute, address));
  return value;
}

Result<ForeignRange> CudaClientDevice::Describe(const void* pointer, size_t bytes) {
  SlowCallScope scope(driver_);
  auto address = reinterpret_cast<uintptr_t>(pointer);
  if (bytes == 0 || bytes > UINTPTR_MAX - address)
    return InvalidArgument("a range of no bytes, or beyond memory");
  Result<uint64_t> type = Attribute(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address);
  if (!type.ok()) {
    if (type.status().code() != Code::kInvalidArgument) return type.status();
    return NotRegistrable(Hex(address) + " is no memory that CUDA knows" + kUseInstead);
  }
  if (*type != CU_MEMORYTYPE_DEVICE) return NotRegistrable(Hex(address) + " is host memory" + kUseInstead);
  TANDEM_ASSIGN_OR_RETURN(uint64_t managed, Attribute(CU_POINTER_ATTRIBUTE_IS_MANAGED, address));
  if (managed != 0)
    return NotRegistrable(Hex(address) + " is managed memory, which has no one place" + kUseInstead);
  TANDEM_ASSIGN_OR_RETURN(uint64_t ordinal, Attribute(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address));
  TANDEM_ASSIGN_OR_RETURN(Gpu * gpu, FindByOrdinal(static_cast<CUdevice>(ordinal)));
  ForeignRange range;
  range.gpu_uuid = gpu->uuid;
  TANDEM_ASSIGN_OR_RETURN(uint64_t by_ipc,
                          Attribute(CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, address));
  if (by_ipc != 0) return DescribeIpc(std::move(range), address, bytes);
  TANDEM_ASSIGN_OR_RETURN(uint64_t pool, Attribute(CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, address));
  if (pool != 0) {
    return NotRegistrable(Hex(address) +
                          " is of a stream-ordered pool (cudaMallocAsync), which is shared by pool only" +
                          kUseInstead + " (PyTorch: the fused allocator, not backend:cudaMallocAsync)");
  }
  return DescribeChunks(std::move(range), address, bytes);
}

Result<ForeignRange> CudaClientDevice::DescribeIpc(ForeignRange range, uintptr_t address, size_t bytes) {
  CUdeviceptr base = 0;
  ForeignRange::Piece piece;
  TANDEM_RETURN_IF_ERROR(driver_.MemGetAddressRange(address, &base, &piece.bytes));
  if (address - base > piece.bytes || bytes > piece.bytes - (address - base)) {
    return OutOfRange(std::to_string(bytes) + " bytes from " + Hex(address) +
                      " reach beyond the allocation of " + std::to_string(piece.bytes) + " at " + Hex(base));
  }
  piece.base = base;
  TANDEM_ASSIGN_OR_RETURN(piece.id, Attribute(CU_POINTER_ATTRIBUTE_BUFFER_ID, base));
  range.by_ipc = true;
  range.pieces.push_back(piece);
  return range;
}

Result<ForeignRange> CudaClientDevice::DescribeChunks(ForeignRange range, uintptr_t address, size_t bytes) {
  for (uintptr_t at = address; at < address + bytes;) {
    CUdeviceptr base = 0;
    ForeignRange::Piece piece;
    Status mapped = driver_.MemGetAddressRange(at, &base, &piece.bytes);
    if (!mapped.ok() || piece.bytes == 0) {
      return OutOfRange("the range of " + std::to_string(bytes) + " bytes from " + Hex(address) +
                        " is not mapped from " + Hex(at) + " on: " + mapped.message());
    }
    piece.base = base;
    TANDEM_ASSIGN_OR_RETURN(piece.id, Attribute(CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID, at));
    TANDEM_ASSIGN_OR_RETURN(uint64_t kinds, Attribute(CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, at));
    if ((kinds & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) == 0) {
      return NotRegistrable("the virtual memory at " + Hex(at) +
                            " was not created to be exported as a descriptor" + kUseInstead);
    }
    range.pieces.push_back(piece);
    at = piece.base + piece.bytes;
  }
  return range;
}

Result<ExportedRange> CudaClientDevice::Export(const ForeignRange& range) {
  SlowCallScope scope(driver_);
  // A handle is made in the context that the memory belongs to; a range's memory in none.
  TANDEM_ASSIGN_OR_RETURN(Gpu * gpu, Find(range.gpu_uuid));
  TANDEM_RETURN_IF_ERROR(Opened(*gpu).status());
  ExportedRange exported;
  if (range.by_ipc) {
    TANDEM_ASSIGN_OR_RETURN(CUipcMemHandle handle, driver_.IpcGetMemHandle(range.base()));
    exported.ipc_handle.assign(handle.reserved, sizeof(handle.reserved));
    return exported;
  }
  for (const ForeignRange::Piece& piece : range.pieces) {
    TANDEM_ASSIGN_OR_RETURN(CUmemGenericAllocationHandle handle,
                            driver_.MemRetainAllocationHandle(piece.base));
    Result<int> fd = driver_.MemExportToFd(handle);
    (void)driver_.MemRelease(handle);
    TANDEM_RETURN_IF_ERROR(fd.status());
    exported.fds.emplace_back(*fd);
    exported.chunk_bytes.push_back(piece.bytes);
  }
  return exported;
}

Result<uint64_t> CudaClientDevice::CurrentId(const ForeignRange& range,
                                             const ForeignRange::Piece& piece) const {
  uint64_t id = 0;
  Status status = driver_.PointerGetAttribute(
      &id, range.by_ipc ? CU_POINTER_ATTRIBUTE_BUFFER_ID : CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID, piece.base);
  if (status.ok()) return id;
  return status.code() == Code::kInvalidArgument ? Result<uint64_t>(uint64_t{0}) : Result<uint64_t>(status);
}

Result<bool> CudaClientDevice::Holds(const ForeignRange& range, uintptr_t address, size_t bytes) {
  if (address < range.base() || address - range.base() > range.bytes() ||
      bytes > range.bytes() - (address - range.base())) {
    return false;
  }
  for (const ForeignRange::Piece& piece : range.pieces) {
    if (piece.base + piece.bytes <= address) continue;
    if (piece.base >= address + bytes) break;
    TANDEM_ASSIGN_OR_RETURN(uint64_t id, CurrentId(range, piece));
    if (id != piece.id) return false;
  }
  return true;
}

Result<bool> CudaClientDevice::Vanished(const ForeignRange& range) {
  SlowCallScope scope(driver_);
  TANDEM_ASSIGN_OR_RETURN(Gpu * gpu, Find(range.gpu_uuid));
  TANDEM_RETURN_IF_ERROR(Opened(*gpu).status());
  TANDEM_ASSIGN_OR_RETURN(bool holds, Holds(range, range.base(), range.bytes()));
  return !holds;
}

}  // namespace tandem::client
