// Commands around the device: the streams and mirrors behind other commands, filling and reading memory, and
// device memory of the script's own, which the library learns of by its address.
#include <cstdint>
#include <utility>

#include "tests/integration/driver/commands.h"
#ifdef TANDEM_DRIVER_CUDA
#include "drivers/cuda/cuda_driver.h"
#include "tests/gpu/fault_kernels.h"
#endif

namespace tandem::driver {
namespace {

constexpr Milliseconds kCopyDeadline(30000);

}  // namespace

Result<RankDevice*> Session::Device(const std::string& gpu) {
  const std::string& uuid = gpu.empty() ? home_gpu_ : gpu;
  auto& device = devices_[uuid];
  if (device == nullptr) {
    TANDEM_ASSIGN_OR_RETURN(device,
                            RankDevice::Create(client_ == nullptr ? "host" : client_->backend(), uuid));
  }
  return device.get();
}

Result<RankStream*> Session::Stream(const json& command) {
  auto& stream = streams_[command.value("stream", "s")];
  if (stream == nullptr) {
    TANDEM_ASSIGN_OR_RETURN(RankDevice * device, Device(command.value("stream_gpu", "")));
    TANDEM_ASSIGN_OR_RETURN(stream, device->MakeStream());
  }
  return stream.get();
}

Result<Session::Elements> Session::FindElements(const json& command, bool read) {
  std::string name = command.value("memory", "");
  TANDEM_RETURN_IF_ERROR(FindMemory(name).status());
  NamedMemory& named = memories_.at(name);
  Elements elements{.gpu = named.gpu};
  TANDEM_ASSIGN_OR_RETURN(elements.dtype, ParseDType(command.value("dtype", "f32")));
  size_t total = named.memory->bytes(), bytes = DTypeBytes(elements.dtype);
  elements.offset = command.value("offset", size_t{0});
  if (elements.offset > total) return OutOfRange("the offset is beyond the memory");
  elements.count = command.value("count", read ? size_t{1} : (total - elements.offset) / bytes);
  if (elements.count > (total - elements.offset) / bytes)
    return OutOfRange("the elements reach beyond the memory");
  TANDEM_ASSIGN_OR_RETURN(RankDevice * device, Device(named.gpu));
  if (named.mirror == nullptr) {
    TANDEM_ASSIGN_OR_RETURN(named.mirror, device->MakeMirror(*named.memory));
  }
  elements.mirror = named.mirror.get();
  return elements;
}

Status Session::Copy(const Elements& elements, bool to_device) {
  TANDEM_ASSIGN_OR_RETURN(RankStream * stream,
                          Stream({{"stream", "copies " + elements.gpu}, {"stream_gpu", elements.gpu}}));
  TANDEM_RETURN_IF_ERROR(to_device ? elements.mirror->ToDevice(*stream, elements.offset, elements.bytes())
                                   : elements.mirror->ToHost(*stream, elements.offset, elements.bytes()));
  return stream->Synchronize(kCopyDeadline);
}

// Elements [offset, offset + count) of memory: value(i) = base + i * step.
Status Session::Fill(const json& command) {
  TANDEM_ASSIGN_OR_RETURN(Elements elements, FindElements(command, false));
  float base = command.value("base", 0.0f), step = command.value("step", 0.0f);
  for (size_t i = 0; i < elements.count; ++i) {
    StoreFromFloat(elements.data(), elements.dtype, i, base + step * static_cast<float>(i % 64));
  }
  return Copy(elements, true);
}

Status Session::Read(const json& command, json* reply) {
  TANDEM_ASSIGN_OR_RETURN(Elements elements, FindElements(command, true));
  TANDEM_RETURN_IF_ERROR(Copy(elements, false));
  json values = json::array();
  for (size_t i = 0; i < elements.count; ++i)
    values.push_back(LoadAsFloat(elements.data(), elements.dtype, i));
  (*reply)["values"] = values;
  return Status::Ok();
}

// How many of the elements are not as Fill with the same arguments leaves them.
Status Session::Differs(const json& command, json* reply) {
  TANDEM_ASSIGN_OR_RETURN(Elements elements, FindElements(command, false));
  TANDEM_RETURN_IF_ERROR(Copy(elements, false));
  const float base = command.value("base", 0.0f), step = command.value("step", 0.0f);
  size_t count = 0;
  for (size_t i = 0; i < elements.count; ++i) {
    count += LoadAsFloat(elements.data(), elements.dtype, i) != base + step * static_cast<float>(i % 64);
  }
  (*reply)["count"] = count;
  return Status::Ok();
}

#ifdef TANDEM_DRIVER_CUDA

// Faults on GPUs. cuda_prepare, before any stream waits. cuda_fault: an illegal access. cuda_spin
// {milliseconds}: a kernel that fills the GPU and runs when the reply comes. cuda_probe: whether the context
// still lives.
Status Session::CudaTrouble(const std::string& name, const json& command) {
  const int error = name == "cuda_prepare" ? faults::UseDevice(faults::kCurrentDevice)
                    : name == "cuda_fault" ? faults::IllegalAccess()
                    : name == "cuda_spin"  ? faults::Spin(command.value("milliseconds", 1000))
                                           : faults::ProbeByKernel();
  return error == 0 ? Status::Ok() : Aborted(faults::ErrorName(error));
}

// cuda_reserve {allocation, chunk, chunks}: addresses for so many chunks of so many bytes, without memory.
// cuda_map and cuda_unmap {allocation, first, count}: gives each of these chunks separate memory
// ("exportable": false: that no other process can have), and takes it. So do PyTorch's expandable segments.
Status Session::CudaChunks(const std::string& name, const json& command, json* reply) {
  TANDEM_ASSIGN_OR_RETURN(cuda::CudaDriver * driver, cuda::LoadCudaDriver());
  const std::string allocation = command.value("allocation", "");
  if (name == "cuda_reserve") {
    ChunkRange range{.chunk = command.value("chunk", size_t{0}),
                     .chunks = command.value("chunks", size_t{0})};
    TANDEM_ASSIGN_OR_RETURN(range.address, driver->MemAddressReserve(range.chunk * range.chunks, 0));
    allocations_[allocation] = range.address;
    ranges_[allocation] = range;
    (*reply)["address"] = range.address;
    return Status::Ok();
  }
  auto it = ranges_.find(allocation);
  if (it == ranges_.end()) return NotFound("the script has not reserved " + allocation);
  const ChunkRange& range = it->second;
  const size_t first = command.value("first", size_t{0}), count = command.value("count", size_t{1});
  if (first > range.chunks || count > range.chunks - first) return OutOfRange("the range has fewer chunks");
  if (name == "cuda_unmap") {  // one by one, as they were mapped
    for (size_t i = first; i < first + count; ++i) {
      TANDEM_RETURN_IF_ERROR(driver->MemUnmap(range.address + i * range.chunk, range.chunk));
    }
    return Status::Ok();
  }
  CUmemAllocationProp properties = {};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  TANDEM_ASSIGN_OR_RETURN(properties.location.id, driver->CtxGetDevice());
  if (command.value("exportable", true))
    properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  CUmemAccessDesc access = {};
  access.location = properties.location;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  for (size_t i = first; i < first + count; ++i) {
    const CUdeviceptr at = range.address + i * range.chunk;
    TANDEM_ASSIGN_OR_RETURN(CUmemGenericAllocationHandle handle, driver->MemCreate(range.chunk, properties));
    Status mapped = driver->MemMap(at, range.chunk, handle);
    (void)driver->MemRelease(handle);  // the mapping keeps the memory
    TANDEM_RETURN_IF_ERROR(mapped);
    TANDEM_RETURN_IF_ERROR(driver->MemSetAccess(at, range.chunk, access));
  }
  return Status::Ok();
}

// cuda_malloc {allocation, bytes}; cuda_free {allocation}; cuda_register {allocation, memory, bytes, offset}:
// as a program with cudaMalloc does, and as one with a range of cuda_reserve. cuda_check {memory}:
// Memory::Check.
Status Session::CudaMemory(const std::string& name, const json& command, json* reply) {
  TANDEM_ASSIGN_OR_RETURN(RankDevice * device, Device(command.value("gpu", "")));
  TANDEM_RETURN_IF_ERROR(device->Enter());
  TANDEM_ASSIGN_OR_RETURN(cuda::CudaDriver * driver, cuda::LoadCudaDriver());
  if (name == "cuda_prepare" || name == "cuda_fault" || name == "cuda_spin" || name == "cuda_probe") {
    return CudaTrouble(name, command);
  }
  if (name == "cuda_reserve" || name == "cuda_map" || name == "cuda_unmap")
    return CudaChunks(name, command, reply);
  std::string allocation = command.value("allocation", "");
  size_t bytes = command.value("bytes", size_t{0});
  if (name == "cuda_malloc") {
    TANDEM_ASSIGN_OR_RETURN(CUdeviceptr address, driver->MemAlloc(bytes));
    allocations_[allocation] = address;
    (*reply)["address"] = static_cast<uint64_t>(address);
    return Status::Ok();
  }
  if (name == "cuda_check") {
    TANDEM_ASSIGN_OR_RETURN(auto memory, FindMemory(command.value("memory", "")));
    return memory->Check();
  }
  auto it = allocations_.find(allocation);
  if (it == allocations_.end()) return NotFound("the script has no allocation " + allocation);
  if (name == "cuda_free") {
    Status freed = driver->MemFree(it->second);
    allocations_.erase(it);
    return freed;
  }
  if (name == "cuda_register") {
    auto* pointer = reinterpret_cast<void*>(it->second + command.value("offset", uint64_t{0}));
    TANDEM_ASSIGN_OR_RETURN(auto memory, client_->RegisterCuda(pointer, bytes));
    (*reply)["registration_id"] = memory->registration_id();
    (*reply)["registration_offset"] = memory->registration_offset();
    (*reply)["address"] = reinterpret_cast<uint64_t>(memory->data());
    Name(command, memory);
    return Status::Ok();
  }
  return InvalidArgument("unknown command " + name);
}

#else

Status Session::CudaTrouble(const std::string&, const json&) { return Unimplemented("built without CUDA"); }

Status Session::CudaChunks(const std::string&, const json&, json*) {
  return Unimplemented("built without CUDA");
}

Status Session::CudaMemory(const std::string&, const json&, json*) {
  return Unimplemented("the test's client was built without CUDA");
}

#endif

}  // namespace tandem::driver
