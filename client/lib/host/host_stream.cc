#include "tandem/host_stream.h"

#include <algorithm>
#include <cstdlib>
#include <string>
#include <utility>

#include "client/lib/host/stream_state.h"
#include "common/deadline.h"
#include "common/exceptions.h"
#include "kernels/host/word_wait.h"

namespace tandem {
namespace host {
namespace {

constexpr int kDefaultQueues = 8;

// Never destroyed: streams may hold work until the last moment of the process.
struct ProcessQueueSet {
  std::mutex mutex;
  int asked = 0;  // by SetHostQueues; 0: not asked
  std::shared_ptr<HostQueueSet> queues;

  int Count() const {
    if (asked > 0) return asked;
    const char* text = std::getenv("TANDEM_HOST_QUEUES");
    if (text == nullptr) return kDefaultQueues;
    char* end = nullptr;
    long value = std::strtol(text, &end, 10);
    // An unusable value counts as 0, which HostQueueSet::Create refuses: a wrong setting is never silent.
    return end == text || *end != '\0' || value < 0 || value > 1'000'000 ? 0 : static_cast<int>(value);
  }
};

ProcessQueueSet& Process() {
  static auto* process = new ProcessQueueSet;
  return *process;
}

// Appends a node of `branch` to a capture, with its mutex held.
GraphNode& AddNode(CaptureState& capture, int branch, GraphNode::Kind kind) {
  GraphNode& node = capture.nodes.emplace_back();
  node.kind = kind;
  node.branch = branch;
  uint64_t time = ++capture.clocks[static_cast<size_t>(branch)][static_cast<size_t>(branch)];
  bool is_work = kind != GraphNode::Kind::kRecord && kind != GraphNode::Kind::kWait;
  if (is_work) capture.work[static_cast<size_t>(branch)] = time;
  return node;
}

int AddBranch(CaptureState& capture) {
  for (CaptureState::Clock& clock : capture.clocks) clock.push_back(0);
  capture.clocks.emplace_back(capture.clocks.size() + 1, 0);
  capture.work.push_back(0);
  return static_cast<int>(capture.clocks.size()) - 1;
}

void AddWait(CaptureState& capture, int branch, int record) {
  AddNode(capture, branch, GraphNode::Kind::kWait).record = record;
  CaptureState::Clock& clock = capture.clocks[static_cast<size_t>(branch)];
  const CaptureState::Clock& seen = capture.records[static_cast<size_t>(record)];
  // Branches that came after the record was made are not in its clock.
  for (size_t i = 0; i < seen.size(); ++i) clock[i] = std::max(clock[i], seen[i]);
}

}  // namespace

Result<HostQueueSet*> ProcessQueues() {
  ProcessQueueSet& process = Process();
  std::lock_guard lock(process.mutex);
  if (process.queues == nullptr) {
    Result<std::shared_ptr<HostQueueSet>> queues = HostQueueSet::Create(process.Count());
    if (!queues.ok()) return queues.status().WithContext("TANDEM_HOST_QUEUES");
    process.queues = *queues;
  }
  return process.queues.get();
}

CaptureState* StreamState::ActiveCapture() {
  if (capture == nullptr) return nullptr;
  {
    std::lock_guard lock(capture->mutex);
    if (!capture->ended) return capture.get();
  }
  capture.reset();
  return nullptr;
}

}  // namespace host

using host::CaptureState;
using host::EventState;
using host::GraphNode;

Status SetHostQueues(int count) try {
  if (count < 1 || count > host::kMaxHostQueues) {
    return InvalidArgument("hardware queues: " + std::to_string(count) + " is not in 1.." +
                           std::to_string(host::kMaxHostQueues));
  }
  auto& process = host::Process();
  std::lock_guard lock(process.mutex);
  if (process.queues != nullptr)
    return FailedPrecondition("streams exist already: the number of queues is fixed");
  process.asked = count;
  return Status::Ok();
}
TANDEM_CATCH_TO_STATUS

int HostQueues() {
  auto& process = host::Process();
  std::lock_guard lock(process.mutex);
  return process.queues != nullptr ? process.queues->size() : process.Count();
}

HostEvent::HostEvent() {
  IgnoreExceptions([this] { state_ = std::make_shared<EventState>(); });
}
HostEvent::~HostEvent() = default;

bool HostEvent::Query() const {
  if (state_ == nullptr) return true;
  return host::Reached(state_->reached.load(std::memory_order_acquire),
                       state_->recorded.load(std::memory_order_acquire));
}

Status HostEvent::Synchronize(std::chrono::nanoseconds timeout) const {
  if (state_ == nullptr) return OutOfMemory();
  uint64_t record = state_->recorded.load(std::memory_order_acquire);
  auto deadline = std::chrono::steady_clock::now() + Bounded(timeout);
  host::Backoff backoff;
  while (!host::Reached(state_->reached.load(std::memory_order_acquire), record)) {
    if (std::chrono::steady_clock::now() >= deadline)
      return DeadlineExceeded("the event was not reached in time").WithDetail({.reason = "NOT_ENDED"});
    backoff.Pause();
  }
  return Status::Ok();
}

int64_t HostEvent::TimeNs() const {
  return state_ != nullptr && Query() ? state_->time_ns.load(std::memory_order_relaxed) : 0;
}

HostStream::HostStream(std::shared_ptr<host::StreamState> state) : state_(std::move(state)) {}
HostStream::~HostStream() = default;

Result<std::unique_ptr<HostStream>> HostStream::Create(int priority) try {
  TANDEM_ASSIGN_OR_RETURN(host::HostQueueSet * queues, host::ProcessQueues());
  static std::atomic<uint64_t> last_id{0};
  auto state = std::make_shared<host::StreamState>();
  state->id = last_id.fetch_add(1, std::memory_order_relaxed) + 1;
  state->queue = queues->Next(priority);
  return std::unique_ptr<HostStream>(new HostStream(std::move(state)));
}
TANDEM_CATCH_TO_STATUS

Status HostStream::Enqueue(std::function<void()> function) try {
  if (!function) return InvalidArgument("an empty function");
  std::lock_guard lock(state_->mutex);
  if (CaptureState* capture = state_->ActiveCapture()) {
    std::lock_guard capture_lock(capture->mutex);
    host::AddNode(*capture, state_->branch, GraphNode::Kind::kFunction).function = std::move(function);
    return Status::Ok();
  }
  state_->last_ticket =
      state_->queue->Submit([function = std::move(function)](const host::TaskContext&) { function(); });
  return Status::Ok();
}
TANDEM_CATCH_TO_STATUS

Status HostStream::WriteWord(std::atomic<uint64_t>* word, uint64_t value) try {
  if (word == nullptr) return InvalidArgument("a write to no word");
  std::lock_guard lock(state_->mutex);
  if (CaptureState* capture = state_->ActiveCapture()) {
    std::lock_guard capture_lock(capture->mutex);
    GraphNode& node = host::AddNode(*capture, state_->branch, GraphNode::Kind::kWriteWord);
    node.word = word;
    node.value = value;
    return Status::Ok();
  }
  state_->last_ticket = state_->queue->SubmitWrite(word, value);
  return Status::Ok();
}
TANDEM_CATCH_TO_STATUS

Status HostStream::WaitWord(const std::atomic<uint64_t>* word, uint64_t value) try {
  if (word == nullptr) return InvalidArgument("a wait for no word");
  std::lock_guard lock(state_->mutex);
  if (CaptureState* capture = state_->ActiveCapture()) {
    std::lock_guard capture_lock(capture->mutex);
    GraphNode& node = host::AddNode(*capture, state_->branch, GraphNode::Kind::kWaitWord);
    node.watched = word;
    node.value = value;
    return Status::Ok();
  }
  state_->last_ticket = state_->queue->SubmitWait(word, value);
  return Status::Ok();
}
TANDEM_CATCH_TO_STATUS

Status HostStream::Record(HostEvent& event) try {
  if (event.state_ == nullptr) return OutOfMemory();
  std::lock_guard lock(state_->mutex);
  std::lock_guard event_lock(event.state_->mutex);
  if (CaptureState* capture = state_->ActiveCapture()) {
    std::lock_guard capture_lock(capture->mutex);
    host::AddNode(*capture, state_->branch, GraphNode::Kind::kRecord).record =
        static_cast<int>(capture->records.size());
    capture->records.push_back(capture->clocks[static_cast<size_t>(state_->branch)]);
    event.state_->capture = state_->capture;
    event.state_->capture_record = static_cast<int>(capture->records.size()) - 1;
    return Status::Ok();
  }
  event.state_->capture.reset();
  uint64_t record = event.state_->recorded.fetch_add(1, std::memory_order_acq_rel) + 1;
  state_->last_ticket = state_->queue->SubmitShort([state = event.state_, record](const host::TaskContext&) {
    state->time_ns.store(host::MonotonicNs(), std::memory_order_relaxed);
    state->reached.store(record, std::memory_order_release);
  });
  return Status::Ok();
}
TANDEM_CATCH_TO_STATUS

Status HostStream::Wait(HostEvent& event) try {
  if (event.state_ == nullptr) return OutOfMemory();
  std::lock_guard lock(state_->mutex);
  std::shared_ptr<CaptureState> recorded_in;
  int record = 0;
  {
    std::lock_guard event_lock(event.state_->mutex);
    recorded_in = event.state_->capture;
    record = event.state_->capture_record;
  }
  CaptureState* own = state_->ActiveCapture();
  if (recorded_in != nullptr) {
    std::lock_guard capture_lock(recorded_in->mutex);
    if (recorded_in->ended) return FailedPrecondition("the event was recorded in a capture that has ended");
    if (own != nullptr && own != recorded_in.get())
      return FailedPrecondition("the event belongs to another capture");
    if (own == nullptr) {
      state_->capture = recorded_in;
      state_->branch = host::AddBranch(*recorded_in);
    }
    host::AddWait(*recorded_in, state_->branch, record);
    return Status::Ok();
  }
  if (own != nullptr) return FailedPrecondition("a capture cannot wait for an event recorded outside of it");
  state_->last_ticket = state_->queue->SubmitWait(
      &event.state_->reached, event.state_->recorded.load(std::memory_order_acquire), event.state_);
  return Status::Ok();
}
TANDEM_CATCH_TO_STATUS

namespace {

// Adds a node of this kind for the event to the stream's capture; false if the stream is not capturing.
bool Captured(host::StreamState& stream, GraphNode::Kind kind,
              const std::shared_ptr<host::EventState>& event) {
  std::lock_guard lock(stream.mutex);
  CaptureState* capture = stream.ActiveCapture();
  if (capture == nullptr) return false;
  std::lock_guard capture_lock(capture->mutex);
  host::AddNode(*capture, stream.branch, kind).event = event;
  return true;
}

}  // namespace

Status HostStream::RecordExternal(HostEvent& event) try {
  if (event.state_ == nullptr) return OutOfMemory();
  if (Captured(*state_, GraphNode::Kind::kRecordExternal, event.state_)) return Status::Ok();
  return Record(event);
}
TANDEM_CATCH_TO_STATUS

Status HostStream::WaitExternal(HostEvent& event) try {
  if (event.state_ == nullptr) return OutOfMemory();
  if (Captured(*state_, GraphNode::Kind::kWaitExternal, event.state_)) return Status::Ok();
  return Wait(event);
}
TANDEM_CATCH_TO_STATUS

uint64_t HostStream::id() const { return state_->id; }

bool HostStream::Query() const {
  std::lock_guard lock(state_->mutex);
  return state_->queue->Completed(state_->last_ticket);
}

Status HostStream::Synchronize(std::chrono::nanoseconds timeout) const try {
  uint64_t ticket = 0;
  host::HostQueue* queue = nullptr;
  {
    std::lock_guard lock(state_->mutex);
    if (state_->ActiveCapture() != nullptr) return FailedPrecondition("the stream is capturing");
    ticket = state_->last_ticket;
    queue = state_->queue;
  }
  if (queue->WaitCompleted(ticket, std::chrono::steady_clock::now() + Bounded(timeout))) return Status::Ok();
  return DeadlineExceeded("the stream's work did not end in time").WithDetail({.reason = "NOT_ENDED"});
}
TANDEM_CATCH_TO_STATUS

Status HostStream::BeginCapture() try {
  std::lock_guard lock(state_->mutex);
  if (state_->ActiveCapture() != nullptr) return FailedPrecondition("the stream is capturing already");
  state_->capture = std::make_shared<CaptureState>();
  state_->branch = host::AddBranch(*state_->capture);
  return Status::Ok();
}
TANDEM_CATCH_TO_STATUS

Result<HostGraph> HostStream::EndCapture() try {
  std::lock_guard lock(state_->mutex);
  if (state_->ActiveCapture() == nullptr) return FailedPrecondition("the stream is not capturing");
  if (state_->branch != 0) return FailedPrecondition("the capture was begun on another stream");
  std::shared_ptr<CaptureState> capture = std::move(state_->capture);
  state_->capture.reset();
  std::lock_guard capture_lock(capture->mutex);
  capture->ended = true;
  const CaptureState::Clock& origin = capture->clocks[0];
  for (size_t branch = 1; branch < capture->clocks.size(); ++branch) {
    if (origin[branch] < capture->work[branch]) {
      return FailedPrecondition("stream " + std::to_string(branch) +
                                " joined the capture, and its work was not joined back");
    }
  }
  auto graph = std::make_shared<host::GraphState>();
  graph->branches = static_cast<int>(capture->clocks.size());
  graph->records = static_cast<int>(capture->records.size());
  graph->nodes = std::make_shared<const std::vector<GraphNode>>(std::move(capture->nodes));
  graph->user_objects = std::move(capture->user_objects);
  return HostGraph(std::move(graph));
}
TANDEM_CATCH_TO_STATUS

bool HostStream::IsCapturing() const {
  std::lock_guard lock(state_->mutex);
  return state_->ActiveCapture() != nullptr;
}

Status HostStream::RetainInCapture(std::shared_ptr<void> object) try {
  std::lock_guard lock(state_->mutex);
  CaptureState* capture = state_->ActiveCapture();
  if (capture == nullptr) return FailedPrecondition("the stream is not capturing");
  std::lock_guard capture_lock(capture->mutex);
  capture->user_objects.push_back(std::move(object));
  return Status::Ok();
}
TANDEM_CATCH_TO_STATUS

}  // namespace tandem
