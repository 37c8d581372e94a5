// Memory of the C interface: registered memory and symmetric tensors.
#include "client/lib/c_api/c_handles.h"

using namespace tandem;     // NOLINT: this file is all glue
using namespace tandem::c;  // NOLINT

namespace {

Result<SymmetricTensor*> Tensor(const tandem_memory* memory) {
  if (memory == nullptr) return BadField("tensor", "is NULL");
  if (memory->tensor == nullptr) return FailedPrecondition("the memory is not a symmetric tensor");
  return memory->tensor.get();
}

// The element type; INVALID_ARGUMENT also for a shape that is not there.
Result<DType> TypeOf(const int64_t* shape, size_t dims, int dtype) {
  if (shape == nullptr && dims > 0) return BadField("shape", "is NULL");
  return ToDType(dtype);
}

tandem_status* Give(Result<std::shared_ptr<Memory>> made, tandem_memory** memory) {
  TANDEM_C_RETURN_IF_ERROR(made);
  *memory = new tandem_memory{*std::move(made), nullptr};
  return nullptr;
}
tandem_status* Give(Result<std::shared_ptr<SymmetricTensor>> made, tandem_memory** memory) {
  TANDEM_C_RETURN_IF_ERROR(made);
  *memory = new tandem_memory{*made, *made};
  return nullptr;
}

}  // namespace

