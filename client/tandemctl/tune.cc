#include "client/tandemctl/tune.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <utility>

#include "client/tandemctl/json.h"
#include "client/tandemctl/tune_measure.h"
#include "client/tandemctl/tuning_views.h"
#include "daemon/control/base/validate.h"
#include "daemon/planner/cost/measured.h"
#include "daemon/topology/topology_file.h"

namespace tandem::ctl {
namespace {

using admin::v1::Admin;
using admin::v1::AdminControl;

// A case that has been read and checked.
struct TuneTask {
  std::string name;
  OpRequest request;
  std::vector<TuneCandidate> candidates;
  std::vector<int> gpus;  // in rank order
};

Result<std::vector<TuneTask>> TasksOf(const std::vector<TuneCase>& cases, const TuneOptions& options) {
  const int world = options.world;
  TANDEM_ASSIGN_OR_RETURN(const PlanPlacement placement, plan::ParsePlacement(options.placement));
  std::vector<TuneTask> tasks;
  for (const TuneCase& one : cases) {
    TuneTask task{one.Name(), {}, {}, {}};
    const std::string context = cases.size() > 1 ? task.name : std::string();
    Result<OpRequest> request = TuneRequest(one, world);
    if (!request.ok()) return context.empty() ? request.status() : request.status().WithContext(context);
    task.request = *std::move(request);
    task.request.on_unfused = OnUnfused::kAllow;  // it is measured, not used
    task.request.placement = placement;           // each has separate times
    task.candidates = DefaultCandidates(task.request.op);
    if (!one.candidates.empty()) {
      TANDEM_ASSIGN_OR_RETURN(task.candidates, ParseCandidates(one.candidates, task.request.op));
    }
    tasks.push_back(std::move(task));
  }
  return tasks;
}

// Indexes, in rank order.
Result<std::vector<int>> ChooseGpus(const Topology& topology, const TuneOptions& options) {
  const auto world = static_cast<size_t>(options.world);
  if (!options.gpus.empty() && options.gpus.size() != world) {
    return InvalidArgument("--gpus must name as many GPUs as --world");
  }
  if (static_cast<size_t>(topology.size()) < world) {
    return InvalidArgument("the node has " + std::to_string(topology.size()) + " GPUs, fewer than --world");
  }
  std::vector<int> gpus;
  for (size_t rank = 0; rank < world; ++rank) {
    const std::string gpu = options.gpus.empty() ? std::to_string(rank) : options.gpus[rank];
    int index = -1;
    if (!gpu.empty() && gpu.size() < 4 && gpu.find_first_not_of("0123456789") == std::string::npos) {
      index = std::atoi(gpu.c_str());
    } else if (Result<int> found = topology.Find(gpu); found.ok()) {
      index = *found;
    }
    if (index < 0 || index >= topology.size())
      return NotFound("there is no GPU " + gpu + " (tandemctl topo)");
    if (std::find(gpus.begin(), gpus.end(), index) != gpus.end())
      return InvalidArgument("GPU " + gpu + " is named twice");
    gpus.push_back(index);
  }
  return gpus;
}

// The key and shape of an entry that is not kept, as tandemd would have them; without the GPUs' model.
void Describe(const OpRequest& request, Topology topology, admin::v1::TuningEntry* entry) {
  plan::GroupContext context;
  context.topology = std::move(topology);
  const std::vector<OpRequest> requests(static_cast<size_t>(context.topology.size()), request);
  entry->set_op(static_cast<uint32_t>(request.op));
  Result<plan::Problem> problem = plan::MakeProblem(requests, context);
  if (!problem.ok()) return;  // cannot be: it has run
  const plan::TuningKey key = plan::TuningKeyOf(*problem);
  entry->set_topology_class(key.topology_class);
  entry->set_world_size(key.world_size);
  entry->set_types(key.types);
  entry->set_scales(key.scales);
  entry->set_traits(key.traits);
  for (int64_t extent : plan::TuningShapeOf(*problem)) entry->add_shape(extent);
}

Status Print(const google::protobuf::Message& reply, bool json, const std::string& text) {
  std::string out = text;
  if (json) {
    TANDEM_ASSIGN_OR_RETURN(out, MessageJson(reply));
  }
  std::fwrite(out.data(), 1, out.size(), stdout);
  std::fflush(stdout);
  return Status::Ok();
}

Result<admin::v1::ListTuningReply> Entries(const Connection& connection, const std::string& id) {
  TANDEM_ASSIGN_OR_RETURN(auto stub, connection.Reader());
  admin::v1::ListTuningRequest request;
  request.set_id(id);
  admin::v1::ListTuningReply reply;
  TANDEM_RETURN_IF_ERROR(connection.Call(*stub, &Admin::Stub::ListTuning, request, &reply));
  return reply;
}

// A task for each request that tandemd made plans for without a time. Tasks on the same GPUs follow one
// another.
Result<std::vector<TuneTask>> WantedTasks(const Connection& connection, const Topology& topology) {
  TANDEM_ASSIGN_OR_RETURN(const auto reply, Entries(connection, ""));
  std::vector<TuneTask> tasks;
  for (const auto& wanted : reply.wanted()) {
    TuneTask task{WantedName(wanted), {}, {}, {}};
    for (const std::string& uuid : wanted.gpu_uuids()) {
      TANDEM_ASSIGN_OR_RETURN(const int gpu, topology.Find(uuid));
      task.gpus.push_back(gpu);
    }
    const int world = static_cast<int>(task.gpus.size());
    TANDEM_ASSIGN_OR_RETURN(task.request, daemon::ParseOpRequest(wanted.request(), world));
    if (task.request.placement == PlanPlacement::kAuto) task.request.placement = PlanPlacement::kEngine;
    task.candidates = DefaultCandidates(task.request.op);
    tasks.push_back(std::move(task));
  }
  std::stable_sort(tasks.begin(), tasks.end(),
                   [](const TuneTask& a, const TuneTask& b) { return a.gpus < b.gpus; });
  return tasks;
}

class Tuner {
 public:
  Tuner(const Connection& connection, std::string runtime_dir, const TuneOptions& options)
      : connection_(connection), runtime_dir_(std::move(runtime_dir)), options_(options) {}

