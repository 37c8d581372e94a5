// File: admin_service.h
//
// The operators' gRPC services, over the control plane's snapshots, the engines' stats areas and their
// queues. Admin only reads and is served on the clients' socket too; AdminControl changes things and is
// served on the administrators' socket only. Thread-safe; nothing here waits for a lock that is held across a
// wait.
#pragma once

#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "daemon/admin/reply_budget.h"
#include "daemon/admin/viewer.h"
#include "daemon/config/config.h"
#include "daemon/control/control.h"
#include "daemon/observe/doctor.h"
#include "daemon/observe/gpu_processes.h"
#include "daemon/observe/gpu_watch.h"
#include "daemon/observe/health.h"
#include "daemon/observe/link_traffic.h"
#include "daemon/observe/metrics.h"
#include "daemon/supervisor/engines.h"
#include "ipc/stats_area.h"
#include "tandem/admin/v1/admin.grpc.pb.h"

namespace tandem::daemon {

class TuningStore;

// The parts of tandemd that the services read. Everything outlives the services.
struct AdminSources {
  Control* control = nullptr;
  Engines* engines = nullptr;
  const Config* config = nullptr;
  Topology topology;                      // without the links that failed their probe
  std::vector<std::string> failed_links;  // one sentence each
  std::vector<LinkRate> links;            // as measured; empty where they were not
  std::string backend;
  std::string version;
  std::span<const StatsArea> stats;  // by GPU
  TuningStore* tuning = nullptr;
  GpuProcesses* gpu_processes = nullptr;  // none on the host backend
  GpuWatch* gpu_watch = nullptr;          // null: nobody looks at the GPUs' health
  // Cordons a GPU for `why`, or ends its cordon (""); empty: it cannot be done.
  std::function<void(int gpu, const std::string& why)> cordon_gpu;
  std::function<void(Admission)> on_admission;  // called when an operator has changed it; may be empty
  std::function<bool()> metrics_per_plan;       // whether live plans have series; empty: no
  // An operator's process, by its connection as grpc::ServerContext::peer() names it: "uid=0 pid=7
  // command=…". Empty: nobody knows.
  std::function<std::string(const std::string& peer)> caller;
  // Returns the view of a caller on the clients' socket; empty: nothing. Callers on the administrators'
  // socket see everything.
  std::function<Viewer(const Caller&)> viewer;
  // Returns those whose jobs such a caller may suspend and resume; empty: nobody's.
  std::function<Viewer(const Caller&)> manager;
  std::function<int64_t()> engines_needed;  // HealthInput::engines_needed; empty: all
  std::function<bool()> alive;              // Daemon::Alive; empty: always
  // Why something is not served by HTTP that is wanted, by its table in the configuration ("metrics").
  std::function<std::map<std::string, std::string>()> listen_errors;
  // Files of sockets that were removed; empty: nobody looks.
  std::function<std::vector<SocketFinding>()> sockets;
};

// The canonical code and the message.
grpc::Status ToGrpc(const Status& status);

// Everything for Prometheus.
MetricsInput GatherMetrics(const AdminSources& sources);
// Whether the node works. Waits for no engine.
Health GatherHealth(const AdminSources& sources);
// Everything for the doctor that `viewer` may see; asks the engines for their queues.
DoctorInput GatherDoctor(const AdminSources& sources, const Viewer& viewer);

class AdminService final : public admin::v1::Admin::Service {
 public:
  // Replies take up to `reply_bytes` of entries (kMaxReplyBytes). Entries that do not fit are left out, and
  // `truncated` is set. `viewer` returns the view of a connection, which is named as by
  // grpc::ServerContext::peer(); empty: everything. Entries outside the view are left out, and counted as
  // `hidden`. `manager`: the same for jobs to suspend.
  using ViewOf = std::function<Viewer(const std::string& peer)>;
  explicit AdminService(const AdminSources& sources, size_t reply_bytes = kMaxReplyBytes, ViewOf viewer = {},
                        ViewOf manager = {})
      : sources_(sources),
        reply_bytes_(reply_bytes),
        viewer_(std::move(viewer)),
        manager_(std::move(manager)) {}

