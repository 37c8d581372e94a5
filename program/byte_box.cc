#include "program/byte_box.h"

#include <algorithm>
#include <span>
#include <string>

namespace tandem::plan {
namespace {

using Dims = std::span<const ByteBox::Dim>;

constexpr uint64_t kMaxSpan = uint64_t{1} << 62;

// The distance from the first to one past the last byte of the remaining dimensions.
uint64_t SpanOf(Dims dims, uint64_t run) {
  uint64_t span = run;
  for (const ByteBox::Dim& dim : dims) span += (dim.count - 1) * dim.stride;
  return span;
}

// Whether A (at `delta` from B's start, in bytes) meets B. Splits along the largest stride of either: both
// boxes then are rows, and only rows whose spans meet are looked into. Two boxes of one matrix have equal
// strides, where at most a few differences of row numbers are possible, so the usual cost is 2^dims and not
// the number of rows.
bool Overlap(int64_t delta, Dims a, uint64_t a_run, Dims b, uint64_t b_run, int64_t& budget) {
  int64_t a_span = static_cast<int64_t>(SpanOf(a, a_run));
  int64_t b_span = static_cast<int64_t>(SpanOf(b, b_run));
  if (delta >= b_span || -delta >= a_span) return false;
  if (a.empty() && b.empty()) return true;
  if (--budget < 0) return true;
  uint64_t a_stride = a.empty() ? 0 : a[0].stride;
  uint64_t b_stride = b.empty() ? 0 : b[0].stride;
  uint64_t stride = std::max(a_stride, b_stride);
  Dims a_rest = a_stride == stride ? a.subspan(1) : a;
  Dims b_rest = b_stride == stride ? b.subspan(1) : b;
  int64_t a_count = a_stride == stride ? static_cast<int64_t>(a[0].count) : 1;
  int64_t b_count = b_stride == stride ? static_cast<int64_t>(b[0].count) : 1;
  int64_t a_width = static_cast<int64_t>(SpanOf(a_rest, a_run));
  int64_t b_width = static_cast<int64_t>(SpanOf(b_rest, b_run));
  // Row i of A lies at delta + i * stride, row j of B at j * stride: only k = i - j counts. They can meet
  // only for -a_width < delta + k * stride < b_width.
  int64_t step = static_cast<int64_t>(stride);
  auto floor_div = [](int64_t x, int64_t y) { return x >= 0 ? x / y : -((-x + y - 1) / y); };
  int64_t low = floor_div(-a_width - delta, step) + 1;
  int64_t high = floor_div(b_width - delta - 1, step);
  low = std::max(low, -(b_count - 1));
  high = std::min(high, a_count - 1);
  for (int64_t k = low; k <= high; ++k) {
    if (Overlap(delta + k * step, a_rest, a_run, b_rest, b_run, budget)) return true;
  }
  return false;
}

}  // namespace

Result<ByteBox> BoxOf(const View& view) {
  if (view.extent.size() != view.stride.size()) return InvalidArgument("extent and stride differ in length");
  if (!IsValid(view.dtype)) return InvalidArgument("unknown dtype");
  const uint64_t item = DTypeBytes(view.dtype);
  if (view.ref.offset % item != 0) return InvalidArgument("offset is not a multiple of the element's size");
  if (view.ref.offset > kMaxSpan) return OutOfRange("offset overflows");
  ByteBox box;
  box.begin = box.end = view.ref.offset;
  std::array<ByteBox::Dim, 2 * kMaxBoxDims> all;
  int count = 0;
  uint64_t reach = 0;
  bool empty = false;
  for (size_t d = 0; d < view.extent.size(); ++d) {
    int64_t extent = view.extent[d], stride = view.stride[d];
    if (extent < 0 || stride < 0) return InvalidArgument("negative extent or stride");
    if (extent == 0) empty = true;
    if (extent <= 1) continue;
    if (stride == 0) {
      box.repeats = true;
      continue;
    }
    uint64_t bytes = 0;
    if (__builtin_mul_overflow(static_cast<uint64_t>(stride), item, &bytes))
      return OutOfRange("strides overflow");
    uint64_t length = 0;
    if (__builtin_mul_overflow(bytes, static_cast<uint64_t>(extent - 1), &length) ||
        __builtin_add_overflow(reach, length, &reach) || reach > kMaxSpan) {
      return OutOfRange("strides overflow");
    }
    if (count == static_cast<int>(all.size())) return InvalidArgument("too many dimensions");
    all[count++] = {static_cast<uint64_t>(extent), bytes};
  }
  if (empty) {
    box.repeats = false;  // there is no byte that could be reached twice
    return box;
  }
  // Smallest stride first: a dimension that continues the one before it merges with it.
  std::sort(all.begin(), all.begin() + count,
            [](const ByteBox::Dim& x, const ByteBox::Dim& y) { return x.stride < y.stride; });
  box.run = item;
  int used = 0;
  std::array<ByteBox::Dim, 2 * kMaxBoxDims> kept;
  uint64_t covered = item;  // the span of what is nested so far
  for (int d = 0; d < count; ++d) {
    if (all[d].stride < covered) box.repeats = true;
    covered += (all[d].count - 1) * all[d].stride;
    if (used == 0 && all[d].stride <= box.run) {
      // Continues the run, or overlaps it as in a sliding window: the same bytes either way.
      box.run += (all[d].count - 1) * all[d].stride;
    } else if (used > 0 && all[d].stride == kept[used - 1].count * kept[used - 1].stride) {
      kept[used - 1].count *= all[d].count;
    } else {
      kept[used++] = all[d];
    }
  }
  if (used > kMaxBoxDims) return InvalidArgument("too many dimensions that do not merge");
  box.rank = used;
  for (int d = 0; d < used; ++d) box.dims[d] = kept[used - 1 - d];
  box.end = box.begin + reach + item;
  return box;
}

bool Intersect(const ByteBox& a, const ByteBox& b) {
  if (a.empty() || b.empty() || a.begin >= b.end || b.begin >= a.end) return false;
  if (a.rank == 0 && b.rank == 0) return true;
  int64_t budget = 4'000'000;
  return Overlap(static_cast<int64_t>(a.begin) - static_cast<int64_t>(b.begin), Dims(a.dims.data(), a.rank),
                 a.run, Dims(b.dims.data(), b.rank), b.run, budget);
}

}  // namespace tandem::plan
