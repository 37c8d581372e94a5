// File: plans.h
//
// `JaxPlans`: the plans that XLA's calls launch, by their names, and the groups of the host backend. Knows
// nothing of XLA.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>
#include <vector>

#include "client/jax/host_calls.h"

namespace tandem::jax_calls {

// Thread-safe.
class JaxPlans {
 public:
  // The process's own. It is never destroyed: calls may run while the process ends.
  static JaxPlans& Get();

  void Use(const tandem_jax_functions& functions) { library_ = functions; }
  uint64_t OpenHostGroup(const tandem_jax_host_group& group);
  void CloseHostGroup(uint64_t group);
  bool Add(int64_t name, tandem_plan* plan, uint64_t host_group);
  void Remove(int64_t name);

  // Enqueues a launch on the CUDA stream, with one pointer a slot. In a capture it becomes part of the graph.
  CallFailure LaunchOnCuda(int64_t name, int64_t rows, void* stream, const std::vector<void*>& pointers);
  // Runs the call; `plan` is filled in here.
  void RunOnHost(HostCall call);
  // The number of one more place of a compiled program with such calls; numbers begin at 0 for each plan and
  // number of rows.
  int64_t CountSite(int64_t name, int64_t rows);

  uint64_t launches() const { return launches_; }

 private:
  struct JaxPlan {
    tandem_plan* plan = nullptr;
    std::shared_ptr<HostCalls> host;  // null: on CUDA
  };
  CallFailure Unknown(int64_t name) const;
  void HoldCapture(void* stream);

  tandem_jax_functions library_{};
  std::shared_mutex mutex_;  // shared while a launch is enqueued
  std::unordered_map<int64_t, JaxPlan> plans_;
  std::unordered_map<uint64_t, std::shared_ptr<HostCalls>> groups_;
  uint64_t last_group_ = 0;
  std::mutex sites_mutex_;
  std::map<std::pair<int64_t, int64_t>, int64_t> sites_;
  std::atomic<uint64_t> launches_ = 0;
};

}  // namespace tandem::jax_calls
