#include "client/lib/base/slot_overlap.h"

#include <algorithm>
#include <utility>

namespace tandem::client {
namespace {

// The slot whose memory `slot` is.
int RootOf(const OpRequest& request, int slot) {
  const int target = request.operands[static_cast<size_t>(slot)].alias_of;
  return target >= 0 && target < slot ? target : slot;
}

std::vector<bool> WrittenSlots(const OpRequest& request) {
  std::vector<bool> written(request.operands.size());
  for (size_t slot = 0; slot < written.size(); ++slot) {
    if (!IsOutput(request.operands[slot].role)) continue;
    written[slot] = true;
    written[static_cast<size_t>(RootOf(request, static_cast<int>(slot)))] = true;
  }
  for (const Transfer& transfer : request.transfers) {
    const bool known = transfer.slot >= 0 && static_cast<size_t>(transfer.slot) < written.size();
    if (!transfer.send && known) written[static_cast<size_t>(transfer.slot)] = true;
  }
  return written;
}

}  // namespace

SlotOverlap::SlotOverlap(const OpRequest& request) {
  const int slots = std::min(static_cast<int>(request.operands.size()), kMaxBindings);
  const std::vector<bool> written = WrittenSlots(request);
  for (int slot = 0; slot < slots; ++slot) shapes_.push_back(ShapeOf(request, slot));
  for (int second = 1; second < slots; ++second) {
    for (int first = 0; first < second; ++first) {
      const bool writes = written[static_cast<size_t>(first)] || written[static_cast<size_t>(second)];
      if (writes && RootOf(request, first) != RootOf(request, second)) pairs_.push_back({first, second});
    }
  }
}

SlotOverlap::Shape SlotOverlap::ShapeOf(const OpRequest& request, int slot) {
  const TensorSpec& spec = request.operands[static_cast<size_t>(slot)].spec;
  const Result<int64_t> bound = BoundBytes(request, slot);
  Shape shape{.span = bound.ok() ? static_cast<uint64_t>(*bound) : 0};
  if (spec.strides.size() != spec.shape.size()) return shape;  // contiguous
  std::vector<std::pair<int64_t, int64_t>> dims;               // stride and extent, the innermost first
  for (size_t i = 0; i < spec.shape.size(); ++i) {
    if (spec.shape[i] > 1) dims.emplace_back(spec.strides[i], spec.shape[i]);
  }
  std::sort(dims.begin(), dims.end());
  int64_t width = 1;
  size_t inner = 0;
  while (inner < dims.size() && dims[inner].first == width) width *= dims[inner++].second;
  if (inner == dims.size()) return shape;
  const int64_t pitch = dims[inner].first;
  if (pitch <= width) return shape;  // also strides of 0, which tensors without elements may have
  for (size_t i = inner; i < dims.size(); ++i) {
    if (dims[i].first % pitch != 0) return shape;
  }
  const auto element = static_cast<uint64_t>(DTypeBytes(spec.dtype));
  shape.pitch = static_cast<uint64_t>(pitch) * element;
  shape.width = static_cast<uint64_t>(width) * element;
  return shape;
}

bool SlotOverlap::Shares(const Pair& pair, const SlotAddresses& addresses) const {
  const Shape& a = shapes_[static_cast<size_t>(pair.first)];
  const Shape& b = shapes_[static_cast<size_t>(pair.second)];
  const uintptr_t at_a = addresses[static_cast<size_t>(pair.first)];
  const uintptr_t at_b = addresses[static_cast<size_t>(pair.second)];
  if (at_a == 0 || at_b == 0 || a.span == 0 || b.span == 0) return false;
  if (at_a >= at_b ? at_a - at_b >= b.span : at_b - at_a >= a.span) return false;
  if (a.pitch == 0 || a.pitch != b.pitch) return true;
  // Rows of one matrix: does b's window of columns keep out of a's?
  const uint64_t apart =
      at_b >= at_a ? (at_b - at_a) % a.pitch : (a.pitch - (at_a - at_b) % a.pitch) % a.pitch;
  return apart < a.width || a.pitch - apart < b.width;
}

std::optional<SlotOverlap::Pair> SlotOverlap::Find(const SlotAddresses& addresses) const {
  for (const Pair& pair : pairs_) {
    if (Shares(pair, addresses)) return pair;
  }
  return std::nullopt;
}

}  // namespace tandem::client
