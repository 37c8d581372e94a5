// File: failure_service.h
//
// `FailureService`: client-placed launches that have failed, as members report them. The first report stalls
// the group, after a short time in which the other ranks' reports arrive, so that the rank that caused the
// failure is named and not the rank that noticed it first.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>

#include "daemon/control/groups/group_service.h"
#include "daemon/control/records/control_core.h"
#include "tandem/status.h"
#include "tandem/v1/tandem.pb.h"

namespace tandem::daemon {

// The rank that caused the failure of a launch: reports of a deadline are followed from rank to awaited rank,
// up to a rank that waits for nobody. -1 without reports. Pure.
int RootOfDelay(const std::map<int, GroupRecord::FailureReport>& reports);

// Two ranks whose launches of one number and family have unlike rows.
struct UnlikeRows {
  int rank = 0, other = 0;  // `other` launched what most ranks did
  int64_t rows = 0, other_rows = 0;
};
// Returns nothing where no two reports have unlike rows. Pure.
std::optional<UnlikeRows> FindUnlikeRows(const std::map<int, GroupRecord::FailureReport>& reports);

// Two ranks whose launches of one number are of unlike plans.
struct UnlikePlans {
  size_t rank = 0, other = 0;  // `other` launched what most ranks did
};
// `plan_ids`: of a launch, by rank; 0: not known. Returns nothing where no two are unlike. Pure.
std::optional<UnlikePlans> FindUnlikePlans(std::span<const uint64_t> plan_ids);

// Thread-safe. The others outlive it.
class FailureService {
 public:
  FailureService(ControlCore& core, GroupService& groups) : core_(core), groups_(groups) {}

  // Returns once the group is stalled. A report about a group that is over or stalled already changes
  // nothing, nor does one about launches before the last renewal.
  // INVALID_ARGUMENT for a rank that the group does not have. NOT_FOUND.
  Status Report(const SessionRef& session, const v1::ReportFailureRequest& request)
      TANDEM_EXCLUDES(registry_mutex);

 private:
  Status Verdict(const GroupRecord& group) const TANDEM_REQUIRES(registry_mutex);

  ControlCore& core_;
  GroupService& groups_;
};

}  // namespace tandem::daemon
