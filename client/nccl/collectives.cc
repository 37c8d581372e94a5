#include "client/nccl/collectives.h"

#include "client/nccl/communicators.h"
#include "client/nccl/real_nccl.h"
#include "client/nccl/tallies.h"

namespace tandem::nccl {
namespace {

ncclResult_t CallNccl(const NcclCall& call) {
  const RealNccl& real = Real();
  switch (call.op) {
    case NcclCollective::kAllReduce:
      return real.AllReduce(call.send, call.receive, call.count, call.type, call.reduction, call.communicator,
                            call.stream);
    case NcclCollective::kAllGather:
      return real.AllGather(call.send, call.receive, call.count, call.type, call.communicator, call.stream);
    case NcclCollective::kReduceScatter:
      return real.ReduceScatter(call.send, call.receive, call.count, call.type, call.reduction,
                                call.communicator, call.stream);
    case NcclCollective::kAllToAll:
      return real.AlltoAll(call.send, call.receive, call.count, call.type, call.communicator, call.stream);
    case NcclCollective::kBroadcast:
      return real.Broadcast(call.send, call.receive, call.count, call.type, call.root, call.communicator,
                            call.stream);
    case NcclCollective::kReduce:
      return real.Reduce(call.send, call.receive, call.count, call.type, call.reduction, call.root,
                         call.communicator, call.stream);
  }
  return ncclInternalError;
}

}  // namespace

ncclResult_t PassToNccl(const NcclCall& call, std::string_view reason) {
  TheTallies().Add(reason);
  return CallNccl(call);
}

ncclResult_t RunCollective(const NcclCall& call) {
  if (const char* why = WhyNot(call)) return PassToNccl(call, why);
  const std::shared_ptr<CommunicatorState> communicator = CommunicatorOf(call.communicator);
  if (communicator == nullptr) return PassToNccl(call, "NCCL has not completed the communicator");
  const CommunicatorState::Outcome outcome = communicator->Run(call);
  if (!outcome.reason.empty()) return PassToNccl(call, outcome.reason);
  TheTallies().Add("");
  return outcome.result;
}

}  // namespace tandem::nccl
