// Plans and their launches for operators: listings by pages, and the trace.
#include <algorithm>
#include <charconv>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "daemon/admin/admin_service.h"
#include "daemon/observe/chrome_trace.h"
#include "daemon/observe/plan_totals.h"
#include "daemon/observe/step_totals.h"
#include "daemon/planner/cost/cost_model.h"
#include "tandem/op_request.h"

namespace tandem::daemon {
namespace {

// The part of a reply's bytes that a page of plans may take from the control plane: listings are longer than
// their sources.
constexpr size_t kPageFraction = 2;
// One plan's listings, and its steps' statistics, take at most these parts of a reply.
constexpr size_t kListingsFraction = 2, kStepsFraction = 8;

void Fill(const PlanTotals& totals, admin::v1::PlanStats* stats) {
  stats->set_launches(totals.launches);
  stats->set_failures(totals.failures);
  stats->set_mean_us(totals.mean_us);
  stats->set_p50_us(totals.p50_us);
  stats->set_p99_us(totals.p99_us);
  stats->set_max_us(totals.max_us);
  stats->set_bytes_moved(totals.bytes_moved);
}

std::vector<std::vector<TraceRecord>> ReadAllTraces(std::span<const StatsArea> areas) {
  std::vector<std::vector<TraceRecord>> records;
  for (const StatsArea& area : areas) records.push_back(area.ReadTrace());
  return records;
}

// True if not all of it fits.
bool FillSteps(const std::vector<StepTotals>& steps, const PlanSnapshot& plan, size_t most_bytes,
               admin::v1::PlanStats* stats) {
  ReplyBudget budget(most_bytes);
  for (const StepTotals& totals : steps) {
    auto at = std::find(plan.gpus.begin(), plan.gpus.end(), totals.gpu);
    if (at == plan.gpus.end()) continue;
    const auto rank = static_cast<size_t>(at - plan.gpus.begin());
    admin::v1::StepStats step;
    step.set_rank(static_cast<int>(rank));
    step.set_step(static_cast<uint32_t>(totals.step));
    step.set_lane(static_cast<uint32_t>(totals.lane));
    if (rank < plan.steps.size() && static_cast<size_t>(totals.step) < plan.steps[rank].size()) {
      step.set_name(plan.steps[rank][static_cast<size_t>(totals.step)]);
    }
    step.set_samples(totals.samples);
    step.set_mean_us(totals.mean_us);
    step.set_max_us(totals.max_us);
    if (!AddWithin(budget, stats->mutable_steps(), std::move(step))) break;
  }
  return budget.cut();
}

// Whole lines of a listing, within `most` bytes; true if some are left out.
bool CutListing(size_t most, std::string* text) {
  if (text->size() <= most) return false;
  const size_t end = text->rfind('\n', most);
  text->resize(end == std::string::npos ? 0 : end + 1);
  return true;
}

// "<group>.<plan>": the last plan of the page before.
bool ParseToken(const std::string& token, PlanQuery* query) {
  const char* const end = token.data() + token.size();
  const auto group = std::from_chars(token.data(), end, query->after_group);
  if (group.ec != std::errc() || group.ptr == end || *group.ptr != '.') return false;
  const auto plan = std::from_chars(group.ptr + 1, end, query->after_plan);
  return plan.ec == std::errc() && plan.ptr == end;
}

}  // namespace

grpc::Status AdminService::ListPlans(grpc::ServerContext* context, const admin::v1::ListPlansRequest* request,
                                     admin::v1::ListPlansReply* reply) {
  PlanQuery query{
      .group_id = request->group_id(), .plan_id = request->plan_id(), .programs = request->programs()};
  query.most_bytes = reply_bytes_ / kPageFraction;
  if (!request->page_token().empty() && !ParseToken(request->page_token(), &query)) {
    return ToGrpc(InvalidArgument("page_token was not issued by this service"));
  }
  const Viewer viewer = ViewerOf(context);
  query.viewer = [&viewer](uint32_t uid) { return viewer.Sees(uid); };
  const std::vector<GroupSnapshot> groups = sources_.control->SnapshotGroups();
  for (const GroupSnapshot& group : groups)
    reply->set_hidden(reply->hidden() + (viewer.Sees(group.uid) ? 0 : group.plans));
  PlanPage page = sources_.control->SnapshotPlans(query);
  const bool first = request->page_token().empty();
  if (first && page.plans.empty() && request->plan_id() != 0) {
    return ToGrpc(NotFound("there is no plan " + std::to_string(request->plan_id())));
  }
  if (first && page.plans.empty() && request->group_id() != 0) {
    bool known = false;
    for (const GroupSnapshot& group : groups)
      known |= group.id == request->group_id() && viewer.Sees(group.uid);
    if (!known) return ToGrpc(NotFound("there is no group " + std::to_string(request->group_id())));
  }
  reply->set_prediction_model(plan::PredictionModel(sources_.topology, sources_.backend == "host"));
  auto totals = SumPlans(ReadAllPlans(sources_.stats));
  std::map<uint64_t, std::vector<StepTotals>> steps;
  if (request->programs()) steps = SumSteps(ReadAllTraces(sources_.stats));
  ReplyBudget budget(reply_bytes_);
  const PlanSnapshot* last = nullptr;
  for (PlanSnapshot& plan : page.plans) {
    admin::v1::PlanEntry out;
    if (!out.mutable_info()->ParseFromString(plan.info)) {
      return ToGrpc(Internal("plan " + std::to_string(plan.plan_id) + " has an unreadable explanation"));
    }
    out.mutable_info()->set_group_workspace_bytes(plan.group_workspace_bytes);
    out.mutable_info()->set_unshared_workspace_bytes(plan.unshared_workspace_bytes);
    out.set_group_name(plan.group_name);
    bool truncated = false;
    for (auto& program : plan.programs) {
      truncated |= CutListing(reply_bytes_ / kListingsFraction / plan.programs.size(), &program);
      out.add_programs(std::move(program));
    }
    Fill(totals[plan.plan_id], out.mutable_stats());
    truncated |= FillSteps(steps[plan.plan_id], plan, reply_bytes_ / kStepsFraction, out.mutable_stats());
    out.set_truncated(truncated);
    if (!AddWithin(budget, reply->mutable_plans(), out)) {
      if (last != nullptr) break;
      // An explanation that leaves no room for the rest: a page has one plan at the least.
      out.clear_programs();
      out.mutable_stats()->clear_steps();
      out.set_truncated(true);
      *reply->add_plans() = std::move(out);
    }
    last = &plan;
  }
  if (last != nullptr && (page.more || last != &page.plans.back())) {
    reply->set_next_page_token(std::to_string(last->group_id) + "." + std::to_string(last->plan_id));
  }
  return grpc::Status::OK;
}

grpc::Status AdminService::GetTrace(grpc::ServerContext* context, const admin::v1::GetTraceRequest* request,
                                    admin::v1::GetTraceReply* reply) {
  const Viewer viewer = ViewerOf(context);
  std::vector<std::vector<TraceRecord>> records = ReadAllTraces(sources_.stats);
  std::set<uint64_t> traced_plans;
  for (const auto& gpu : records) {
    for (const TraceRecord& record : gpu) traced_plans.insert(record.plan_id);
  }
  std::map<uint64_t, TracePlan> plans;
  std::set<uint64_t> seen;
  for (const PlanSnapshot& plan :
       sources_.control->SnapshotPlans(PlanQuery{.only = &traced_plans, .steps = true}).plans) {
    if (!viewer.Sees(plan.uid)) continue;
    seen.insert(plan.plan_id);
    v1::PlanInfo info;
    if (!info.ParseFromString(plan.info)) continue;
    TracePlan& traced = plans[plan.plan_id];
    traced = {plan.group_name,
              info.summary(),
              std::string(AlgorithmName(static_cast<Algorithm>(info.algorithm()))),
              {}};
    for (size_t rank = 0; rank < plan.steps.size(); ++rank) {
      traced.steps[static_cast<size_t>(plan.gpus[rank])] = plan.steps[rank];
    }
  }
  // Plans that are gone have no owner any more.
  for (auto& gpu : records) {
    if (!viewer.sees_all())
      std::erase_if(gpu, [&](const TraceRecord& record) { return !seen.contains(record.plan_id); });
  }
  std::vector<std::string> names;
  for (size_t gpu = 0; gpu < sources_.stats.size(); ++gpu) {
    names.push_back("GPU " + std::to_string(gpu) + " " + sources_.topology.gpus[gpu].uuid);
  }
  const size_t most =
      request->max_bytes() == 0 ? reply_bytes_ : std::min<size_t>(request->max_bytes(), kMaxTraceBytes);
  ChromeTraceText trace = ChromeTrace(records, names, plans, request->last(), most);
  reply->set_chrome_trace_json(std::move(trace.json));
  reply->set_truncated(trace.truncated);
  return grpc::Status::OK;
}

}  // namespace tandem::daemon
