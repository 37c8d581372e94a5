#include "daemon/control/memory/registration_service.h"

#include <algorithm>
#include <utility>

#include "common/fd_socket.h"
#include "common/shared_memory.h"
#include "daemon/control/base/validate.h"

namespace tandem::daemon {

Result<RegistrationRecord> RegistrationService::MakeRecord(const SessionRef& session,
                                                           const v1::RegisterTensorRequest& request,
                                                           const Waiter& waiter) {
  // Claimed first: descriptors of a call that is refused are closed at once, not as orphans later.
  ForeignFds fds;
  if (request.ipc_handle().empty()) {
    Waiter claim = waiter;
    claim.deadline = std::min(claim.deadline, Waiter::Clock::now() + core_.options.orphan_deadline);
    TANDEM_ASSIGN_OR_RETURN(fds, session->transfers.Claim(request.transfer_id(), claim));
  }
  TANDEM_RETURN_IF_ERROR(ValidateRegister(request));
  TANDEM_ASSIGN_OR_RETURN(const int gpu, core_.UseGpu(*session, request.gpu_uuid()));
  const EngineCapabilities capabilities = core_.engines.StatusOf(gpu).capabilities;
  if (!request.ipc_handle().empty() && !capabilities.ipc_memory) {
    return Unimplemented("CUDA IPC handles need the CUDA backend; this daemon's is " + core_.options.backend)
        .WithDetail({.reason = "BACKEND", .who = {}, .field = "ipc_handle"});
  }
  if (fds.size() != static_cast<size_t>(request.chunk_bytes_size())) {
    return InvalidArgument("the transfer has " + std::to_string(fds.size()) +
                           " descriptors, chunk_bytes names " + std::to_string(request.chunk_bytes_size()))
        .WithDetail({.reason = "BAD_FIELD", .who = {}, .field = "chunk_bytes"});
  }
  RegistrationRecord record;
  record.gpu = gpu;
  record.bytes = request.bytes();
  record.ipc_handle = request.ipc_handle();
  record.offset = request.offset();
  for (size_t i = 0; i < fds.size(); ++i) {
    const uint64_t chunk = request.chunk_bytes(static_cast<int>(i));
    const Status usable =
        capabilities.on_gpu ? CheckForeignMemory(fds[i].get()) : CheckForeignMemfd(fds[i].get(), chunk);
    if (!usable.ok()) {
      return usable.WithContext("descriptor " + std::to_string(i))
          .WithDetail({.reason = "BAD_DESCRIPTOR", .who = {}, .field = "transfer_id"});
    }
    record.chunk_bytes.push_back(chunk);
    record.fds.push_back(ShareForeign(std::move(fds[i])));
  }
  return record;
}

Result<v1::RegisterTensorReply> RegistrationService::Register(const SessionRef& session,
                                                              const v1::RegisterTensorRequest& request,
                                                              const Waiter& waiter) {
  TANDEM_ASSIGN_OR_RETURN(RegistrationRecord record, MakeRecord(session, request, waiter));
  Registry& registry = core_.registry;
  auto batch = std::make_shared<CommandBatch>();
  uint64_t id = 0;
  {
    RegistryLock lock(registry);
    TANDEM_RETURN_IF_ERROR(registry.SessionAlive(*session));
    Ledger& ledger = registry.ledger;
    const Payer payer = session->payer();
    TANDEM_RETURN_IF_ERROR(ledger.Check(payer, Resource::kRegisteredBytes, record.bytes));
    TANDEM_RETURN_IF_ERROR(ledger.Check(payer, Resource::kDescriptors, record.fds.size()));
    TANDEM_RETURN_IF_ERROR(ledger.Charge(payer, Resource::kTensors, 1));
    TANDEM_RETURN_IF_ERROR(ledger.Charge(payer, Resource::kRegisteredBytes, record.bytes));
    TANDEM_RETURN_IF_ERROR(ledger.Charge(payer, Resource::kDescriptors, record.fds.size()));
    id = registry.next_id++;
    const int gpu = record.gpu;
    session->registrations[id] = std::move(record);
    // With its engine down the registration waits in the registry, and the next engine gets it.
    if (registry.GenerationOf(gpu) != 0) Post(*session, id, batch);
  }
  Status status = batch->Wait(waiter);
  // An engine that ends meanwhile gets it in its next life.
  if (!status.ok() && status.code() != Code::kUnavailable) {
    Deregister(session, id, waiter).ok();
    return status;
  }
  {
    RegistryLock lock(registry);
    TANDEM_RETURN_IF_ERROR(registry.SessionAlive(*session));
    if (const auto made = session->registrations.find(id); made != session->registrations.end())
      made->second.acknowledged = true;
    registry.Touch(*session);
  }
  v1::RegisterTensorReply reply;
  reply.set_registration_id(id);
  return reply;
}

void RegistrationService::Post(const SessionRecord& session, uint64_t registration_id,
                               const std::shared_ptr<CommandBatch>& batch) {
  const RegistrationRecord& record = session.registrations.at(registration_id);
  EngineMailbox& mailbox = core_.registry.MailboxOf(record.gpu);
  // Pieces beyond one message's room are sent first.
  auto rest = record.fds.begin();
  for (; record.fds.end() - rest > static_cast<ptrdiff_t>(kMaxFdsPerMessage); rest += kMaxFdsPerMessage) {
    engine::v1::Command chunks;
    chunks.mutable_add_chunks()->set_registration_id(registration_id);
    mailbox.Post(std::move(chunks), std::vector<SharedFd>(rest, rest + kMaxFdsPerMessage), batch);
  }
  engine::v1::Command command;
  engine::v1::AddRegistration& message = *command.mutable_add_registration();
  message.set_registration_id(registration_id);
  message.set_owner_session(session.id);
  message.set_bytes(record.bytes);
  message.set_ipc_handle(record.ipc_handle);
  message.set_offset(record.offset);
  for (const uint64_t bytes : record.chunk_bytes) message.add_chunk_bytes(bytes);
  mailbox.Post(std::move(command), std::vector<SharedFd>(rest, record.fds.end()), batch);
}

Status RegistrationService::Deregister(const SessionRef& session, uint64_t registration_id,
                                       const Waiter& waiter) {
  Registry& registry = core_.registry;
  auto batch = std::make_shared<CommandBatch>();
  {
    RegistryLock lock(registry);
    TANDEM_RETURN_IF_ERROR(registry.SessionAlive(*session));
    const auto it = session->registrations.find(registration_id);
    if (it == session->registrations.end()) {
      return NotFound("no registration " + std::to_string(registration_id) + " in this session");
    }
    engine::v1::Command command;
    command.mutable_remove_registration()->set_registration_id(registration_id);
    registry.MailboxOf(it->second.gpu).Post(std::move(command), {}, batch);
    registry.ledger.Refund(session->payer(), Resource::kTensors, 1);
    registry.ledger.Refund(session->payer(), Resource::kRegisteredBytes, it->second.bytes);
    registry.ledger.Refund(session->payer(), Resource::kDescriptors, it->second.fds.size());
    session->registrations.erase(it);
    registry.Touch(*session);
  }
  const Status status = batch->Wait(waiter);
  RegistryLock lock(registry);
  return registry.RemovalStatus(status);
}

void RegistrationService::RemoveAllOf(SessionRecord& session) {
  Registry& registry = core_.registry;
  for (const auto& [id, record] : session.registrations) {
    engine::v1::Command command;
    command.mutable_remove_registration()->set_registration_id(id);
    registry.MailboxOf(record.gpu).Post(std::move(command));
    registry.ledger.Refund(session.payer(), Resource::kRegisteredBytes, record.bytes);
    registry.ledger.Refund(session.payer(), Resource::kTensors, 1);
  }
  session.registrations.clear();
}

void RegistrationService::SendAgain(int gpu) {
  for (const auto& [id, session] : core_.registry.sessions) {
    for (const auto& [registration_id, record] : session->registrations) {
      if (record.gpu == gpu) Post(*session, registration_id, nullptr);
    }
  }
}

}  // namespace tandem::daemon
