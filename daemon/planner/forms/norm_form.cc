#include "daemon/planner/forms/norm_form.h"

#include <variant>

#include "program/norm_layout.h"
#include "program/text.h"

namespace tandem::plan {
namespace {

bool HaveOnePlace(const View& a, const View& b) {
  return a.ref == b.ref && a.dtype == b.dtype && Elements(a) == Elements(b);
}

bool HasBlockScales(const NormStep& norm) {
  return norm.has_scales && !norm.scales.extent.empty() && norm.scales.extent.back() > 1;
}

}  // namespace

int64_t RowWords(const NormStep& norm) {
  return norm.out.extent.back() * static_cast<int64_t>(DTypeBytes(norm.out.dtype)) / kNormWordBytes;
}

int64_t RowsOf(const NormStep& norm) {
  return norm.out.extent.back() == 0 ? 0 : Elements(norm.out) / norm.out.extent.back();
}

std::string WhyNormedApart(const Step& before, const NormStep& norm, int world_size) {
  const auto* sum = std::get_if<CollectiveStep>(&before.work);
  if (sum == nullptr || sum->op != Op::kAllReduce || !HaveOnePlace(sum->out, norm.sum))
    return "the step before it is no sum of these rows";
  if (!sum->dense || sum->blocks == 0) return "only a client's kernel of dense packets norms";
  if (sum->shots != 1) return "of a sum in two shots no block has whole rows";
  const int64_t row_bytes = norm.out.extent.back() * static_cast<int64_t>(DTypeBytes(norm.out.dtype));
  const int64_t most = MaxNormWords(world_size) * kNormWordBytes;
  if (row_bytes % kNormWordBytes != 0) return Text("rows of ", row_bytes, " bytes are no words of 16 bytes");
  if (row_bytes > most) return Text("rows of ", row_bytes, " bytes are above its bound of ", most);
  if (norm.has_quantized && norm.out.dtype == DType::kF32) return "rows of f32 are quantised apart";
  return {};
}

bool CanShareRows(const NormStep& norm, int row_blocks, int blocks, int world_size) {
  const int64_t words = RowWords(norm);
  if (norm.fixed_order || world_size > kMaxSharedRowRanks || row_blocks > kMaxNormRowBlocks) return false;
  if (RowsOf(norm) * row_blocks > blocks || words > kNormThreads * row_blocks) return false;
  if (!HasBlockScales(norm)) return true;
  // The columns of a scale lie within a thread block.
  const int64_t part = (words + row_blocks - 1) / row_blocks;
  const int64_t in_scale = kScaleBlock * static_cast<int64_t>(DTypeBytes(norm.out.dtype)) / kNormWordBytes;
  return part % in_scale == 0;
}

}  // namespace tandem::plan
