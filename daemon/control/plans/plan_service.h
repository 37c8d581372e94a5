// File: plan_service.h
//
// `PlanService`: ranks' requests meet by (group, key), are compared and planned once, and go to all engines.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "daemon/control/base/waiter.h"
#include "daemon/control/groups/group_installer.h"
#include "daemon/control/memory/client_memory.h"
#include "daemon/control/plans/desync_watch.h"
#include "daemon/control/plans/tuning_service.h"
#include "daemon/control/plans/workspace.h"
#include "daemon/control/records/control_core.h"
#include "daemon/planner/planner.h"
#include "tandem/status.h"

namespace tandem::daemon {

// Thread-safe. The others outlive it.
class PlanService {
 public:
  PlanService(ControlCore& core, GroupInstaller& installer, WorkspaceService& workspace,
              ClientMemoryService& client_memory, TuningService& tuning, GroupService& groups)
      : core_(core),
        installer_(installer),
        workspace_(workspace),
        client_memory_(client_memory),
        tuning_(tuning),
        desync_(core, groups) {}

  // Waits for all ranks. The same key with the same request returns the same plan again.
  Result<v1::PrepareReply> Prepare(const SessionRef& session, const v1::PrepareRequest& request,
                                   const Waiter& waiter) TANDEM_EXCLUDES(registry_mutex);
  // The plan that Prepare would make if all ranks asked for it now. Waits for nobody, and makes nothing: not
  // even a wish for measured times. Memory and quotas are not looked at. The errors of a request that cannot
  // be planned. INVALID_ARGUMENT, field "op", for send_receive.
  Result<v1::PreviewReply> Preview(const SessionRef& session, const v1::PreviewRequest& request)
      TANDEM_EXCLUDES(registry_mutex);
  // A rank can launch a client-placed plan, or cannot (`request.refusal`). Waits for all ranks: one that
  // cannot makes the call fail on all of them, with its name. NOT_FOUND.
  Status Arm(const SessionRef& session, const v1::ArmPlanRequest& request, const Waiter& waiter)
      TANDEM_EXCLUDES(registry_mutex);
  // The plan goes once all ranks have released it. NOT_FOUND.
  Status Release(const SessionRef& session, uint64_t plan_id) TANDEM_EXCLUDES(registry_mutex);

 private:
  // A plan on its way to the engines.
  struct Draft {
    std::string key, context;  // context: the beginning of messages
    std::vector<OpRequest> requests;
    plan::OperationPlan plan;
    std::vector<engine::v1::Command> commands;  // by rank
    uint64_t kept_bytes = 0;
    GpuSharing placement;
    std::vector<std::string> warnings;
    bool first_nccl = false;                       // the engines make their communicator for it
    std::shared_ptr<PlanRecord::InClient> client;  // null: engines run it
  };

  // The barrier of this key that the call enters with the rank's request.
  Result<std::shared_ptr<PrepareBarrier>> Enter(GroupRecord& group, size_t rank, const std::string& key,
                                                const OpRequest& request, const Waiter& waiter)
      TANDEM_REQUIRES(registry_mutex);
  // Plans, makes room in the workspace, and gives the engines the plan: the part of the last rank, for all.
  Status MakeForAll(const std::shared_ptr<GroupRecord>& group, PrepareBarrier& barrier,
                    const std::string& key, const Waiter& waiter) TANDEM_EXCLUDES(registry_mutex);
  // `kernels_take_turns`: GroupContext's.
  Result<Draft> MakeDraft(const GroupRecord& group, PrepareBarrier& barrier, const std::string& key,
                          bool kernels_take_turns) TANDEM_EXCLUDES(registry_mutex);
  // Keeps the times that the ranks have measured for this request; a refusal is logged and costs nothing.
  void KeepTimes(const GroupRecord& group, const PrepareBarrier& barrier, const Draft& draft)
      TANDEM_EXCLUDES(registry_mutex);
  Status Admit(const GroupRecord& group, Draft& draft) TANDEM_REQUIRES(registry_mutex);
  // This rank's request, with what the group and families add to it.
  static Result<OpRequest> ReadRequest(const GroupRecord& group, const v1::OpRequest& request);
  // Proves a plan that has to be proven.
  Status Verify(const Draft& draft) const;
  // Finds the cost of the draft's hand-over between client and engines. SLOW_PLACEMENT, as the group
  // asks.
  Status Place(const GroupRecord& group, Draft& draft) TANDEM_REQUIRES(registry_mutex);
  // The explanation of a draft that has been placed, without the plan's id.
  static v1::PlanInfo InfoOf(const GroupRecord& group, const Draft& draft);
  // Records the plan and posts it to the engines; its id.
  Result<uint64_t> Post(const std::shared_ptr<GroupRecord>& group, Draft& draft, const std::string& unique_id,
                        const std::shared_ptr<CommandBatch>& batch) TANDEM_REQUIRES(registry_mutex);
  // In the log, and as one event for all ranks.
  void ReportWarnings(GroupRecord& group, const Draft& draft, uint64_t plan_id)
      TANDEM_REQUIRES(registry_mutex);
  void Remove(GroupRecord& group, uint64_t plan_id) TANDEM_REQUIRES(registry_mutex);
  // The group of a plan that this session has not released. NOT_FOUND.
  Result<std::shared_ptr<GroupRecord>> GroupOfPlan(const SessionRecord& session, uint64_t plan_id, int* rank)
      TANDEM_REQUIRES(registry_mutex);

  ControlCore& core_;
  GroupInstaller& installer_;
  WorkspaceService& workspace_;
  ClientMemoryService& client_memory_;
  TuningService& tuning_;
  DesyncWatch desync_;
};

}  // namespace tandem::daemon
