#include "kernels/cuda/fused/client_pushes.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>
#include <vector>

namespace tandem::cuda {
namespace {

// The kernel counts a push's words, and a row's bytes, in 32 bits.
constexpr int64_t kMaxWords = std::numeric_limits<uint32_t>::max();

// A view as rows of contiguous bytes, of any pitch; nothing if it is none.
struct ByteRows {
  int64_t count = 1, bytes = 0, pitch = 0;
};

// The dimensions from the one of the longest stride to that of the shortest.
std::vector<size_t> InOrder(const DeviceView& view) {
  std::vector<size_t> order(view.extent.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return view.stride[a] > view.stride[b]; });
  return order;
}

DeviceView Ordered(const DeviceView& view, const std::vector<size_t>& order) {
  DeviceView ordered = view;
  for (size_t d = 0; d < order.size(); ++d) {
    ordered.extent[d] = view.extent[order[d]];
    ordered.stride[d] = view.stride[order[d]];
  }
  return ordered;
}

std::optional<ByteRows> RowsOf(const DeviceView& view) {
  const auto element = static_cast<int64_t>(DTypeBytes(view.dtype));
  ByteRows rows;
  rows.bytes = element;
  size_t inner = view.extent.size();  // dimensions from here on lie together
  for (; inner > 0; --inner) {
    if (view.extent[inner - 1] != 1 && view.stride[inner - 1] * element != rows.bytes) break;
    rows.bytes *= view.extent[inner - 1];
  }
  rows.pitch = rows.bytes;
  int64_t expected = -1;
  for (; inner > 0; --inner) {
    const int64_t extent = view.extent[inner - 1], stride = view.stride[inner - 1] * element;
    if (extent == 1) continue;
    if (expected < 0) {
      rows.pitch = stride;
    } else if (stride != expected) {
      return std::nullopt;
    }
    rows.count *= extent;
    expected = stride * extent;
  }
  return rows;
}

Result<PushedRows> MakePush(const FusedPush& push) {
  const std::vector<size_t> order = InOrder(push.from);
  const auto from = RowsOf(Ordered(push.from, order)), to = RowsOf(Ordered(push.to, order));
  if (!from || !to) return Unimplemented("a shard whose rows lie at no common pitch");
  if (from->bytes * from->count == 0 || to->bytes * to->count == 0) return Unimplemented("an empty shard");
  PushedRows made = {};
  made.from = push.from.data;
  made.to = push.to.data;
  // The view with shorter rows decides how both are cut.
  made.row_bytes = std::min(from->bytes, to->bytes);
  if (from->bytes % made.row_bytes != 0 || to->bytes % made.row_bytes != 0 ||
      from->bytes * from->count != to->bytes * to->count) {
    return Unimplemented("a shard that lies in other rows at the peer");
  }
  made.rows = from->bytes * from->count / made.row_bytes;
  made.from_pitch = from->bytes == made.row_bytes ? from->pitch : made.row_bytes;
  made.to_pitch = to->bytes == made.row_bytes ? to->pitch : made.row_bytes;
  const bool broken = (from->bytes != made.row_bytes && from->count > 1 && from->pitch != from->bytes) ||
                      (to->bytes != made.row_bytes && to->count > 1 && to->pitch != to->bytes);
  if (broken) return Unimplemented("a shard that lies in other rows at the peer");
  const auto bits = static_cast<uint64_t>(made.row_bytes | made.from_pitch | made.to_pitch) |
                    reinterpret_cast<uintptr_t>(made.from) | reinterpret_cast<uintptr_t>(made.to);
  made.width = bits % 16 == 0 ? 16 : bits % 4 == 0 ? 4 : 1;
  const int64_t words = made.rows * made.row_bytes / made.width, row_words = made.row_bytes / made.width;
  if (words > kMaxWords || made.row_bytes > kMaxWords) return Unimplemented("a shard of over 4 GB");
  made.chunk_words = kPushChunk;
  const bool together = made.from_pitch == made.row_bytes && made.to_pitch == made.row_bytes;
  if (made.width == 16 && together) {
    made.whole = static_cast<uint32_t>(words / kPushChunk);
  } else if (made.width == 16) {
    // As many words as rows consist of.
    for (uint32_t chunk = kPushChunk; chunk > 0; chunk -= kPushStep) {
      if (row_words % chunk != 0) continue;
      made.chunk_words = chunk;
      made.whole = static_cast<uint32_t>(words / chunk);
      break;
    }
  }
  made.chunks = static_cast<uint32_t>((words + made.chunk_words - 1) / made.chunk_words);
  made.done = reinterpret_cast<uint64_t*>(push.done);
  return made;
}

}  // namespace

Result<ClientPushes> MakePushes(std::span<const FusedPush> pushes, uint32_t* counters) {
  if (pushes.size() > kMaxPushes) return Unimplemented("too many pushes");
  ClientPushes made = {};
  made.drawn = counters;
  int untold = 0;  // pushes behind the last word
  for (const FusedPush& each : pushes) {
    PushedRows& push = made.push[made.count];
    TANDEM_ASSIGN_OR_RETURN(push, MakePush(each));
    push.first_chunk = made.chunks;
    made.chunks += push.chunks;
    ++made.count;
    ++untold;
    if (push.done == nullptr) continue;
    const int first = made.count - untold;
    for (int i = first; i < made.count; ++i) {
      made.push[i].done = push.done;
      made.push[i].arrived = counters + 1 + first;
      made.push[i].awaited = made.chunks - made.push[first].first_chunk;
    }
    untold = 0;
  }
  if (untold != 0) return Unimplemented("a push that no word tells of");
  return made;
}

}  // namespace tandem::cuda