  Status Connect() {
    // A user who may not keep the times is refused before minutes of measuring.
    if (!options_.dry_run) {
      TANDEM_ASSIGN_OR_RETURN(changer_, connection_.Changer());
    }
    TANDEM_ASSIGN_OR_RETURN(reader_, connection_.Reader());
    admin::v1::GetTopologyReply found;
    TANDEM_RETURN_IF_ERROR(
        connection_.Call(*reader_, &Admin::Stub::GetTopology, admin::v1::GetTopologyRequest(), &found));
    TANDEM_ASSIGN_OR_RETURN(node_, ParseTopology(found.topology_toml(), "topology"));
    return Status::Ok();
  }
  const Topology& node() const { return node_; }

  // Measures one, and hands the times in.
  Result<admin::v1::TuningEntry> Run(const TuneTask& task) {
    if (task.gpus != indexes_) {
      ranks_.reset();
      indexes_ = task.gpus;
      topology_ = Subset(node_, indexes_);
      gpus_.clear();
      for (const GpuInfo& gpu : topology_.gpus) gpus_.push_back(gpu.uuid);
    }
    Result<admin::v1::TuningEntry> entry = TryRun(task);
    if (!entry.ok()) ranks_.reset();  // whatever state they are in
    return entry;
  }

  // No other group than the ranks' has one of the GPUs.
  Status CheckIdle() {
    if (options_.force) return Status::Ok();
    const std::vector<int> own = ranks_ == nullptr ? std::vector<int>() : ranks_->Pids();
    admin::v1::ListGroupsReply groups;
    TANDEM_RETURN_IF_ERROR(
        connection_.Call(*reader_, &Admin::Stub::ListGroups, admin::v1::ListGroupsRequest(), &groups));
    for (const auto& group : groups.groups()) {
      for (const auto& member : group.members()) {
        if (member.left() || std::find(own.begin(), own.end(), member.pid()) != own.end()) continue;
        if (std::find(gpus_.begin(), gpus_.end(), member.gpu_uuid()) == gpus_.end()) continue;
        return FailedPrecondition("GPU " + member.gpu_uuid() + " is used by group '" + group.name() +
                                  "' (pid " + std::to_string(member.pid()) +
                                  "): times beside it would be its times too; --force measures all the same");
      }
    }
    return Status::Ok();
  }

 private:
  Result<admin::v1::TuningEntry> TryRun(const TuneTask& task) {
    TANDEM_RETURN_IF_ERROR(CheckIdle());
    if (ranks_ == nullptr) {
      TANDEM_ASSIGN_OR_RETURN(ranks_, TuneRanks::Start(runtime_dir_, gpus_, options_.deadline_seconds));
    }
    TANDEM_ASSIGN_OR_RETURN(
        std::vector<admin::v1::TuningCandidate> times,
        MeasureCase(*ranks_, task.request, task.candidates, options_, [this] { return CheckIdle(); }));
    if (options_.dry_run) {
      admin::v1::TuningEntry entry;
      Describe(task.request, topology_, &entry);
      for (auto& time : times) *entry.add_candidates() = std::move(time);
      return entry;
    }
    admin::v1::PutTuningRequest put;
    *put.mutable_request() = daemon::OpRequestToProto(task.request);
    for (const std::string& gpu : gpus_) put.add_gpu_uuids(gpu);
    for (auto& time : times) *put.add_candidates() = std::move(time);
    admin::v1::PutTuningReply reply;
    TANDEM_RETURN_IF_ERROR(connection_.Call(*changer_, &AdminControl::Stub::PutTuning, put, &reply));
    return std::move(*reply.mutable_entry());
  }

