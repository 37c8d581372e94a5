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
  if (work == nullptr || work->handshake < 0 || work->handshake >= words.per_writer)
    return Unimplemented("a fused kernel whose ranks do not meet first");
  const int sms = args.blocks > 0 ? std::min(args.blocks, SmCount()) : SmCount();
  TANDEM_ASSIGN_OR_RETURN(FusedMatmul matmul,
                          MakeFusedMatmul(args, memory.fused, ClientFusedVariants(), sms));
  matmul.launch_number = 1;
  matmul.guard_word = memory.cancelled;
  matmul.guard_value = 1;
  ClientFusedKernel kernel = {};
  TANDEM_ASSIGN_OR_RETURN(kernel.variant, FindFusedVariant(matmul));
  TANDEM_ASSIGN_OR_RETURN(static_cast<FusedMatmulParams&>(kernel.params),
                          MakeFusedParams(matmul, *kernel.variant));
  TANDEM_ASSIGN_OR_RETURN(kernel.params.pushes, MakePushes(work->pushes, memory.pushed));
  kernel.ctas = matmul.tiling.ctas;

  HandshakeLaunch& handshake = kernel.handshake;
  handshake.rank = args.rank;
  handshake.world = args.world_size;
  for (int rank = 0; rank < args.world_size; ++rank) {
    const auto at = static_cast<size_t>(rank), own = static_cast<size_t>(args.rank);
    handshake.reported[rank] = words.handshake[at] + args.rank * words.per_writer + work->handshake;
    handshake.awaited[rank] = words.handshake[own] + rank * words.per_writer + work->handshake;
  }
  handshake.words = words.fused[static_cast<size_t>(args.rank)];
  handshake.word_count = args.world_size * words.per_writer;
  handshake.cancelled = memory.cancelled;
  return kernel;
}

void SetGroupState(ClientFusedKernel& kernel, const GroupDeviceState& group_state) {
  kernel.handshake.group_state = group_state;
  // The fused kernel's words lie apart, and tell which peer it waits for.
  kernel.params.group_state = group_state;
  kernel.params.group_state.own_words = kernel.handshake.words;
}

Status LaunchClientFused(const ClientFusedKernel& kernel, CUstream_st* stream) {
  TANDEM_RETURN_IF_ERROR(LaunchDependent("HandshakeWithPeers", HandshakeKernel(), 1, kEntryThreads, 0,
                                         &kernel.handshake, stream));
  return LaunchFused(kernel.params, *kernel.variant, kernel.ctas, stream);
}

Status LoadClientFused(const ClientFusedKernel& kernel) {
  TANDEM_RETURN_IF_ERROR(LoadKernel("HandshakeWithPeers", HandshakeKernel()));
  return LoadFusedKernel(*kernel.variant);
}

}  // namespace tandem::cuda
