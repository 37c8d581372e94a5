#include "daemon/control/client_groups/failure_service.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "daemon/control/base/blame.h"
#include "daemon/control/base/status_proto.h"
#include "daemon/control/base/waiter.h"
#include "daemon/planner/planner.h"

namespace tandem::daemon {
namespace {

// For the reports of ranks whose deadlines pass together.
constexpr std::chrono::milliseconds kGatherReports{30};

bool IsDelay(const Status& status) { return status.code() == Code::kDeadlineExceeded; }

// By rank, as it reports them or as its page has them; 0: not known.
std::vector<uint64_t> PlansOfLaunch(const GroupRecord& group, uint64_t launch)
    TANDEM_REQUIRES(registry_mutex) {
  std::vector<uint64_t> plan_ids(group.world());
  for (size_t rank = 0; rank < plan_ids.size(); ++rank) {
    const auto report = group.failures.find(static_cast<int>(rank));
    const bool has_reported = report != group.failures.end() && report->second.launch == launch;
    plan_ids[rank] = has_reported ? report->second.plan_id : group.client.pages[rank].PlanOfLaunch(launch);
    if (!group.plans.contains(plan_ids[rank])) plan_ids[rank] = 0;
  }
  return plan_ids;
}

// The failure of a launch whose ranks have launched unlike plans; none where they have not.
std::optional<Status> OfUnlikePlans(const GroupRecord& group, uint64_t launch)
    TANDEM_REQUIRES(registry_mutex) {
  const std::vector<uint64_t> plan_ids = PlansOfLaunch(group, launch);
  const std::optional<UnlikePlans> unlike = FindUnlikePlans(plan_ids);
  if (!unlike) return std::nullopt;
  const auto plan_of = [&](size_t rank) TANDEM_REQUIRES(registry_mutex) -> const PlanRecord& {
    return group.plans.at(plan_ids[plan_ids[rank] == 0 ? unlike->other : rank]);
  };
  std::vector<OpRequest> requests;
  for (size_t rank = 0; rank < group.world(); ++rank) {
    if (const auto& request = plan_of(rank).requests[rank]) requests.push_back(*request);
  }
  const Status differs = requests.size() == group.world() ? plan::CompareRequests(requests) : Status::Ok();
  std::string text = "group '" + group.name + "', launch " + std::to_string(launch) + ": rank " +
                     std::to_string(unlike->other) + " launched plan '" + plan_of(unlike->other).key +
                     "', rank " + std::to_string(unlike->rank) + " plan '" + plan_of(unlike->rank).key + "'";
  if (!differs.ok()) text += "; " + differs.message();
  return Status(Code::kInvalidArgument, std::move(text),
                BlameRank("LAUNCH_MISMATCH", static_cast<int>(unlike->rank), differs.detail().field,
                          group.members[unlike->rank].pid));
}

// Says which prepare a rank waits in; empty if none.
std::string Preparing(const GroupRecord& group, size_t rank) TANDEM_REQUIRES(registry_mutex) {
  for (const auto& [key, barrier] : group.prepares) {
    if (barrier->phase() == Barrier::Phase::kGathering && barrier->Taken(rank))
      return "; it prepares '" + key + "'";
  }
  return {};
}

}  // namespace

int RootOfDelay(const std::map<int, GroupRecord::FailureReport>& reports) {
  if (reports.empty()) return -1;
  const auto first = std::min_element(reports.begin(), reports.end(), [](const auto& a, const auto& b) {
    return a.second.launch < b.second.launch;
  });
  int rank = first->first;
  // At most as many hops as there are reports: a circle ends at the last rank of them.
  for (size_t hop = 0; hop < reports.size(); ++hop) {
    const auto report = reports.find(rank);
    if (report == reports.end() || report->second.awaited_rank < 0) break;
    rank = report->second.awaited_rank;
  }
  return rank;
}

std::optional<UnlikeRows> FindUnlikeRows(const std::map<int, GroupRecord::FailureReport>& reports) {
  // The launch that most ranks made stands; of as many the lowest rank's.
  const auto of_it = [&](const GroupRecord::FailureReport& wanted) {
    return std::count_if(reports.begin(), reports.end(), [&](const auto& other) {
      const GroupRecord::FailureReport& report = other.second;
      return report.launch == wanted.launch && report.plan_id == wanted.plan_id && report.rows == wanted.rows;
    });
  };
  auto usual = reports.end();
  for (auto each = reports.begin(); each != reports.end(); ++each) {
    if (each->second.rows >= 0 && (usual == reports.end() || of_it(each->second) > of_it(usual->second)))
      usual = each;
  }
  if (usual == reports.end()) return std::nullopt;
  for (const auto& [rank, report] : reports) {
    if (report.launch == usual->second.launch && report.plan_id == usual->second.plan_id &&
        report.rows >= 0 && report.rows != usual->second.rows)
      return UnlikeRows{rank, usual->first, report.rows, usual->second.rows};
  }
  return std::nullopt;
}

std::optional<UnlikePlans> FindUnlikePlans(std::span<const uint64_t> plan_ids) {
  std::optional<size_t> usual;
  const auto alike = [&](size_t rank) {
    return std::count(plan_ids.begin(), plan_ids.end(), plan_ids[rank]);
  };
  for (size_t rank = 0; rank < plan_ids.size(); ++rank) {
    if (plan_ids[rank] != 0 && (!usual || alike(rank) > alike(*usual))) usual = rank;
  }
  for (size_t rank = 0; usual && rank < plan_ids.size(); ++rank) {
    if (plan_ids[rank] != 0 && plan_ids[rank] != plan_ids[*usual]) return UnlikePlans{rank, *usual};
  }
  return std::nullopt;
}

Status FailureService::Verdict(const GroupRecord& group) const {
  const std::string context = "group '" + group.name + "'";
  // A refusal or a mismatch explains the delays of the others.
  for (const auto& [rank, report] : group.failures) {
    if (IsDelay(report.status)) continue;
    std::string text = context + ", launch " + std::to_string(report.launch) + ": " + report.status.message();
    int blamed = rank;
    std::string field = report.status.detail().field;
    const bool is_mismatch = report.status.detail().reason == "LAUNCH_MISMATCH";
    if (is_mismatch) {
      if (std::optional<Status> unlike = OfUnlikePlans(group, report.launch)) return *std::move(unlike);
    }
    if (const auto unlike = FindUnlikeRows(group.failures); is_mismatch && unlike) {
      blamed = unlike->rank;
      field = "rows";
      text = context + ", launch " + std::to_string(report.launch) + ": rank " +
             std::to_string(unlike->rank) + " launched rows " + std::to_string(unlike->rows) + ", rank " +
             std::to_string(unlike->other) + " rows " + std::to_string(unlike->other_rows);
    }
    StatusDetail detail = BlameRank(report.status.detail().reason, blamed, std::move(field),
                                    group.members[static_cast<size_t>(blamed)].pid);
    return Status(report.status.code(), std::move(text), std::move(detail));
  }
  const int root = RootOfDelay(group.failures);
  const auto& first = group.failures.begin()->second;
  // Kernels of unlike kinds do not see each other's words, and wait.
  if (std::optional<Status> unlike = OfUnlikePlans(group, first.launch)) return *std::move(unlike);
  const auto plan = group.plans.find(first.plan_id);
  return Status(Code::kDeadlineExceeded,
                context + ", launch " + std::to_string(first.launch) +
                    (plan == group.plans.end() ? std::string() : " of plan '" + plan->second.key + "'") +
                    " ended by its deadline: rank " + std::to_string(root) + " had not arrived" +
                    Preparing(group, static_cast<size_t>(root)),
                BlameRank("RANK_LATE", root, {}, group.members[static_cast<size_t>(root)].pid));
}

Status FailureService::Report(const SessionRef& session, const v1::ReportFailureRequest& request) {
  Registry& registry = core_.registry;
  RegistryLock lock(registry);
  TANDEM_RETURN_IF_ERROR(registry.SessionAlive(*session));
  int rank = 0;
  TANDEM_ASSIGN_OR_RETURN(const std::shared_ptr<GroupRecord> group,
                          registry.FindGroup(*session, request.group_id(), &rank));
  const int awaited = request.awaited_rank();
  if (awaited < -1 || awaited >= static_cast<int>(group->world()) || awaited == rank) {
    return InvalidArgument("awaited_rank " + std::to_string(awaited) + " is no other rank of the group")
        .WithDetail({.field = "awaited_rank"});
  }
  Status status = StatusOf(request.status());
  if (status.ok() || (IsDelay(status) && awaited < 0)) {
    return InvalidArgument("the report names no failure").WithDetail({.field = "status"});
  }
  if (group->client.pages.empty()) {
    return FailedPrecondition("the group has no plan that is placed in the client");
  }
  if (request.renewals() < group->client.renewals) return Status::Ok();
  if (request.counted_rows() < 0) {
    return InvalidArgument("counted_rows is negative").WithDetail({.field = "counted_rows"});
  }
  const bool first = group->failures.empty();
  group->failures.try_emplace(
      rank, GroupRecord::FailureReport{request.launch(), request.plan_id(), awaited, std::move(status),
                                       request.counted_rows() - 1});
  registry.engines_changed.notify_all();
  const auto over = [&]() TANDEM_REQUIRES(registry_mutex) {
    const GroupState state = group->state();
    return state == GroupState::kBroken || state == GroupState::kEnded || registry.stopping ||
           group->client.stall.stalled() || request.renewals() < group->client.renewals;  // renewed meanwhile
  };
  if (first) {
    Waiter::For(kGatherReports).Wait(lock, registry.engines_changed, [&]() TANDEM_REQUIRES(registry_mutex) {
      return over() || group->failures.size() == group->world();
    });
    if (over()) return Status::Ok();
    // Without all ranks there is no renewal.
    if (group->Lives()) {
      groups_.Stall(*group, Verdict(*group));
    } else {
      groups_.Break(*group, Verdict(*group), -1);
    }
    return Status::Ok();
  }
  Waiter::For(2 * kGatherReports).Wait(lock, registry.engines_changed, over);
  return Status::Ok();
}

}  // namespace tandem::daemon
