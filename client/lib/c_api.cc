// The C interface over the C++ one: handles hold the shared pointers, statuses hold their texts.
#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <vector>

#include "client/lib/plan_json.h"
#include "ipc/channel_layout.h"
#include "tandem/client.h"
#include "tandem/host_stream.h"
#include "tandem/tandem.h"

struct tandem_status {
  tandem::Status status;
};
struct tandem_client {
  std::shared_ptr<tandem::Client> client;
  bool has_callback = false;
};
struct tandem_group {
  std::shared_ptr<tandem::Group> group;
};
struct tandem_plan {
  std::shared_ptr<tandem::Plan> plan;
  std::once_flag json_made = {};
  std::string json = {};
};
struct tandem_memory {
  std::shared_ptr<tandem::Memory> memory;
  std::shared_ptr<tandem::SymmetricTensor> tensor;  // null for memory that is not symmetric
};
struct tandem_stream {
  std::unique_ptr<tandem::HostStream> stream;
};
struct tandem_graph {
  tandem::HostGraphExec exec;
};

namespace tandem {
namespace {

tandem_status* ToC(Status status) { return status.ok() ? nullptr : new tandem_status{std::move(status)}; }

tandem_status* NullArgument(const char* name) { return ToC(InvalidArgument(std::string(name) + " is NULL")); }

std::string Text(const char* text) { return text == nullptr ? std::string() : std::string(text); }

std::vector<int64_t> Shape(const int64_t* extents, size_t dims) {
  return extents == nullptr ? std::vector<int64_t>() : std::vector<int64_t>(extents, extents + dims);
}

Result<DType> ToDType(int dtype) {
  if (dtype >= 0 && dtype <= 255 && IsValid(static_cast<DType>(dtype))) return static_cast<DType>(dtype);
  return InvalidArgument("dtype " + std::to_string(dtype) + " is none of Tandem's");
}

Status Wrong(const std::string& field, const std::string& what) {
  return InvalidArgument(field + " " + what).WithDetail({.reason = "BAD_FIELD", .who = {}, .field = field});
}

// A value of an enumeration of one byte. Which of them it has is the daemon's to check.
template <typename Enum>
Status ToEnum(int value, const std::string& field, Enum* to) {
  static_assert(sizeof(Enum) == 1);
  if (value < 0 || value > 255)
    return Wrong(field, "is " + std::to_string(value) + ", which is none of Tandem's");
  *to = static_cast<Enum>(value);
  return Status::Ok();
}

Result<SymmetricTensor*> Tensor(const tandem_memory* memory) {
  if (memory == nullptr) return InvalidArgument("tensor is NULL");
  if (memory->tensor == nullptr) return FailedPrecondition("the memory is not a symmetric tensor");
  return memory->tensor.get();
}

// A launch's bindings on the stack: the launch path allocates nothing. Without an array they are not bound.
// One more than fit tells the plan of a count that no plan has.
class Bindings {
 public:
  Bindings(const tandem_binding* bindings, size_t count) : count_(std::min(count, all_.size())) {
    for (size_t i = 0; bindings != nullptr && i < count_; ++i) {
      const tandem_memory* memory = bindings[i].memory;
      all_[i] = {memory == nullptr ? nullptr : memory->memory.get(), bindings[i].offset};
    }
  }
  Bindings(void* const* pointers, size_t count) : count_(std::min(count, all_.size())) {
    for (size_t i = 0; pointers != nullptr && i < count_; ++i) all_[i] = {nullptr, 0, pointers[i]};
  }
  operator std::span<const Binding>() const {
    return {all_.data(), count_};
  }  // NOLINT(google-explicit-constructor)

