#include "daemon/planner/forms/skinny_form.h"

#include <utility>

#include "daemon/planner/problem/fused_checks.h"
#include "program/text.h"

namespace tandem::plan {
namespace {

SkinnyKind SkinnyKindOf(Op op) {
  if (op == Op::kAllGatherMatmul) return SkinnyKind::kGather;
  return op == Op::kMatmulReduceScatter ? SkinnyKind::kScatter : SkinnyKind::kAllReduce;
}

// The types that the kernel is compiled for: see kernels/cuda/skinny/skinny_matmul.cc.
std::string WhyNotTypes(DType a, DType b, DType c) {
  if ((a == DType::kBf16 || a == DType::kF16) && b == a && c == a) return {};
  if (a == DType::kF8E4M3 && b == a && c == DType::kBf16) return {};
  return Text("no skinny kernel for ", DTypeName(a), " and ", DTypeName(b), " to ", DTypeName(c));
}

}  // namespace

std::optional<SkinnyLayout> SkinnyFor(const Problem& problem, std::string* why) {
  const auto none = [why](std::string reason) {
    if (why != nullptr) *why = std::move(reason);
    return std::nullopt;
  };
  const Slots& slots = problem.slots;
  if (slots.b.size() != 1) return none("several B");
  if (slots.gathered_a >= 0) return none("the gathered A is asked for");
  if (IsBlockWise(problem.scale_mode)) return none("no skinny kernel for factors by blocks");
  if (problem.one_scale_travels()) return none("each shard of A has one scale of its own");
  const View a = problem.Slot(0, slots.a), b = problem.Slot(0, slots.b[0]), c = problem.Slot(0, slots.c[0]);
  if (std::string types = WhyNotTypes(a.dtype, b.dtype, c.dtype); !types.empty())
    return none(std::move(types));
  const std::optional<SkinnyLayout> layout = MakeSkinnyLayout(
      SkinnyKindOf(problem.request->op), problem.world_size, problem.rows, problem.n, problem.k,
      static_cast<int>(DTypeBytes(a.dtype)), static_cast<int>(DTypeBytes(c.dtype)), RunsAlongN(b),
      MaxSkinnyCtas(problem.group->kernel_sms));
  if (!layout) return none("more tiles than the skinny kernel computes at once");
  if (layout->area_bytes() > static_cast<int64_t>(kMaxWorkspaceBytes)) {
    return none(Text("its exchange area of ", BytesText(static_cast<uint64_t>(layout->area_bytes())),
                     " does not fit into workspace"));
  }
  if (layout->words() > kSignalsPerWriter)
    return none(Text("it needs ", layout->words(), " words of each rank"));
  return layout;
}

}  // namespace tandem::plan
