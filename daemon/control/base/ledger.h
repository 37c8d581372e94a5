// File: ledger.h
//
// `Ledger`: what each uid and each control group (cgroup) has of the daemon's resources, and the quotas on
// it. A uid alone does not separate the containers of a node, since they often run as the same user. A cgroup
// alone does not bind a user who may make cgroups. Hence both: the first quota that is reached refuses.
//
// Thread rule: the registry's mutex guards it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "daemon/control/base/control_options.h"
#include "daemon/control/base/snapshot.h"
#include "tandem/status.h"

namespace tandem::daemon {

enum class Resource : size_t {
  kSessions,
  kGroups,
  kPlans,
  kPlanBytes,    // that tandemd keeps of them
  kTensors,      // symmetric tensors and registrations
  kDescriptors,  // that tandemd holds
  kSegmentBytes,
  kRegisteredBytes,
  kCalls,     // under way, beyond each session's own
  kLaunches,  // by gRPC, that are kept
};
inline constexpr size_t kResources = 10;

// The cgroup that quotas are kept by: that of the job that a process in `cgroup` belongs to. In Kubernetes it
// is a pod's ("…/kubepods.slice/…/pod<uid>"), in Slurm a job's ("…/job_17"), else `cgroup` itself. Tasks and
// containers of one job have cgroups of their own below the job's.
std::string OwnerOf(const std::string& cgroup);

// Whether the path is that of a pod or of a job in Slurm, or lies below one.
bool IsOfJob(const std::string& cgroup);

// Whom something is charged to. A group, its plans and its segments are charged to its rank 0, all else to
// the session that asked. An empty cgroup (not known to the kernel) is not accounted for; the uid is.
struct Payer {
  uint32_t uid = 0;
  std::string cgroup;
  // Compared by AllowRule::Fits beside the uid: the session's gid and its own cgroup.
  uint32_t gid = 0;
  std::string path = {};
};

class Ledger {
 public:
  explicit Ledger(const ControlLimits& limits) { SetLimits(limits); }

  // Accounts that have more than the new limits allow keep it, and get nothing more.
  void SetLimits(const ControlLimits& limits) { limits_ = limits; }
  // The limits of the first rule that fits a payer take the place of the others, if it has any. Resources of
  // uids and cgroups under several rules count together.
  void SetRules(std::vector<AllowRule> rules) { rules_ = std::move(rules); }
  // Limits of uids and cgroups, for this payer.
  const ControlLimits& LimitsOf(const Payer& payer) const;

  // Whether `payer` may have `amount` more. RESOURCE_EXHAUSTED, reason "QUOTA_<NAME>", with limit, usage and
  // who ("uid 7", "cgroup /x"). `unbooked` are amounts that count without being charged, of the uid and of
  // the cgroup.
  struct Unbooked {
    uint64_t of_uid = 0, of_cgroup = 0;
  };
  Status Check(const Payer& payer, Resource resource, uint64_t amount, const Unbooked& unbooked) const;
  Status Check(const Payer& payer, Resource resource, uint64_t amount) const {
    return Check(payer, resource, amount, {});
  }
  // Check, and the amount is the payer's.
  Status Charge(const Payer& payer, Resource resource, uint64_t amount);
  // The amount is the payer's, whatever the limit: an earlier tandemd had charged it.
  void TakeOver(const Payer& payer, Resource resource, uint64_t amount);
  // Gives back what was charged. An account without anything is forgotten.
  void Refund(const Payer& payer, Resource resource, uint64_t amount);

  // By the quota's key in the configuration, for quotas that have one: the part of the limit that the account
  // with the largest part uses, 0 to 1. A uid's and a cgroup's limits count as one quota. An account's limits
  // are those of the payer that was charged last.
  std::map<std::string, double> LargestUse() const;
  // The `most` cgroups with the most memory, the most first, then all others together, without a name.
  std::vector<OwnerUse> Owners(size_t most) const;
  // Charged to all uids together.
  uint64_t Total(Resource resource) const;
  // Accounts of uids and cgroups that have anything: 0 once everything has been given back.
  size_t accounts() const { return uids_.size() + cgroups_.size(); }

 private:
  struct Account {
    std::array<uint64_t, kResources> amounts{};
    Payer last;  // charged
  };

  ControlLimits limits_;
  std::vector<AllowRule> rules_;
  std::map<uint32_t, Account> uids_;
  std::map<std::string, Account> cgroups_;
};

// The refusal of Check, also for limits that are kept elsewhere (of the node, of a session). `name` as in
// "plans".
Status CheckLimit(const std::string& name, const std::string& who, uint64_t limit, uint64_t usage,
                  uint64_t more);

}  // namespace tandem::daemon
