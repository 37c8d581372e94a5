#include "client/torch/distributed/groups.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <unistd.h>

#include <unordered_map>

namespace tandem::torch_distributed {

ServedGroup::ServedGroup(const c10::intrusive_ptr<::c10d::ProcessGroup>& group)
    : group_(group),
      name_(group->getGroupName()),
      rank_(group->getRank()),
      size_(group->getSize()),
      process_(::getpid()) {}

bool ServedGroup::Lives() const { return !group_.expired() && process_ == ::getpid(); }

bool ServedGroup::Of(const c10::intrusive_ptr<::c10d::ProcessGroup>& group) const {
  return Lives() && group_._unsafe_get_target() == group.get();
}

namespace {

// The question that is asked about each group. TakeGroups() gives it a new number, so that groups are asked again.
struct TakenGroups {
  std::mutex mutex;
  tandem_c10d_takes_fn takes = nullptr;
  std::atomic<uint64_t> number = 1;
};
TakenGroups& TheTakenGroups() {
  static auto* const chosen = new TakenGroups;
  return *chosen;
}

constexpr uint64_t kOnCpu = 1, kOnGpu = 2;
constexpr int kAnswerBits = 2;

}  // namespace

void TakeGroups(tandem_c10d_takes_fn takes) {
  TakenGroups& chosen = TheTakenGroups();
  const std::lock_guard lock(chosen.mutex);
  chosen.takes = takes;
  ++chosen.number;
}

bool ServedGroup::Takes(c10::DeviceType device) {
  TakenGroups& chosen = TheTakenGroups();
  uint64_t taken = taken_.load();
  if (taken >> kAnswerBits != chosen.number.load()) {
    tandem_c10d_takes_fn takes = nullptr;
    uint64_t number = 0;
    {
      const std::lock_guard lock(chosen.mutex);
      takes = chosen.takes;
      number = chosen.number.load();
    }
    // No lock is held here: Python answers, and may wait for its own.
    const bool cpu = takes == nullptr || takes(name_.c_str(), 1) != 0;
    const bool gpu = takes == nullptr || takes(name_.c_str(), 0) != 0;
    taken = number << kAnswerBits | (cpu ? kOnCpu : 0) | (gpu ? kOnGpu : 0);
    taken_.store(taken);
  }
  return (taken & (device == c10::DeviceType::CPU ? kOnCpu : kOnGpu)) != 0;
}

std::optional<std::string> ServedGroup::Declined(uint32_t kind) const {
  const std::lock_guard lock(mutex_);
  if (all_declined_) return all_declined_;
  const auto found = declined_.find(kind);
  if (found == declined_.end()) return std::nullopt;
  return found->second;
}

void ServedGroup::Decline(uint32_t kind, std::string reason) {
  const std::lock_guard lock(mutex_);
  declined_.insert_or_assign(kind, std::move(reason));
}

void ServedGroup::Serve(uint32_t kind) {
  const std::lock_guard lock(mutex_);
  served_.insert(kind);
}

bool ServedGroup::Served(uint32_t kind) const {
  const std::lock_guard lock(mutex_);
  return served_.contains(kind);
}

void ServedGroup::DeclineAll(std::string reason) {
  const std::lock_guard lock(mutex_);
  all_declined_ = std::move(reason);
}

void ServedGroup::ForgetDeclined() {
  const std::lock_guard lock(mutex_);
  declined_.clear();
  all_declined_.reset();
}

c10::Stream ServedGroup::SideStream(c10::Device device) {
  const std::lock_guard lock(mutex_);
  auto found = streams_.find(device.index());
  if (found == streams_.end()) {
    const c10::impl::VirtualGuardImpl guard(device.type());
    found = streams_.emplace(device.index(), guard.getStreamFromGlobalPool(device, /*isHighPriority=*/true))
                .first;
  }
  return found->second;
}

namespace {

struct Groups {
  std::mutex mutex;
  std::unordered_map<const ::c10d::ProcessGroup*, std::shared_ptr<ServedGroup>> states;
};
Groups& TheGroups() {
  static auto* const groups = new Groups;
  return *groups;
}

}  // namespace

std::shared_ptr<ServedGroup> StateOf(const c10::intrusive_ptr<::c10d::ProcessGroup>& group) {
  Groups& groups = TheGroups();
  const std::lock_guard lock(groups.mutex);
  std::shared_ptr<ServedGroup>& state = groups.states[group.get()];
  if (state != nullptr && state->Of(group)) return state;
  auto made = state = std::make_shared<ServedGroup>(group);
  std::erase_if(groups.states, [](const auto& known) { return !known.second->Lives(); });
  return made;
}

void ForgetDeclined() {
  Groups& groups = TheGroups();
  const std::lock_guard lock(groups.mutex);
  for (const auto& [group, state] : groups.states) state->ForgetDeclined();
}

}  // namespace tandem::torch_distributed
