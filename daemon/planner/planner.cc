#include "daemon/planner/planner.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "daemon/planner/choice/choice.h"
#include "daemon/planner/choice/placement.h"
#include "daemon/planner/cost/cost_model.h"
#include "daemon/planner/cost/measured.h"
#include "daemon/planner/families/build.h"
#include "daemon/planner/forms/determinism.h"
#include "daemon/planner/forms/matmul_notes.h"
#include "daemon/planner/forms/skinny_form.h"
#include "daemon/planner/problem/problem.h"
#include "daemon/planner/row_family.h"
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
  if (slots.norm_weight >= 0) text += slots.residual >= 0 ? ", + residual, RMSNorm" : ", RMSNorm";
  if (slots.quantized_output >= 0) text += ", f8e4m3";
  return Text(text, ", ", problem.world_size, problem.world_size == 1 ? " rank" : " ranks");
}

Result<OperationPlan> PlanProblem(const Problem& problem, const Measured* measured) {
  const GroupContext& group = *problem.group;
  if (const std::string why = WhyNotDeterministic(problem); !why.empty()) {
    return FailedPrecondition(Text(OpName(problem.request->op), " cannot keep ", why))
        .WithDetail({.reason = "DETERMINISM_REFUSED", .field = "determinism"});
  }
  TANDEM_ASSIGN_OR_RETURN(Choice choice, Choose(problem, measured));
  OperationPlan plan;
  plan.op = problem.request->op;
  plan.algorithm = choice.algorithm;
  plan.collective = choice.collective;
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
  TANDEM_RETURN_IF_ERROR(BuildPrograms(problem, choice.algorithm, choice.collective, &plan));
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

// The plan for the group's placement: laid out for the client if that is asked for, else for engines. Nobody
// has checked that the client can run it.
Result<OperationPlan> PlanUnchecked(std::span<const OpRequest> requests, const GroupContext& group) {
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

// The same by `algorithm`.
Result<OperationPlan> PlanBy(Algorithm algorithm, std::span<const OpRequest> requests,
                             const GroupContext& group) {
  std::vector<OpRequest> asked(requests.begin(), requests.end());
  for (OpRequest& request : asked) request.algorithm = algorithm;
  return PlanUnchecked(asked, group);
}

// `first`, laid out for the client, or the fastest other algorithm that the client can run.
Result<OperationPlan> PlaceInClient(std::span<const OpRequest> requests, const GroupContext& group,
                                    OperationPlan first) {
  const Status refused = CheckClientPlacement(first, requests, group.client_kernels);
  first.placement = PlanPlacement::kClient;
  first.placement_reason = "asked for";
  if (refused.ok()) return first;
  const Status why = refused.WithContext(AlgorithmName(first.algorithm));
  if (requests[0].algorithm != Algorithm::kAuto) return why;
  for (Algorithm algorithm : OtherAlgorithms(first)) {
    Result<OperationPlan> plan = PlanBy(algorithm, requests, group);
    if (!plan.ok() || !CheckClientPlacement(*plan, requests, group.client_kernels).ok()) continue;
    plan->reason = Text("the client can run it; ", AlgorithmName(first.algorithm),
                        ", the choice of engines: ", refused.message());
    plan->placement = PlanPlacement::kClient;
    plan->placement_reason = "asked for";
    return plan;
  }
  return why;
}

// `auto` takes the client for a gain of this much: it promises less (docs/client-placement.md).
constexpr double kLeastGain = 1.03;

// The choice between `engine`, a plan for engines, and what the client can run instead.
class PlacementChoice {
 public:
  PlacementChoice(std::span<const OpRequest> requests, const GroupContext& group, const OperationPlan& engine)
      : requests_(requests), engine_(engine), in_client_(group) {
    in_client_.placement = PlanPlacement::kClient;
    const bool has_hand_over = engine.measured_us > 0 || PredictsHandOver(requests[0].op, group);
    const double us = engine.measured_us > 0 ? engine.measured_us : engine.predicted_us;
    engine_us_ = us + (has_hand_over ? 0 : kHandOverUs);
    // Copies alone wait for the engine's time slice, too, and hold up the caller's kernels: a training step with
    // gathers of 208 MiB took 1.7 times as long.
    takes_turns_ = group.kernels_take_turns;
    if (takes_turns_) engine_us_ += kTurnUs;
  }

  // The client's plan if it is faster, else nothing; reason() says why.
  std::optional<OperationPlan> Take() {
    const double saved = kHandOverOfTwoUs + (takes_turns_ ? kTurnUs : 0);
    if (!Gains(engine_us_ - saved)) return std::nullopt;  // plans and proofs take time
    // For the client products and packets are laid out otherwise, and take other times.
    const bool other =
        IsFusedOp(requests_[0].op) || in_client_.packet_kernels || in_client_.tuning != nullptr;
    Result<OperationPlan> first =
        other ? PlanUnchecked(requests_, in_client_) : Result<OperationPlan>(engine_);
    if (!first.ok()) return std::nullopt;
    std::vector<RefusedAlgorithm> others;
    if (requests_[0].algorithm == Algorithm::kAuto) {
      for (const Algorithm algorithm : OtherAlgorithms(*first)) {
        others.push_back(*std::find_if(first->refused.begin(), first->refused.end(),
                                       [&](const auto& each) { return each.algorithm == algorithm; }));
      }
    }
    if (std::optional<OperationPlan> plan = Try(*first, first->measured_us)) return plan;
    for (const RefusedAlgorithm& other : others) {
      if (!comparison_.empty() || !Gains(ClientUs(other.measured_us, other.predicted_us))) break;
      Result<OperationPlan> plan = PlanBy(other.algorithm, requests_, in_client_);
      if (!plan.ok()) continue;
      // Nobody has asked for it but PlanBy; the collective beside a product comes behind.
      constexpr std::string_view kAsked = "asked for";
      const std::string rest = plan->reason.starts_with(kAsked) ? plan->reason.substr(kAsked.size()) : "";
      plan->reason = Text("the client can run it; ", refusal_, rest);
      if (std::optional<OperationPlan> taken = Try(*std::move(plan), other.measured_us)) return taken;
    }
    return std::nullopt;
  }

  std::string reason() const {
    if (!comparison_.empty()) return comparison_;
    if (!refusal_.empty()) return Text("auto; the client cannot run this plan: ", refusal_);
    return Text("auto: the caller's stream would save less than 3 % of ", MicrosecondsText(engine_us_));
  }

 private:
  // Measured times are the client's own: their entries have the trait `client`.
  static double ClientUs(double measured_us, double predicted_us) {
    return measured_us > 0 ? measured_us : predicted_us;
  }
  bool Gains(double us) const { return us * kLeastGain <= engine_us_; }

  // `plan`, of which the table has `measured_us`, if the client can run it and it gains.
  std::optional<OperationPlan> Try(OperationPlan plan, double measured_us) {
    const double us = ClientUs(measured_us, plan.predicted_us);
    const Status refused = Gains(us) ? CheckClientPlacement(plan, requests_, in_client_.client_kernels)
                                     : CheckClientForm(plan, in_client_.client_kernels);
    if (!refused.ok()) {
      // The first reason is of what engines would take.
      if (refusal_.empty()) refusal_ = refused.WithContext(AlgorithmName(plan.algorithm)).message();
      return std::nullopt;
    }
    comparison_ =
        Text("auto: on the caller's stream ", AlgorithmName(plan.algorithm),
             measured_us > 0 ? " was measured at " : " is predicted to take ", MicrosecondsText(us),
             ", by the engine ", AlgorithmName(engine_.algorithm), " ", MicrosecondsText(engine_us_),
             takes_turns_ ? ", since client and engine share no MPS server" : "");
    if (!Gains(us)) return std::nullopt;
    plan.placement = PlanPlacement::kClient;
    return plan;
  }

  std::span<const OpRequest> requests_;
  const OperationPlan& engine_;
  GroupContext in_client_;
  double engine_us_ = 0;
  bool takes_turns_ = false;
  std::string refusal_, comparison_;
};

// `engine`, or the client's plan if that is faster.
OperationPlan ChoosePlacement(std::span<const OpRequest> requests, const GroupContext& group,
                              OperationPlan engine) {
  PlacementChoice choice(requests, group, engine);
  std::optional<OperationPlan> client = choice.Take();
  OperationPlan chosen = client.has_value() ? *std::move(client) : std::move(engine);
  chosen.placement_reason = choice.reason();
  return chosen;
}

// MakePlan by the group's placement.
Result<OperationPlan> PlanAt(std::span<const OpRequest> requests, const GroupContext& group) {
  TANDEM_ASSIGN_OR_RETURN(OperationPlan plan, PlanUnchecked(requests, group));
  if (group.placement == PlanPlacement::kClient) {
    Result<OperationPlan> placed = PlaceInClient(requests, group, std::move(plan));
    return placed.ok() ? std::move(placed) : placed.status().WithContext("placement = client");
  }
  if (group.placement == PlanPlacement::kAuto && group.client_kernels != ClientKernels::kAll) {
    return ChoosePlacement(requests, group, std::move(plan));
  }
  const Status form = CheckClientForm(plan, group.client_kernels);
  plan.placement_reason =
      group.placement == PlanPlacement::kEngine ? "asked for" : "auto takes the engine on the host backend";
  // A product that is not overlapped is laid out otherwise for the client, which is not planned here.
  const bool other_layout = IsFusedOp(plan.op) && !Overlaps(plan.algorithm);
  plan.placement_reason += form.ok()      ? "; the client could run this plan"
                           : other_layout ? "; a plan for the client would lie in other memory"
                                          : Text("; the client cannot run this plan: ", form.message());
  return plan;
}

}  // namespace

Result<OperationPlan> MakePlan(std::span<const OpRequest> requests, const GroupContext& group) {
  if (!requests.empty() && requests[0].max_rows != 0) return MakeFamily(requests, group);
  if (!group.no_client_plans.empty()) {
    if (!requests.empty() && requests[0].placement == PlanPlacement::kClient) {
      return FailedPrecondition("placement = client: " + group.no_client_plans)
          .WithDetail({.reason = "NO_CLIENT_PLANS", .field = "placement"});
    }
    GroupContext engines = group;
    engines.placement = PlanPlacement::kEngine;
    Result<OperationPlan> plan = PlanAt(requests, engines);
    if (plan.ok()) plan->placement_reason = group.no_client_plans;
    return plan;
  }
  GroupContext own = group;
  if (!requests.empty()) own.placement = AskedPlacement(requests[0], group);
  return PlanAt(requests, own);
}

}  // namespace tandem::plan
