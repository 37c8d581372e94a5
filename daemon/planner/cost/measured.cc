#include "daemon/planner/cost/measured.h"

#include <algorithm>
#include <array>

#include "program/skinny_layout.h"
#include "program/text.h"

namespace tandem::plan {
namespace {

// Whether a time would decide.
bool AsksTheTable(const Problem& problem) {
  const OpRequest& request = *problem.request;
  const GroupContext& group = *problem.group;
  if (group.tuning == nullptr || group.gpu_model.empty() || problem.world_size < 2 || !IsTunable(request.op))
    return false;
  // A request that sets some of it has a reason that no table knows.
  return request.algorithm == Algorithm::kAuto && request.steps == 0 && request.lanes == 0;
}

bool HasSymmetric(const OpRequest& request) {
  return std::any_of(request.operands.begin(), request.operands.end(),
                     [](const Operand& o) { return o.symmetric; });
}

// The operands that a product's time may depend on and often does not, so that a product measured with other
// operands counts too.
struct Placing {
  bool symmetric = false;
  bool b_rows = false;  // B's rows are contiguous, not its columns
};
Placing PlacingOf(const Problem& problem) {
  const Slots& slots = problem.slots;
  return {HasSymmetric(*problem.request), slots.a >= 0 && RunsAlongN(problem.Slot(0, slots.b[0]))};
}

// In the order in which a product's entry is looked for.
std::array<Placing, 4> Nearest(Placing own) {
  return {own, Placing{false, own.b_rows}, Placing{own.symmetric, !own.b_rows}, Placing{false, !own.b_rows}};
}

// The problem's key, were its operands placed so.
TuningKey KeyOf(const Problem& problem, Placing placing) {
  const Slots& slots = problem.slots;
  const OpRequest& request = *problem.request;
  TuningKey key;
  key.gpu = problem.group->gpu_model;
  key.topology_class = TopologyClassName(problem.topology_class);
  key.world_size = problem.world_size;
  key.op = request.op;
  const auto type = [&](int slot) { return DTypeName(problem.operand(slot).spec.dtype); };
  const auto trait = [&key](std::string_view word) {
    key.traits += Text(key.traits.empty() ? "" : " ", word);
  };
  if (slots.a >= 0) {
    key.types = Text(type(slots.a), " x ", type(slots.b[0]), " -> ", type(slots.c[0]));
    key.scales = ScaleModeName(problem.scale_mode);
    if (problem.last_dim()) trait("last_dim");
    if (slots.b.size() > 1) trait(Text("b", slots.b.size()));
    if (slots.gathered_a >= 0) trait("gathered_a");
    if (IsFloat8(problem.operand(slots.a).spec.dtype) && !request.fast_accumulation) trait("exact");
    if (placing.b_rows) trait("b_rows");
  } else {
    key.types = Text(type(slots.input), " -> ", type(slots.output));
    if (problem.operand(slots.output).alias_of >= 0) trait("in_place");
  }
  if (request.wire == WireType::kF32) trait("wire_f32");
  if (placing.symmetric) trait("symmetric");
  if (problem.in_client()) trait("client");
  return key;
}

// The entry for it, or null; of a request that has set something itself too.
const TuningEntry* Find(const Problem& problem, Placing placing) {
  return problem.group->tuning->Find(KeyOf(problem, placing), TuningShapeOf(problem));
}

}  // namespace

bool IsTunable(Op op) {
  // send_receive has one algorithm, and every rank its own request; a barrier's choice is not worth a table.
  return AlgorithmsOf(op).size() > 1 && op != Op::kBarrier;
}

TuningKey TuningKeyOf(const Problem& problem) { return KeyOf(problem, PlacingOf(problem)); }

TuningShape TuningShapeOf(const Problem& problem) {
  if (problem.slots.a >= 0) return {problem.rows, problem.n, problem.k};
  return {static_cast<int64_t>(problem.message_bytes)};
}

const TuningEntry* MeasuredFor(const Problem& problem) {
  if (!AsksTheTable(problem)) return nullptr;
  const Placing own = PlacingOf(problem);
  if (problem.slots.a < 0) return Find(problem, own);
  // Symmetric operands and B's layout matter less to a product than the choice of algorithm. So a
  // neighbour's entry is better than none. But fp8 with contiguous rows of B is transposed for each product,
  // and fused kernels do not take it.
  const bool either_b = !IsFloat8(problem.operand(problem.slots.a).spec.dtype);
  for (const Placing placing : Nearest(own)) {
    if (placing.b_rows != own.b_rows && !either_b) continue;
    if (const TuningEntry* entry = Find(problem, placing)) return entry;
  }
  return nullptr;
}

std::optional<TuningEntry> Unmeasured(std::span<const OpRequest> requests, const GroupContext& group) {
  const Result<Problem> problem = MakeProblem(requests, group);
  if (!problem.ok() || !AsksTheTable(*problem) || Find(*problem, PlacingOf(*problem)) != nullptr)
    return std::nullopt;
  TuningEntry wanted;
  wanted.key = TuningKeyOf(*problem);
  wanted.shape = TuningShapeOf(*problem);
  for (int64_t extent : wanted.shape) {
    if (extent <= 0) return std::nullopt;  // nothing to do takes no time
  }
  return wanted;
}

const TuningCandidate* CandidateOf(const TuningEntry& entry, Algorithm algorithm) {
  for (const TuningCandidate& candidate : entry.candidates) {
    if (candidate.algorithm == algorithm) return &candidate;
  }
  return nullptr;
}

std::string WhyMeasured(const Problem& problem, const Measured& measured, double predicted_us) {
  const TuningEntry& entry = *measured.entry;
  std::string text =
      Text("measured fastest", measured.chosen == &entry.candidates[0] ? "" : " of those that can run", ": ",
           MicrosecondsText(measured.chosen->median_us), " (predicted ", MicrosecondsText(predicted_us), ")");
  if (entry.shape != TuningShapeOf(problem))
    text += Text(" at ", TuningShapeText(entry.shape), ", the nearest measured");
  const Placing own = PlacingOf(problem);
  for (const Placing other : Nearest(own)) {
    if (entry.key.traits != KeyOf(problem, other).traits) continue;
    if (other.b_rows != own.b_rows)
      text += Text(", with B's ", other.b_rows ? "rows" : "columns", " contiguous");
    if (other.symmetric != own.symmetric) text += ", without symmetric operands";
    break;
  }
  text += Text("; ", measured.chosen->samples, " rounds of ", entry.measured_at);
  if (!entry.source.empty()) text += Text(" in ", entry.source);
  return text;
}

std::string WhyNotMeasured(const Measured& measured, Algorithm algorithm) {
  const TuningCandidate* candidate = CandidateOf(*measured.entry, algorithm);
  if (candidate == nullptr) return "not among what was measured";
  if (candidate->samples == 0) return Text("not measured: ", candidate->refused);
  return Text("measured ", MicrosecondsText(candidate->median_us));
}

}  // namespace tandem::plan
