// File: tensor_service.h
//
// `TensorService`: symmetric tensors. A tensor is reserved by one rank, and gets memory when all ranks of a
// group meet with theirs: at the same offset on every rank.
#pragma once

#include <cstdint>
#include <memory>

#include "daemon/control/base/waiter.h"
#include "daemon/control/groups/group_installer.h"
#include "daemon/control/memory/segment_service.h"
#include "daemon/control/records/control_core.h"
#include "tandem/status.h"

namespace tandem::daemon {

// The user's own signal pad of a symmetric tensor, in bytes.
inline constexpr uint64_t kSignalPadBytes = 4096;

// RESOURCE_EXHAUSTED, reason QUOTA_RENDEZVOUS, if the group has `open` barriers that not all ranks have
// come to, and may have no more. Failed ones stay until all ranks have got the verdict, which a rank that
// never asks does not.
Status CheckOpenBarriers(const ControlLimits& limits, const GroupRecord& group, size_t open);

// Thread-safe. The others outlive it.
class TensorService {
 public:
  TensorService(ControlCore& core, SegmentService& segments, GroupInstaller& installer)
      : core_(core), segments_(segments), installer_(installer) {}

  // Reserves a tensor; a persistent name returns the same one again.
  Result<v1::EmptyReply> Empty(const SessionRef& session, const v1::EmptyRequest& request)
      TANDEM_EXCLUDES(registry_mutex);
  // Waits for all ranks; the mappings' descriptors go by the lease. A repeated call gets the same answer.
  Result<v1::RendezvousReply> MakeSymmetric(const SessionRef& session, const v1::RendezvousRequest& request,
                                            const Waiter& waiter) TANDEM_EXCLUDES(registry_mutex);
  // Frees a tensor. The memory of a persistent name stays for the next call with that name while a group of
  // the tensor lives.
  Status Free(const SessionRef& session, uint64_t tensor_id) TANDEM_EXCLUDES(registry_mutex);
  void FreeAllOf(SessionRecord& session) TANDEM_REQUIRES(registry_mutex);

 private:
  // The barrier that this call enters, with its slot taken.
  Result<std::shared_ptr<TensorBarrier>> Enter(GroupRecord& group, size_t rank,
                                               const std::shared_ptr<TensorRecord>& tensor,
                                               const Waiter& waiter, std::string* key)
      TANDEM_REQUIRES(registry_mutex);
  // Waits for the registration that all ranks get.
  Result<uint64_t> AwaitRegistration(RegistryLock& lock, const std::shared_ptr<GroupRecord>& group,
                                     size_t rank, const std::shared_ptr<TensorRecord>& tensor,
                                     const Waiter& waiter) TANDEM_REQUIRES(registry_mutex);
  // The last rank's part: memory for tensors that have none, and a registration on every engine.
  Status MakeForAll(GroupRecord& group, TensorBarrier& barrier, const Waiter& waiter)
      TANDEM_EXCLUDES(registry_mutex);
  // Whether the tensors can be registered as they are now; `fresh` (may be null) is memory for those that
  // have none.
  Status CheckTensors(const GroupRecord& group, const TensorBarrier& barrier,
                      const SymmetricBlock* fresh) const TANDEM_REQUIRES(registry_mutex);
  Result<std::shared_ptr<SymmetricBlock>> MakeBlock(GroupRecord& group, uint64_t bytes, const Waiter& waiter)
      TANDEM_EXCLUDES(registry_mutex);
  void TouchOwner(const TensorRecord& tensor) TANDEM_REQUIRES(registry_mutex);
  // A barrier that goes on without its tensor would give memory to what nobody can free any more.
  void EndBarrierOf(const SessionRecord& session, const std::shared_ptr<TensorRecord>& tensor)
      TANDEM_REQUIRES(registry_mutex);
  void FreeTensor(SessionRecord& session, uint64_t tensor_id) TANDEM_REQUIRES(registry_mutex);

  ControlCore& core_;
  SegmentService& segments_;
  GroupInstaller& installer_;
};

}  // namespace tandem::daemon
