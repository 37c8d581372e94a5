// File: client_lane.h
//
// `ClientLane`: the lane of a client-placed launch on the host backend (docs/client-placement.md). Where an
// engine's lane enqueues, this one works at once: it runs inside the one function of the launch, on the
// thread of the caller's stream. A word holds the launch's number and tag.
#pragma once

#include <chrono>
#include <cstdint>

#include "ipc/verdict_page.h"
#include "kernels/backend.h"
#include "program/launch_word.h"
#include "tandem/status.h"

namespace tandem::client {

// One launch, as its lane sees it.
struct ClientLaunch {
  using Clock = std::chrono::steady_clock;
  uint64_t number = 0;  // of the group, from 1
  uint16_t tag = 0;     // of the plan, the user's tag and the place of symmetric operands
  int rank = 0;
  Clock::time_point deadline;         // of all waits together
  const VerdictPage* page = nullptr;  // outlives the launch
  const Word* own_words = nullptr;    // this rank's signal words, kSignalsPerWriter of each writer
};

// Every function works before it returns, and returns why it gave up. The first error must be the launch's
// last call: a launch that has given up publishes nothing.
//
// A wait returns one of these errors, and `detail.ranks` names the awaited rank:
//   - The verdict page ends launches from this number on: the page's reason.
//   - The launch's deadline passed: DEADLINE_EXCEEDED, reason RANK_LATE.
//   - The peer runs another launch under this number: INVALID_ARGUMENT, reason LAUNCH_MISMATCH.
//   - The peer is ahead by more than one launch: FAILED_PRECONDITION, reason DESYNC.
//
// Thread rule: one thread at a time.
class ClientLane : public Lane {
 public:
  // Later calls are of this launch.
  void Begin(const ClientLaunch& launch) { launch_ = launch; }

  Status WriteWord(Word* word, uint64_t number) override;
  Status WaitWord(const Word* word, uint64_t number) override;
  Status Copy(const CopyArgs& args) override;
  Status Matmul(const MatmulArgs& args) override;
  Status Reduce(const ReduceArgs& args) override;
  Status Norm(const NormArgs& args) override;
  // UNIMPLEMENTED: of engines only.
  Status Nccl(const NcclArgs& args) override;
  Status Record(Event* event) override;
  Status Wait(Event* event) override;

 protected:
  const ClientLaunch& launch() const { return launch_; }

 private:
  ClientLaunch launch_;
};

}  // namespace tandem::client
