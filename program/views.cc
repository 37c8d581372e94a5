#include "program/views.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <utility>

namespace tandem::plan {

View Packed(const Ref& ref, DType dtype, std::vector<int64_t> shape) {
  View view;
  view.ref = ref;
  view.dtype = dtype;
  view.stride = ContiguousStrides(shape);
  view.extent = std::move(shape);
  return view;
}

View PackedLike(const View& view, const Ref& ref) { return Packed(ref, view.dtype, view.extent); }

View PackedInOrder(const View& view, const Ref& ref) {
  View out = PackedLike(view, ref);
  std::vector<size_t> order(view.extent.size());
  std::iota(order.begin(), order.end(), size_t{0});
  // Dimensions of one element may have any stride: they follow their outer neighbour.
  std::vector<int64_t> stride = view.stride;
  for (size_t d = 0; d < stride.size(); ++d) {
    if (view.extent[d] == 1) stride[d] = d > 0 ? stride[d - 1] : INT64_MAX;
  }
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return stride[a] > stride[b]; });
  int64_t next = 1;
  for (size_t i = order.size(); i-- > 0;) {
    out.stride[order[i]] = next;
    next *= view.extent[order[i]];
  }
  return out;
}

View Slice(const View& view, int dim, int64_t start, int64_t length) {
  View out = view;
  // An empty slice may start at the end; its offset must still lie within the buffer.
  if (length > 0) out.ref.offset += static_cast<uint64_t>(start * view.stride[dim]) * DTypeBytes(view.dtype);
  out.extent[dim] = length;
  return out;
}

View SplitDim(const View& view, int dim, int64_t outer) {
  View out = view;
  const int64_t inner = outer > 0 ? view.extent[dim] / outer : 0;
  out.extent[dim] = inner;
  out.extent.insert(out.extent.begin() + dim, outer);
  out.stride.insert(out.stride.begin() + dim, inner * view.stride[dim]);
  return out;
}

View MoveDim(const View& view, int from, int to) {
  View out = view;
  const int64_t extent = out.extent[from], stride = out.stride[from];
  out.extent.erase(out.extent.begin() + from);
  out.stride.erase(out.stride.begin() + from);
  out.extent.insert(out.extent.begin() + to, extent);
  out.stride.insert(out.stride.begin() + to, stride);
  return out;
}

View DropDim(const View& view, int dim) {
  View out = view;
  out.extent.erase(out.extent.begin() + dim);
  out.stride.erase(out.stride.begin() + dim);
  return out;
}

View Flatten(const View& view) { return Packed(view.ref, view.dtype, {Elements(view)}); }

View FirstElement(const View& view) { return Packed(view.ref, view.dtype, {}); }

bool HasOnePitch(const View& view) {
  int64_t expected = -1;
  for (size_t d = view.extent.size() - 1; d-- > 0;) {
    if (view.extent[d] == 1) continue;
    if (expected >= 0 && view.stride[d] != expected) return false;
    expected = view.stride[d] * view.extent[d];
  }
  return true;
}

bool LieAlike(const View& a, const View& b) {
  for (size_t d = 0; d < a.extent.size(); ++d) {
    if (a.extent[d] > 1 && a.stride[d] != b.stride[d]) return Elements(a) == 0;
  }
  return true;
}

int JoinedDims(std::span<const View* const> views) {
  const std::vector<int64_t>& extent = views[0]->extent;
  int dims = 0;
  size_t outer = 0;  // the last dimension that did not vanish
  for (size_t d = 0; d < extent.size(); ++d) {
    if (extent[d] == 1) continue;
    const bool joins = dims > 0 && std::all_of(views.begin(), views.end(), [&](const View* view) {
                         return view->stride[outer] == view->stride[d] * extent[d];
                       });
    if (!joins) ++dims;
    outer = d;
  }
  return dims;
}

View OnRank(View view, int rank) {
  view.ref.rank = static_cast<uint8_t>(rank);
  return view;
}

Range BalancedPart(int64_t total, int parts, int index) {
  const int64_t base = total / parts, larger = total % parts;
  return {base * index + std::min<int64_t>(index, larger), base + (index < larger ? 1 : 0)};
}

Range AlignedPart(int64_t total, int parts, int index, int64_t granule) {
  const int64_t part = (total / parts + (total % parts != 0) + granule - 1) / granule * granule;
  const int64_t begin = std::min(total, part * index);
  return {begin, std::min(total, begin + part) - begin};
}

}  // namespace tandem::plan
