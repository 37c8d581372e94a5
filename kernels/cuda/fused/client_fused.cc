#include "kernels/cuda/fused/client_fused.h"

#include <algorithm>

#include "kernels/cuda/device/dependent_launch.h"
#include "kernels/cuda/device/launch_status.h"
#include "kernels/cuda/fused/client_pushes.h"
#include "kernels/cuda/fused/fused_plan.h"

namespace tandem::cuda {

Result<ClientFusedKernel> MakeClientFused(const CollectiveArgs& args, const ClientFusedWords& words,
                                          const ClientFusedMemory& memory) {
  const auto* work = args.As<FusedArgs>();
  if (work == nullptr || work->meeting < 0 || work->meeting >= words.per_writer)
    return Unimplemented("a fused kernel whose ranks do not meet first");
  const int sms = args.blocks > 0 ? std::min(args.blocks, SmCount()) : SmCount();
  TANDEM_ASSIGN_OR_RETURN(FusedMatmul matmul,
                          MakeFusedMatmul(args, memory.fused, ClientFusedVariants(), sms));
  matmul.epoch = 1;
  matmul.guard_word = memory.cancelled;
  matmul.guard_value = 1;
  ClientFusedKernel kernel = {};
  TANDEM_ASSIGN_OR_RETURN(kernel.variant, FindFusedVariant(matmul));
  TANDEM_ASSIGN_OR_RETURN(static_cast<FusedMatmulParams&>(kernel.params),
                          MakeFusedParams(matmul, *kernel.variant));
  TANDEM_ASSIGN_OR_RETURN(kernel.params.pushes, MakePushes(work->pushes, memory.pushed));
  kernel.ctas = matmul.tiling.ctas;

  MeetingLaunch& meeting = kernel.meeting;
  meeting.rank = args.rank;
  meeting.world = args.world_size;
  for (int rank = 0; rank < args.world_size; ++rank) {
    const auto at = static_cast<size_t>(rank), own = static_cast<size_t>(args.rank);
    meeting.told[rank] = words.meeting[at] + args.rank * words.per_writer + work->meeting;
    meeting.awaited[rank] = words.meeting[own] + rank * words.per_writer + work->meeting;
  }
  meeting.words = words.fused[static_cast<size_t>(args.rank)];
  meeting.word_count = args.world_size * words.per_writer;
  meeting.cancelled = memory.cancelled;
  return kernel;
}

void SetFrame(ClientFusedKernel& kernel, const LaunchFrame& frame) {
  kernel.meeting.frame = frame;
  // The fused kernel's words lie apart, and tell which peer it waits for.
  kernel.params.frame = frame;
  kernel.params.frame.own_words = kernel.meeting.words;
}

Status LaunchClientFused(const ClientFusedKernel& kernel, CUstream_st* stream) {
  TANDEM_RETURN_IF_ERROR(
      LaunchDependent("MeetPeers", MeetingKernel(), 1, kEntryThreads, 0, &kernel.meeting, stream));
  return LaunchFused(kernel.params, *kernel.variant, kernel.ctas, stream);
}

Status LoadClientFused(const ClientFusedKernel& kernel) {
  TANDEM_RETURN_IF_ERROR(LoadKernel("MeetPeers", MeetingKernel()));
  return LoadFusedKernel(*kernel.variant);
}

}  // namespace tandem::cuda
