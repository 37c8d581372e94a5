#include "client/grpc_plugin/suspension_calls.h"

namespace tandem::client {
namespace {

v1::SuspendGroupRequest::Step ToProto(SuspendStep step) {
  switch (step) {
    case SuspendStep::kStopped: return v1::SuspendGroupRequest::STOPPED;
    case SuspendStep::kUnmapped: return v1::SuspendGroupRequest::UNMAPPED;
    case SuspendStep::kResuming: return v1::SuspendGroupRequest::RESUMING;
    case SuspendStep::kMapped: return v1::SuspendGroupRequest::MAPPED;
  }
  return v1::SuspendGroupRequest::UNSPECIFIED;
}

// Longer than any operator waits: tandemd ends the call with the request.
constexpr Milliseconds kRequestsEnd(3'600'000);

v1::ServeSuspensionRequest::Phase ToProto(ServePhase phase) {
  switch (phase) {
    case ServePhase::kOffer: return v1::ServeSuspensionRequest::OFFER;
    case ServePhase::kAgree: return v1::ServeSuspensionRequest::AGREE;
    case ServePhase::kArrived: return v1::ServeSuspensionRequest::ARRIVED;
  }
  return v1::ServeSuspensionRequest::UNSPECIFIED;
}

}  // namespace

Result<uint64_t> CallServeSuspension(DaemonCalls& calls, ServePhase phase, uint64_t request, uint64_t step) {
  v1::ServeSuspensionRequest asked;
  asked.set_phase(ToProto(phase));
  asked.set_request(request);
  asked.set_step(step);
  v1::ServeSuspensionReply reply;
  TANDEM_RETURN_IF_ERROR(
      calls.CallAgain(&v1::Tandem::StubInterface::ServeSuspension, asked, &reply, kRequestsEnd));
  return reply.step();
}

Result<SuspensionInfo> CallSuspendGroup(DaemonCalls& calls, Lease& lease, uint64_t group_id, SuspendStep step,
                                        uint64_t finished, Milliseconds deadline) {
  v1::SuspendGroupRequest request;
  request.set_group_id(group_id);
  request.set_step(ToProto(step));
  request.set_number(finished);
  request.set_deadline_ms(DeadlineMs(deadline));
  const auto make = [&](const DaemonCalls::Attempt& attempt) -> Result<SuspensionInfo> {
    v1::SuspendGroupReply reply;
    TANDEM_RETURN_IF_ERROR(calls.Call(&v1::Tandem::StubInterface::SuspendGroup, request, &reply, attempt));
    SuspensionInfo info;
    info.number = reply.number();
    info.generation = reply.generation();
    info.renewals = reply.renewals();
    info.awake = reply.awake();
    info.segment_ids.assign(reply.segment_ids().begin(), reply.segment_ids().end());
    if (reply.transfer_id() == 0) return info;
    TANDEM_ASSIGN_OR_RETURN(info.segments, lease.Take(reply.transfer_id(), attempt.daemon, attempt.end));
    return info;
  };
  return calls.Repeat(deadline + kAnswerTime, make);
}

}  // namespace tandem::client