 private:
  std::array<Binding, kMaxBindings + 1> all_;
  const size_t count_;
};

Milliseconds ToMilliseconds(uint64_t count) {
  return Milliseconds(static_cast<int64_t>(std::min<uint64_t>(count, INT64_MAX)));
}

LaunchOptions Options(uint64_t deadline_ms, const char* tag) {
  return {ToMilliseconds(deadline_ms), Text(tag)};
}

Result<OpRequest> ToRequest(const tandem_request& from) {
  OpRequest request;
  TANDEM_RETURN_IF_ERROR(ToEnum(from.op, "op", &request.op));
  if (from.operands == nullptr && from.operand_count > 0) return Wrong("operands", "is NULL");
  for (size_t i = 0; i < from.operand_count; ++i) {
    const tandem_operand& operand = from.operands[i];
    TANDEM_ASSIGN_OR_RETURN(DType dtype, ToDType(operand.dtype));
    Role role = Role::kInput;
    TANDEM_RETURN_IF_ERROR(ToEnum(operand.role, "operands[" + std::to_string(i) + "].role", &role));
    request.operands.push_back(
        {role,
         {dtype, Shape(operand.shape, operand.dims), Shape(operand.strides, operand.dims)},
         operand.symmetric != 0,
         operand.alias_of});
  }
  request.dim = from.dim;
  TANDEM_RETURN_IF_ERROR(ToEnum(from.reduce_op, "reduce_op", &request.reduce_op));
  request.root = from.root;
  TANDEM_RETURN_IF_ERROR(ToEnum(from.wire, "wire", &request.wire));
  request.fast_accumulation = from.fast_accumulation != 0;
  request.low_contention = from.low_contention != 0;
  request.chunk_pivot = from.chunk_pivot;
  if (from.transfers == nullptr && from.transfer_count > 0) return Wrong("transfers", "is NULL");
  for (size_t i = 0; i < from.transfer_count; ++i) {
    request.transfers.push_back(
        {from.transfers[i].send != 0, from.transfers[i].peer, from.transfers[i].slot});
  }
  TANDEM_RETURN_IF_ERROR(ToEnum(from.algorithm, "algorithm", &request.algorithm));
  request.steps = from.steps;
  request.lanes = from.lanes;
  TANDEM_RETURN_IF_ERROR(ToEnum(from.on_unfused, "on_unfused", &request.on_unfused));
  return request;
}

}  // namespace
}  // namespace tandem

using namespace tandem;  // NOLINT: this file is all glue

#define TANDEM_C_RETURN_IF_ERROR(result) \
  if (!(result).ok()) return ToC((result).status())

