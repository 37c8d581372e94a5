// File: packet_grid.h
//
// The blocks and threads of a kernel of packets.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cuda/device/collective.h"
#include "program/packet_layout.h"
#include "tandem/element_type.h"

namespace tandem::cuda {

// Threads of a block of dense packets that move no data. Those of the first block meet the peers.
inline constexpr unsigned kHandshakeThreads = 32;
inline constexpr auto kPacketDataBytes = static_cast<int64_t>(PacketLayout::kDataBytes);
inline constexpr auto kDensePacketDataBytes = static_cast<int64_t>(DensePacketLayout::kPacketBytes);

struct PacketGrid {
  unsigned blocks, threads;
};

// A thread for each packet up to the launch's blocks, and no block without a packet: small grids start
// sooner, and an idle block would count a launch that another block gives up. Alike on all ranks.
inline PacketGrid PacketGridOf(const PacketsLaunch& launch, int64_t data_bytes) {
  const bool gathers = launch.shape == PacketShape::kGather;
  const int64_t element_bytes =
      gathers ? 1 : static_cast<int64_t>(DTypeBytes(static_cast<DType>(launch.type)));
  const int64_t elements = *std::max_element(launch.count, launch.count + launch.world);
  const auto parts = [](int64_t whole, int64_t part) { return (whole + part - 1) / part; };
  const int64_t packets = std::max<int64_t>(1, parts(elements * element_bytes, data_bytes));
  const int64_t threads =
      std::min<int64_t>(kCollectiveThreads, parts(parts(packets, launch.blocks), 32) * 32);
  const int64_t blocks = std::min<int64_t>(launch.blocks, parts(packets, threads));
  return {static_cast<unsigned>(blocks), static_cast<unsigned>(threads)};
}

}  // namespace tandem::cuda
