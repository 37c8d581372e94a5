// File: fused_world.h
//
// Several GPUs for the benchmarks of the fused kernels: one thread a rank, words that all ranks reach,
// launches that start together.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "bench/gpu/fused_rig.h"

namespace tandem::bench {

// Memory of every rank, mapped by every rank: at(viewer, owner).
struct SharedArea {
  std::vector<std::vector<std::byte*>> address;
  std::byte* at(int viewer, int owner) const {
    return address[static_cast<size_t>(viewer)][static_cast<size_t>(owner)];
  }
};

// One rank's part of a measurement: enqueues one launch on its lanes, `set` of the operands in turn.
using Enqueue = std::function<void(int rank, int set, uint64_t launch_number)>;

class World {
 public:
  explicit World(int size);
  int size() const { return size_; }
  Gpu& gpu(int rank) { return *gpus_[static_cast<size_t>(rank)]; }
  // One of several copy lanes, which are forked and joined together.
  static constexpr int kCopyLanes = 3;
  Lane& copy_lane(int rank, int index = 0) {
    return *copy_lanes_[static_cast<size_t>(rank * kCopyLanes + index)];
  }
  // Words that a rank waits for, written by `from`: index below 32, 128 bytes apart. As `viewer` sees them.
  static constexpr int kWordStep = 16;
  Word* word(int viewer, int owner, int from, int index) const;
  Communicator* communicator(int rank) { return communicators_[static_cast<size_t>(rank)].get(); }
  SharedArea Share(size_t bytes);
  // Calls `work` on a thread for each rank.
  void Each(const std::function<void(int rank)>& work);
  // The first `lanes` copy lanes start after what the main lane holds, and the other way round.
  void Fork(int rank, int lanes = 1);
  void Join(int rank, int lanes = 1);
  // One launch with no lane waiting for anything: what it uses is loaded and connected. Before Time.
  void WarmUp(const Enqueue& enqueue);
  // Mean microseconds of `launches` launches, each aligned by a barrier among the ranks' lanes; a launch's
  // time is the slowest rank's.
  double Time(int launches, const Enqueue& enqueue);
  // The same of launches on the main lane, one behind another in a CUDA graph a rank; the graphs start
  // together.
  double TimeInGraph(int launches, const Enqueue& enqueue);
  void Clear();

 private:
  struct Events {
    CUevent start, end;
  };
  int size_;
  uint64_t launch_number_ = 0;
  uint64_t gate_ = 0;
  std::vector<std::unique_ptr<Gpu>> gpus_, keepers_;
  std::vector<std::unique_ptr<Lane>> copy_lanes_, gate_lanes_;
  std::vector<std::unique_ptr<Event>> forks_, joins_;
  std::vector<std::vector<Events>> events_;
  std::vector<std::unique_ptr<Communicator>> communicators_;
  SharedArea words_;
};

}  // namespace tandem::bench