extern "C" {

int tandem_abi_version(void) { return TANDEM_ABI_VERSION; }

int tandem_status_code(const tandem_status* status) {
  return status == nullptr ? 0 : static_cast<int>(status->status.code());
}
const char* tandem_status_message(const tandem_status* status) {
  return status == nullptr ? "" : status->status.message().c_str();
}
const char* tandem_status_reason(const tandem_status* status) {
  return status == nullptr ? "" : status->status.detail().reason.c_str();
}
const char* tandem_status_who(const tandem_status* status) {
  return status == nullptr ? "" : status->status.detail().who.c_str();
}
const char* tandem_status_field(const tandem_status* status) {
  return status == nullptr ? "" : status->status.detail().field.c_str();
}
void tandem_status_free(tandem_status* status) { delete status; }

tandem_status* tandem_connect(const char* runtime_dir, const char* name, uint32_t deadline_ms,
                              tandem_client** client) {
  if (client == nullptr) return NullArgument("client");
  auto connected = Client::Connect({Text(runtime_dir), Milliseconds(deadline_ms), Text(name)});
  TANDEM_C_RETURN_IF_ERROR(connected);
  *client = new tandem_client{.client = *std::move(connected)};
  return nullptr;
}
void tandem_client_free(tandem_client* client) {
  // Other handles may keep the session alive, longer than the callback's `user`.
  if (client != nullptr && client->has_callback) client->client->OnEvent(nullptr);
  delete client;
}
uint64_t tandem_client_session_id(const tandem_client* client) { return client->client->session_id(); }
const char* tandem_client_backend(const tandem_client* client) { return client->client->backend().c_str(); }
const char* tandem_client_daemon_version(const tandem_client* client) {
  return client->client->daemon_version().c_str();
}
int tandem_client_gpu_count(const tandem_client* client) {
  return static_cast<int>(client->client->gpus().size());
}
const char* tandem_client_gpu_uuid(const tandem_client* client, int index) {
  if (index < 0 || index >= tandem_client_gpu_count(client)) return nullptr;
  return client->client->gpus()[static_cast<size_t>(index)].uuid.c_str();
}
tandem_status* tandem_cuda_device_uuid(int ordinal, char* uuid, size_t uuid_bytes) {
  if (uuid == nullptr) return NullArgument("uuid");
  auto found = Client::CudaDeviceUuid(ordinal);
  TANDEM_C_RETURN_IF_ERROR(found);
  if (found->size() >= uuid_bytes)
    return ToC(OutOfRange("a UUID needs " + std::to_string(found->size() + 1) + " bytes"));
  std::memcpy(uuid, found->c_str(), found->size() + 1);
  return nullptr;
}
tandem_status* tandem_client_check(tandem_client* client) { return ToC(client->client->Check()); }
tandem_status* tandem_client_detach(tandem_client* client) { return ToC(client->client->Detach()); }
void tandem_client_on_event(tandem_client* client, tandem_event_callback callback, void* user) {
  client->has_callback = callback != nullptr;
  if (callback == nullptr) return client->client->OnEvent(nullptr);
  client->client->OnEvent([callback, user](const ClientEvent& event) {
    tandem_status status{event.status};
    callback(user, static_cast<int>(event.kind), event.group_id, event.rank,
             event.status.ok() ? nullptr : &status);
  });
}

tandem_status* tandem_join_group(tandem_client* client, const tandem_join_options* options,
                                 tandem_group** group) {
  if (options == nullptr || group == nullptr) return NullArgument(options == nullptr ? "options" : "group");
  if (options->option_count > 0 && (options->option_names == nullptr || options->option_values == nullptr)) {
    return NullArgument(options->option_names == nullptr ? "option_names" : "option_values");
  }
  JoinOptions join;
  join.job_key.assign(static_cast<const char*>(options->job_key),
                      options->job_key == nullptr ? 0 : options->job_key_bytes);
  join.name = Text(options->name);
  join.world_size = options->world_size;
  join.rank = options->rank;
  join.gpu_uuid = Text(options->gpu_uuid);
  join.deadline = Milliseconds(options->deadline_ms);
  join.launch_deadline = ToMilliseconds(options->launch_deadline_ms);
  for (size_t i = 0; i < options->option_count; ++i) {
    join.options[Text(options->option_names[i])] = Text(options->option_values[i]);
  }
  auto joined = client->client->JoinGroup(join);
  TANDEM_C_RETURN_IF_ERROR(joined);
  *group = new tandem_group{*std::move(joined)};
  return nullptr;
}
void tandem_group_free(tandem_group* group) { delete group; }
uint64_t tandem_group_id(const tandem_group* group) { return group->group->id(); }
int tandem_group_rank(const tandem_group* group) { return group->group->rank(); }
int tandem_group_world_size(const tandem_group* group) { return group->group->world_size(); }
uint64_t tandem_group_incarnation(const tandem_group* group) { return group->group->incarnation(); }
const char* tandem_group_gpu_uuid(const tandem_group* group) { return group->group->gpu_uuid().c_str(); }
const char* tandem_group_topology_class(const tandem_group* group) {
  return group->group->topology_class().c_str();
}
int tandem_group_links(const tandem_group* group, int from, int to) {
  int world = group->group->world_size();
  if (from < 0 || to < 0 || from >= world || to >= world) return 0;
  return group->group->link_counts()[static_cast<size_t>(from)][static_cast<size_t>(to)];
}
tandem_status* tandem_group_leave(tandem_group* group, uint32_t deadline_ms) {
  return ToC(group->group->Leave(Milliseconds(deadline_ms)));
}

tandem_status* tandem_allocate(tandem_group* group, const int64_t* shape, size_t dims, int dtype,
                               const char* persistent_name, uint32_t deadline_ms, tandem_memory** tensor) {
  if (tensor == nullptr) return NullArgument("tensor");
  auto type = ToDType(dtype);
  TANDEM_C_RETURN_IF_ERROR(type);
  auto made =
      group->group->Allocate(Shape(shape, dims), *type, Text(persistent_name), Milliseconds(deadline_ms));
  TANDEM_C_RETURN_IF_ERROR(made);
  *tensor = new tandem_memory{*made, *made};
  return nullptr;
}
tandem_status* tandem_empty(tandem_client* client, const int64_t* shape, size_t dims, int dtype,
                            const char* gpu_uuid, const char* persistent_name, uint64_t* tensor) {
  if (tensor == nullptr) return NullArgument("tensor");
  auto type = ToDType(dtype);
  TANDEM_C_RETURN_IF_ERROR(type);
  auto made = client->client->Empty(Shape(shape, dims), *type, Text(gpu_uuid), Text(persistent_name));
  TANDEM_C_RETURN_IF_ERROR(made);
  *tensor = *made;
  return nullptr;
}
tandem_status* tandem_rendezvous(tandem_client* client, uint64_t tensor, tandem_group* group,
                                 uint32_t deadline_ms, tandem_memory** memory) {
  if (group == nullptr || memory == nullptr) return NullArgument(group == nullptr ? "group" : "memory");
  auto met = client->client->Rendezvous(tensor, group->group, Milliseconds(deadline_ms));
  TANDEM_C_RETURN_IF_ERROR(met);
  *memory = new tandem_memory{*met, *met};
  return nullptr;
}
tandem_status* tandem_free_tensor(tandem_client* client, uint64_t tensor) {
  return ToC(client->client->Free(tensor));
}
tandem_status* tandem_register_fd(tandem_client* client, int fd, size_t bytes, const char* gpu_uuid,
                                  tandem_memory** memory) {
  if (memory == nullptr) return NullArgument("memory");
  auto made = client->client->RegisterFd(fd, bytes, Text(gpu_uuid));
  TANDEM_C_RETURN_IF_ERROR(made);
  *memory = new tandem_memory{*std::move(made), nullptr};
  return nullptr;
}
tandem_status* tandem_allocate_registered(tandem_client* client, size_t bytes, const char* gpu_uuid,
                                          tandem_memory** memory) {
  if (memory == nullptr) return NullArgument("memory");
  auto made = client->client->AllocateRegistered(bytes, Text(gpu_uuid));
  TANDEM_C_RETURN_IF_ERROR(made);
  *memory = new tandem_memory{*std::move(made), nullptr};
  return nullptr;
}
tandem_status* tandem_register_cuda(tandem_client* client, const void* device_pointer, size_t bytes,
                                    tandem_memory** memory) {
  if (memory == nullptr) return NullArgument("memory");
  auto made = client->client->RegisterCuda(device_pointer, bytes);
  TANDEM_C_RETURN_IF_ERROR(made);
  *memory = new tandem_memory{*std::move(made), nullptr};
  return nullptr;
}
void tandem_memory_free(tandem_memory* memory) { delete memory; }
void* tandem_memory_data(const tandem_memory* memory) { return memory->memory->data(); }
size_t tandem_memory_bytes(const tandem_memory* memory) { return memory->memory->bytes(); }
uint64_t tandem_memory_registration_id(const tandem_memory* memory) {
  return memory->memory->registration_id();
}

tandem_status* tandem_tensor_get_buffer(const tandem_memory* memory, int peer, const int64_t* shape,
                                        size_t dims, int dtype, size_t offset_bytes, void** buffer) {
  if (buffer == nullptr) return NullArgument("buffer");
  auto tensor = Tensor(memory);
  TANDEM_C_RETURN_IF_ERROR(tensor);
  auto type = ToDType(dtype);
  TANDEM_C_RETURN_IF_ERROR(type);
  auto found = (*tensor)->GetBuffer(peer, Shape(shape, dims), *type, offset_bytes);
  TANDEM_C_RETURN_IF_ERROR(found);
  *buffer = *found;
  return nullptr;
}
tandem_status* tandem_tensor_signal_pad(const tandem_memory* memory, int peer, uint32_t** words,
                                        size_t* count) {
  if (words == nullptr || count == nullptr) return NullArgument("words or count");
  auto tensor = Tensor(memory);
  TANDEM_C_RETURN_IF_ERROR(tensor);
  std::span<uint32_t> pad = (*tensor)->SignalPad(peer);
  if (pad.empty()) return ToC(OutOfRange("there is no signal pad of rank " + std::to_string(peer)));
  *words = pad.data();
  *count = pad.size();
  return nullptr;
}
int tandem_tensor_channels(const tandem_memory* memory) {
  auto tensor = Tensor(memory);
  return tensor.ok() ? (*tensor)->channels() : 0;
}
tandem_status* tandem_tensor_put_signal(tandem_memory* memory, int peer, int channel, uint32_t timeout_ms) {
  auto tensor = Tensor(memory);
  TANDEM_C_RETURN_IF_ERROR(tensor);
  return ToC((*tensor)->PutSignal(peer, channel, Milliseconds(timeout_ms)));
}
tandem_status* tandem_tensor_wait_signal(tandem_memory* memory, int peer, int channel, uint32_t timeout_ms) {
  auto tensor = Tensor(memory);
  TANDEM_C_RETURN_IF_ERROR(tensor);
  return ToC((*tensor)->WaitSignal(peer, channel, Milliseconds(timeout_ms)));
}
tandem_status* tandem_tensor_barrier(tandem_memory* memory, int channel, uint32_t timeout_ms) {
  auto tensor = Tensor(memory);
  TANDEM_C_RETURN_IF_ERROR(tensor);
  return ToC((*tensor)->Barrier(channel, Milliseconds(timeout_ms)));
}
tandem_status* tandem_tensor_memset32(tandem_memory* memory, tandem_stream* stream, int peer,
                                      size_t offset_bytes, uint32_t value, size_t count) {
  if (stream == nullptr) return NullArgument("stream");
  auto tensor = Tensor(memory);
  TANDEM_C_RETURN_IF_ERROR(tensor);
  return ToC((*tensor)->Memset32(stream->stream.get(), peer, offset_bytes, value, count));
}

tandem_status* tandem_tensor_memset32_cuda(tandem_memory* memory, void* cuda_stream, int peer,
                                           size_t offset_bytes, uint32_t value, size_t count) {
  auto tensor = Tensor(memory);
  TANDEM_C_RETURN_IF_ERROR(tensor);
  return ToC((*tensor)->Memset32(StreamRef::Cuda(cuda_stream), peer, offset_bytes, value, count));
}
tandem_status* tandem_tensor_write32_cuda(tandem_memory* memory, void* cuda_stream, int peer,
                                          size_t offset_bytes, uint32_t value) {
  auto tensor = Tensor(memory);
  TANDEM_C_RETURN_IF_ERROR(tensor);
  return ToC((*tensor)->StreamWriteValue32(StreamRef::Cuda(cuda_stream), peer, offset_bytes, value));
}

void tandem_request_init(tandem_request* request) {
  *request = tandem_request{};
  request->op = static_cast<int>(Op::kBarrier);
  request->fast_accumulation = 1;
}
tandem_status* tandem_prepare(tandem_group* group, const char* key, const tandem_request* request,
                              uint32_t deadline_ms, tandem_plan** plan) {
  if (request == nullptr || plan == nullptr) return NullArgument(request == nullptr ? "request" : "plan");
  auto op = ToRequest(*request);
  TANDEM_C_RETURN_IF_ERROR(op);
  auto prepared = group->group->Prepare(Text(key), *op, Milliseconds(deadline_ms));
  TANDEM_C_RETURN_IF_ERROR(prepared);
  *plan = new tandem_plan{*std::move(prepared)};
  return nullptr;
}
void tandem_plan_free(tandem_plan* plan) { delete plan; }
uint64_t tandem_plan_id(const tandem_plan* plan) { return plan->plan->info().plan_id; }
int tandem_plan_algorithm(const tandem_plan* plan) { return static_cast<int>(plan->plan->info().algorithm); }
const char* tandem_plan_reason(const tandem_plan* plan) { return plan->plan->info().reason.c_str(); }
const char* tandem_plan_summary(const tandem_plan* plan) { return plan->plan->info().summary.c_str(); }
const char* tandem_plan_json(tandem_plan* plan) {
  std::call_once(plan->json_made, [plan] { plan->json = client::PlanJson(plan->plan->info()); });
  return plan->json.c_str();
}
size_t tandem_plan_slots(const tandem_plan* plan) { return plan->plan->info().slot_bytes.size(); }
uint64_t tandem_plan_slot_bytes(const tandem_plan* plan, size_t slot) {
  return slot < tandem_plan_slots(plan) ? plan->plan->info().slot_bytes[slot] : 0;
}

tandem_status* tandem_launch(tandem_plan* plan, tandem_stream* stream, const tandem_binding* bindings,
                             size_t count, uint64_t deadline_ms, const char* tag) {
  if (stream == nullptr) return NullArgument("stream");
  return ToC(plan->plan->Launch(stream->stream.get(), Bindings(bindings, count), Options(deadline_ms, tag)));
}
tandem_status* tandem_launch_cuda(tandem_plan* plan, void* cuda_stream, const tandem_binding* bindings,
                                  size_t count, uint64_t deadline_ms, const char* tag) {
  return ToC(
      plan->plan->Launch(StreamRef::Cuda(cuda_stream), Bindings(bindings, count), Options(deadline_ms, tag)));
}
tandem_status* tandem_launch_cuda_pointers(tandem_plan* plan, void* cuda_stream, void* const* pointers,
                                           size_t count, uint64_t deadline_ms, const char* tag) {
  return ToC(
      plan->plan->Launch(StreamRef::Cuda(cuda_stream), Bindings(pointers, count), Options(deadline_ms, tag)));
}
tandem_status* tandem_launch_direct(tandem_plan* plan, const tandem_binding* bindings, size_t count,
                                    uint64_t deadline_ms, const char* tag, uint64_t* launch) {
  if (launch == nullptr) return NullArgument("launch");
  auto launched = plan->plan->LaunchDirect(Bindings(bindings, count), Options(deadline_ms, tag));
  TANDEM_C_RETURN_IF_ERROR(launched);
  *launch = *launched;
  return nullptr;
}
tandem_status* tandem_wait_launch(tandem_plan* plan, uint64_t launch, uint32_t deadline_ms) {
  return ToC(plan->plan->WaitLaunch(launch, Milliseconds(deadline_ms)));
}
tandem_status* tandem_plan_wait(tandem_plan* plan, uint32_t deadline_ms) {
  return ToC(plan->plan->Wait(Milliseconds(deadline_ms)));
}
tandem_status* tandem_plan_query(tandem_plan* plan, int* ended) {
  if (ended == nullptr) return NullArgument("ended");
  auto result = plan->plan->Query();
  TANDEM_C_RETURN_IF_ERROR(result);
  *ended = *result ? 1 : 0;
  return nullptr;
}
tandem_status* tandem_plan_release(tandem_plan* plan) { return ToC(plan->plan->Release()); }

tandem_status* tandem_stream_create(tandem_stream** stream) {
  if (stream == nullptr) return NullArgument("stream");
  auto made = HostStream::Create();
  TANDEM_C_RETURN_IF_ERROR(made);
  *stream = new tandem_stream{*std::move(made)};
  return nullptr;
}
void tandem_stream_free(tandem_stream* stream) { delete stream; }
tandem_status* tandem_stream_enqueue(tandem_stream* stream, void (*function)(void*), void* user) {
  if (function == nullptr) return NullArgument("function");
  return ToC(stream->stream->Enqueue([function, user] { function(user); }));
}
tandem_status* tandem_stream_synchronize(tandem_stream* stream, uint32_t deadline_ms) {
  return ToC(stream->stream->Synchronize(Milliseconds(deadline_ms)));
}
tandem_status* tandem_stream_begin_capture(tandem_stream* stream) {
  return ToC(stream->stream->BeginCapture());
}
tandem_status* tandem_stream_end_capture(tandem_stream* stream, tandem_graph** graph) {
  if (graph == nullptr) return NullArgument("graph");
  auto captured = stream->stream->EndCapture();
  TANDEM_C_RETURN_IF_ERROR(captured);
  auto exec = captured->Instantiate();
  TANDEM_C_RETURN_IF_ERROR(exec);
  *graph = new tandem_graph{*std::move(exec)};
  return nullptr;
}
tandem_status* tandem_graph_launch(tandem_graph* graph, tandem_stream* stream) {
  if (stream == nullptr) return NullArgument("stream");
  return ToC(graph->exec.Launch(*stream->stream));
}
void tandem_graph_free(tandem_graph* graph) { delete graph; }

}  // extern "C"