  const Connection& connection_;
  const std::string runtime_dir_;
  const TuneOptions& options_;
  std::unique_ptr<AdminControl::Stub> changer_;
  std::unique_ptr<Admin::Stub> reader_;
  Topology node_;
  std::vector<int> indexes_;  // of the GPUs in use, in rank order
  Topology topology_;         // of these
  std::vector<std::string> gpus_;
  std::unique_ptr<TuneRanks> ranks_;
};

}  // namespace

Status Tune(const Connection& connection, const std::string& runtime_dir, const std::vector<TuneCase>& cases,
            const TuneOptions& options, bool json) {
  using Clock = std::chrono::steady_clock;
  const auto begun = Clock::now();
  TANDEM_ASSIGN_OR_RETURN(std::vector<TuneTask> tasks, TasksOf(cases, options));
  Tuner tuner(connection, runtime_dir, options);
  TANDEM_RETURN_IF_ERROR(tuner.Connect());
  if (options.wanted) {
    TANDEM_ASSIGN_OR_RETURN(tasks, WantedTasks(connection, tuner.node()));
    if (tasks.empty()) std::fprintf(stderr, "no plan was made without a time\n");
  } else {
    TANDEM_ASSIGN_OR_RETURN(const std::vector<int> gpus, ChooseGpus(tuner.node(), options));
    for (TuneTask& task : tasks) task.gpus = gpus;
  }
  admin::v1::ListTuningReply all;
  std::optional<Status> first_failure;
  size_t failed = 0, left_out = 0;
  for (size_t i = 0; i < tasks.size(); ++i) {
    const TuneTask& task = tasks[i];
    const double seconds = std::chrono::duration<double>(Clock::now() - begun).count();
    if (options.time_limit_seconds > 0 && seconds > options.time_limit_seconds) {
      std::fprintf(stderr, "%s: left out, the time is up\n", task.name.c_str());
      ++left_out;
      continue;
    }
    if (tasks.size() > 1) std::fprintf(stderr, "== %zu of %zu: %s\n", i + 1, tasks.size(), task.name.c_str());
    Result<admin::v1::TuningEntry> entry = tuner.Run(task);
    if (entry.ok()) {
      if (!json) TANDEM_RETURN_IF_ERROR(Print(*entry, false, (i == 0 ? "" : "\n") + TuningEntryText(*entry)));
      *all.add_entries() = *std::move(entry);
      continue;
    }
    if (tasks.size() == 1) return entry.status();
    std::fprintf(stderr, "%s: FAILED: %s\n", task.name.c_str(), entry.status().ToString().c_str());
    ++failed;
    if (!first_failure) first_failure = entry.status();
    if (Status idle = tuner.CheckIdle(); !idle.ok()) return idle;  // nor would any other case be measured
  }
  if (json) TANDEM_RETURN_IF_ERROR(Print(all, true, ""));
  if (first_failure) {
    return first_failure->WithContext(std::to_string(failed) + " of " + std::to_string(tasks.size()) +
                                      " cases failed, the first");
  }
  if (left_out > 0) return DeadlineExceeded(std::to_string(left_out) + " cases were left out");
  return Status::Ok();
}

Status ListTuning(const Connection& connection, bool json) {
  TANDEM_ASSIGN_OR_RETURN(const auto reply, Entries(connection, ""));
  return Print(reply, json, TuningText(reply));
}

Status ListWantedTuning(const Connection& connection, bool json) {
  TANDEM_ASSIGN_OR_RETURN(const auto reply, Entries(connection, ""));
  return Print(reply, json, WantedText(reply));
}

Status ShowTuning(const Connection& connection, const std::string& id, bool json) {
  if (id.empty()) return InvalidArgument("the entry's id is empty (tandemctl tuning list)");
  TANDEM_ASSIGN_OR_RETURN(const auto reply, Entries(connection, id));
  if (reply.entries().empty()) return NotFound("there is no entry " + id + " (tandemctl tuning list)");
  return Print(reply, json, TuningEntryText(reply.entries(0)));
}

Status ForgetTuning(const Connection& connection, const std::string& id, bool all, bool json) {
  if (id.empty() != all)
    return InvalidArgument("an entry's id, or --all for all of them (tandemctl tuning list)");
  TANDEM_ASSIGN_OR_RETURN(auto stub, connection.Changer());
  admin::v1::ForgetTuningRequest request;
  request.set_id(id);
  request.set_all(all);
  admin::v1::ForgetTuningReply reply;
  TANDEM_RETURN_IF_ERROR(connection.Call(*stub, &AdminControl::Stub::ForgetTuning, request, &reply));
  return Print(
      reply, json,
      std::to_string(reply.forgotten()) + " forgotten; plans that are made from now on do without\n");
}

}  // namespace tandem::ctl
