// An engine's reports to tandemd: the queue when it is asked, failures, breaks and late ranks unasked.
#include <unistd.h>

#include <algorithm>

#include "engine/engine.h"
#include "tandem/engine/v1/engine.pb.h"

namespace tandem::engine {
namespace {

v1::LaunchFailed DescribeFailure(const InstalledPlan& plan, uint64_t count, const Status& status) {
  v1::LaunchFailed failed;
  failed.set_group_id(plan.group->id);
  failed.set_plan_id(plan.id);
  failed.set_launch(count);
  failed.set_code(static_cast<int>(status.code()));
  failed.set_message(status.message());
  return failed;
}

}  // namespace

void Engine::FillReady(v1::Ready* ready) const {
  ready->set_pid(static_cast<int>(::getpid()));
  ready->set_memory_bytes(backend_->MemoryBytes());
  ready->set_own_memory_bytes(backend_->OwnMemoryBytes());
  const Status fused = backend_->FusedKernels();
  ready->set_fused_kernels(fused.ok());
  if (!fused.ok()) ready->set_no_fused_kernels(fused.message());
  ready->set_kernel_sms(static_cast<uint32_t>(backend_->KernelSms()));
  const BackendCapabilities capabilities = backend_->Capabilities();
  v1::Capabilities& announced = *ready->mutable_capabilities();
  announced.set_packet_kernels(capabilities.packet_kernels);
  announced.set_communicators(capabilities.communicators);
  announced.set_ipc_memory(capabilities.ipc_memory);
  announced.set_on_gpu(capabilities.on_gpu);
}

void Engine::SendQueueSnapshot() {
  v1::Message message;
  v1::Queue* queue = message.mutable_queue();
  uint64_t now = NowNs();
  queue_->ForEachActive([&](const InstalledPlan& plan) {
    v1::QueueItem* item = queue->add_items();
    item->set_plan_id(plan.id);
    item->set_group_id(plan.group->id);
    item->set_launch(plan.active.count);
    const bool started = plan.active.Started();
    item->set_started(started);
    uint64_t since = started ? plan.active.start_ns : plan.active.arrive_ns;
    item->set_since_seconds(static_cast<double>(now - std::min(now, since)) / 1e9);
    item->set_session_id(plan.active.origin.session_id);
    if (started) return;
    item->set_awaits(LaunchQueue::AwaitedInput(plan));
    for (int rank : queue_->MissingRanks(plan)) item->add_missing_ranks(rank);
  });
  link_.Send(message);
}

void Engine::OnLaunchDone(uint64_t launch_id, const Status& status) {
  v1::Message message;
  v1::LaunchDone* done = message.mutable_launch_done();
  done->set_launch_id(launch_id);
  done->set_code(static_cast<int>(status.code()));
  done->set_message(status.message());
  done->set_reason(status.detail().reason);
  done->set_who(status.detail().who);
  if (status.detail().started.has_value()) done->set_started(*status.detail().started);
  for (uint32_t rank : status.detail().ranks) done->add_ranks(rank);
  done->set_pid(status.detail().pid);
  if (status.detail().gpu >= 0) done->set_gpu(status.detail().gpu);
  holdings_.NoteLaunchDone(message);
  link_.Send(message);
}

void Engine::OnLaunchFailed(const InstalledPlan& plan, uint64_t count, const Status& status) {
  v1::Message message;
  *message.mutable_launch_failed() = DescribeFailure(plan, count, status);
  link_.Send(message, {}, true);
}

void Engine::OnGroupLost(const InstalledPlan& plan, uint64_t count, const Status& status) {
  v1::Message message;
  v1::LaunchFailed& failed = *message.mutable_launch_failed() = DescribeFailure(plan, count, status);
  failed.set_breaks_group(true);
  failed.set_who(status.detail().who);
  for (uint32_t rank : status.detail().ranks) failed.add_ranks(rank);
  failed.set_generation(plan.group->generation);
  holdings_.NoteGroupLost(message);
  link_.Send(message);
}

void Engine::OnGroupStalled(const EngineGroup& group, const Status& status) {
  v1::Message message;
  v1::LaunchFailed& failed = *message.mutable_launch_failed();
  failed.set_group_id(group.id);
  failed.set_code(static_cast<int>(status.code()));
  failed.set_message(status.message());
  failed.set_stalls_group(true);
  failed.set_reason(status.detail().reason);
  failed.set_who(status.detail().who);
  for (const uint32_t rank : status.detail().ranks) failed.add_ranks(rank);
  failed.set_generation(group.generation);
  failed.set_renewals(group.renewals);
  holdings_.NoteGroupStalled(message);
  link_.Send(message);
}

void Engine::OnLate(const InstalledPlan& plan, const engine::Launch& launch, const std::vector<int>& missing,
                    double seconds) {
  v1::Message message;
  v1::Late* late = message.mutable_late();
  late->set_group_id(plan.group->id);
  late->set_plan_id(plan.id);
  late->set_launch(launch.count);
  for (int rank : missing) late->add_missing_ranks(rank);
  late->set_seconds(seconds);
  link_.Send(message, {}, true);
}

void Engine::OnPeerSilent(const EngineGroup& group, int rank) {
  v1::Message message;
  message.mutable_peer_silent()->set_gpu(group.gpus[static_cast<size_t>(rank)]);
  message.mutable_peer_silent()->set_group_id(group.id);
  link_.Send(message);
}

}  // namespace tandem::engine
