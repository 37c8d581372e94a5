#include "daemon/planner/planner.h"

#include <algorithm>
#include <utility>

#include "daemon/planner/choice/choice.h"
#include "daemon/planner/choice/placement.h"
#include "daemon/planner/cost/measured.h"
#include "daemon/planner/families/families.h"
#include "daemon/planner/families/matmul_notes.h"
#include "daemon/planner/families/skinny.h"
#include "daemon/planner/problem/problem.h"
#include "program/kernel_phases.h"
#include "program/text.h"
#include "program/verifier/verifier.h"

namespace tandem::plan {
namespace {

std::string Summary(const Problem& problem) {
  const OpRequest& request = *problem.request;
  const Slots& slots = problem.slots;
  const auto tensor = [&](int slot) {
    const TensorSpec& spec = problem.operand(slot).spec;
    return Text(DTypeName(spec.dtype), ShapeText(spec.shape));
  };
  std::string text(OpName(request.op));
  if (slots.a >= 0) {
    text += Text(" ", tensor(slots.a), " x");
    for (size_t i = 0; i < slots.b.size(); ++i) text += Text(i == 0 ? " " : " and ", tensor(slots.b[i]));
    text += Text(" -> ", tensor(slots.c[0]));
    if (slots.c.size() > 1) text += " each";
  } else if (slots.input >= 0 && slots.output >= 0 && request.op != Op::kSendReceive) {
    const bool in_place = problem.operand(slots.output).alias_of >= 0;
    text += Text(" ", tensor(slots.input));
    if (!in_place || PartSlot(request) >= 0) text += Text(" -> ", tensor(slots.output));
    if (in_place) text += " in place";
  } else if (request.op == Op::kSendReceive) {
    size_t transfers = 0;
    for (const OpRequest& own : problem.requests) transfers += own.transfers.size();
    text += Text(" ", transfers, " sends and receives");
  }
  const bool by_dim = request.op == Op::kAllGather || request.op == Op::kReduceScatter ||
                      request.op == Op::kAllGatherMatmul || request.op == Op::kMatmulReduceScatter ||
                      request.op == Op::kAllToAll;
  if (by_dim) text += Text(" along dim ", problem.dim);
  return Text(text, ", ", problem.world_size, problem.world_size == 1 ? " rank" : " ranks");
}

Status Build(const Problem& problem, const Choice& choice, OperationPlan* plan) {
  const Op op = problem.request->op;
  const Algorithm algorithm = choice.algorithm;
  switch (op) {
    case Op::kBarrier:
    case Op::kEmpty:
      return algorithm == Algorithm::kNccl ? BuildNccl(problem, plan) : BuildBarrier(problem, plan);
    case Op::kSendReceive: return BuildSendReceive(problem, plan);
    case Op::kAsyncInputMatmul: return BuildAsyncInputMatmul(problem, plan);
    case Op::kAllGatherMatmul: return BuildAllGatherMatmul(problem, algorithm, choice.collective, plan);
    case Op::kMatmulReduceScatter:
      return BuildMatmulReduceScatter(problem, algorithm, choice.collective, plan);
    case Op::kMatmulAllReduce: return BuildMatmulAllReduce(problem, algorithm, choice.collective, plan);
    default: break;
  }
  if (problem.world_size == 1) return BuildLocalCollective(problem, plan);
  if (algorithm == Algorithm::kNccl) return BuildNccl(problem, plan);
  if (op == Op::kAllReduce) return BuildAllReduce(problem, algorithm, plan);
  if (op == Op::kBroadcast || op == Op::kReduce) return BuildRooted(problem, algorithm, plan);
  return BuildExchange(problem, algorithm, plan);
}

Result<OperationPlan> PlanProblem(const Problem& problem, const Measured* measured) {
  const GroupContext& group = *problem.group;
  TANDEM_ASSIGN_OR_RETURN(Choice choice, Choose(problem, measured));
  OperationPlan plan;
  plan.op = problem.request->op;
  plan.algorithm = choice.algorithm;
  plan.reason = std::move(choice.reason);
  if (choice.algorithm == Algorithm::kFused && SkinnyFor(problem))
    plan.reason += "; skinny: one kernel moves and multiplies";
  plan.refused = std::move(choice.refused);
  plan.warnings = std::move(choice.warnings);
  if (group.packet_kernels && choice.algorithm != Algorithm::kFused) {
    for (std::string& note : MatmulNotes(problem)) plan.warnings.push_back(std::move(note));
  }
  plan.predicted_us = choice.predicted_us;
  plan.measured_us = choice.measured_us;
  plan.fused = !IsFusedOp(plan.op) || Overlaps(choice.algorithm);
  plan.summary = Summary(problem);
  plan.scale_mode = ScaleModeName(problem.scale_mode);
  TANDEM_RETURN_IF_ERROR(Build(problem, choice, &plan));
  PlanKernels(&plan.programs, group.kernel_sms);
  return plan;
}

// The requests with a measured candidate's algorithm and parameters, planned as if they had been asked for.
Result<OperationPlan> PlanMeasured(std::span<const OpRequest> requests, const GroupContext& group,
                                   const Measured& measured) {
  std::vector<OpRequest> asked(requests.begin(), requests.end());
  for (OpRequest& request : asked) {
    request.algorithm = measured.chosen->algorithm;
    request.steps = measured.chosen->steps;
    request.lanes = measured.chosen->lanes;
  }
  TANDEM_ASSIGN_OR_RETURN(const Problem problem, MakeProblem(asked, group));
  return PlanProblem(problem, &measured);
}

// The plan for engines, wherever it is to run.
Result<OperationPlan> PlanForEngines(std::span<const OpRequest> requests, const GroupContext& group) {
  TANDEM_ASSIGN_OR_RETURN(const Problem problem, MakeProblem(requests, group));
  if (const TuningEntry* entry = MeasuredFor(problem); entry != nullptr) {
    // Times of cuBLASLt's products say nothing of the plain kernel's.
    const std::vector<PlainReason> plain = WhyPlain(problem);
    const bool slower =
        std::any_of(plain.begin(), plain.end(), [](const PlainReason& reason) { return !reason.in_key; });
    for (const TuningCandidate& candidate : entry->candidates) {
      if (candidate.samples == 0) break;
      if (slower && candidate.algorithm != Algorithm::kFused) continue;
      // One that this request or this group does not allow gives way to the next.
      if (Result<OperationPlan> plan = PlanMeasured(requests, group, {entry, &candidate}); plan.ok())
        return plan;
    }
  }
  return PlanProblem(problem, nullptr);
}

Result<OperationPlan> PlaceInClient(std::span<const OpRequest> requests, const GroupContext& group,
                                    OperationPlan first) {
  const Status refused = CheckClientPlacement(first, requests, group.client_kernels);
  first.placement = PlanPlacement::kClient;
  first.placement_reason = "asked for";
  if (refused.ok()) return first;
  const Status why = refused.WithContext(AlgorithmName(first.algorithm));
  if (requests[0].algorithm != Algorithm::kAuto) return why;
  for (Algorithm algorithm : OtherAlgorithms(first)) {
    std::vector<OpRequest> asked(requests.begin(), requests.end());
    for (OpRequest& request : asked) request.algorithm = algorithm;
    Result<OperationPlan> plan = PlanForEngines(asked, group);
    if (!plan.ok() || !CheckClientPlacement(*plan, asked, group.client_kernels).ok()) continue;
    plan->reason = Text("the client can run it; ", AlgorithmName(first.algorithm),
                        ", the choice of engines: ", refused.message());
    plan->placement = PlanPlacement::kClient;
    plan->placement_reason = "asked for";
    return plan;
  }
  return why;
}

// The hand-over to an engine and back (docs/performance-launches.md). Measured times contain it, predicted
// times of collectives do not.
constexpr double kHandOverUs = 12;
// `auto` takes the client for a gain of this much: it promises less (docs/client-placement.md).
constexpr double kLeastGain = 1.03;

double ByEngineUs(const OperationPlan& plan) {
  return plan.measured_us > 0 ? plan.measured_us : plan.predicted_us + kHandOverUs;
}

double ByClientUs(const OperationPlan& plan) {
  return plan.measured_us > 0 ? std::max(plan.measured_us - kHandOverUs, 0.0) : plan.predicted_us;
}

// `engine`, or the client's plan if that is faster.
OperationPlan ChoosePlacement(std::span<const OpRequest> requests, const GroupContext& group,
                              OperationPlan engine) {
  if (IsFusedOp(requests[0].op)) {
    engine.placement_reason = "auto; on CUDA clients launch collectives only";
    return engine;
  }
  Result<OperationPlan> client = PlaceInClient(requests, group, engine);
  if (!client.ok()) {
    engine.placement_reason = Text("auto; the client cannot run this plan: ", client.status().message());
    return engine;
  }
  const double by_engine = ByEngineUs(engine), by_client = ByClientUs(*client);
  const std::string times = Text("auto: on the caller's stream ", AlgorithmName(client->algorithm),
                                 " is predicted to take ", MicrosecondsText(by_client), ", by the engine ",
                                 AlgorithmName(engine.algorithm), " ", MicrosecondsText(by_engine));
  OperationPlan chosen = by_client * kLeastGain <= by_engine ? *std::move(client) : std::move(engine);
  chosen.placement_reason = times;
  return chosen;
}

}  // namespace

Result<OperationPlan> MakePlan(std::span<const OpRequest> requests, const GroupContext& group) {
  TANDEM_ASSIGN_OR_RETURN(OperationPlan plan, PlanForEngines(requests, group));
  if (group.placement == PlanPlacement::kClient) {
    Result<OperationPlan> placed = PlaceInClient(requests, group, std::move(plan));
    return placed.ok() ? std::move(placed) : placed.status().WithContext("placement = client");
  }
  if (group.placement == PlanPlacement::kAuto && group.client_kernels == ClientKernels::kCollectives) {
    return ChoosePlacement(requests, group, std::move(plan));
  }
  const Status form = CheckClientForm(plan, group.client_kernels);
  plan.placement_reason =
      group.placement == PlanPlacement::kEngine ? "asked for" : "auto takes the engine on the host backend";
  plan.placement_reason += form.ok() ? "; the client could run this plan"
                                     : Text("; the client cannot run this plan: ", form.message());
  return plan;
}

}  // namespace tandem::plan
