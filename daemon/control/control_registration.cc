// The clients' own memory: RegisterTensor, Deregister.
#include "common/fd_socket.h"
#include "common/shared_memory.h"
#include "daemon/control/control.h"
#include "daemon/control/registry.h"
#include "daemon/control/validate.h"

namespace tandem::daemon {

Result<v1::RegisterTensorReply> Control::RegisterTensor(const SessionRef& session,
                                                        const v1::RegisterTensorRequest& request,
                                                        const Waiter& waiter) {
  // Claimed first: descriptors of a call that is refused are closed at once, not as orphans later.
  ForeignFds fds;
  if (request.ipc_handle().empty()) {
    Waiter claim = waiter;
    claim.deadline = std::min(claim.deadline, Waiter::Clock::now() + options_.orphan_deadline);
    TANDEM_ASSIGN_OR_RETURN(fds, session->transfers.Claim(request.transfer_id(), claim));
  }
  TANDEM_RETURN_IF_ERROR(ValidateRegister(request));
  TANDEM_ASSIGN_OR_RETURN(int gpu, FindGpu(request.gpu_uuid()));
  if (!request.ipc_handle().empty() && options_.backend != "cuda") {
    return Unimplemented("CUDA IPC handles need the CUDA backend; this daemon's is " + options_.backend)
        .WithDetail({.reason = "BACKEND", .who = {}, .field = "ipc_handle"});
  }
  if (fds.size() != static_cast<size_t>(request.chunk_bytes_size())) {
    return InvalidArgument("the transfer has " + std::to_string(fds.size()) +
                           " descriptors, chunk_bytes names " + std::to_string(request.chunk_bytes_size()))
        .WithDetail({.reason = "BAD_FIELD", .who = {}, .field = "chunk_bytes"});
  }
  Registration registration;
  registration.gpu = gpu;
  registration.bytes = request.bytes();
  registration.ipc_handle = request.ipc_handle();
  registration.offset = request.offset();
  for (size_t i = 0; i < fds.size(); ++i) {
    const uint64_t chunk = request.chunk_bytes(static_cast<int>(i));
    const Status usable = options_.backend == "host" ? CheckForeignMemfd(fds[i].get(), chunk)
                                                     : CheckForeignMemory(fds[i].get());
    if (!usable.ok()) {
      return usable.WithContext("descriptor " + std::to_string(i))
          .WithDetail({.reason = "BAD_DESCRIPTOR", .who = {}, .field = "transfer_id"});
    }
    registration.chunk_bytes.push_back(chunk);
    registration.fds.push_back(ShareForeign(std::move(fds[i])));
  }
  auto batch = std::make_shared<CommandBatch>();
  uint64_t id = 0;
  {
    Lock lock(registry_->mutex);
    TANDEM_RETURN_IF_ERROR(SessionAlive(*session));
    Ledger& ledger = registry_->ledger;
    const Payer payer = session->payer();
    TANDEM_RETURN_IF_ERROR(ledger.Check(payer, Resource::kRegisteredBytes, registration.bytes));
    TANDEM_RETURN_IF_ERROR(ledger.Check(payer, Resource::kDescriptors, registration.fds.size()));
    TANDEM_RETURN_IF_ERROR(ledger.Charge(payer, Resource::kTensors, 1));
    TANDEM_RETURN_IF_ERROR(ledger.Charge(payer, Resource::kRegisteredBytes, registration.bytes));
    TANDEM_RETURN_IF_ERROR(ledger.Charge(payer, Resource::kDescriptors, registration.fds.size()));
    id = registry_->next_id++;
    session->registrations[id] = std::move(registration);
    // With its engine down the registration waits in the registry, and the next engine gets it.
    if (registry_->engine_generation[static_cast<size_t>(gpu)] != 0) {
      PostOwnRegistrationLocked(*session, id, batch);
    }
  }
  Status status = batch->Wait(waiter);
  // An engine that ends meanwhile gets it in its next life.
  if (!status.ok() && status.code() != Code::kUnavailable) {
    Deregister(session, id, waiter).ok();
    return status;
  }
  v1::RegisterTensorReply reply;
  reply.set_registration_id(id);
  return reply;
}

void Control::PostOwnRegistrationLocked(const Session& session, uint64_t registration_id,
                                        const std::shared_ptr<CommandBatch>& batch) {
  const Registration& registration = session.registrations.at(registration_id);
  EngineMailbox& mailbox = *registry_->mailboxes[static_cast<size_t>(registration.gpu)];
  // What one message does not carry goes ahead.
  auto rest = registration.fds.begin();
  for (; registration.fds.end() - rest > static_cast<ptrdiff_t>(kMaxFdsPerMessage);
       rest += kMaxFdsPerMessage) {
    engine::v1::Command chunks;
    chunks.mutable_add_chunks()->set_registration_id(registration_id);
    mailbox.Post(std::move(chunks), std::vector<SharedFd>(rest, rest + kMaxFdsPerMessage), batch);
  }
  engine::v1::Command command;
  engine::v1::AddRegistration& message = *command.mutable_add_registration();
  message.set_registration_id(registration_id);
  message.set_owner_session(session.id);
  message.set_bytes(registration.bytes);
  message.set_ipc_handle(registration.ipc_handle);
  message.set_offset(registration.offset);
  for (uint64_t bytes : registration.chunk_bytes) message.add_chunk_bytes(bytes);
  mailbox.Post(std::move(command), std::vector<SharedFd>(rest, registration.fds.end()), batch);
}

Status Control::Deregister(const SessionRef& session, uint64_t registration_id, const Waiter& waiter) {
  auto batch = std::make_shared<CommandBatch>();
  {
    Lock lock(registry_->mutex);
    TANDEM_RETURN_IF_ERROR(SessionAlive(*session));
    auto it = session->registrations.find(registration_id);
    if (it == session->registrations.end()) {
      return NotFound("no registration " + std::to_string(registration_id) + " in this session");
    }
    engine::v1::Command command;
    command.mutable_remove_registration()->set_registration_id(registration_id);
    registry_->mailboxes[static_cast<size_t>(it->second.gpu)]->Post(std::move(command), {}, batch);
    Ledger& ledger = registry_->ledger;
    ledger.Refund(session->payer(), Resource::kTensors, 1);
    ledger.Refund(session->payer(), Resource::kRegisteredBytes, it->second.bytes);
    ledger.Refund(session->payer(), Resource::kDescriptors, it->second.fds.size());
    session->registrations.erase(it);
  }
  // The caller may free the memory once the engine has let go of it; an engine that has ended has.
  const Status status = batch->Wait(waiter);
  Lock lock(registry_->mutex);
  return LetGoLocked(status);
}

}  // namespace tandem::daemon
