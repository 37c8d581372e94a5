#include "daemon/planner/forms/row_products.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace tandem::plan {
namespace {

// The work enqueued behind a wait stays well below the room of a stalled stream (kMaxChunkSignals), for 8
// shards too.
constexpr int64_t kMaxProducts = 64;

int LeadingDims(const MatmulStep& step) { return static_cast<int>(step.a.extent.size()) - 1; }

bool HasRowScales(const MatmulStep& step) {
  return step.has_scale_a && static_cast<int>(step.scale_a.extent.size()) >= LeadingDims(step);
}

MatmulStep AtIndex(const MatmulStep& step, int dim, int64_t index) {
  const auto row = [&](const View& view) { return DropDim(Slice(view, dim, index, 1), dim); };
  MatmulStep cut = step;
  cut.a = row(step.a);
  cut.c = row(step.c);
  if (HasRowScales(step)) cut.scale_a = row(step.scale_a);
  return cut;
}

// Where to cut next: the dimension of fewest indexes that leaves matrices, or of fewest at all.
std::optional<int> DimToCut(const MatmulStep& step) {
  std::vector<int> dims;
  for (int d = 0; d < LeadingDims(step); ++d) {
    if (step.a.extent[d] > 1) dims.push_back(d);
  }
  if (dims.size() < 2) return std::nullopt;  // one is a matrix's
  std::stable_sort(dims.begin(), dims.end(),
                   [&](int x, int y) { return step.a.extent[x] < step.a.extent[y]; });
  const auto leaves_matrices = [&](int dim) { return IsOfMatrices(AtIndex(step, dim, 0)); };
  const auto found = std::find_if(dims.begin(), dims.end(), leaves_matrices);
  return found != dims.end() ? *found : dims[0];
}

}  // namespace

bool IsOfMatrices(const MatmulStep& step) {
  if (!HasOnePitch(step.a) || !HasOnePitch(step.c)) return false;
  // Those by blocks are arranged ahead of the product.
  return !HasRowScales(step) || step.block_scales || IsContiguous(step.scale_a);
}

std::vector<MatmulStep> RowProducts(const MatmulStep& step) {
  std::vector<MatmulStep> products = {step};
  while (!IsOfMatrices(products[0])) {  // all lie alike
    const std::optional<int> dim = DimToCut(products[0]);
    if (!dim) break;
    const int64_t count = products[0].a.extent[static_cast<size_t>(*dim)];
    if (count > kMaxProducts / static_cast<int64_t>(products.size())) return {step};
    std::vector<MatmulStep> cut;
    for (const MatmulStep& product : products) {
      for (int64_t i = 0; i < count; ++i) cut.push_back(AtIndex(product, *dim, i));
    }
    products = std::move(cut);
  }
  return products;
}

}  // namespace tandem::plan