  grpc::Status GetTopology(grpc::ServerContext*, const admin::v1::GetTopologyRequest*,
                           admin::v1::GetTopologyReply* reply) override;
  grpc::Status GetHealth(grpc::ServerContext*, const admin::v1::GetHealthRequest*,
                         admin::v1::GetHealthReply* reply) override;
  grpc::Status Doctor(grpc::ServerContext* context, const admin::v1::DoctorRequest*,
                      admin::v1::DoctorReply* reply) override;
  grpc::Status ListSessions(grpc::ServerContext* context, const admin::v1::ListSessionsRequest*,
                            admin::v1::ListSessionsReply* reply) override;
  grpc::Status ListGroups(grpc::ServerContext* context, const admin::v1::ListGroupsRequest*,
                          admin::v1::ListGroupsReply* reply) override;
  grpc::Status ListPools(grpc::ServerContext* context, const admin::v1::ListPoolsRequest*,
                         admin::v1::ListPoolsReply* reply) override;
  // NOT_FOUND if a group or plan is asked for and there is none, INVALID_ARGUMENT for another page_token than
  // it has given. (plans.cc)
  grpc::Status ListPlans(grpc::ServerContext* context, const admin::v1::ListPlansRequest* request,
                         admin::v1::ListPlansReply* reply) override;
  grpc::Status GetQueue(grpc::ServerContext* context, const admin::v1::GetQueueRequest*,
                        admin::v1::GetQueueReply* reply) override;
  grpc::Status GetStats(grpc::ServerContext* context, const admin::v1::GetStatsRequest*,
                        admin::v1::GetStatsReply* reply) override;
  // (plans.cc)
  grpc::Status GetTrace(grpc::ServerContext* context, const admin::v1::GetTraceRequest* request,
                        admin::v1::GetTraceReply* reply) override;
  // NOT_FOUND if an entry is asked for and there is none. (tuning.cc)
  grpc::Status ListTuning(grpc::ServerContext*, const admin::v1::ListTuningRequest* request,
                          admin::v1::ListTuningReply* reply) override;
  // Logged, as the calls of AdminControlService. (job_calls.cc)
  grpc::Status Suspend(grpc::ServerContext* context, const admin::v1::SuspendRequest* request,
                       admin::v1::SuspendReply* reply) override;
  grpc::Status Resume(grpc::ServerContext* context, const admin::v1::ResumeRequest* request,
                      admin::v1::ResumeReply* reply) override;

 private:
  Viewer ViewerOf(const grpc::ServerContext* context) const;
  // Suspends or resumes a session's job, by `act` of the control plane.
  using Act = Result<AskedJob> (Control::*)(uint64_t, const std::function<bool(uint32_t)>&, const Waiter&);
  template <typename Request, typename Reply>
  grpc::Status ChangeJob(const grpc::ServerContext* context, const char* name, Act act,
                         const Request& request, Reply* reply) const;

  const AdminSources& sources_;
  const size_t reply_bytes_;
  const ViewOf viewer_, manager_;
};

// Ends the processes that hold a context on the GPU, but for engines and MPS servers; their pids.
// FAILED_PRECONDITION if the engine there waits for nobody, unless `force`.
Result<std::vector<int>> EvictFromGpu(const AdminSources& sources, const std::string& gpu_uuid, bool force);

// Each call is logged before it is made, with the process that makes it and its arguments, and again if it
// fails.
class AdminControlService final : public admin::v1::AdminControl::Service {
 public:
  explicit AdminControlService(const AdminSources& sources) : sources_(sources) {}

  grpc::Status Cordon(grpc::ServerContext* context, const admin::v1::CordonRequest* request,
                      admin::v1::CordonReply* reply) override;
  grpc::Status Drain(grpc::ServerContext* context, const admin::v1::DrainRequest* request,
                     admin::v1::DrainReply* reply) override;
  grpc::Status Evict(grpc::ServerContext* context, const admin::v1::EvictRequest* request,
                     admin::v1::EvictReply* reply) override;
  grpc::Status Reset(grpc::ServerContext* context, const admin::v1::ResetRequest* request,
                     admin::v1::ResetReply*) override;
  grpc::Status PutTuning(grpc::ServerContext* context, const admin::v1::PutTuningRequest* request,
                         admin::v1::PutTuningReply* reply) override;
  grpc::Status ForgetTuning(grpc::ServerContext* context, const admin::v1::ForgetTuningRequest* request,
                            admin::v1::ForgetTuningReply* reply) override;

 private:
  void SetAdmission(Admission admission);
  // Logs the call `name`, makes it, and logs its failure. (control_calls.cc)
  grpc::Status Audited(const grpc::ServerContext* context, const char* name,
                       const google::protobuf::Message& request,
                       const std::function<grpc::Status()>& call) const;

  const AdminSources& sources_;
};

}  // namespace tandem::daemon
