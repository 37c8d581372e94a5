#include "client/grpc_plugin/checkpoint_calls.h"

namespace tandem::client {

using Clock = DaemonCalls::Clock;

Status CheckpointCalls::Begin(Milliseconds deadline) {
  const auto end = Clock::now() + deadline;
  v1::BeginCheckpointRequest request;
  v1::BeginCheckpointReply reply;
  TANDEM_RETURN_IF_ERROR(
      calls_.CallAgain(&v1::Tandem::StubInterface::BeginCheckpoint, request, &reply, deadline));
  const std::string token = lease_.token();
  lease_.Pause();
  events_.Break();
  Status status = calls_.Disconnect(end);
  if (status.ok()) {
    secret_ = reply.secret();
    status = lease_.LetGo(secret_, end);
  }
  if (status.ok()) return status;
  secret_.clear();
  calls_.Reconnect(token);
  lease_.Resume();
  return status.WithContext("the process cannot be checkpointed");
}

Status CheckpointCalls::End(Milliseconds deadline) {
  if (secret_.empty()) return Status::Ok();
  const auto attached = [this](const v1::AttachReply& reply) { calls_.Reconnect(reply.token()); };
  TANDEM_RETURN_IF_ERROR(lease_.Restore(secret_, Clock::now() + deadline, attached));
  secret_.clear();
  return Status::Ok();
}

Result<std::vector<UniqueFd>> CheckpointCalls::TakeShared(const std::vector<uint64_t>& registration_ids,
                                                          const std::vector<uint64_t>& group_ids,
                                                          Milliseconds deadline) {
  v1::TakeSharedRequest request;
  request.mutable_registration_ids()->Add(registration_ids.begin(), registration_ids.end());
  request.mutable_group_ids()->Add(group_ids.begin(), group_ids.end());
  return calls_.Repeat(deadline, [&](const DaemonCalls::Attempt& attempt) -> Result<std::vector<UniqueFd>> {
    v1::TakeSharedReply reply;
    TANDEM_RETURN_IF_ERROR(calls_.Call(&v1::Tandem::StubInterface::TakeShared, request, &reply, attempt));
    TANDEM_ASSIGN_OR_RETURN(std::vector<UniqueFd> fds,
                            lease_.Take(reply.transfer_id(), attempt.daemon, attempt.end));
    if (fds.size() != registration_ids.size() + group_ids.size())
      return Internal("the daemon's descriptors are not those that were asked for");
    return fds;
  });
}

}  // namespace tandem::client
