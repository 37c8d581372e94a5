// File: program_lanes.h
//
// `ProgramLanes`: the lanes that the programs of one GPU run on, in the order log's order, and the words that
// show how far lane 0 has come.
//
//   lane 0:  … · program · completion = ticket · done      and, where somebody asks:  fence = value
//
// Lane 0 joins the other lanes at the end of each program, so what it writes behind a program shows that the
// whole program has ended.
//
// Thread rule: the engine's main thread only. No call blocks, none but the constructor allocates.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "engine/launch/stream_choice.h"
#include "engine/launch/word_page.h"
#include "kernels/backend.h"
#include "runtime/executor/executor.h"
#include "tandem/status.h"

namespace tandem::engine {

class ProgramLanes {
 public:
  // `words`: a page that nobody else uses. Lane 0 is lanes[0]; there is at least one.
  ProgramLanes(Backend* backend, WordPage words, std::vector<std::unique_ptr<Lane>> lanes,
               const TurnLimits& turn_limits);

  // Lane 0 keeps words back: flush them.
  Lane& lane0() { return *lanes_[0]; }
  runtime::Executor& executor() { return executor_; }

  // The number of the next program; tickets grow by one.
  uint64_t TakeTicket() { return ++last_ticket_; }
  // Enqueues what ends the program of that ticket, and flushes: the completion word, then `done` (null:
  // none). The engine's word comes first: a client that sees done may launch the plan again at once, by any
  // channel, and must find an engine that knows of the end. Both are tried whatever fails; returns the first
  // error.
  Status EnqueueEnd(uint64_t ticket, Word* done, uint64_t done_value);
  // The ticket of the last program that has ended. Lane 0 may still be writing its done word.
  uint64_t Completed() const { return words_[kCompletion].load(std::memory_order_acquire); }

  // Enqueues a write of the fence word on lane 0; returns the value that shows that lane 0 has come to it.
  Result<uint64_t> EnqueueFence();
  bool Passed(uint64_t fence) const { return words_[kFence].load(std::memory_order_acquire) >= fence; }
  // True once lane 0 has executed all that it was given. Only while no program is on the lanes and no
  // speculative kernel: the fence that is enqueued for the last program says so, and is enqueued at the first
  // call behind that program.
  bool Drained();

  // Lane 0's stream (stream_choice.h). A turn of `turn_ns` behind `plan` has ended.
  void NoteTurn(uint64_t plan, uint64_t turn_ns, uint64_t now_ns) {
    if (stream_choice_) stream_choice_->Turn(plan, turn_ns, now_ns);
  }
  // True while lane 0 has two streams: turns are worth noting.
  bool ChoosesStream() const { return stream_choice_.has_value(); }
  // True while lane 0 is to change its stream: nothing goes onto it ahead, so that it comes to stand still.
  bool WantsOtherStream() const { return stream_choice_ && stream_choice_->WantsSwitch(); }
  // Changes it. Only while Drained(): nothing orders the streams against each other.
  void ChangeStream();

  // The words of the speculative launch: lane 0 waits for the one and writes the other.
  Word* go_word() const { return &words_[kGo]; }
  Word* cancelled_word() const { return &words_[kCancelled]; }

 private:
  // Places in the page, each in a separate cache line.
  static constexpr size_t kCompletion = 0, kGo = 16, kCancelled = 24, kFence = 32;

  std::vector<Lane*> Pointers() const;

  WordPage words_;
  std::vector<std::unique_ptr<Lane>> lanes_;
  runtime::Executor executor_;
  std::optional<StreamChoice> stream_choice_;  // none: lane 0 has one stream
  uint64_t last_ticket_ = 0;
  uint64_t last_fence_ = 0;
  uint64_t fenced_ticket_ = 0;  // the program of that ticket has a fence behind it
};

}  // namespace tandem::engine
