// File: groups.h
//
// The process groups whose collectives Tandem tries, and what it has declined.
#pragma once

#include <c10/core/Stream.h>

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "client/torch/distributed/torch_distributed.h"
#include "client/torch/distributed/works.h"

namespace tandem::torch_distributed {

// One process group. Thread-safe.
class ServedGroup {
 public:
  explicit ServedGroup(const c10::intrusive_ptr<::c10d::ProcessGroup>& group);

  const std::string& name() const { return name_; }
  int rank() const { return rank_; }
  int size() const { return size_; }
  // Whether its process group is there, in this process.
  bool Lives() const;
  // Whether the state is this process group's, in this process: another may lie at the same address later, and a
  // forked child cannot use its parent's.
  bool Of(const c10::intrusive_ptr<::c10d::ProcessGroup>& group) const;

  // Whether its collectives of such tensors are taken.
  bool Takes(c10::DeviceType device);
  // Why Tandem runs no calls of this kind; nothing where it may.
  std::optional<std::string> Declined(uint32_t kind) const;
  // Alike on all ranks: no call of the kind is tried again.
  void Decline(uint32_t kind, std::string reason);
  // Calls of the kind have been served.
  void Serve(uint32_t kind);
  bool Served(uint32_t kind) const;
  // No call of the group is tried again.
  void DeclineAll(std::string reason);
  // Calls that were declined are tried again.
  void ForgetDeclined();

  WorkQueue& queue() { return queue_; }
  // The stream of asynchronous collectives of a device's tensors.
  c10::Stream SideStream(c10::Device device);

 private:
  const c10::weak_intrusive_ptr<::c10d::ProcessGroup> group_;
  const std::string name_;
  const int rank_, size_;
  const int process_;
  WorkQueue queue_;
  mutable std::mutex mutex_;
  std::map<uint32_t, std::string> declined_;  // by kind
  std::set<uint32_t> served_;
  std::optional<std::string> all_declined_;
  std::map<c10::DeviceIndex, c10::Stream> streams_;
  std::atomic<uint64_t> taken_ = 0;  // the last answer, and above it the number of the question
};

// Takes the collectives of these groups from now on; of all groups if null.
void TakeGroups(tandem_c10d_takes_fn takes);

// The group's state, made at its first call. States of groups that have ended go.
std::shared_ptr<ServedGroup> StateOf(const c10::intrusive_ptr<::c10d::ProcessGroup>& group);
// Calls that were declined are tried again, in all groups.
void ForgetDeclined();

}  // namespace tandem::torch_distributed
