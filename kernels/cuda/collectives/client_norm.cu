// How a sum by dense packets with a norm behind it is launched.
#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <string>

#include "kernels/cuda/collectives/client_quantized_norm.h"
#include "kernels/cuda/collectives/dense_norm.cuh"
#include "kernels/cuda/collectives/dense_split_norm.cuh"
#include "kernels/cuda/device/dependent_launch.h"
#include "kernels/cuda/device/launch_status.h"
#include "program/norm_layout.h"

namespace tandem::cuda {
namespace {

// A block of RunClientNorm adds a row's squares in the order of the norm kernel, which has as many threads.
static_assert(kCollectiveThreads == kFixedNormThreads && kCollectiveThreads == plan::kNormThreads);
static_assert(kMaxNormCluster == plan::kMaxNormRowBlocks);

int64_t RowWords(const NormLaunch& norm) {
  return norm.columns * static_cast<int64_t>(DTypeBytes(static_cast<DType>(norm.type))) / 16;
}

bool Quantizes(const ClientNormLaunch& launch) { return launch.quantization.out != nullptr; }

const void* KernelOf(const ClientNormLaunch& launch) {
  if (Quantizes(launch)) return QuantizedNormKernel(launch);
  return reinterpret_cast<const void*>(DenseNormKernels<NoTestHooks, false>::Of(
      static_cast<DType>(launch.norm.type), launch.words, launch.sum.packets.world));
}

const void* SplitKernelOf(const ClientNormLaunch& launch) {
  if (Quantizes(launch)) return QuantizedSplitNormKernel(launch);
  return reinterpret_cast<const void*>(DenseSplitNormKernels<NoTestHooks, false>::Of(
      static_cast<DType>(launch.norm.type), launch.sum.packets.world));
}

// The largest cluster of the current GPU, as it was found when the kernel was loaded; null: no such GPU.
std::atomic<unsigned>* LargestCluster() {
  constexpr size_t kMaxGpus = 64;
  static std::array<std::atomic<unsigned>, kMaxGpus> by_gpu;
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess || device < 0 || static_cast<size_t>(device) >= kMaxGpus)
    return nullptr;
  return &by_gpu[static_cast<size_t>(device)];
}

// The cluster of a row: what the planner chose, where the rows fit and this GPU has such clusters.
unsigned ClusterOfRow(const ClientNormLaunch& launch) {
  if (launch.row_blocks <= 1 || SplitKernelOf(launch) == nullptr) return 1;
  if (launch.norm.rows * launch.row_blocks > launch.sum.packets.blocks ||
      RowWords(launch.norm) > int64_t{kCollectiveThreads} * launch.row_blocks)
    return 1;
  const std::atomic<unsigned>* largest = LargestCluster();
  const auto asked = static_cast<unsigned>(launch.row_blocks);
  return largest != nullptr && asked <= largest->load(std::memory_order_relaxed) ? asked : 1;
}

unsigned WholeWarps(int64_t threads) { return static_cast<unsigned>((threads + 31) / 32 * 32); }

bool IsAligned(const void* address) { return reinterpret_cast<uintptr_t>(address) % 16 == 0; }

}  // namespace

bool MakeClientNorm(const ClientPacketsLaunch& sum, const NormLaunch& norm,
                    const NormQuantization& quantization, ClientNormLaunch* out) {
  const PacketsLaunch& packets = sum.packets;
  const int rank = packets.rank;
  if (!sum.dense || packets.shape != PacketShape::kSum || packets.type != norm.type) return false;
  if (norm.sum != packets.destination[rank] || norm.rows * norm.columns != packets.count[rank]) return false;
  const int64_t words = RowWords(norm);
  const auto in_word = static_cast<int64_t>(16 / DTypeBytes(static_cast<DType>(norm.type)));
  if (norm.columns % in_word != 0 || words == 0 || words > plan::MaxNormWords(packets.world)) return false;
  const void* const addresses[] = {packets.source[rank], norm.weight, norm.residual,
                                   norm.residual_out,    norm.out,    quantization.out};
  if (!std::all_of(std::begin(addresses), std::end(addresses), IsAligned)) return false;
  out->sum = sum;
  out->norm = norm;
  out->quantization = quantization;
  out->words = 1;
  while (words > int64_t{kCollectiveThreads} * out->words) out->words *= 2;
  return KernelOf(*out) != nullptr;
}

Status LaunchClientNorm(const ClientNormLaunch& launch, CUstream_st* stream) {
  if (const unsigned cluster = ClusterOfRow(launch); cluster > 1) {
    const auto blocks = static_cast<unsigned>(launch.norm.rows) * cluster;
    const unsigned movers = WholeWarps((RowWords(launch.norm) + cluster - 1) / cluster);
    return LaunchDependent("RunClientSplitNorm", SplitKernelOf(launch), blocks, movers + kHandshakeThreads, 0,
                           &launch, stream, cluster);
  }
  const int64_t blocks = std::min<int64_t>(launch.norm.rows, launch.sum.packets.blocks);
  if (blocks < 1 || blocks > kLaunchCounters)
    return InvalidArgument("a client-placed kernel of " + std::to_string(blocks) + " blocks");
  const int64_t threads = (RowWords(launch.norm) + launch.words - 1) / launch.words;
  return LaunchDependent("RunClientNorm", KernelOf(launch), static_cast<unsigned>(blocks),
                         WholeWarps(threads) + kHandshakeThreads, 0, &launch, stream);
}

Status LoadClientNorm(const ClientNormLaunch& launch) {
  if (const void* split = SplitKernelOf(launch); split != nullptr) {
    TANDEM_RETURN_IF_ERROR(LoadKernel("RunClientSplitNorm", split));
    std::atomic<unsigned>* largest = LargestCluster();
    if (largest != nullptr && largest->load() == 0)
      largest->store(MaxClusterOf(split, kCollectiveThreads + kHandshakeThreads, kMaxNormCluster));
  }
  return LoadKernel("RunClientNorm", KernelOf(launch));
}

}  // namespace tandem::cuda
