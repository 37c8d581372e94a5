#include "kernels/cuda/collectives/placed_plan.h"

#include "kernels/cuda/collectives/collective_plan.h"

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
  for (size_t rank = 0; rank < args.pieces.size(); ++rank) {
    if (LiesInHalf(launch.packets.source[rank], halves) ||
        LiesInHalf(launch.packets.destination[rank], halves)) {
      return Unimplemented("packets between halves of workspace");
    }
  }
  return PlacedKernelLaunch(launch);
}

}  // namespace

Result<PlacedKernelLaunch> MakePlacedLaunch(const CollectiveArgs& args, const PlacedHalves& halves) {
  if (!args.parts.empty() || args.skinny || !TakesCollective(args)) {
    return Unimplemented("no client-placed kernel takes this collective");
  }
  if (args.blocks > kLaunchCounters) return Unimplemented("a client-placed kernel of too many blocks");
  if (halves.half_bytes % 16 != 0) return InvalidArgument("halves that are no multiple of 16 bytes");
  return args.exchange == PacketExchange::kNone ? MakePhases(args, halves) : MakePackets(args, halves);
}

void SetFrame(PlacedKernelLaunch& launch, const LaunchFrame& frame) {
  std::visit([&](auto& kernel) { kernel.frame = frame; }, launch);
}

Status Load(const PlacedKernelLaunch& launch) {
  if (const auto* phases = std::get_if<PlacedPhasesLaunch>(&launch)) return LoadPlacedPhases(*phases);
  return LoadPlacedPackets(std::get<PlacedPacketsLaunch>(launch));
}

Status Enqueue(const PlacedKernelLaunch& launch, CUstream_st* stream) {
  if (const auto* phases = std::get_if<PlacedPhasesLaunch>(&launch)) {
    return LaunchPlacedPhases(*phases, stream);
  }
  return LaunchPlacedPackets(std::get<PlacedPacketsLaunch>(launch), stream);
}

}  // namespace tandem::cuda
