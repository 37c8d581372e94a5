#include "engine/launch/program_lanes.h"

#include <utility>

namespace tandem::engine {

ProgramLanes::ProgramLanes(Backend* backend, WordPage words, std::vector<std::unique_ptr<Lane>> lanes,
                           const TurnLimits& turn_limits)
    : words_(std::move(words)), lanes_(std::move(lanes)), executor_(backend, Pointers()) {
  for (const auto& lane : lanes_) lane->HoldWords();
  if (!lanes_.empty() && lanes_[0]->stream_count() > 1) stream_choice_.emplace(turn_limits);
}

std::vector<Lane*> ProgramLanes::Pointers() const {
  std::vector<Lane*> pointers;
  for (const auto& lane : lanes_) pointers.push_back(lane.get());
  return pointers;
}

Status ProgramLanes::EnqueueEnd(uint64_t ticket, Word* done, uint64_t done_value) {
  Status status = lane0().WriteWord(&words_[kCompletion], ticket);
  if (done != nullptr) {
    if (const Status written = lane0().WriteWord(done, done_value); status.ok()) status = written;
  }
  if (const Status flushed = lane0().FlushWords(); status.ok()) status = flushed;
  return status;
}

Result<uint64_t> ProgramLanes::EnqueueFence() {
  TANDEM_RETURN_IF_ERROR(lane0().WriteWord(&words_[kFence], last_fence_ + 1));
  TANDEM_RETURN_IF_ERROR(lane0().FlushWords());
  return ++last_fence_;
}

bool ProgramLanes::Drained() {
  if (fenced_ticket_ != last_ticket_) {
    if (!EnqueueFence().ok()) return false;  // Backend::Health reports what is wrong with the device
    fenced_ticket_ = last_ticket_;
  }
  return Passed(last_fence_);  // also the fences that were asked for since
}

void ProgramLanes::ChangeStream() {
  // Where the lane refuses, the choice gives up after a while.
  if (lane0().UseStream(stream_choice_->wanted()).ok()) stream_choice_->Switched();
}

}  // namespace tandem::engine
