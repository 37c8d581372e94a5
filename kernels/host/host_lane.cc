#include "kernels/host/host_lane.h"

#include <utility>

#include "kernels/host/matmul.h"
#include "kernels/host/nccl_standin.h"
#include "kernels/host/norm.h"
#include "kernels/host/word_wait.h"

namespace tandem::host {

bool HostLaneEvent::Done() const {
  return Reached(state_->reached.load(std::memory_order_acquire),
                 state_->recorded.load(std::memory_order_acquire));
}

int64_t HostLaneEvent::TimeNs() const { return Done() ? state_->time_ns.load(std::memory_order_relaxed) : 0; }

namespace {

// True if the work has been cancelled.
bool IsCancelled(const Guard& guard) {
  return guard.word != nullptr && Reached(guard.word->load(std::memory_order_acquire), guard.value);
}

}  // namespace

Status HostLane::WriteWord(Word* word, uint64_t value) {
  if (word == nullptr) return InvalidArgument("a write to no word");
  queue_->SubmitWrite(word, value);
  return Status::Ok();
}

Status HostLane::WaitWord(const Word* word, uint64_t value) {
  if (word == nullptr) return InvalidArgument("a wait for no word");
  queue_->SubmitWait(word, value);
  return Status::Ok();
}

Status HostLane::Copy(const CopyArgs& args) {
  TANDEM_ASSIGN_OR_RETURN(BoxCopy copy, PrepareCopy(args));
  if (copy.box.count == 0) return Status::Ok();
  auto kept = copies_.Take();
  *kept = copy;
  queue_->Submit([kept = std::move(kept), guard = args.guard](const TaskContext& context) {
    if (!IsCancelled(guard)) RunCopy(*kept, context);
  });
  return Status::Ok();
}

Status HostLane::Matmul(const MatmulArgs& args) {
  TANDEM_RETURN_IF_ERROR(CheckMatmul(args));
  auto kept = products_.Take();
  *kept = args;
  queue_->Submit([kept = std::move(kept)](const TaskContext& context) {
    if (!IsCancelled(kept->guard)) RunMatmul(*kept, context);
  });
  return Status::Ok();
}

Status HostLane::Reduce(const ReduceArgs& args) {
  TANDEM_ASSIGN_OR_RETURN(BoxReduce reduce, PrepareReduce(args));
  if (reduce.box.count == 0) return Status::Ok();
  auto kept = reductions_.Take();
  *kept = reduce;
  queue_->Submit([kept = std::move(kept), guard = args.guard](const TaskContext& context) {
    if (!IsCancelled(guard)) RunReduce(*kept, context);
  });
  return Status::Ok();
}

Status HostLane::Norm(const NormArgs& args) {
  TANDEM_RETURN_IF_ERROR(CheckNorm(args));
  auto kept = norms_.Take();
  *kept = args;
  queue_->Submit([kept = std::move(kept)](const TaskContext&) { RunNorm(*kept); });
  return Status::Ok();
}

Status HostLane::Nccl(const NcclArgs& args) {
  auto* communicator = dynamic_cast<HostCommunicator*>(args.communicator);
  if (communicator == nullptr)
    return InvalidArgument("a collective without a communicator of the host backend");
  TANDEM_RETURN_IF_ERROR(communicator->Check(args));
  auto kept = collectives_.Take();
  *kept = args;
  queue_->Submit([kept = std::move(kept), communicator](const TaskContext& context) {
    communicator->Run(*kept, context);
  });
  return Status::Ok();
}

Status HostLane::Record(Event* event) {
  auto* host_event = dynamic_cast<HostLaneEvent*>(event);
  if (host_event == nullptr) return InvalidArgument("not an event of the host backend");
  uint64_t record = host_event->state()->recorded.fetch_add(1, std::memory_order_acq_rel) + 1;
  queue_->SubmitShort([state = host_event->state(), record](const TaskContext&) {
    state->time_ns.store(MonotonicNs(), std::memory_order_relaxed);
    state->reached.store(record, std::memory_order_release);
  });
  return Status::Ok();
}

Status HostLane::Wait(Event* event) {
  auto* host_event = dynamic_cast<HostLaneEvent*>(event);
  if (host_event == nullptr) return InvalidArgument("not an event of the host backend");
  uint64_t record = host_event->state()->recorded.load(std::memory_order_acquire);
  queue_->SubmitWait(&host_event->state()->reached, record, host_event->state());
  return Status::Ok();
}

}  // namespace tandem::host
