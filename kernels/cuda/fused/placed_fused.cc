#include "kernels/cuda/fused/placed_fused.h"

#include <algorithm>
#include <optional>

#include "kernels/cuda/device/dependent_launch.h"
#include "kernels/cuda/device/launch_status.h"
#include "kernels/cuda/fused/fused_plan.h"

namespace tandem::cuda {
namespace {

// A view as rows of contiguous bytes, of any pitch; nothing if it is none.
struct ByteRows {
  int64_t count = 1, bytes = 0, pitch = 0;
};

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
  const auto from = RowsOf(push.from), to = RowsOf(push.to);
  if (!from || !to) return Unimplemented("a shard whose rows lie at no common pitch");
  PushedRows made = {};
  made.from = push.from.data;
  made.to = push.to.data;
  // The one of shorter rows tells how both are cut.
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
  made.done = reinterpret_cast<uint64_t*>(push.done);
  return made;
}

}  // namespace

Result<PlacedFusedKernel> MakePlacedFused(const CollectiveArgs& args, const PlacedFusedWords& words,
                                          const PlacedFusedMemory& memory) {
  if (args.meeting < 0 || args.meeting >= words.per_writer)
    return Unimplemented("a fused kernel whose ranks do not meet first");
  if (args.pushes.size() > kMaxPushes) return Unimplemented("too many pushes");
  const int sms = args.blocks > 0 ? std::min(args.blocks, SmCount()) : SmCount();
  TANDEM_ASSIGN_OR_RETURN(FusedMatmul matmul,
                          MakeFusedMatmul(args, memory.fused, PlacedFusedVariants(), sms));
  matmul.epoch = 1;
  matmul.guard_word = memory.cancelled;
  matmul.guard_value = 1;
  PlacedFusedKernel kernel = {};
  TANDEM_ASSIGN_OR_RETURN(kernel.variant, FindFusedVariant(matmul));
  TANDEM_ASSIGN_OR_RETURN(kernel.params, MakeFusedParams(matmul, *kernel.variant));
  kernel.ctas = matmul.tiling.ctas;

  MeetingLaunch& meeting = kernel.meeting;
  meeting.rank = args.rank;
  meeting.world = args.world_size;
  for (int rank = 0; rank < args.world_size; ++rank) {
    const auto at = static_cast<size_t>(rank), own = static_cast<size_t>(args.rank);
    meeting.told[rank] = words.meeting[at] + args.rank * words.per_writer + args.meeting;
    meeting.awaited[rank] = words.meeting[own] + rank * words.per_writer + args.meeting;
  }
  meeting.words = words.fused[static_cast<size_t>(args.rank)];
  meeting.word_count = args.world_size * words.per_writer;
  meeting.cancelled = memory.cancelled;

  PushLaunch& push = kernel.push;
  for (const FusedPush& each : args.pushes) {
    TANDEM_ASSIGN_OR_RETURN(push.push[push.pushes], MakePush(each));
    ++push.pushes;
  }
  push.cancelled = memory.cancelled;
  push.arrived = memory.pushed;
  return kernel;
}

void SetFrame(PlacedFusedKernel& kernel, const LaunchFrame& frame) {
  kernel.meeting.frame = frame;
  // The fused kernel's words lie apart, and tell which peer it waits for.
  kernel.params.frame = frame;
  kernel.params.frame.own_words = kernel.meeting.words;
}

Status LaunchPlacedFused(const PlacedFusedKernel& kernel, CUstream_st* stream) {
  TANDEM_RETURN_IF_ERROR(
      LaunchDependent("MeetPeers", MeetingKernel(), 1, kEntryThreads, 0, &kernel.meeting, stream));
  if (kernel.push.pushes == 0) return LaunchFused(kernel.params, *kernel.variant, kernel.ctas, stream);
  TANDEM_RETURN_IF_ERROR(
      LaunchDependent("PushRows", PushKernel(), kPushBlocks, kPushThreads, 0, &kernel.push, stream));
  TANDEM_ASSIGN_OR_RETURN(const int ctas, FusedCtas(kernel.params, *kernel.variant, kernel.ctas));
  return LaunchDependent("FusedMatmul", kernel.variant->kernel, static_cast<unsigned>(ctas), kFusedThreads,
                         kernel.variant->shared_bytes, &kernel.params, stream);
}

Status LoadPlacedFused(const PlacedFusedKernel& kernel) {
  TANDEM_RETURN_IF_ERROR(LoadKernel("MeetPeers", MeetingKernel()));
  TANDEM_RETURN_IF_ERROR(LoadKernel("PushRows", PushKernel()));
  return LoadFusedKernel(*kernel.variant);
}

}  // namespace tandem::cuda
