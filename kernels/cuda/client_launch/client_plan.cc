#include "kernels/cuda/client_launch/client_plan.h"

#include "kernels/cuda/collectives/collective_plan.h"
#include "kernels/cuda/device/norm_launch.h"
#include "program/packet_layout.h"
#include "program/program.h"

namespace tandem::cuda {
namespace {

bool LiesInHalf(const void* address, const ClientHalves& halves) {
  const auto at = reinterpret_cast<uintptr_t>(address);
  for (const std::byte* half : halves.workspace) {
    const auto begin = reinterpret_cast<uintptr_t>(half);
    if (half != nullptr && at >= begin && at < begin + halves.half_bytes) return true;
  }
  return false;
}

// What all kernels with counters for each block ask for.
Status CheckBlocks(const CollectiveArgs& args, const ClientHalves& halves) {
  if (!TakesCollective(args)) return Unimplemented("no client-placed kernel takes this collective");
  if (args.blocks > kLaunchCounters) return Unimplemented("a client-placed kernel of too many blocks");
  if (halves.half_bytes % 16 != 0) return InvalidArgument("halves that are no multiple of 16 bytes");
  return Status::Ok();
}

Result<ClientKernelLaunch> Make(const PhasesArgs&, const CollectiveArgs& args, const ClientHalves& halves,
                                const ClientFusedPlaces*) {
  TANDEM_RETURN_IF_ERROR(CheckBlocks(args, halves));
  ClientPhasesLaunch launch = {};
  TANDEM_ASSIGN_OR_RETURN(launch.phases, MakePhasesLaunch(args));
  launch.half_bytes = static_cast<int64_t>(halves.half_bytes);
  for (size_t i = 0; i < kMaxPointers; ++i) {
    if (launch.phases.pointer[i] != nullptr && LiesInHalf(launch.phases.pointer[i], halves))
      launch.halved[i / 32] |= 1u << (i % 32);
  }
  return ClientKernelLaunch(launch);
}

Result<ClientKernelLaunch> Make(const PacketsArgs& work, const CollectiveArgs& args,
                                const ClientHalves& halves, const ClientFusedPlaces*) {
  TANDEM_RETURN_IF_ERROR(CheckBlocks(args, halves));
  ClientPacketsLaunch launch = {};
  TANDEM_ASSIGN_OR_RETURN(launch.packets, MakePacketsLaunch(args));
  launch.half_packets = static_cast<int64_t>(work.packet_bytes / sizeof(Packet));
  launch.dense = work.dense;
  if (work.dense) {
    const DensePacketLayout layout{.half_bytes = plan::kDensePacketHalfBytes,
                                   .world = args.world_size,
                                   .shots = work.exchange == plan::PacketExchange::kTwoShot ? 2 : 1};
    launch.dense_offset = 2 * launch.half_packets;
    launch.dense_half = static_cast<int64_t>(layout.half_bytes / sizeof(Packet));
    launch.dense_slot = static_cast<int64_t>(layout.slot_packets());
  }
  for (size_t rank = 0; rank < work.pieces.size(); ++rank) {
    if (LiesInHalf(launch.packets.source[rank], halves) ||
        LiesInHalf(launch.packets.destination[rank], halves)) {
      return Unimplemented("packets between halves of workspace");
    }
  }
  return ClientKernelLaunch(launch);
}

Result<ClientKernelLaunch> Make(const SkinnyArgs& work, const CollectiveArgs& args,
                                const ClientHalves& halves, const ClientFusedPlaces*) {
  for (const DeviceView& area : work.areas) {
    if (!LiesInHalf(area.data, halves)) return InvalidArgument("an exchange area outside the halves");
  }
  TANDEM_ASSIGN_OR_RETURN(const ClientSkinnyKernel kernel, MakeClientSkinny(args, halves.half_bytes));
  return ClientKernelLaunch(kernel);
}

Result<ClientKernelLaunch> Make(const FusedArgs&, const CollectiveArgs& args, const ClientHalves&,
                                const ClientFusedPlaces* fused) {
  if (fused == nullptr) return Unimplemented("no client-placed kernel takes this collective");
  TANDEM_ASSIGN_OR_RETURN(const ClientFusedKernel kernel, MakeClientFused(args, fused->words, fused->memory));
  return ClientKernelLaunch(kernel);
}

void SetOne(ClientPhasesLaunch& kernel, const GroupDeviceState& group_state) {
  kernel.group_state = group_state;
}
void SetOne(ClientPacketsLaunch& kernel, const GroupDeviceState& group_state) {
  kernel.group_state = group_state;
}
void SetOne(ClientNormLaunch& kernel, const GroupDeviceState& group_state) {
  kernel.sum.group_state = group_state;
}
void SetOne(ClientSkinnyKernel& kernel, const GroupDeviceState& group_state) {
  kernel.launch.group_state = group_state;
}
void SetOne(ClientFusedKernel& kernel, const GroupDeviceState& group_state) {
  SetGroupState(kernel, group_state);
}

Status LoadOne(const ClientPhasesLaunch& kernel) { return LoadClientPhases(kernel); }
Status LoadOne(const ClientPacketsLaunch& kernel) { return LoadClientPackets(kernel); }
Status LoadOne(const ClientNormLaunch& kernel) { return LoadClientNorm(kernel); }
Status LoadOne(const ClientSkinnyKernel& kernel) { return LoadClientSkinny(kernel); }
Status LoadOne(const ClientFusedKernel& kernel) { return LoadClientFused(kernel); }

Status LaunchOne(const ClientPhasesLaunch& kernel, CUstream_st* stream) {
  return LaunchClientPhases(kernel, stream);
}
Status LaunchOne(const ClientPacketsLaunch& kernel, CUstream_st* stream) {
  return LaunchClientPackets(kernel, stream);
}
Status LaunchOne(const ClientNormLaunch& kernel, CUstream_st* stream) {
  return LaunchClientNorm(kernel, stream);
}
Status LaunchOne(const ClientSkinnyKernel& kernel, CUstream_st* stream) {
  return LaunchClientSkinny(kernel, stream);
}
Status LaunchOne(const ClientFusedKernel& kernel, CUstream_st* stream) {
  return LaunchClientFused(kernel, stream);
}

}  // namespace

Result<ClientKernelLaunch> MakeClientLaunch(const CollectiveArgs& args, const ClientHalves& halves,
                                            const ClientFusedPlaces* fused) {
  return std::visit([&](const auto& work) { return Make(work, args, halves, fused); }, args.work);
}

std::optional<ClientKernelLaunch> WithNorm(const ClientKernelLaunch& kernel, const NormArgs& norm) {
  const auto* sum = std::get_if<ClientPacketsLaunch>(&kernel);
  ClientNormLaunch both;
  if (norm.row_blocks == 0 || sum == nullptr ||
      !MakeClientNorm(*sum, NormLaunchOf(norm), NormQuantizationOf(norm), &both))
    return std::nullopt;
  both.manner = NormMannerOf(norm);
  both.row_blocks = norm.row_blocks;
  return ClientKernelLaunch(both);
}

void SetGroupState(ClientKernelLaunch& launch, const GroupDeviceState& group_state) {
  std::visit([&](auto& kernel) { SetOne(kernel, group_state); }, launch);
}

Status Load(const ClientKernelLaunch& launch) {
  return std::visit([](const auto& kernel) { return LoadOne(kernel); }, launch);
}

Status Enqueue(const ClientKernelLaunch& launch, CUstream_st* stream) {
  return std::visit([&](const auto& kernel) { return LaunchOne(kernel, stream); }, launch);
}

}  // namespace tandem::cuda