extern "C" {

tandem_status* tandem_allocate(tandem_group* group, const int64_t* shape, size_t dims, int dtype,
                               const char* persistent_name, int64_t deadline_ms, tandem_memory** tensor) try {
  Clear(tensor);
  TANDEM_C_RETURN_IF_NULL({"group", group}, {"tensor", tensor});
  auto type = TypeOf(shape, dims, dtype);
  TANDEM_C_RETURN_IF_ERROR(type);
  return Give(group->group->Allocate(Shape(shape, dims), *type, Text(persistent_name),
                                     ToDeadline(deadline_ms, kDefaultDeadline)),
              tensor);
}
TANDEM_C_CATCH
tandem_status* tandem_empty(tandem_client* client, const int64_t* shape, size_t dims, int dtype,
                            const char* gpu_uuid, const char* persistent_name, uint64_t* tensor) try {
  TANDEM_C_RETURN_IF_NULL({"client", client}, {"gpu_uuid", gpu_uuid}, {"tensor", tensor});
  auto type = TypeOf(shape, dims, dtype);
  TANDEM_C_RETURN_IF_ERROR(type);
  auto made = client->client->Empty(Shape(shape, dims), *type, Text(gpu_uuid), Text(persistent_name));
  TANDEM_C_RETURN_IF_ERROR(made);
  *tensor = *made;
  return nullptr;
}
TANDEM_C_CATCH
tandem_status* tandem_rendezvous(tandem_client* client, uint64_t tensor, tandem_group* group,
                                 int64_t deadline_ms, tandem_memory** memory) try {
  Clear(memory);
  TANDEM_C_RETURN_IF_NULL({"client", client}, {"group", group}, {"memory", memory});
  return Give(client->client->Rendezvous(tensor, group->group, ToDeadline(deadline_ms, kDefaultDeadline)),
              memory);
}
TANDEM_C_CATCH
tandem_status* tandem_free_tensor(tandem_client* client, uint64_t tensor) try {
  TANDEM_C_RETURN_IF_NULL({"client", client});
  return ToC(client->client->Free(tensor));
}
TANDEM_C_CATCH
tandem_status* tandem_register_fd(tandem_client* client, int fd, size_t bytes, const char* gpu_uuid,
                                  tandem_memory** memory) try {
  Clear(memory);
  TANDEM_C_RETURN_IF_NULL({"client", client}, {"gpu_uuid", gpu_uuid}, {"memory", memory});
  return Give(client->client->RegisterFd(fd, bytes, Text(gpu_uuid)), memory);
}
TANDEM_C_CATCH
tandem_status* tandem_allocate_registered(tandem_client* client, size_t bytes, const char* gpu_uuid,
                                          tandem_memory** memory) try {
  Clear(memory);
  TANDEM_C_RETURN_IF_NULL({"client", client}, {"gpu_uuid", gpu_uuid}, {"memory", memory});
  return Give(client->client->AllocateRegistered(bytes, Text(gpu_uuid)), memory);
}
TANDEM_C_CATCH
tandem_status* tandem_register_cuda(tandem_client* client, const void* device_pointer, size_t bytes,
                                    tandem_memory** memory) try {
  Clear(memory);
  TANDEM_C_RETURN_IF_NULL({"client", client}, {"device_pointer", device_pointer}, {"memory", memory});
  return Give(client->client->RegisterCuda(device_pointer, bytes), memory);
}
TANDEM_C_CATCH
void tandem_memory_free(tandem_memory* memory) { delete memory; }
void* tandem_memory_data(const tandem_memory* memory) {
  return memory == nullptr ? nullptr : memory->memory->data();
}
tandem_status* tandem_client_memory(const tandem_client* client, tandem_memory_usage* usage) try {
  TANDEM_C_RETURN_IF_NULL({"client", client}, {"usage", usage});
  return ToC(WriteUsage(client->client->UsedMemory(), usage));
}
TANDEM_C_CATCH
tandem_status* tandem_group_memory(const tandem_group* group, tandem_memory_usage* usage) try {
  TANDEM_C_RETURN_IF_NULL({"group", group}, {"usage", usage});
  return ToC(WriteUsage(group->group->UsedMemory(), usage));
}
TANDEM_C_CATCH
size_t tandem_memory_bytes(const tandem_memory* memory) {
  return memory == nullptr ? 0 : memory->memory->bytes();
}
uint64_t tandem_memory_registration_id(const tandem_memory* memory) {
  return memory == nullptr ? 0 : memory->memory->registration_id();
}

tandem_status* tandem_tensor_get_buffer(const tandem_memory* memory, int peer, const int64_t* shape,
                                        size_t dims, int dtype, size_t offset_bytes, void** buffer) try {
  TANDEM_C_RETURN_IF_NULL({"buffer", buffer});
  auto tensor = Tensor(memory);
  TANDEM_C_RETURN_IF_ERROR(tensor);
  auto type = TypeOf(shape, dims, dtype);
  TANDEM_C_RETURN_IF_ERROR(type);
  auto found = (*tensor)->GetBuffer(peer, Shape(shape, dims), *type, offset_bytes);
  TANDEM_C_RETURN_IF_ERROR(found);
  *buffer = *found;
  return nullptr;
}
TANDEM_C_CATCH
tandem_status* tandem_tensor_signal_pad(const tandem_memory* memory, int peer, uint32_t** words,
                                        size_t* count) try {
  TANDEM_C_RETURN_IF_NULL({"words", words}, {"count", count});
  auto tensor = Tensor(memory);
  TANDEM_C_RETURN_IF_ERROR(tensor);
  std::span<uint32_t> pad = (*tensor)->SignalPad(peer);
  if (pad.empty()) return ToC(OutOfRange("there is no signal pad of rank " + std::to_string(peer)));
  *words = pad.data();
  *count = pad.size();
  return nullptr;
}
TANDEM_C_CATCH
int tandem_tensor_channels(const tandem_memory* memory) {
  return memory == nullptr || memory->tensor == nullptr ? 0 : memory->tensor->channels();
}
tandem_status* tandem_tensor_put_signal(tandem_memory* memory, int peer, int channel,
                                        int64_t deadline_ms) try {
  auto tensor = Tensor(memory);
  TANDEM_C_RETURN_IF_ERROR(tensor);
  return ToC((*tensor)->PutSignal(peer, channel, ToDeadline(deadline_ms, kDefaultDeadline)));
}
TANDEM_C_CATCH
tandem_status* tandem_tensor_wait_signal(tandem_memory* memory, int peer, int channel,
                                         int64_t deadline_ms) try {
  auto tensor = Tensor(memory);
  TANDEM_C_RETURN_IF_ERROR(tensor);
  return ToC((*tensor)->WaitSignal(peer, channel, ToDeadline(deadline_ms, kDefaultDeadline)));
}
TANDEM_C_CATCH
tandem_status* tandem_tensor_barrier(tandem_memory* memory, int channel, int64_t deadline_ms) try {
  auto tensor = Tensor(memory);
  TANDEM_C_RETURN_IF_ERROR(tensor);
  return ToC((*tensor)->Barrier(channel, ToDeadline(deadline_ms, kDefaultDeadline)));
}
TANDEM_C_CATCH
tandem_status* tandem_tensor_memset32(tandem_memory* memory, tandem_stream* stream, int peer,
                                      size_t offset_bytes, uint32_t value, size_t count) try {
  TANDEM_C_RETURN_IF_NULL({"stream", stream});
  auto tensor = Tensor(memory);
  TANDEM_C_RETURN_IF_ERROR(tensor);
  return ToC((*tensor)->Memset32(stream->stream.get(), peer, offset_bytes, value, count));
}
TANDEM_C_CATCH
tandem_status* tandem_tensor_memset32_cuda(tandem_memory* memory, void* cuda_stream, int peer,
                                           size_t offset_bytes, uint32_t value, size_t count) try {
  auto tensor = Tensor(memory);
  TANDEM_C_RETURN_IF_ERROR(tensor);
  return ToC((*tensor)->Memset32(StreamRef::Cuda(cuda_stream), peer, offset_bytes, value, count));
}
TANDEM_C_CATCH
tandem_status* tandem_tensor_write32_cuda(tandem_memory* memory, void* cuda_stream, int peer,
                                          size_t offset_bytes, uint32_t value) try {
  auto tensor = Tensor(memory);
  TANDEM_C_RETURN_IF_ERROR(tensor);
  return ToC((*tensor)->StreamWriteValue32(StreamRef::Cuda(cuda_stream), peer, offset_bytes, value));
}
TANDEM_C_CATCH

}  // extern "C"
