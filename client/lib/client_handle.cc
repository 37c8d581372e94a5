// Client: connecting, joining, registering.
#include <algorithm>
#include <limits>

#include "client/lib/base/fork_guard.h"
#include "client/lib/handles.h"
#include "client/lib/plugin_loader.h"
#include "common/deadline.h"
#include "common/exceptions.h"

namespace tandem {

Result<std::shared_ptr<Client>> Client::Connect(const ConnectOptions& options) try {
  client::ConnectAttempt attempt;  // loading the gRPC plugin takes a lock
  TANDEM_RETURN_IF_ERROR(attempt.Check());
  TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<client::ClientControl> control, client::MakeControl());
  return client::ConnectThrough(std::move(control), options);
}
TANDEM_CATCH_TO_STATUS

Result<std::string> Client::CudaDeviceUuid(int ordinal) try { return client::CudaDeviceUuid(ordinal); }
TANDEM_CATCH_TO_STATUS

namespace client {
namespace {

// Registers the first `bytes` of the memory behind `fd`, which is mapped here and `mapped` long.
Result<std::shared_ptr<Memory>> RegisterMapped(const std::shared_ptr<ClientSession>& session, int fd,
                                               std::shared_ptr<DeviceMapping> mapping, size_t mapped,
                                               size_t bytes, const std::string& gpu_uuid) {
  RegisterInfo info;
  info.gpu_uuid = gpu_uuid;
  info.bytes = bytes;
  info.fds = {fd};
  info.chunk_bytes = {mapped};
  TANDEM_ASSIGN_OR_RETURN(uint64_t id, session->control().Register(info));
  return std::shared_ptr<Memory>(
      std::make_shared<RegisteredMemory>(session, id, std::move(mapping), bytes, gpu_uuid));
}

}  // namespace

Result<std::shared_ptr<Client>> ConnectThrough(std::unique_ptr<ClientControl> control,
                                               const ConnectOptions& given,
                                               std::shared_ptr<ClientDevice> device) try {
  ConnectAttempt attempt;
  TANDEM_RETURN_IF_ERROR(attempt.Check());
  ConnectOptions options = given;
  options.deadline = Bounded(given.deadline);
  TANDEM_ASSIGN_OR_RETURN(std::shared_ptr<ClientSession> session,
                          ClientSession::Attach(std::move(control), options, std::move(device)));
  attempt.Keep();
  return std::shared_ptr<Client>(std::make_shared<ClientHandle>(std::move(session)));
}
TANDEM_CATCH_TO_STATUS

Result<std::shared_ptr<Group>> ClientHandle::JoinGroup(const JoinOptions& given) try {
  TANDEM_RETURN_IF_ERROR(session_->CheckUsable());
  const auto bad = [](const std::string& field, const std::string& text) {
    return InvalidArgument(field + " " + text).WithDetail({.reason = "BAD_FIELD", .field = field});
  };
  if (given.rank < 0) {
    return OutOfRange("rank is " + std::to_string(given.rank) + "; the first is 0")
        .WithDetail({.reason = "BAD_FIELD", .field = "rank"});
  }
  if (given.launch_deadline.count() < 0)
    return bad("launch_deadline", "is negative; 0 is the daemon's default");
  JoinOptions options = given;
  options.deadline = Bounded(given.deadline);
  options.launch_deadline = Bounded(given.launch_deadline);
  std::string gpu_uuid = options.gpu_uuid;
  if (gpu_uuid.empty()) {
    for (const GpuDescription& gpu : gpus()) {
      if (gpu.index == options.rank) gpu_uuid = gpu.uuid;
    }
    if (gpu_uuid.empty()) {
      return InvalidArgument("rank " + std::to_string(options.rank) + " of group '" + options.name +
                             "' names no GPU, and this node has no GPU of that index: it has " +
                             std::to_string(gpus().size()))
          .WithDetail({.reason = {}, .who = {}, .field = "gpu_uuid"});
    }
  }
  // Asked for any placement of the group: a request may ask for another.
  const bool products = session_->info().backend == "cuda" && HasCudaProducts();
  TANDEM_ASSIGN_OR_RETURN(JoinInfo info, session_->control().JoinGroup(options, gpu_uuid, products));
  if (info.gpu_uuids.size() != static_cast<size_t>(options.world_size)) {
    return Internal("the daemon's answer names " + std::to_string(info.gpu_uuids.size()) +
                    " GPUs for a group of " + std::to_string(options.world_size));
  }
  auto group = std::make_shared<GroupHandle>(session_, options, std::move(info));
  AddGroup(group);
  return std::shared_ptr<Group>(std::move(group));
}
TANDEM_CATCH_TO_STATUS

Result<uint64_t> ClientHandle::Empty(const std::vector<int64_t>& shape, DType dtype,
                                     const std::string& gpu_uuid, const std::string& persistent_name) try {
  TANDEM_RETURN_IF_ERROR(session_->CheckUsable());
  return session_->control().Empty({dtype, shape, {}}, gpu_uuid, persistent_name);
}
TANDEM_CATCH_TO_STATUS

Result<std::shared_ptr<SymmetricTensor>> ClientHandle::Rendezvous(uint64_t tensor,
                                                                  const std::shared_ptr<Group>& group,
                                                                  Milliseconds deadline) try {
  TANDEM_RETURN_IF_ERROR(session_->CheckUsable());
  auto handle = std::dynamic_pointer_cast<GroupHandle>(group);
  if (handle == nullptr || handle->session() != session_)
    return InvalidArgument("the group is not this client's");
  TANDEM_ASSIGN_OR_RETURN(RendezvousInfo info,
                          session_->control().Rendezvous(tensor, group->id(), Bounded(deadline)));
  return TensorHandle::Make(std::move(handle), info, 0);
}
TANDEM_CATCH_TO_STATUS

Status ClientHandle::Free(uint64_t tensor) try {
  TANDEM_RETURN_IF_ERROR(session_->CheckUsable());
  return session_->control().Free(tensor);
}
TANDEM_CATCH_TO_STATUS

Result<std::shared_ptr<Memory>> ClientHandle::RegisterFd(int fd, size_t bytes,
                                                         const std::string& gpu_uuid) try {
  TANDEM_RETURN_IF_ERROR(session_->CheckUsable());
  TANDEM_ASSIGN_OR_RETURN(ClientDevice * device, session_->device());
  TANDEM_ASSIGN_OR_RETURN(std::shared_ptr<DeviceMapping> mapping, device->MapForeign(gpu_uuid, fd, bytes));
  return RegisterMapped(session_, fd, std::move(mapping), bytes, bytes, gpu_uuid);
}
TANDEM_CATCH_TO_STATUS

Result<std::shared_ptr<Memory>> ClientHandle::AllocateRegistered(size_t bytes,
                                                                 const std::string& gpu_uuid) try {
  return client::AllocateRegistered(session_, bytes, gpu_uuid);
}
TANDEM_CATCH_TO_STATUS

Result<std::shared_ptr<Memory>> AllocateRegistered(const std::shared_ptr<ClientSession>& session,
                                                   size_t bytes, const std::string& gpu_uuid) {
  TANDEM_RETURN_IF_ERROR(session->CheckUsable());
  // As symmetric tensors: memory without elements is one byte.
  bytes = std::max<size_t>(bytes, 1);
  if (bytes > static_cast<size_t>(std::numeric_limits<int64_t>::max())) {
    return InvalidArgument("bytes is " + std::to_string(bytes) + ", more than any memory has")
        .WithDetail({.reason = "BAD_FIELD", .field = "bytes"});
  }
  TANDEM_ASSIGN_OR_RETURN(ClientDevice * device, session->device());
  size_t allocated = 0;
  TANDEM_ASSIGN_OR_RETURN(UniqueFd fd, device->Allocate(gpu_uuid, bytes, &allocated));
  TANDEM_ASSIGN_OR_RETURN(std::shared_ptr<DeviceMapping> mapping, device->Map(gpu_uuid, fd.get(), allocated));
  return RegisterMapped(session, fd.get(), std::move(mapping), allocated, bytes, gpu_uuid);
}

Result<std::shared_ptr<Memory>> ClientHandle::RegisterCuda(const void* device_pointer, size_t bytes) try {
  TANDEM_RETURN_IF_ERROR(session_->CheckUsable());
  TANDEM_ASSIGN_OR_RETURN(ClientDevice * device, session_->device());
  TANDEM_ASSIGN_OR_RETURN(
      std::shared_ptr<ForeignRegistration> registration,
      session_->registrations().Foreign(session_->control(), *device, device_pointer, bytes));
  // The handle gives no one the right to write through it; the launch does.
  auto* data = static_cast<std::byte*>(const_cast<void*>(device_pointer));
  return std::shared_ptr<Memory>(
      std::make_shared<ForeignClientMemory>(session_, std::move(registration), data, bytes));
}
TANDEM_CATCH_TO_STATUS

RegisteredMemory::RegisteredMemory(std::shared_ptr<ClientSession> session, uint64_t registration_id,
                                   std::shared_ptr<DeviceMapping> mapping, size_t bytes, std::string gpu_uuid)
    : session_(std::move(session)),
      registration_id_(registration_id),
      mapping_(std::move(mapping)),
      bytes_(bytes),
      gpu_uuid_(std::move(gpu_uuid)),
      counted_(session_->memory().Hold(MemoryKind::kRegistered, 0, mapping_->data(), bytes_)) {
  session_->registrations().Add(data(), bytes_, gpu_uuid_, 0, registration_id_);
}

RegisteredMemory::~RegisteredMemory() {
  IgnoreExceptions([&] {
    session_->registrations().Remove(data(), registration_id_);
    if (session_->CanCallDaemon()) (void)session_->control().Deregister(registration_id_);
  });
}

ForeignClientMemory::~ForeignClientMemory() {
  registration_.reset();
  IgnoreExceptions([&] {
    if (session_->CanCallDaemon()) session_->registrations().Deregister(session_->control());
  });
}

Status ForeignClientMemory::Check() const try {
  TANDEM_RETURN_IF_ERROR(session_->CheckUsable());
  TANDEM_ASSIGN_OR_RETURN(ClientDevice * device, session_->device());
  return registration_->Check(*device, reinterpret_cast<uintptr_t>(data_), bytes_);
}
TANDEM_CATCH_TO_STATUS

void ClientHandle::OnEvent(std::function<void(const ClientEvent&)> callback) {
  IgnoreExceptions([&] { session_->OnEvent(std::move(callback)); });
}

Status ClientHandle::Check() try {
  TANDEM_RETURN_IF_ERROR(session_->CheckUsable());
  return session_->control().Check();
}
TANDEM_CATCH_TO_STATUS

Status ClientHandle::Detach() try {
  TANDEM_RETURN_IF_ERROR(session_->CheckUsable());
  // The lease may end before the answer is here.
  session_->SetDetaching(true);
  Status status = session_->control().Detach();
  if (!status.ok()) session_->SetDetaching(false);
  session_->Close(Unavailable(kDetached));
  return status;
}
TANDEM_CATCH_TO_STATUS

}  // namespace client
}  // namespace tandem
