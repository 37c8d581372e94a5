// File: plan_handle.h
//
// `PlanHandle`: the handle of a plan, as far as it does not matter who launches it. `EnginePlan` and
// `ClientPlan` launch.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "client/lib/base/control_api.h"
#include "client/lib/base/launch_state.h"
#include "client/lib/base/slot_overlap.h"
#include "tandem/client.h"

namespace tandem::client {

class ClientSession;
class GroupHandle;

// Thread-safe.
class PlanHandle : public Plan, public std::enable_shared_from_this<PlanHandle> {
 public:
  const PlanInfo& info() const override { return info_; }
  Status Wait(Milliseconds deadline) override;
  Result<bool> Query() override;
  Status Release() override;
  // After a renewal: no call returns any more how launches before it have failed.
  virtual void DropFailures() = 0;

 protected:
  using Clock = std::chrono::steady_clock;
  // The reason of a wait that has met its own deadline, not the launch's.
  static constexpr char kNotEnded[] = "NOT_ENDED";

  // `request`: this rank's, as the daemon has accepted it.
  PlanHandle(std::shared_ptr<GroupHandle> group, PlanInfo info, const OpRequest& request);
  // Has the daemon release the plan, unless that has been done. In the destructor of the handle's class,
  // before what its launches use ends.
  void ReleaseAtEnd();

  ClientSession& session() const;
  GroupHandle& group() const { return *group_; }
  const std::shared_ptr<ClientPlanState>& state() const { return state_; }
  // FAILED_PRECONDITION, reason PLAN_RELEASED: Release has been called.
  Status CheckNotReleased() const;
  Status NoSuchLaunch(uint64_t launch) const;

  // A launch has failed, and its cause is not known yet: waits poll again.
  virtual bool AwaitsVerdict() const { return false; }
  // Waits for launches without a stream whose outcome no call has returned; the first failure.
  virtual Status WaitDirect(Clock::time_point) { return Status::Ok(); }
  // Whether these have ended; the first failure.
  virtual Result<bool> QueryDirect() { return true; }

  // Checks of the memory that slot `i` is bound to (plan_bindings.cc).
  Status CheckCount(size_t bindings) const;
  static Status CheckRoom(const Memory& memory, uint64_t offset, uint64_t needed);
  Status CheckDevice(const Memory& memory) const;
  Status CheckAlignment(size_t i, const std::byte* start) const;
  static Status Overlaps(const SlotOverlap::Pair& pair);
  static Status NotBound();
  static Status NotSymmetric();
  static Status BindingError(const Status& status, const char* reason);
  bool IsSymmetric(size_t i) const { return i < rules_.size() && rules_[i].symmetric; }
  // An error of slot `i`'s binding, with the slot's name and field.
  Status OfSlot(size_t i, const Status& error) const;

 private:
  // Waits until no launch of the plan on a stream is in flight; DEADLINE_EXCEEDED otherwise.
  Status WaitPending(Clock::time_point deadline);
  Status HasBeenReleased() const;

  // The request's rules for the memory of a slot.
  struct SlotRule {
    size_t alignment = 1;
    bool symmetric = false;
  };
  static std::vector<SlotRule> RulesOf(const OpRequest& request);

  const std::shared_ptr<GroupHandle> group_;
  const PlanInfo info_;
  const std::vector<SlotRule> rules_;  // by slot
  const std::shared_ptr<ClientPlanState> state_;
};

// The outcome to return of two that a call has waited for: the first failure, but a restart before any other,
// since each rank must hear of it before it launches on. Its `started` is about both.
Status MoreSevere(Status first, Status second);

}  // namespace tandem::client
