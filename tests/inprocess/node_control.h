// File: node_control.h
//
// tandemd's part for a process that holds all engines and all clients: each client's gRPC plugin, made of
// the real planner and the engines' real commands, with neither sockets nor gRPC between. The rest of
// a node runs as it is: the client library, the channels, the launch queue, the executor, the
// backend.
#pragma once

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "client/lib/base/control_api.h"
#include "engine/tests/engine_node.h"
#include "tandem/client.h"

namespace tandem::inprocess {

// A node with one group over all its GPUs, rank i on GPU i. Thread-safe. Outlives its clients: its end waits
// for their control halves, of which a thread of the client library's may be the last owner.
class Node {
 public:
  explicit Node(int world_size, int hardware_queues);
  ~Node();

  int world_size() const { return world_size_; }
  // The gRPC plugin for a client that is to be rank `rank`.
  std::unique_ptr<client::ClientControl> MakeControl(int rank);
  // As tandemd does when a rank is lost: breaks the group on every engine, then notifies every client.
  void Break(const std::string& message, uint32_t who_rank);
  // Waits until the engine of `gpu` holds `items` launches.
  bool AwaitQueued(int gpu, int items);

 private:
  friend class NodeControl;
  // The requests of ranks under one key; complete when all ranks have made theirs.
  struct PrepareCall {
    std::vector<OpRequest> requests;
    size_t taken = 0;
    bool planned = false;
    Status status;
    PlanInfo info;
    int released = 0;
  };
  Result<PlanInfo> Prepare(int rank, const std::string& key, const OpRequest& request, Milliseconds deadline);
  // Plans a complete prepare and gives each engine its program.
  Result<PlanInfo> MakePlan(const std::string& key, const std::vector<OpRequest>& requests);
  Status ReleasePlan(uint64_t plan_id);
  Status LeaveGroup(int rank);
  Result<client::RendezvousInfo> Rendezvous(int rank);
  Result<client::ChannelInfo> OpenChannel(int gpu, uint32_t entries);
  Status CloseChannel(int gpu, uint64_t id);
  void SetCallbacks(int rank, client::ControlCallbacks callbacks);
  void OnControlGone();

  const int world_size_;
  std::mutex mutex_;  // of the engines' commands and of what follows
  std::condition_variable met_;
  engine::EngineNode engines_;
  engine::TestGroup group_;
  std::map<std::string, PrepareCall> prepare_calls_;
  uint64_t next_channel_ = 1'000'000;  // EngineNode counts its own numbers from 1

  std::mutex callbacks_mutex_;
  std::map<int, client::ControlCallbacks> callbacks_;  // by rank
  int controls_ = 0;
  std::condition_variable control_gone_;
};

}  // namespace tandem::inprocess
