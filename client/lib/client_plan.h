// File: client_plan.h
//
// `ClientPlan`: a plan that this process launches on the caller's streams (docs/client-placement.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "client/lib/client_launch/mapped_plan.h"
#include "client/lib/plan_handle.h"

namespace tandem::client {

// Thread-safe.
class ClientPlan final : public PlanHandle {
 public:
  // `request`: this rank's, as the daemon has accepted it. `mapped`: not null.
  ClientPlan(std::shared_ptr<GroupHandle> group, PlanInfo info, const OpRequest& request,
             std::shared_ptr<MappedPlan> mapped)
      : PlanHandle(std::move(group), std::move(info), request), mapped_(std::move(mapped)) {}
  ~ClientPlan() override { ReleaseAtEnd(); }

  Status Launch(StreamRef stream, std::span<const Binding> bindings, const LaunchOptions& options) override;
  // FAILED_PRECONDITION, reason CLIENT_PLACED.
  Result<uint64_t> LaunchWithoutStream(std::span<const Binding> bindings,
                                       const LaunchOptions& options) override;
  // NOT_FOUND: no such launch is ever made.
  Status WaitLaunch(uint64_t launch, Milliseconds deadline) override;
  void DropFailures() override;

 protected:
  bool AwaitsVerdict() const override { return mapped_->group().AwaitsVerdict(); }

 private:
  // A launch's operands, or what is wrong with them.
  Result<ClientBindings> BindAddresses(std::span<const Binding> bindings, const LaunchOptions& options,
                                       const PlanMember& member) const;
  // `needed`: bytes from the binding on.
  Result<runtime::SlotAddress> ResolveAddress(size_t i, const Binding& binding, uint64_t needed,
                                              ClientTag* tag) const;

  const std::shared_ptr<MappedPlan> mapped_;
};

}  // namespace tandem::client
