#include "daemon/planner/choice/choice.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "daemon/planner/choice/bounds.h"
#include "daemon/planner/choice/matmul_collective.h"
#include "daemon/planner/cost/cost_model.h"
#include "daemon/planner/forms/determinism.h"
#include "daemon/planner/forms/feasibility.h"
#include "daemon/planner/forms/low_latency.h"
#include "daemon/planner/forms/skinny_form.h"
#include "program/text.h"

namespace tandem::plan {
namespace {

struct Candidate {
  Algorithm algorithm = Algorithm::kAuto;
  std::string impossible;  // why it cannot run; empty: it can
  std::string only_asked;  // why it runs only when it is asked for; empty: it may be chosen
  double predicted_us = 0;
  MatmulCollective collective;
};

bool IsFast(TopologyClass topology_class) {
  return topology_class == TopologyClass::kNvSwitch || topology_class == TopologyClass::kFullMesh ||
         topology_class == TopologyClass::kSingle;
}

// The algorithm that the thresholds want, and why.
struct Preference {
  Algorithm algorithm;
  std::string reason;
};

std::string BoundText(uint64_t bound, const Bounds& bounds) {
  return Text(BytesText(bound), bounds.measured ? ", as measured on these GPUs' kind" : "");
}

// Nothing, or the preference for packets.
std::optional<Preference> PreferPackets(const Problem& problem, const Bounds& bounds, bool possible) {
  if (!possible || problem.message_bytes > bounds.low_latency) return std::nullopt;
  return Preference{Algorithm::kLowLatency, Text(BytesText(problem.message_bytes), " is within its bound of ",
                                                 BoundText(bounds.low_latency, bounds))};
}

Preference PreferAllReduce(const Problem& problem, bool nccl, bool packets) {
  const uint64_t bytes = problem.message_bytes;
  const Bounds bounds = BoundsOf(problem);
  if (auto preference = PreferPackets(problem, bounds, packets)) return *preference;
  if (problem.topology_class == TopologyClass::kHybridCubeMesh && bytes <= kHybridCubeMeshMaxBytes) {
    return {Algorithm::kHybridCubeMesh, Text(BytesText(bytes), " is within its bound of ",
                                             BytesText(kHybridCubeMeshMaxBytes), " on a hybrid cube mesh")};
  }
  if (IsFast(problem.topology_class)) {
    if (bytes <= bounds.one_shot) {
      return {Algorithm::kOneShot,
              Text(BytesText(bytes), " is within its bound of ", BoundText(bounds.one_shot, bounds))};
    }
    if (bytes <= bounds.two_shot) {
      return {Algorithm::kTwoShot,
              Text(BytesText(bytes), " is above one-shot's bound of ", BytesText(bounds.one_shot),
                   " and within ", BoundText(bounds.two_shot, bounds))};
    }
    if (nccl && problem.operand(problem.slots.input).spec.dtype == DType::kF8E5M2) {
      return {Algorithm::kTwoShot, "NCCL's sums of f8e5m2 lose infinities"};
    }
    if (nccl)
      return {Algorithm::kNccl, Text(BytesText(bytes), " is above ", BoundText(bounds.two_shot, bounds))};
    return {Algorithm::kTwoShot, WhyImpossible(problem, Algorithm::kNccl)};
  }
  const std::string where(TopologyClassName(problem.topology_class));
  if (nccl) return {Algorithm::kNccl, Text("the default for this size on ", where)};
  return {Algorithm::kTwoShot, WhyImpossible(problem, Algorithm::kNccl)};
}

Preference PreferMove(const Problem& problem, bool nccl, bool copy_engine, bool packets) {
  const uint64_t bytes = problem.message_bytes;
  const Bounds bounds = BoundsOf(problem);
  if (problem.request->low_contention) return {Algorithm::kCopyEngine, "low contention was asked for"};
  if (auto preference = PreferPackets(problem, bounds, packets)) return *preference;
  if (!IsFast(problem.topology_class) && nccl) {
    return {Algorithm::kNccl, Text("the default on ", TopologyClassName(problem.topology_class))};
  }
  if (bytes <= bounds.sm) {
    return {Algorithm::kSm, Text(BytesText(bytes), " is within its bound of ", BoundText(bounds.sm, bounds))};
  }
  if (copy_engine) {
    return {Algorithm::kCopyEngine, Text(BytesText(bytes), " is above ", BytesText(bounds.sm),
                                         ", where copy "
                                         "engines are faster")};
  }
  if (nccl) return {Algorithm::kNccl, Text(BytesText(bytes), " is above ", BytesText(bounds.sm))};
  return {Algorithm::kSm, WhyImpossible(problem, Algorithm::kNccl)};
}

const Candidate* Find(const std::vector<Candidate>& candidates, Algorithm algorithm) {
  for (const Candidate& candidate : candidates) {
    if (candidate.algorithm == algorithm) return &candidate;
  }
  return nullptr;
}

const Candidate* Fastest(const std::vector<Candidate>& candidates, bool fused_only) {
  const Candidate* best = nullptr;
  for (const Candidate& candidate : candidates) {
    if (!candidate.impossible.empty() || !candidate.only_asked.empty()) continue;
    if (fused_only && !Overlaps(candidate.algorithm)) continue;
    if (best == nullptr || candidate.predicted_us < best->predicted_us) best = &candidate;
  }
  return best;
}

// Every algorithm with its reason, for errors.
std::string AllReasons(const std::vector<Candidate>& candidates) {
  std::string text;
  for (const Candidate& candidate : candidates) {
    if (!text.empty()) text += "; ";
    text += Text(AlgorithmName(candidate.algorithm), ": ",
                 candidate.impossible.empty() ? std::string("possible") : candidate.impossible);
  }
  return text;
}

Status Refuse(std::string_view what, std::string reason, const std::vector<Candidate>& candidates) {
  StatusDetail detail;
  detail.reason = std::move(reason);
  detail.field = "algorithm";
  return Status(Code::kFailedPrecondition, Text(what, " (", AllReasons(candidates), ")"), std::move(detail));
}

// The bound that speaks against `algorithm`; empty when none does.
std::string BeyondBound(const Problem& problem, Algorithm algorithm) {
  const uint64_t bytes = problem.message_bytes;
  const Bounds bounds = BoundsOf(problem);
  const auto above = [bytes](uint64_t bound) {
    return bytes > bound ? Text(BytesText(bytes), " is above its bound of ", BytesText(bound))
                         : std::string();
  };
  if (problem.world_size == 1) return {};
  switch (algorithm) {
    case Algorithm::kOneShot:
      if (problem.topology_class == TopologyClass::kHybridCubeMesh)
        return "the hybrid cube mesh has its own one-shot";
      return above(bounds.one_shot);
    case Algorithm::kTwoShot:
      if (problem.topology_class == TopologyClass::kHybridCubeMesh) return "not on a hybrid cube mesh";
      return above(bounds.two_shot);
    case Algorithm::kHybridCubeMesh: return above(kHybridCubeMeshMaxBytes);
    case Algorithm::kSm: return above(bounds.sm);
    case Algorithm::kLowLatency: return bounds.low_latency > 0 ? above(bounds.low_latency) : std::string();
    default: return {};
  }
}

std::string WhyNotThis(const Problem& problem, const Candidate& candidate, const Candidate& chosen,
                       bool asked, const Measured* measured) {
  if (!candidate.impossible.empty()) return candidate.impossible;
  if (measured != nullptr) {
    std::string why = WhyNotMeasured(*measured, candidate.algorithm);
    return candidate.only_asked.empty() ? why : Text(why, "; ", candidate.only_asked);
  }
  if (asked) return Text(AlgorithmName(chosen.algorithm), " was asked for");
  if (!candidate.only_asked.empty()) return candidate.only_asked;
  if (std::string beyond = BeyondBound(problem, candidate.algorithm); !beyond.empty()) return beyond;
  if (!Overlaps(candidate.algorithm) && IsFusedOp(problem.request->op) &&
      problem.request->on_unfused == OnUnfused::kError) {
    return "unfused, and on_unfused is error";
  }
  if (candidate.predicted_us < chosen.predicted_us) {
    // The bounds were measured and go before the model.
    return Text(AlgorithmName(chosen.algorithm), " is preferred by its bound, not by prediction (predicted ",
                MicrosecondsText(chosen.predicted_us), ", this one ",
                MicrosecondsText(candidate.predicted_us), ")");
  }
  return Text(AlgorithmName(chosen.algorithm), " is preferred: predicted ",
              MicrosecondsText(chosen.predicted_us), ", this one ", MicrosecondsText(candidate.predicted_us));
}

// The choice without an asked algorithm, for operations without a matmul.
Preference Prefer(const Problem& problem, const std::vector<Candidate>& candidates) {
  const Op op = problem.request->op;
  const Candidate* nccl = Find(candidates, Algorithm::kNccl);
  const bool has_nccl = nccl != nullptr && nccl->impossible.empty();
  const Candidate* packets = Find(candidates, Algorithm::kLowLatency);
  const bool has_packets = packets != nullptr && packets->impossible.empty();
  Preference preference{candidates[0].algorithm, "the one way there is"};
  if (op == Op::kAllReduce) {
    preference = PreferAllReduce(problem, has_nccl, has_packets);
  } else if (Find(candidates, Algorithm::kSm) != nullptr) {
    preference =
        PreferMove(problem, has_nccl, Find(candidates, Algorithm::kCopyEngine) != nullptr, has_packets);
  } else if (op == Op::kBarrier) {
    preference.reason = "the start of a launch is a meeting of all ranks' streams";
  }
  if (problem.world_size == 1) preference.reason = "one rank: nothing to communicate";
  const Candidate* preferred = Find(candidates, preference.algorithm);
  if (!preferred->impossible.empty()) {
    const Candidate* fallback = Fastest(candidates, false);
    if (fallback != nullptr) {
      return {fallback->algorithm,
              Text(AlgorithmName(preference.algorithm), " cannot run: ", preferred->impossible)};
    }
  }
  return preference;
}

// Why `candidate` runs only when it is asked for; empty: it may be chosen.
std::string WhyOnlyAsked(const Problem& problem, const Candidate& candidate, const Measured* measured) {
  const OpRequest& request = *problem.request;
  const Algorithm algorithm = candidate.algorithm;
  std::string why;
  if (algorithm == Algorithm::kFused && !problem.group->fused_by_choice) {
    why = "runs when it is asked for (fused = explicit)";
  }
  if (algorithm == Algorithm::kFused && IsBlockWise(problem.scale_mode) && measured == nullptr) {
    why = "runs when it is asked for: with scales by blocks nobody has measured it";
  }
  if (algorithm == Algorithm::kFused && candidate.impossible.empty() && problem.world_size != 2 &&
      problem.world_size != 4 && measured == nullptr && SkinnyFor(problem)) {
    why = "runs when it is asked for: for few rows it was measured on two and four ranks only";
  }
  if (algorithm == Algorithm::kFused && request.op == Op::kMatmulAllReduce &&
      problem.rows % problem.world_size != 0 &&
      (measured == nullptr || measured->entry->shape != TuningShapeOf(problem))) {
    why = "runs when it is asked for: with parts of unequal rows nobody has measured it";
  }
  if (algorithm == Algorithm::kLowLatency && IsFusedOp(request.op) && measured == nullptr &&
      problem.topology_class != TopologyClass::kNvSwitch) {
    why = "runs when it is asked for: it was measured behind NVSwitches only";
  }
  if (algorithm == Algorithm::kCopyEngine && request.op == Op::kAllReduce && measured == nullptr) {
    why = "runs when it is asked for: beside a product NCCL's was faster";
  }
  if (algorithm == Algorithm::kNccl && IsFusedOp(request.op) && measured == nullptr) {
    why = "runs when it is asked for: unfused takes NCCL where a collective would";
  }
  return algorithm == Algorithm::kFused && OnlyFusedKeepsRows(problem) ? std::string() : why;
}

}  // namespace

Result<Choice> Choose(const Problem& problem, const Measured* measured) {
  const OpRequest& request = *problem.request;
  const bool asked = request.algorithm != Algorithm::kAuto;
  std::vector<Candidate> candidates;
  for (Algorithm algorithm : AlgorithmsOf(request.op)) {
    Candidate candidate{algorithm, WhyImpossible(problem, algorithm), {}, 0, {}};
    if (candidate.impossible.empty()) candidate.collective = CollectiveBeside(problem, algorithm);
    if (algorithm == Algorithm::kUnfused && problem.world_size > 1 &&
        candidate.collective.algorithm == Algorithm::kAuto && candidate.impossible.empty()) {
      candidate.impossible = candidate.collective.reason;
    }
    candidate.only_asked = WhyOnlyAsked(problem, candidate, measured);
    if (candidate.impossible.empty())
      candidate.predicted_us = PredictUs(problem, algorithm, candidate.collective.algorithm);
    candidates.push_back(std::move(candidate));
  }
  const bool fused_required = IsFusedOp(request.op) && request.on_unfused == OnUnfused::kError;
  Choice choice;
  const Candidate* chosen = nullptr;
  if (asked) {
    chosen = Find(candidates, request.algorithm);
    if (chosen == nullptr) {
      return FieldError("algorithm",
                        Text(OpName(request.op), " has no algorithm ", AlgorithmName(request.algorithm)));
    }
    if (!chosen->impossible.empty()) {
      return Refuse(Text(OpName(request.op), " cannot run by ", AlgorithmName(chosen->algorithm), ": ",
                         chosen->impossible),
                    "ALGORITHM_REFUSED", candidates);
    }
    if (fused_required && !Overlaps(chosen->algorithm)) {
      return Refuse(Text(AlgorithmName(chosen->algorithm), " was asked for while on_unfused is error"),
                    "UNFUSED_REFUSED", candidates);
    }
    choice.reason = "asked for";
    if (measured != nullptr && !chosen->only_asked.empty()) {
      return Refuse(Text(AlgorithmName(chosen->algorithm), ": ", chosen->only_asked), "ALGORITHM_REFUSED",
                    candidates);
    }
    if (measured != nullptr) {
      choice.reason = WhyMeasured(problem, *measured, chosen->predicted_us);
      choice.measured_us = measured->chosen->median_us;
    } else if (std::string beyond = BeyondBound(problem, chosen->algorithm); !beyond.empty()) {
      choice.reason += Text("; ", beyond);
    }
  } else if (IsFusedOp(request.op)) {
    chosen = Fastest(candidates, fused_required);
    if (chosen == nullptr) {
      return Refuse(
          Text("no ", fused_required ? "fused " : "", "algorithm of ", OpName(request.op), " can run"),
          fused_required ? "UNFUSED_REFUSED" : "ALGORITHM_REFUSED", candidates);
    }
    choice.reason = problem.world_size == 1
                        ? std::string("one rank: nothing to communicate")
                        : Text("predicted fastest: ", MicrosecondsText(chosen->predicted_us));
    if (fused_required) choice.reason += "; fused is required";
  } else {
    Preference preference = Prefer(problem, candidates);
    chosen = Find(candidates, preference.algorithm);
    if (!chosen->impossible.empty()) {
      return Refuse(Text("no algorithm of ", OpName(request.op), " can run"), "ALGORITHM_REFUSED",
                    candidates);
    }
    choice.reason = std::move(preference.reason);
  }
  choice.algorithm = chosen->algorithm;
  choice.collective = chosen->collective.algorithm;
  if (chosen->algorithm == Algorithm::kUnfused && problem.world_size > 1) {
    choice.reason += Text("; ", UnfusedText(problem, chosen->collective));
  }
  choice.predicted_us = chosen->predicted_us;
  for (const Candidate& candidate : candidates) {
    if (&candidate == chosen) continue;
    const TuningCandidate* time =
        measured == nullptr ? nullptr : CandidateOf(*measured->entry, candidate.algorithm);
    choice.refused.push_back({candidate.algorithm, WhyNotThis(problem, candidate, *chosen, asked, measured),
                              candidate.predicted_us, time == nullptr ? 0 : time->median_us});
  }
  // Nothing is lost where an overlapping algorithm could run and is slower.
  const bool by_time =
      !asked && std::any_of(candidates.begin(), candidates.end(), [](const Candidate& candidate) {
        return Overlaps(candidate.algorithm) && candidate.impossible.empty() && candidate.only_asked.empty();
      });
  if (IsFusedOp(request.op) && !Overlaps(chosen->algorithm) && !by_time &&
      request.on_unfused == OnUnfused::kWarn) {
    std::string warning = Text(OpName(request.op), " runs unfused");
    for (const RefusedAlgorithm& refused : choice.refused) {
      warning += Text("; ", AlgorithmName(refused.algorithm), ": ", refused.reason);
    }
    choice.warnings.push_back(std::move(warning));
  }
  return choice;
}

}  // namespace tandem::plan
