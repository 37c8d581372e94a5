#include "daemon/control/base/ledger.h"

#include <algorithm>
#include <cctype>
#include <string_view>
#include <tuple>
#include <utility>

namespace tandem::daemon {
namespace {

constexpr std::array<const char*, kResources> kNames = {
    "sessions",      "groups",           "plans", "plan bytes",      "tensors", "descriptors",
    "segment bytes", "registered bytes", "calls", "pending launches"};

// As the configuration has them, in its table [quotas]; none: the quota is fixed.
constexpr std::array<const char*, kResources> kKeys = {
    "sessions_per_uid", "groups",           "plans",         "plan_bytes", "tensors", "descriptors",
    "segment_bytes",    "registered_bytes", "calls_per_uid", nullptr};

size_t Index(Resource resource) { return static_cast<size_t>(resource); }

std::string NameOf(Resource resource, const char* per) {
  // Sessions have a limit of the node too, calls and launches one of the session: the names differ.
  const bool others =
      resource == Resource::kSessions || resource == Resource::kCalls || resource == Resource::kLaunches;
  return kNames[Index(resource)] + (others ? std::string(" per ") + per : "");
}

template <typename Accounts, typename Key>
uint64_t UsageOf(const Accounts& accounts, const Key& key, Resource resource) {
  const auto account = accounts.find(key);
  return account == accounts.end() ? 0 : account->second.amounts[Index(resource)];
}

template <typename Accounts, typename Key>
void TakeFrom(Accounts& accounts, const Key& key, Resource resource, uint64_t amount) {
  const auto account = accounts.find(key);
  if (account == accounts.end()) return;
  auto& amounts = account->second.amounts;
  uint64_t& usage = amounts[Index(resource)];
  usage -= std::min(usage, amount);
  if (std::all_of(amounts.begin(), amounts.end(), [](uint64_t a) { return a == 0; })) accounts.erase(account);
}

// `path` is `folder` or lies below it; any path does for an empty folder.
bool IsWithin(const std::string& path, const std::string& folder) {
  const size_t end = folder.find_last_not_of('/');
  if (end == std::string::npos) return true;
  return path.compare(0, end + 1, folder, 0, end + 1) == 0 &&
         (path.size() == end + 1 || path[end + 1] == '/');
}

uint64_t OfUid(const ControlLimits& limits, Resource resource) {
  switch (resource) {
    case Resource::kSessions: return limits.sessions_per_uid;
    case Resource::kGroups: return limits.groups;
    case Resource::kPlans: return limits.plans;
    case Resource::kPlanBytes: return limits.plan_bytes;
    case Resource::kTensors: return limits.tensors;
    case Resource::kDescriptors: return limits.descriptors;
    case Resource::kSegmentBytes: return limits.segment_bytes;
    case Resource::kRegisteredBytes: return limits.registered_bytes;
    case Resource::kCalls: return limits.calls_per_uid;
    case Resource::kLaunches: return limits.launches_per_uid;
  }
  return 0;
}

uint64_t OfCgroup(const ControlLimits& limits, Resource resource) {
  const auto own = [&limits, resource]() -> uint64_t {
    switch (resource) {
      case Resource::kSessions: return limits.cgroup.sessions;
      case Resource::kGroups: return limits.cgroup.groups;
      case Resource::kPlans: return limits.cgroup.plans;
      case Resource::kPlanBytes: return limits.cgroup.plan_bytes;
      case Resource::kTensors: return limits.cgroup.tensors;
      case Resource::kDescriptors: return limits.cgroup.descriptors;
      case Resource::kSegmentBytes: return limits.cgroup.segment_bytes;
      case Resource::kRegisteredBytes: return limits.cgroup.registered_bytes;
      case Resource::kCalls: return limits.cgroup.calls;
      case Resource::kLaunches: return 0;
    }
    return 0;
  }();
  return own == 0 ? OfUid(limits, resource) : own;
}

}  // namespace

bool AllowRule::Fits(uint32_t of_uid, uint32_t of_gid, const std::string& of_cgroup) const {
  return uid.value_or(of_uid) == of_uid && gid.value_or(of_gid) == of_gid && IsWithin(of_cgroup, cgroup);
}

Status CheckLimit(const std::string& name, const std::string& who, uint64_t limit, uint64_t usage,
                  uint64_t more) {
  if (usage <= limit && more <= limit - usage) return Status::Ok();
  std::string reason = "QUOTA_";
  for (char c : name)
    reason += c == ' ' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return Status(Code::kResourceExhausted,
                "quota of " + name + " reached by " + who + ": limit " + std::to_string(limit) + ", in use " +
                    std::to_string(usage) + ", asked for " + std::to_string(more),
                {.reason = reason,
                 .who = who,
                 .field = {},
                 .limit = static_cast<long long>(limit),
                 .usage = static_cast<long long>(usage)});
}

namespace {

// The length of the path up to the pod or the job; npos for a path of neither.
size_t JobEnd(const std::string& cgroup) {
  bool kubepods = false;
  for (size_t begin = 0; begin < cgroup.size();) {
    size_t end = cgroup.find('/', begin);
    if (end == std::string::npos) end = cgroup.size();
    const std::string_view name = std::string_view(cgroup).substr(begin, end - begin);
    // By systemd's names "kubepods-burstable-pod<uid>.slice", by cgroupfs's "pod<uid>" below "kubepods".
    const bool pod = (kubepods && name.starts_with("pod")) ||
                     (name.starts_with("kubepods") && name.find("-pod") != std::string_view::npos);
    const bool job = name.size() > 4 && name.starts_with("job_") &&
                     name.find_first_not_of("0123456789", 4) == std::string_view::npos;
    if (pod || job) return end;
    kubepods |= name.starts_with("kubepods");
    begin = end + 1;
  }
  return std::string::npos;
}

}  // namespace

std::string OwnerOf(const std::string& cgroup) { return cgroup.substr(0, JobEnd(cgroup)); }

bool IsOfJob(const std::string& cgroup) { return JobEnd(cgroup) != std::string::npos; }

const ControlLimits& Ledger::LimitsOf(const Payer& payer) const {
  for (const AllowRule& rule : rules_) {
    if (rule.Fits(payer.uid, payer.gid, payer.path)) return rule.limits.has_value() ? *rule.limits : limits_;
  }
  return limits_;
}

Status Ledger::Check(const Payer& payer, Resource resource, uint64_t amount, const Unbooked& unbooked) const {
  const ControlLimits& limits = LimitsOf(payer);
  TANDEM_RETURN_IF_ERROR(CheckLimit(NameOf(resource, "uid"), "uid " + std::to_string(payer.uid),
                                    OfUid(limits, resource),
                                    UsageOf(uids_, payer.uid, resource) + unbooked.of_uid, amount));
  if (payer.cgroup.empty()) return Status::Ok();
  return CheckLimit(NameOf(resource, "cgroup"), "cgroup " + payer.cgroup, OfCgroup(limits, resource),
                    UsageOf(cgroups_, payer.cgroup, resource) + unbooked.of_cgroup, amount);
}

Status Ledger::Charge(const Payer& payer, Resource resource, uint64_t amount) {
  TANDEM_RETURN_IF_ERROR(Check(payer, resource, amount));
  TakeOver(payer, resource, amount);
  return Status::Ok();
}

void Ledger::TakeOver(const Payer& payer, Resource resource, uint64_t amount) {
  if (amount == 0) return;
  const auto add = [&](Account& account) {
    account.amounts[Index(resource)] += amount;
    account.last = payer;
  };
  add(uids_[payer.uid]);
  if (!payer.cgroup.empty()) add(cgroups_[payer.cgroup]);
}

void Ledger::Refund(const Payer& payer, Resource resource, uint64_t amount) {
  TakeFrom(uids_, payer.uid, resource, amount);
  if (!payer.cgroup.empty()) TakeFrom(cgroups_, payer.cgroup, resource, amount);
}

std::map<std::string, double> Ledger::LargestUse() const {
  std::map<std::string, double> uses;
  for (size_t i = 0; i < kResources; ++i) {
    if (kKeys[i] == nullptr) continue;
    double& use = uses[kKeys[i]];
    const auto note = [&](const auto& accounts, const auto& limit_of) {
      for (const auto& [owner, account] : accounts) {
        const uint64_t limit =
            std::max<uint64_t>(limit_of(LimitsOf(account.last), static_cast<Resource>(i)), 1);
        use = std::max(use, static_cast<double>(account.amounts[i]) / static_cast<double>(limit));
      }
    };
    note(uids_, OfUid);
    note(cgroups_, OfCgroup);
  }
  return uses;
}

std::vector<OwnerUse> Ledger::Owners(size_t most) const {
  constexpr std::pair<Resource, uint64_t OwnerUse::*> kShown[] = {
      {Resource::kSessions, &OwnerUse::sessions},
      {Resource::kGroups, &OwnerUse::groups},
      {Resource::kPlans, &OwnerUse::plans},
      {Resource::kSegmentBytes, &OwnerUse::segment_bytes},
      {Resource::kRegisteredBytes, &OwnerUse::registered_bytes}};
  std::vector<OwnerUse> owners;
  for (const auto& [cgroup, account] : cgroups_) {
    OwnerUse& use = owners.emplace_back();
    use.owner = cgroup;
    for (const auto& [resource, member] : kShown) use.*member = account.amounts[Index(resource)];
  }
  const auto rank = [](const OwnerUse& use) {
    return std::tuple(use.segment_bytes + use.registered_bytes, use.sessions);
  };
  std::stable_sort(owners.begin(), owners.end(),
                   [&rank](const OwnerUse& a, const OwnerUse& b) { return rank(a) > rank(b); });
  if (owners.size() > most) owners.resize(most);
  OwnerUse others;
  for (const auto& [resource, member] : kShown) {
    others.*member = Total(resource);
    for (const OwnerUse& use : owners) others.*member -= use.*member;
  }
  owners.push_back(std::move(others));
  return owners;
}

uint64_t Ledger::Total(Resource resource) const {
  uint64_t total = 0;
  for (const auto& [uid, account] : uids_) total += account.amounts[Index(resource)];
  return total;
}

}  // namespace tandem::daemon
