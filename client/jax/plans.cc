#include "client/jax/plans.h"

#include <utility>

namespace tandem::jax_calls {

JaxPlans& JaxPlans::Get() {
  static auto* const plans = new JaxPlans;
  return *plans;
}

uint64_t JaxPlans::OpenHostGroup(const tandem_jax_host_group& group) {
  auto calls = std::make_shared<HostCalls>(library_, group);
  const std::unique_lock lock(mutex_);
  groups_[++last_group_] = std::move(calls);
  return last_group_;
}

void JaxPlans::CloseHostGroup(uint64_t group) {
  std::shared_ptr<HostCalls> ended;  // ends without the lock
  const std::unique_lock lock(mutex_);
  if (const auto found = groups_.find(group); found != groups_.end()) {
    ended = std::move(found->second);
    groups_.erase(found);
    std::erase_if(plans_, [&](const auto& entry) { return entry.second.host == ended; });
  }
}

bool JaxPlans::Add(int64_t name, tandem_plan* plan, uint64_t host_group) {
  const std::unique_lock lock(mutex_);
  JaxPlan added{plan, nullptr};
  if (host_group != 0) {
    const auto found = groups_.find(host_group);
    if (found == groups_.end()) return false;
    added.host = found->second;
  }
  plans_[name] = std::move(added);
  return true;
}

void JaxPlans::Remove(int64_t name) {
  const std::unique_lock lock(mutex_);
  plans_.erase(name);
}

CallFailure JaxPlans::Unknown(int64_t) const {
  return {TANDEM_FAILED_PRECONDITION,
          "this program has a call of tandem.jax whose group has been left, or which another process has "
          "compiled: trace it again after tandem.jax.attach(), behind jax.clear_caches()"};
}

CallFailure JaxPlans::LaunchOnCuda(int64_t name, int64_t rows, void* stream,
                                   const std::vector<void*>& pointers) {
  const std::shared_lock lock(mutex_);
  const auto found = plans_.find(name);
  if (found == plans_.end() || found->second.host != nullptr) return Unknown(name);
  HoldCapture(stream);
  const tandem_launch_options options{sizeof(tandem_launch_options), 0, nullptr, rows};
  launches_.fetch_add(1, std::memory_order_relaxed);
  return TakeFailure(library_, library_.launch_cuda_pointers_with_options(
                                   found->second.plan, stream, pointers.data(), pointers.size(), &options));
}

void JaxPlans::HoldCapture(void* stream) {
  // XLA does not say when its graphs end, so a hold lasts as long as the process.
  tandem_capture_hold* hold = nullptr;
  if (tandem_status* const failed = library_.capture_hold_begin(stream, &hold)) library_.status_free(failed);
}

void JaxPlans::RunOnHost(HostCall call) {
  CallFailure failure;
  std::shared_ptr<HostCalls> host;
  {
    const std::shared_lock lock(mutex_);
    const auto found = plans_.find(call.name.plan);
    if (found == plans_.end() || found->second.host == nullptr) {
      failure = Unknown(call.name.plan);
    } else {
      call.plan = found->second.plan;
      host = found->second.host;
    }
  }
  if (host == nullptr) return call.done(failure);
  launches_.fetch_add(1, std::memory_order_relaxed);
  host->Add(std::move(call));
}

int64_t JaxPlans::CountSite(int64_t name, int64_t rows) {
  const std::lock_guard lock(sites_mutex_);
  return sites_[{name, rows}]++;
}

}  // namespace tandem::jax_calls
