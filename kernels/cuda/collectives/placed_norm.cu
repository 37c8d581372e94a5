// How a sum by dense packets with a norm behind it is launched.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <string>

#include "kernels/cuda/collectives/dense_norm.cuh"
#include "kernels/cuda/device/dependent_launch.h"
#include "kernels/cuda/device/launch_status.h"

namespace tandem::cuda {
namespace {

constexpr int kMaxWords = 4;

int64_t RowWords(const NormLaunch& norm) {
  return norm.columns * static_cast<int64_t>(DTypeBytes(static_cast<DType>(norm.type))) / 16;
}

const void* KernelOf(const PlacedNormLaunch& launch) {
  return reinterpret_cast<const void*>(DenseNormKernels<NoProbe>::Of(static_cast<DType>(launch.norm.type),
                                                                     launch.words, launch.sum.packets.world));
}

bool IsAligned(const void* address) { return reinterpret_cast<uintptr_t>(address) % 16 == 0; }

}  // namespace

bool MakePlacedNorm(const PlacedPacketsLaunch& sum, const NormLaunch& norm, PlacedNormLaunch* out) {
  const PacketsLaunch& packets = sum.packets;
  const int rank = packets.rank;
  if (!sum.dense || packets.shape != PacketShape::kSum || packets.type != norm.type) return false;
  if (norm.sum != packets.destination[rank] || norm.rows * norm.columns != packets.count[rank]) return false;
  const int64_t words = RowWords(norm);
  const auto in_word = static_cast<int64_t>(16 / DTypeBytes(static_cast<DType>(norm.type)));
  if (norm.columns % in_word != 0 || words == 0 || words > int64_t{kCollectiveThreads} * kMaxWords)
    return false;
  const void* const addresses[] = {packets.source[rank], norm.weight, norm.residual, norm.residual_out,
                                   norm.out};
  if (!std::all_of(std::begin(addresses), std::end(addresses), IsAligned)) return false;
  out->sum = sum;
  out->norm = norm;
  out->words = 1;
  while (words > int64_t{kCollectiveThreads} * out->words) out->words *= 2;
  return KernelOf(*out) != nullptr;
}

Status LaunchPlacedNorm(const PlacedNormLaunch& launch, CUstream_st* stream) {
  const int64_t blocks = std::min<int64_t>(launch.norm.rows, launch.sum.packets.blocks);
  if (blocks < 1 || blocks > kLaunchCounters)
    return InvalidArgument("a client-placed kernel of " + std::to_string(blocks) + " blocks");
  const int64_t threads = (RowWords(launch.norm) + launch.words - 1) / launch.words;
  const auto movers = static_cast<unsigned>((threads + 31) / 32 * 32);
  return LaunchDependent("RunPlacedNorm", KernelOf(launch), static_cast<unsigned>(blocks),
                         movers + kMeetingThreads, 0, &launch, stream);
}

Status LoadPlacedNorm(const PlacedNormLaunch& launch) {
  return LoadKernel("RunPlacedNorm", KernelOf(launch));
}

}  // namespace tandem::cuda
