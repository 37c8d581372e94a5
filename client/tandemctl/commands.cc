#include "client/tandemctl/commands.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <thread>

#include "client/tandemctl/json.h"
#include "client/tandemctl/local_checks.h"
#include "client/tandemctl/support.h"
#include "client/tandemctl/top.h"
#include "client/tandemctl/topology_json.h"
#include "client/tandemctl/views.h"

namespace tandem::ctl {
namespace {

using admin::v1::Admin;
using admin::v1::AdminControl;

void Print(const std::string& text) { std::fwrite(text.data(), 1, text.size(), stdout); }

Status PrintJson(const google::protobuf::Message& message) {
  TANDEM_ASSIGN_OR_RETURN(std::string text, MessageJson(message));
  Print(text);
  return Status::Ok();
}

template <typename Reply, typename View>
Status Show(const Reply& reply, bool json, View view) {
  if (json) return PrintJson(reply);
  Print(view(reply));
  return Status::Ok();
}

// Plans come by pages. More bytes of them are not held at once.
constexpr size_t kMaxPlanBytes = size_t{64} << 20;
// The most bytes of a trace that tandemd gives.
constexpr uint32_t kMaxTraceBytes = 16u << 20;

// The plans of all pages from the request's on, up to kMaxPlanBytes; then next_page_token is where the rest
// begins.
Result<admin::v1::ListPlansReply> AskPlans(const Connection& connection,
                                           admin::v1::ListPlansRequest request = {}) {
  admin::v1::ListPlansReply all;
  for (size_t bytes = 0; bytes < kMaxPlanBytes;) {
    TANDEM_ASSIGN_OR_RETURN(auto page, connection.Ask(&Admin::Stub::ListPlans, request));
    bytes += page.ByteSizeLong();
    request.set_page_token(page.next_page_token());
    all.set_next_page_token(page.next_page_token());
    all.set_prediction_model(page.prediction_model());
    for (auto& plan : *page.mutable_plans()) *all.add_plans() = std::move(plan);
    if (all.next_page_token().empty()) break;
  }
  return all;
}

// Counters right now.
Result<TopSample> TakeSample(const Connection& connection) {
  TopSample sample;
  TANDEM_ASSIGN_OR_RETURN(sample.stats, connection.Ask(&Admin::Stub::GetStats));
  TANDEM_ASSIGN_OR_RETURN(sample.plans, AskPlans(connection));
  sample.at = std::chrono::steady_clock::now();
  return sample;
}

// A GPU by its index among tandemd's, or by its UUID.
Result<std::string> GpuUuid(const Connection& connection, const std::string& gpu) {
  if (gpu.empty()) return InvalidArgument("the GPU's index or UUID is empty (tandemctl stats)");
  if (gpu.find_first_not_of("0123456789") != std::string::npos) return gpu;
  TANDEM_ASSIGN_OR_RETURN(auto stats, connection.Ask(&Admin::Stub::GetStats));
  const auto index = static_cast<size_t>(std::strtoul(gpu.c_str(), nullptr, 10));
  if (index >= static_cast<size_t>(stats.engines_size())) {
    return Status(Code::kNotFound,
                  "there is no GPU " + gpu + "; tandemd has " + std::to_string(stats.engines_size()));
  }
  return stats.engines(static_cast<int>(index)).gpu_uuid();
}

// Suspends or resumes the job of a session, by `call`.
template <typename Request, typename Reply>
Result<Reply> ChangeJob(const Connection& connection,
                        grpc::Status (Admin::Stub::*call)(grpc::ClientContext*, const Request&, Reply*),
                        const CommandOptions& options) {
  const auto wait = std::chrono::milliseconds(static_cast<int64_t>(options.job_seconds * 1000));
  Request request;
  request.set_session_id(options.id);
  request.set_deadline_ms(static_cast<uint32_t>(wait.count()));
  return connection.Ask(call, request, wait);
}

// "7, 9"
std::string Ids(const google::protobuf::RepeatedField<uint64_t>& ids) {
  std::string text;
  for (const uint64_t id : ids) text += (text.empty() ? "" : ", ") + std::to_string(id);
  return text;
}

}  // namespace

Status ShowTopology(const Connection& connection, const CommandOptions& options) {
  TANDEM_ASSIGN_OR_RETURN(auto reply, connection.Ask(&Admin::Stub::GetTopology));
  TANDEM_ASSIGN_OR_RETURN(std::string text, options.json ? TopologyJson(reply) : TopologyText(reply));
  Print(text);
  return Status::Ok();
}

Status ShowHealth(const Connection& connection, const CommandOptions& options) {
  TANDEM_ASSIGN_OR_RETURN(auto reply, connection.Ask(&Admin::Stub::GetHealth));
  TANDEM_RETURN_IF_ERROR(Show(reply, options.json, HealthText));
  if (!reply.live()) return FailedPrecondition("tandemd makes no progress");
  if (options.ready && !reply.ready()) return FailedPrecondition("the node is not ready");
  return Status::Ok();
}

Status ShowDoctor(const Connection& connection, const CommandOptions& options) {
  const auto reply = connection.Ask(&Admin::Stub::Doctor);
  if (reply.status().code() == Code::kUnavailable || reply.status().code() == Code::kPermissionDenied) {
    const LocalNode node = ThisNode(connection.runtime_dir(), connection.admin_dir());
    TANDEM_RETURN_IF_ERROR(Show(CheckLocally(node, reply.status().code()), options.json, DoctorText));
  }
  if (!reply.ok()) return reply.status();
  TANDEM_RETURN_IF_ERROR(Show(*reply, options.json, DoctorText));
  for (const auto& finding : reply->findings()) {
    if (finding.severity() == admin::v1::Finding::FAILURE)
      return FailedPrecondition("the node is not healthy");
  }
  return Status::Ok();
}

Status ShowSessions(const Connection& connection, const CommandOptions& options) {
  TANDEM_ASSIGN_OR_RETURN(auto reply, connection.Ask(&Admin::Stub::ListSessions));
  return Show(reply, options.json, SessionsText);
}

Status ShowGroups(const Connection& connection, const CommandOptions& options) {
  TANDEM_ASSIGN_OR_RETURN(auto reply, connection.Ask(&Admin::Stub::ListGroups));
  return Show(reply, options.json, GroupsText);
}

Status ShowPools(const Connection& connection, const CommandOptions& options) {
  TANDEM_ASSIGN_OR_RETURN(auto reply, connection.Ask(&Admin::Stub::ListPools));
  return Show(reply, options.json, [&](const auto& r) { return PoolsText(r, options.segments); });
}

Status ShowPlans(const Connection& connection, const CommandOptions& options) {
  admin::v1::ListPlansRequest request;
  request.set_group_id(options.group_id);
  request.set_plan_id(options.id);
  request.set_programs(options.programs);
  request.set_page_token(options.page);
  TANDEM_ASSIGN_OR_RETURN(auto reply, AskPlans(connection, request));
  return Show(reply, options.json, [&](const admin::v1::ListPlansReply& r) {
    if (options.id == 0 && !options.programs) return PlansText(r);
    std::string text;
    for (const auto& plan : r.plans())
      text += (text.empty() ? "" : "\n") + PlanText(plan, r.prediction_model());
    return text + MorePlansText(r);
  });
}

Status ShowQueue(const Connection& connection, const CommandOptions& options) {
  TANDEM_ASSIGN_OR_RETURN(auto reply, connection.Ask(&Admin::Stub::GetQueue));
  return Show(reply, options.json, QueueText);
}

Status ShowStats(const Connection& connection, const CommandOptions& options) {
  TANDEM_ASSIGN_OR_RETURN(auto reply, connection.Ask(&Admin::Stub::GetStats));
  return Show(reply, options.json, StatsText);
}

Status ShowTop(const Connection& connection, const CommandOptions& options) {
  const bool live = !options.once && !options.json && ::isatty(STDOUT_FILENO) != 0;
  TANDEM_ASSIGN_OR_RETURN(TopSample before, TakeSample(connection));
  while (true) {
    std::this_thread::sleep_for(std::chrono::duration<double>(options.interval_seconds));
    TANDEM_ASSIGN_OR_RETURN(TopSample now, TakeSample(connection));
    const std::string screen = options.json ? TopJson(before, now) : TopText(before, now);
    Print(live ? "\033[H\033[2J" + screen : screen);
    std::fflush(stdout);
    if (!live) return Status::Ok();
    before = std::move(now);
  }
}

Status WriteTrace(const Connection& connection, const CommandOptions& options) {
  admin::v1::GetTraceRequest request;
  request.set_last(options.last);
  request.set_max_bytes(kMaxTraceBytes);
  TANDEM_ASSIGN_OR_RETURN(auto reply, connection.Ask(&Admin::Stub::GetTrace, request));
  if (reply.truncated()) {
    std::fprintf(
        stderr,
        "tandemctl: the trace is cut: the latest launches, as many as fit into %u MiB (--last takes fewer)\n",
        kMaxTraceBytes >> 20);
  }
  if (options.output.empty() || options.output == "-") {
    Print(reply.chrome_trace_json() + "\n");
    return Status::Ok();
  }
  std::ofstream file(options.output, std::ios::binary);
  file << reply.chrome_trace_json() << "\n";
  file.close();
  if (!file) return Status(Code::kInternal, "cannot write " + options.output);
  std::fprintf(stderr, "%s: %zu bytes (chrome://tracing or ui.perfetto.dev)\n", options.output.c_str(),
               reply.chrome_trace_json().size() + 1);
  return Status::Ok();
}

Status Support(const Connection& connection, const CommandOptions& options) {
  return WriteSupport(connection, ThisNode(connection.runtime_dir(), connection.admin_dir()),
                      {.output = options.output, .redact = options.redact});
}

Status Cordon(const Connection& connection, const CommandOptions& options) {
  TANDEM_ASSIGN_OR_RETURN(auto stub, connection.Changer());
  admin::v1::CordonRequest request;
  request.set_undo(options.undo);
  if (!options.gpu.empty()) {
    TANDEM_ASSIGN_OR_RETURN(std::string uuid, GpuUuid(connection, options.gpu));
    request.set_gpu_uuid(uuid);
  }
  admin::v1::CordonReply reply;
  TANDEM_RETURN_IF_ERROR(connection.Call(*stub, &AdminControl::Stub::Cordon, request, &reply));
  return Show(reply, options.json, [&](const admin::v1::CordonReply& r) {
    if (!options.gpu.empty())
      return "GPU " + options.gpu +
             (options.undo ? " takes groups again\n" : " is cordoned; its groups go on\n");
    return std::string(options.undo ? "serving again: " : "cordoned: ") + std::to_string(r.sessions()) +
           " sessions, " + std::to_string(r.groups()) + (options.undo ? " groups\n" : " groups go on\n");
  });
}

Status Drain(const Connection& connection, const CommandOptions& options) {
  TANDEM_ASSIGN_OR_RETURN(auto stub, connection.Changer());
  admin::v1::DrainRequest request;
  auto wait = std::chrono::milliseconds(static_cast<int64_t>(options.drain_seconds * 1000));
  request.set_deadline_ms(static_cast<uint32_t>(wait.count()));
  request.set_undo(options.undo);
  admin::v1::DrainReply reply;
  TANDEM_RETURN_IF_ERROR(connection.Call(*stub, &AdminControl::Stub::Drain, request, &reply, wait));
  TANDEM_RETURN_IF_ERROR(Show(reply, options.json, [&](const admin::v1::DrainReply& r) {
    return std::string(options.undo ? "serving again: " : "draining: ") + std::to_string(r.sessions_left()) +
           " sessions, " + std::to_string(r.groups_left()) + " groups" + (options.undo ? "\n" : " left\n");
  }));
  if (!options.undo && reply.groups_left() != 0)
    return FailedPrecondition("groups are left (tandemctl groups)");
  return Status::Ok();
}

Status Evict(const Connection& connection, const CommandOptions& options) {
  if (options.id == 0 && options.gpu.empty())
    return InvalidArgument("a session's id, or a GPU's index or UUID");
  TANDEM_ASSIGN_OR_RETURN(auto stub, connection.Changer());
  admin::v1::EvictRequest request;
  request.set_session_id(options.id);
  request.set_force(options.force);
  if (!options.gpu.empty()) {
    TANDEM_ASSIGN_OR_RETURN(std::string uuid, GpuUuid(connection, options.gpu));
    request.set_gpu_uuid(uuid);
  }
  admin::v1::EvictReply reply;
  TANDEM_RETURN_IF_ERROR(connection.Call(*stub, &AdminControl::Stub::Evict, request, &reply));
  return Show(reply, options.json, [&](const admin::v1::EvictReply& r) {
    if (!options.gpu.empty()) {
      std::string pids;
      for (int pid : r.pids()) pids += " " + std::to_string(pid);
      return r.pids().empty() ? "no process to end on GPU " + options.gpu + "\n" : "ended:" + pids + "\n";
    }
    return "session " + std::to_string(options.id) + " has ended; its process has not\n";
  });
}

Status Suspend(const Connection& connection, const CommandOptions& options) {
  TANDEM_ASSIGN_OR_RETURN(const auto reply,
                          ChangeJob<admin::v1::SuspendRequest>(connection, &Admin::Stub::Suspend, options));
  return Show(reply, options.json, [&](const admin::v1::SuspendReply& r) {
    return "sessions " + Ids(r.sessions()) + ": their groups sleep (" + Ids(r.groups()) + ")\n";
  });
}

Status Resume(const Connection& connection, const CommandOptions& options) {
  TANDEM_ASSIGN_OR_RETURN(const auto reply,
                          ChangeJob<admin::v1::ResumeRequest>(connection, &Admin::Stub::Resume, options));
  return Show(reply, options.json, [&](const admin::v1::ResumeReply& r) {
    if (r.groups().empty()) return std::string("no group of the job slept\n");
    return "sessions " + Ids(r.sessions()) + ": their groups run again (" + Ids(r.groups()) + ")\n";
  });
}

Status Reset(const Connection& connection, const CommandOptions& options) {
  TANDEM_ASSIGN_OR_RETURN(auto stub, connection.Changer());
  admin::v1::ResetRequest request;
  TANDEM_ASSIGN_OR_RETURN(std::string uuid, GpuUuid(connection, options.gpu));
  request.set_gpu_uuid(uuid);
  admin::v1::ResetReply reply;
  TANDEM_RETURN_IF_ERROR(connection.Call(*stub, &AdminControl::Stub::Reset, request, &reply));
  return Show(reply, options.json, [&](const admin::v1::ResetReply&) {
    return "the engine of GPU " + options.gpu + " is being started (tandemctl stats)\n";
  });
}

}  // namespace tandem::ctl
