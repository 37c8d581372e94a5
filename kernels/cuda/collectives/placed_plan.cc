#include "kernels/cuda/collectives/placed_plan.h"

#include "kernels/cuda/collectives/collective_plan.h"
#include "kernels/cuda/lane/norm_launch.h"
#include "program/packet_layout.h"
#include "program/program.h"

namespace tandem::cuda {
namespace {

bool LiesInHalf(const void* address, const PlacedHalves& halves) {
  const auto at = reinterpret_cast<uintptr_t>(address);
  for (const std::byte* half : halves.workspace) {
    const auto begin = reinterpret_cast<uintptr_t>(half);
    if (half != nullptr && at >= begin && at < begin + halves.half_bytes) return true;
  }
  return false;
}

Result<PlacedKernelLaunch> MakePhases(const CollectiveArgs& args, const PlacedHalves& halves) {
  PlacedPhasesLaunch launch = {};
  TANDEM_ASSIGN_OR_RETURN(launch.phases, MakePhasesLaunch(args));
  launch.half_bytes = static_cast<int64_t>(halves.half_bytes);
  for (size_t i = 0; i < kMaxPointers; ++i) {
    if (launch.phases.pointer[i] != nullptr && LiesInHalf(launch.phases.pointer[i], halves))
      launch.halved[i / 32] |= 1u << (i % 32);
  }
  return PlacedKernelLaunch(launch);
}

Result<PlacedKernelLaunch> MakePackets(const CollectiveArgs& args, const PlacedHalves& halves) {
  PlacedPacketsLaunch launch = {};
  TANDEM_ASSIGN_OR_RETURN(launch.packets, MakePacketsLaunch(args));
  launch.half_packets = static_cast<int64_t>(args.packet_bytes / sizeof(Packet));
  launch.dense = args.dense;
  if (args.dense) {
    const DensePacketLayout layout{.half_bytes = plan::kDensePacketHalfBytes,
                                   .world = args.world_size,
                                   .shots = args.exchange == PacketExchange::kTwoShot ? 2 : 1};
    launch.dense_offset = 2 * launch.half_packets;
    launch.dense_half = static_cast<int64_t>(layout.half_bytes / sizeof(Packet));
    launch.dense_slot = static_cast<int64_t>(layout.slot_packets());
  }
  for (size_t rank = 0; rank < args.pieces.size(); ++rank) {
    if (LiesInHalf(launch.packets.source[rank], halves) ||
        LiesInHalf(launch.packets.destination[rank], halves)) {
      return Unimplemented("packets between halves of workspace");
    }
  }
  return PlacedKernelLaunch(launch);
}

Result<PlacedKernelLaunch> MakeSkinny(const CollectiveArgs& args, const PlacedHalves& halves) {
  for (const DeviceView& area : args.skinny->areas) {
    if (!LiesInHalf(area.data, halves)) return InvalidArgument("an exchange area outside the halves");
  }
  TANDEM_ASSIGN_OR_RETURN(const PlacedSkinnyKernel kernel, MakePlacedSkinny(args, halves.half_bytes));
  return PlacedKernelLaunch(kernel);
}

void SetOne(PlacedPhasesLaunch& kernel, const LaunchFrame& frame) { kernel.frame = frame; }
void SetOne(PlacedPacketsLaunch& kernel, const LaunchFrame& frame) { kernel.frame = frame; }
void SetOne(PlacedNormLaunch& kernel, const LaunchFrame& frame) { kernel.sum.frame = frame; }
void SetOne(PlacedSkinnyKernel& kernel, const LaunchFrame& frame) { kernel.launch.frame = frame; }
void SetOne(PlacedFusedKernel& kernel, const LaunchFrame& frame) { SetFrame(kernel, frame); }

Status LoadOne(const PlacedPhasesLaunch& kernel) { return LoadPlacedPhases(kernel); }
Status LoadOne(const PlacedPacketsLaunch& kernel) { return LoadPlacedPackets(kernel); }
Status LoadOne(const PlacedNormLaunch& kernel) { return LoadPlacedNorm(kernel); }
Status LoadOne(const PlacedSkinnyKernel& kernel) { return LoadPlacedSkinny(kernel); }
Status LoadOne(const PlacedFusedKernel& kernel) { return LoadPlacedFused(kernel); }

Status LaunchOne(const PlacedPhasesLaunch& kernel, CUstream_st* stream) {
  return LaunchPlacedPhases(kernel, stream);
}
Status LaunchOne(const PlacedPacketsLaunch& kernel, CUstream_st* stream) {
  return LaunchPlacedPackets(kernel, stream);
}
Status LaunchOne(const PlacedNormLaunch& kernel, CUstream_st* stream) {
  return LaunchPlacedNorm(kernel, stream);
}
Status LaunchOne(const PlacedSkinnyKernel& kernel, CUstream_st* stream) {
  return LaunchPlacedSkinny(kernel, stream);
}
Status LaunchOne(const PlacedFusedKernel& kernel, CUstream_st* stream) {
  return LaunchPlacedFused(kernel, stream);
}

}  // namespace

Result<PlacedKernelLaunch> MakePlacedLaunch(const CollectiveArgs& args, const PlacedHalves& halves,
                                            const PlacedFusedPlaces* fused) {
  if (args.skinny) return MakeSkinny(args, halves);
  if (!args.parts.empty() && fused != nullptr) {
    TANDEM_ASSIGN_OR_RETURN(const PlacedFusedKernel kernel,
                            MakePlacedFused(args, fused->words, fused->memory));
    return PlacedKernelLaunch(kernel);
  }
  if (!args.parts.empty() || !TakesCollective(args)) {
    return Unimplemented("no client-placed kernel takes this collective");
  }
  if (args.blocks > kLaunchCounters) return Unimplemented("a client-placed kernel of too many blocks");
  if (halves.half_bytes % 16 != 0) return InvalidArgument("halves that are no multiple of 16 bytes");
  return args.exchange == PacketExchange::kNone ? MakePhases(args, halves) : MakePackets(args, halves);
}

std::optional<PlacedKernelLaunch> WithNorm(const PlacedKernelLaunch& kernel, const NormArgs& norm) {
  const auto* sum = std::get_if<PlacedPacketsLaunch>(&kernel);
  PlacedNormLaunch both;
  if (sum == nullptr || !MakePlacedNorm(*sum, NormLaunchOf(norm), &both)) return std::nullopt;
  return PlacedKernelLaunch(both);
}

void SetFrame(PlacedKernelLaunch& launch, const LaunchFrame& frame) {
  std::visit([&](auto& kernel) { SetOne(kernel, frame); }, launch);
}

Status Load(const PlacedKernelLaunch& launch) {
  return std::visit([](const auto& kernel) { return LoadOne(kernel); }, launch);
}

Status Enqueue(const PlacedKernelLaunch& launch, CUstream_st* stream) {
  return std::visit([&](const auto& kernel) { return LaunchOne(kernel, stream); }, launch);
}

}  // namespace tandem::cuda
