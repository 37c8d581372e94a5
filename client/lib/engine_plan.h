// File: engine_plan.h
//
// `EnginePlan`: a plan whose launches engines run. Launches go by the streams' channels, or by gRPC.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "client/lib/base/client_device.h"
#include "client/lib/base/registrations.h"
#include "client/lib/base/slot_overlap.h"
#include "client/lib/plan_handle.h"
#include "ipc/channel_layout.h"

namespace tandem::client {

// Thread-safe.
class EnginePlan final : public PlanHandle {
 public:
  // `request`: this rank's, as the daemon has accepted it.
  EnginePlan(std::shared_ptr<GroupHandle> group, PlanInfo info, const OpRequest& request)
      : PlanHandle(std::move(group), std::move(info), request), overlap_(request) {}
  ~EnginePlan() override { ReleaseAtEnd(); }

  Status Launch(StreamRef stream, std::span<const Binding> bindings, const LaunchOptions& options) override;
  Result<uint64_t> LaunchWithoutStream(std::span<const Binding> bindings,
                                       const LaunchOptions& options) override;
  Status WaitLaunch(uint64_t launch, Milliseconds deadline) override;
  // Failures by engines' restarts stay: each rank returns them once.
  void DropFailures() override;

 protected:
  Status WaitDirect(Clock::time_point deadline) override;
  Result<bool> QueryDirect() override;

 private:
  struct Direct {
    uint64_t generation = 0;
    BoundRegistrations bound;
    Status wrong;  // with the bindings
  };

  // The failure that a launch must return instead of being made; OK if it may go on.
  Status BeforeLaunch();
  // Fills `entry` and `bound`, and returns what is wrong with the bindings, as far as this side knows. A
  // wrong entry is filled so that the engine refuses the launch.
  Status FillEntry(ClientDevice& device, std::span<const Binding> bindings, const LaunchOptions& options,
                   LaunchEntry* entry, BoundRegistrations* bound) const;
  // The memory that slot `i` is bound to.
  Result<LaunchBinding> Resolve(ClientDevice& device, size_t i, const Binding& binding,
                                BoundRegistrations* bound) const;
  // FAILED_PRECONDITION, reason OTHER_GROUP or OTHER_CLIENT: engines know no such memory in this group. `i`:
  // the slot.
  Status CheckOwner(size_t i, const Memory& memory) const;
  // `other`: the group that has the memory.
  Status OfOtherGroup(const std::string& other) const;
  // The launches by gRPC whose outcome no call has returned, and whether this is one.
  std::vector<uint64_t> DirectLaunches();
  bool IsUnderWay(uint64_t launch);

  const SlotOverlap overlap_;

  std::mutex direct_mutex_;
  std::map<uint64_t, Direct> direct_;  // launches by gRPC that nobody has waited for
};

}  // namespace tandem::client
