#include "client/lib/client_launch/host/host_client_queue.h"

#include <algorithm>
#include <utility>

#include "client/lib/client_launch/client_group.h"

namespace tandem::client {
namespace {

class HostClientWork final : public ClientWork {
 public:
  explicit HostClientWork(std::unique_ptr<ClientProgram> made) : program(std::move(made)) {}

  const std::unique_ptr<ClientProgram> program;
};

}  // namespace

Result<std::shared_ptr<ClientWork>> HostClientQueue::Prepare(const plan::RankProgram& program,
                                                             std::vector<runtime::SlotLimit> slots,
                                                             const ClientLaunchMemory& memory, Trials) {
  TANDEM_ASSIGN_OR_RETURN(auto made, ClientProgram::Make(program, std::move(slots), memory));
  return std::shared_ptr<ClientWork>(std::make_shared<HostClientWork>(std::move(made)));
}

Status HostClientQueue::Failed() const {
  TANDEM_RETURN_IF_ERROR(group_.Refusal());
  return group_.page().Aborts(group_.finished() + 1) ? group_.page().Reason() : Status::Ok();
}

Status HostClientQueue::Launch(LaunchStream& stream, ClientWork& work, ClientCall call) {
  const std::shared_ptr<ClientPlanState> state = call.state;
  const bool capturing = call.capturing;
  const uint64_t plan_id = call.plan.id;
  ClientProgram& program = *static_cast<HostClientWork&>(work).program;
  // A replay is counted while it runs, since nobody knows before how many there will be.
  if (!capturing) state->Began();
  std::lock_guard lock(order_mutex_);
  Status enqueued = stream.RunInOrder(order_, [this, &program, call = std::move(call)] {
    if (call.capturing) call.state->Began();
    const Status status =
        group_.Run(program, call.plan, call.bindings.tag, call.deadline, call.bindings.slots);
    if (!status.ok()) call.state->Fail(call.stream_id, 0, status, call.capturing);
    call.state->Ended();
  });
  if (capturing) return enqueued;
  if (enqueued.ok()) {
    group_.NoteLaunched(plan_id);
  } else {
    state->Ended();
  }
  return enqueued;
}

Result<uint64_t> HostClientQueue::Stop(std::chrono::steady_clock::time_point deadline) {
  const auto left = deadline - std::chrono::steady_clock::now();
  TANDEM_RETURN_IF_ERROR(
      order_.Synchronize(std::max<std::chrono::nanoseconds>(left, std::chrono::nanoseconds(1))));
  return group_.finished();
}

Status HostClientQueue::Restart(uint64_t number) {
  group_.Restart(number);
  return Status::Ok();
}

}  // namespace tandem::client
