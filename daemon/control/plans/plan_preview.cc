// PlanService: what a plan would be, and what it is, for clients.
#include "daemon/control/base/validate.h"
#include "daemon/control/plans/plan_messages.h"
#include "daemon/control/plans/plan_service.h"
#include "daemon/control/plans/tuning_service.h"
#include "daemon/planner/choice/placement.h"
#include "daemon/planner/tuning/tuning_store.h"

namespace tandem::daemon {
v1::PlanInfo PlanService::InfoOf(const GroupRecord& group, const Draft& draft) {
  v1::PlanInfo info;
  FillPlanInfo(draft.plan, &info);
  info.set_group_id(group.id);
  info.set_key(draft.key);
  std::string placement =
      std::string(plan::PlacementName(draft.plan.placement)) + ": " + draft.plan.placement_reason;
  if (!draft.placement.text.empty()) placement += "; " + draft.placement.text;
  info.set_placement(std::move(placement));
  info.set_slow_placement(draft.placement.slow);
  if (draft.placement.slow && group.on_slow_placement == OnSlowPlacement::kWarn) {
    info.add_warnings(draft.placement.text);
  }
  return info;
}

Result<v1::PreviewReply> PlanService::Preview(const SessionRef& session, const v1::PreviewRequest& request) {
  TANDEM_RETURN_IF_ERROR(ValidatePreview(request));
  Draft draft;
  std::shared_ptr<GroupRecord> group;
  plan::GroupContext context;
  {
    RegistryLock lock(core_.registry);
    TANDEM_RETURN_IF_ERROR(core_.registry.SessionAlive(*session));
    int rank = 0;
    TANDEM_ASSIGN_OR_RETURN(group, core_.registry.FindGroup(*session, request.group_id(), &rank));
    TANDEM_RETURN_IF_ERROR(group->lifecycle.why());
    TANDEM_ASSIGN_OR_RETURN(const OpRequest parsed, ReadRequest(*group, request.request()));
    draft.requests.assign(group->world(), parsed);
    draft.context = "a preview in group '" + group->name + "'";
    context = group->context;
    context.kernels_take_turns = core_.GpuSharingOf(*group).slow;
  }
  const auto tuning = core_.options.tuning == nullptr ? nullptr : core_.options.tuning->Snapshot();
  context.tuning = tuning.get();
  context.gpu_model = TuningModel(core_, group->gpus);
  Result<plan::OperationPlan> plan = plan::MakePlan(draft.requests, context);
  if (!plan.ok()) return plan.status().WithContext(draft.context);
  draft.plan = std::move(*plan);
  TANDEM_RETURN_IF_ERROR(Verify(draft));
  v1::PreviewReply reply;
  RegistryLock lock(core_.registry);
  TANDEM_RETURN_IF_ERROR(Place(*group, draft));
  *reply.mutable_plan() = InfoOf(*group, draft);
  reply.mutable_plan()->set_group_workspace_bytes(group->WorkspaceBytes());
  reply.mutable_plan()->set_unshared_workspace_bytes(group->UnsharedWorkspaceBytes());
  FillOperands(draft.requests[0], reply.mutable_plan());
  return reply;
}

}  // namespace tandem::daemon
