// File: host_lane.h
//
// The host backend's lane and event: thin adapters from the backend's interface to a hardware queue.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "kernels/backend.h"
#include "kernels/host/copy.h"
#include "kernels/host/host_queue.h"
#include "kernels/host/recycler.h"
#include "kernels/host/reduce.h"

namespace tandem::host {

// A point in a lane's work, as a counter of records: a record is a write of the counter, a wait is a wait for
// it. An event must be recorded on one lane only (or on lanes ordered against each other): its records are
// then reached in the order in which they were made.
class HostLaneEvent : public Event {
 public:
  struct State {
    std::atomic<uint64_t> recorded{0};
    std::atomic<uint64_t> reached{0};
    std::atomic<int64_t> time_ns{0};
  };

  bool Done() const override;
  int64_t TimeNs() const override;
  const std::shared_ptr<State>& state() const { return state_; }

 private:
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

class HostLane : public Lane {
 public:
  // Keeps `queues` alive; `queue` is one of them.
  HostLane(std::shared_ptr<HostQueueSet> queues, HostQueue* queue)
      : queues_(std::move(queues)), queue_(queue) {}

  Status WriteWord(Word* word, uint64_t value) override;
  Status WaitWord(const Word* word, uint64_t value) override;
  Status Copy(const CopyArgs& args) override;
  Status Matmul(const MatmulArgs& args) override;
  Status Reduce(const ReduceArgs& args) override;
  Status Norm(const NormArgs& args) override;
  Status Nccl(const NcclArgs& args) override;
  Status Record(Event* event) override;
  Status Wait(Event* event) override;

 private:
  std::shared_ptr<HostQueueSet> queues_;
  HostQueue* queue_;
  // The arguments of the tasks.
  Recycler<BoxCopy> copies_;
  Recycler<BoxReduce> reductions_;
  Recycler<MatmulArgs> products_;
  Recycler<NormArgs> norms_;
  Recycler<NcclArgs> collectives_;
};

}  // namespace tandem::host
