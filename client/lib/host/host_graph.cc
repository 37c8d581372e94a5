// HostGraph and HostGraphExec: replaying a capture on the queues.

#include <utility>

#include "client/lib/host/stream_state.h"
#include "common/exceptions.h"
#include "kernels/host/word_wait.h"
#include "tandem/host_stream.h"

namespace tandem {

using host::GraphExecState;
using host::GraphNode;
using host::HostQueue;
using host::TaskContext;

HostGraph::HostGraph(std::shared_ptr<host::GraphState> state) : state_(std::move(state)) {}
HostGraph::HostGraph(HostGraph&&) noexcept = default;
HostGraph& HostGraph::operator=(HostGraph&&) noexcept = default;
HostGraph::~HostGraph() = default;

Status HostGraph::RetainUserObject(std::shared_ptr<void> object) try {
  state_->user_objects.push_back(std::move(object));
  return Status::Ok();
}
TANDEM_CATCH_TO_STATUS

size_t HostGraph::node_count() const { return state_->nodes->size(); }

Result<HostGraphExec> HostGraph::Instantiate() const try {
  TANDEM_ASSIGN_OR_RETURN(host::HostQueueSet * queues, host::ProcessQueues());
  auto exec = std::make_shared<GraphExecState>(static_cast<size_t>(state_->records));
  exec->nodes = state_->nodes;
  exec->user_objects = state_->user_objects;
  exec->branch_queues.push_back(nullptr);
  for (int branch = 1; branch < state_->branches; ++branch) exec->branch_queues.push_back(queues->Next(1));
  return HostGraphExec(std::move(exec));
}
TANDEM_CATCH_TO_STATUS

HostGraphExec::HostGraphExec(std::shared_ptr<GraphExecState> state) : state_(std::move(state)) {}
HostGraphExec::HostGraphExec(HostGraphExec&&) noexcept = default;
HostGraphExec& HostGraphExec::operator=(HostGraphExec&&) noexcept = default;
HostGraphExec::~HostGraphExec() = default;

Status HostGraphExec::Launch(HostStream& stream) try {
  std::lock_guard stream_lock(stream.state_->mutex);
  if (stream.state_->ActiveCapture() != nullptr) return FailedPrecondition("a graph launched in a capture");
  std::lock_guard lock(state_->mutex);
  uint64_t launch = ++state_->launches;
  HostQueue* origin = stream.state_->queue;
  // Launches of one executable graph follow each other, on whatever streams. Every branch begins with a wait
  // for a record of this launch, so it is enough to hold the origin.
  origin->SubmitWait(&state_->finished, launch - 1, state_);
  for (size_t i = 0; i < state_->nodes->size(); ++i) {
    const GraphNode& node = (*state_->nodes)[i];
    HostQueue* queue = node.branch == 0 ? origin : state_->branch_queues[static_cast<size_t>(node.branch)];
    switch (node.kind) {
      case GraphNode::Kind::kFunction:
        queue->Submit([state = state_, i](const TaskContext&) { (*state->nodes)[i].function(); });
        break;
      case GraphNode::Kind::kWriteWord:
        queue->SubmitShort([state = state_, i](const TaskContext&) {
          const GraphNode& write = (*state->nodes)[i];
          write.word->store(write.value, std::memory_order_release);
        });
        break;
      case GraphNode::Kind::kWaitWord: queue->SubmitWait(node.watched, node.value, state_); break;
      case GraphNode::Kind::kRecord:
        queue->SubmitShort([state = state_, record = node.record, launch](const TaskContext&) {
          state->records[static_cast<size_t>(record)].store(launch, std::memory_order_release);
        });
        break;
      case GraphNode::Kind::kRecordExternal: {
        const uint64_t record = node.event->recorded.fetch_add(1, std::memory_order_acq_rel) + 1;
        queue->SubmitShort([state = state_, i, record](const TaskContext&) {
          host::EventState& event = *(*state->nodes)[i].event;
          event.time_ns.store(host::MonotonicNs(), std::memory_order_relaxed);
          event.reached.store(record, std::memory_order_release);
        });
        break;
      }
      case GraphNode::Kind::kWaitExternal:
        queue->SubmitWait(&node.event->reached, node.event->recorded.load(std::memory_order_acquire), state_);
        break;
      case GraphNode::Kind::kWait:
        queue->SubmitWait(&state_->records[static_cast<size_t>(node.record)], launch, state_);
        break;
    }
  }
  stream.state_->last_ticket = origin->SubmitShort([state = state_, launch](const TaskContext&) {
    state->finished.store(launch, std::memory_order_release);
  });
  return Status::Ok();
}
TANDEM_CATCH_TO_STATUS

}  // namespace tandem
