#include "program/program.h"

#include <array>

#include "common/op_tables.h"
#include "program/step_fields.h"
#include "program/text.h"
#include "program/views.h"

namespace tandem::plan {
namespace {

#define TANDEM_WORK(Type, field, Case) #field,
constexpr std::string_view kStepKinds[] = {TANDEM_STEP_WORKS(TANDEM_WORK)};
#undef TANDEM_WORK
constexpr std::array<std::string_view, 7> kNcclKinds = {
    "all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "all_to_all", "barrier"};

std::string RefText(const Ref& ref) {
  switch (ref.space) {
    case Space::kOperand: return Text("op", ref.slot, "@", ref.rank, "+", ref.offset);
    case Space::kWorkspace: return Text("ws@", ref.rank, "+", ref.offset);
    case Space::kBulk: return Text("bulk@", ref.rank, "+", ref.offset);
  }
  return "?";
}

std::string ViewText(const View& view) {
  std::string text = Text(RefText(view.ref), " ", DTypeName(view.dtype), ShapeText(view.extent));
  if (!IsContiguous(view)) text += Text("/", ShapeText(view.stride));
  return text;
}

std::string WorkText(const NopStep&) { return ""; }
std::string WorkText(const CopyStep& copy) {
  return Text(ViewText(copy.src), " -> ", RefText(copy.dst.ref), "  ", BytesText(Bytes(copy.src)),
              copy.copy_engine ? " (ce)" : " (sm)");
}
std::string WorkText(const SignalStep& signal) {
  return Text("word ", signal.index, " of rank ", signal.to_rank);
}
std::string WorkText(const WaitStep& wait) {
  return Text("word ", wait.index, " from rank ", wait.from_rank);
}
std::string WorkText(const MatmulStep& matmul) {
  std::string text = Text(ViewText(matmul.a), " x ", ViewText(matmul.b), " -> ", ViewText(matmul.c));
  if (matmul.accumulate) text += " +C";
  if (matmul.has_scale_a || matmul.has_scale_b) text += " scaled";
  if (matmul.has_bias) text += " +bias";
  if (matmul.has_result_scale) text += " *result_scale";
  return text;
}
std::string WorkText(const ReduceStep& reduce) {
  std::string text;
  for (const View& source : reduce.sources) {
    if (!text.empty()) text += " + ";
    text += RefText(source.ref);
  }
  text += Text(" -> ", ViewText(reduce.dst), reduce.scale != 1.0f ? " averaged" : "");
  if (reduce.reduce_op != ReduceOp::kSum) text += Text(" by ", NameOf(reduce.reduce_op));
  if (reduce.has_bias) text += " +bias";
  if (reduce.has_result_scale) text += " *result_scale";
  return text;
}
std::string WorkText(const NormStep& norm) {
  std::string text = norm.has_residual
                         ? Text(RefText(norm.sum.ref), " + ", RefText(norm.residual.ref), " -> ",
                                RefText(norm.residual_out.ref), " -> ", ViewText(norm.out))
                         : Text(RefText(norm.sum.ref), " -> ", ViewText(norm.out));
  if (norm.has_quantized) text += Text(" -> ", ViewText(norm.quantized));
  if (norm.has_static_scale) text += Text(" /", RefText(norm.static_scale.ref));
  if (norm.has_scales) text += Text(", scales ", ViewText(norm.scales));
  if (norm.row_blocks > 0) text += Text(", in the sum's kernel, blocks a row: ", norm.row_blocks);
  return text;
}
std::string WorkText(const TransferGroupStep& group) {
  std::string text;
  for (const TransferPart& part : group.parts) {
    if (!text.empty()) text += ", ";
    text += part.send ? Text("send ", RefText(part.src.ref), " -> ", RefText(part.dst.ref), " ",
                             BytesText(Bytes(part.src)), " word ", part.index)
                      : Text("receive from ", part.peer, " word ", part.index);
  }
  return text;
}
std::string WorkText(const NcclStep& nccl) {
  std::string text(kNcclKinds[static_cast<size_t>(nccl.kind)]);
  if (nccl.kind == NcclKind::kBarrier) return text;
  return text + Text(" ", ViewText(nccl.in), " -> ", ViewText(nccl.out));
}
std::string WorkText(const CollectiveStep& collective) {
  return Text(OpName(collective.op), " by ", AlgorithmName(collective.algorithm), "  ",
              ViewText(collective.in), " -> ", ViewText(collective.out),
              collective.skinny ? "  (skinny)" : "");
}

void ListStep(const Step& step, const std::string& number, std::string* out) {
  *out += Text(number, " lane ", step.lane);
  for (size_t i = 0; i < step.deps.size(); ++i) *out += Text(i == 0 ? " after " : ",", step.deps[i]);
  const std::string work = std::visit([](const auto& kind) { return WorkText(kind); }, step.work);
  *out += Text("  ", StepKindName(step), work.empty() ? "" : "  ", work);
  if (!step.label.empty()) *out += Text("  # ", step.label);
  *out += "\n";
  if (const auto* collective = std::get_if<CollectiveStep>(&step.work)) {
    for (size_t i = 0; i < collective->expansion.size(); ++i) {
      ListStep(collective->expansion[i], Text("  ", number, ".", i), out);
    }
  }
}

}  // namespace

bool MeetsPeers(const Step& step) {
  return std::holds_alternative<SignalStep>(step.work) || std::holds_alternative<WaitStep>(step.work) ||
         std::holds_alternative<TransferGroupStep>(step.work) ||
         std::holds_alternative<NcclStep>(step.work) || std::holds_alternative<CollectiveStep>(step.work);
}

std::string_view StepKindName(const Step& step) { return kStepKinds[step.work.index()]; }

std::string ListProgram(const RankProgram& program) {
  std::string out = Text("rank ", program.rank, " of ", program.world_size, ": ", program.steps.size(),
                         " steps, ", program.lanes, " lanes, ", program.signal_count, " words, workspace ",
                         BytesText(program.workspace_bytes));
  if (program.bulk_bytes > 0) out += Text(", bulk ", BytesText(program.bulk_bytes));
  out += "\n";
  for (size_t i = 0; i < program.steps.size(); ++i) ListStep(program.steps[i], std::to_string(i), &out);
  return out;
}

}  // namespace tandem::plan
