#include "client/tests/group_plans.h"

#include <fcntl.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <utility>

#include "common/shared_memory.h"
#include "daemon/planner/members/member.h"
#include "daemon/planner/planner.h"
#include "daemon/topology/topology.h"
#include "ipc/verdict_page.h"

namespace tandem::client {
namespace {

constexpr uint64_t kHalfBytes = uint64_t{2} << 20;
constexpr uint64_t kBulkBytes = uint64_t{2} << 20;
constexpr uint64_t kWorkspaceBytes = 2 * kHalfBytes + kBulkBytes;
constexpr Milliseconds kLaunchDeadline(60'000);

std::atomic<uint64_t> next_segment{1'000'000};

Result<UniqueFd> CopyOf(const UniqueFd& fd) {
  UniqueFd copy(::fcntl(fd.get(), F_DUPFD_CLOEXEC, 0));
  if (!copy.valid()) return ResourceExhausted("no descriptor");
  return copy;
}

Result<std::vector<UniqueFd>> CopiesOf(const std::vector<UniqueFd>& fds) {
  std::vector<UniqueFd> copies;
  for (const UniqueFd& fd : fds) {
    TANDEM_ASSIGN_OR_RETURN(UniqueFd copy, CopyOf(fd));
    copies.push_back(std::move(copy));
  }
  return copies;
}

// The planner's answer. It is asked once for each request, since that of a family takes milliseconds.
Result<plan::OperationPlan> PlanOf(int world_size, const OpRequest& request,
                                   const plan::GroupContext& context) {
  struct Known {
    int world_size;
    OpRequest request;
    plan::OperationPlan plan;
  };
  static std::mutex mutex;
  static std::vector<Known> known;
  const std::lock_guard lock(mutex);
  const auto found = std::find_if(known.begin(), known.end(), [&](const Known& each) {
    return each.world_size == world_size && each.request == request;
  });
  if (found != known.end()) return found->plan;
  const std::vector<OpRequest> requests(static_cast<size_t>(world_size), request);
  TANDEM_ASSIGN_OR_RETURN(plan::OperationPlan made, plan::MakePlan(requests, context));
  if (known.size() < 16) known.push_back({world_size, request, made});
  return made;
}

}  // namespace

Result<GroupPlans> GroupPlans::Make(int world_size) {
  GroupPlans made;
  made.world_size_ = world_size;
  for (int rank = 0; rank < world_size; ++rank) {
    TANDEM_ASSIGN_OR_RETURN(UniqueFd page, VerdictPage::Create());
    TANDEM_ASSIGN_OR_RETURN(UniqueFd signals, CreateSealedMemfd("signals", plan::kClientSignalAreaBytes));
    TANDEM_ASSIGN_OR_RETURN(UniqueFd workspace, CreateSealedMemfd("workspace", kWorkspaceBytes));
    made.pages_.push_back(std::move(page));
    made.signals_.push_back(std::move(signals));
    made.workspace_.push_back(std::move(workspace));
    made.signal_ids_.push_back(next_segment++);
    made.workspace_ids_.push_back(next_segment++);
  }
  return made;
}

Result<ClientPlacementInfo> GroupPlans::Place(int rank, const OpRequest& request) const {
  plan::GroupContext context;
  context.topology = EmulatedTopology(world_size_);
  context.placement = plan::PlanPlacement::kClient;
  TANDEM_ASSIGN_OR_RETURN(const plan::OperationPlan planned, PlanOf(world_size_, request, context));
  if (planned.workspace_bytes > kHalfBytes || planned.bulk_bytes > kBulkBytes)
    return ResourceExhausted("the plan needs more workspace than the test's group has");
  const auto r = static_cast<size_t>(rank);
  ClientPlacementInfo info;
  info.program = planned.programs[r];
  TANDEM_ASSIGN_OR_RETURN(info.verdict_page, CopyOf(pages_[r]));
  TANDEM_ASSIGN_OR_RETURN(info.signals, CopiesOf(signals_));
  TANDEM_ASSIGN_OR_RETURN(info.workspace, CopiesOf(workspace_));
  info.signal_ids = signal_ids_;
  info.workspace_ids = workspace_ids_;
  info.signal_bytes = plan::kClientSignalAreaBytes;
  info.workspace_bytes = kWorkspaceBytes;
  info.half_bytes = kHalfBytes;
  info.bulk_bytes = kBulkBytes;
  info.launch_deadline = kLaunchDeadline;
  if (request.max_rows > 0)
    info.family = std::make_shared<FamilyInfo>(FamilyInfo{plan::kMembersVersion, context, planned.rows});
  return info;
}

}  // namespace tandem::client
