// File: packets.cuh
//
// The kernel of packets. Eight bytes of data travel beside the launch's number in one 16-byte store, so a
// reader that sees the launch number has the data: no fence, no flag, no block that waits for another.
// (NCCL's LL protocol with a 64-bit flag: the memory only ever holds packets, of this launch's number or an
// older one.) Launch numbers take half of the link's bandwidth: for small messages.
#pragma once

#include <type_traits>

#include "kernels/cuda/collectives/launch_context.cuh"
#include "kernels/cuda/collectives/phases.cuh"
#include "kernels/cuda/device/dependent.cuh"

namespace tandem::cuda {

template <typename Element>
union Word8 {
  static constexpr int kCount = 8 / sizeof(Element);
  uint64_t word;
  Element element[kCount];
  __device__ Word8() {}
};

// Eight bytes of a piece: `index` counts them; the last ones may be fewer, and the address may be any.
template <typename Element>
__device__ inline uint64_t LoadPiece(const void* piece, int64_t index, int64_t count) {
  using Bits = typename BitsOf<sizeof(Element)>::Type;
  constexpr int kCount = Word8<Element>::kCount;
  int64_t first = index * kCount;
  if (reinterpret_cast<uintptr_t>(piece) % 8 == 0 && first + kCount <= count) {
    return static_cast<const uint64_t*>(piece)[index];
  }
  uint64_t word = 0;
#pragma unroll
  for (int e = 0; e < kCount; ++e) {
    if (first + e < count) {
      word |= static_cast<uint64_t>(static_cast<const Bits*>(piece)[first + e])
              << (e * 8 * sizeof(Element) % 64);
    }
  }
  return word;
}
template <typename Element>
__device__ inline void StorePiece(void* piece, int64_t index, int64_t count, uint64_t word) {
  using Bits = typename BitsOf<sizeof(Element)>::Type;
  constexpr int kCount = Word8<Element>::kCount;
  int64_t first = index * kCount;
  if (reinterpret_cast<uintptr_t>(piece) % 8 == 0 && first + kCount <= count) {
    static_cast<uint64_t*>(piece)[index] = word;
    return;
  }
#pragma unroll
  for (int e = 0; e < kCount; ++e) {
    if (first + e < count) {
      static_cast<Bits*>(piece)[first + e] = static_cast<Bits>(word >> (e * 8 * sizeof(Element) % 64));
    }
  }
}

template <typename Element, int kMax, typename LaunchContext>
struct PacketRunner {
  const PacketsLaunch& launch;
  const LaunchContext& context;
  const int64_t half_offset;  // packets to this launch's half

  __device__ int Peer(int step) const {
    int peer = launch.rank + step;
    return peer >= launch.world ? peer - launch.world : peer;
  }
  __device__ Packet* Slot(int reader, int writer, int shot) const {
    return launch.area[reader] + half_offset + (int64_t{shot} * launch.world + writer) * launch.slot_packets;
  }
  static __device__ int64_t Packets(int64_t count) {
    return (count + Word8<Element>::kCount - 1) / Word8<Element>::kCount;
  }

  // All peers' packets `index`, by rank; false when the wait was ended. All loads of a round are in flight
  // together.
  template <typename TestHooks>
  __device__ bool Receive(int64_t index, int shot, uint64_t (&data)[kMax]) const {
    typename LaunchContext::PacketWaitBudget wait_budget(context);
    while (true) {
      Packet packets[kMax];
      bool all = true;
      int missing = 0;
      uint64_t seen = 0;
#pragma unroll
      for (int s = 0; s < kMax; ++s) {
        if (s < launch.world && s != launch.rank) packets[s] = LoadPacket(Slot(launch.rank, s, shot) + index);
      }
#pragma unroll
      for (int s = 0; s < kMax; ++s) {
        if (s >= launch.world || s == launch.rank) continue;
        if (!TestHooks::IsOf(context.value(), packets[s].launch_number)) {
          all = false;
          missing = s;
          seen = packets[s].launch_number;
        }
        data[s] = packets[s].data;
      }
      if (all) return true;
      if (!wait_budget.Continue(missing, seen)) return false;
    }
  }

  __device__ uint64_t Sum(const uint64_t (&data)[kMax]) const {
    using Accumulator = Accumulation<Element>;
    Word8<Element> loaded[kMax], out;
#pragma unroll
    for (int s = 0; s < kMax; ++s) loaded[s].word = data[s];
#pragma unroll
    for (int e = 0; e < Word8<Element>::kCount; ++e) {
      auto sum = Accumulator::Load(loaded[0].element[e]);
#pragma unroll
      for (int s = 1; s < kMax; ++s) {
        if (s < launch.world) sum = Accumulator::Add(sum, Accumulator::Load(loaded[s].element[e]));
      }
      Accumulator::Store(sum, launch.scale, &out.element[e]);
    }
    return out.word;
  }
};

// Threads work alone: each sends its packets, then waits for those with the same index.
// Returns false in a thread that has given up: it has published nothing since.
template <typename Element, int kMax, PacketShape kShape, typename TestHooks, typename LaunchContext>
__device__ __forceinline__ bool ExchangePackets(const PacketsLaunch& launch, const LaunchContext& context,
                                                int64_t half_offset) {
  const PacketRunner<Element, kMax, LaunchContext> runner{launch, context, half_offset};
  const uint64_t value = context.value();
  const int rank = launch.rank, world = launch.world;
  const int64_t first = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  int64_t longest = 0;
  for (int p = 0; p < world; ++p) longest = max(longest, runner.Packets(launch.count[p]));
  const int64_t own = runner.Packets(launch.count[rank]);

  TestHooks::BeforeSignal(value, 0);
  for (int64_t i = first; i < longest; i += step) {
    for (int j = 1; j < world; ++j) {
      const int peer = runner.Peer(j);
      if (i >= runner.Packets(launch.count[peer])) continue;
      StorePacket(runner.Slot(peer, rank, 0) + i,
                  LoadPiece<Element>(launch.source[peer], i, launch.count[peer]), value);
    }
  }
  for (int64_t i = first; i < own; i += step) {
    uint64_t data[kMax];
    uint64_t mine = LoadPiece<Element>(launch.source[rank], i, launch.count[rank]);
    if (!runner.template Receive<TestHooks>(i, 0, data)) return false;
    // The same block of each peer runs: no kernel that this one waits for has yet to begin.
    if (i == first) TriggerDependents();
#pragma unroll
    for (int s = 0; s < kMax; ++s) {
      if (s == rank) data[s] = mine;
    }
    if constexpr (kShape == PacketShape::kGather) {
#pragma unroll
      for (int s = 0; s < kMax; ++s) {
        if (s < world) StorePiece<Element>(launch.destination[s], i, launch.count[s], data[s]);
      }
    } else {
      uint64_t sum = runner.Sum(data);
      StorePiece<Element>(launch.destination[rank], i, launch.count[rank], sum);
      if constexpr (kShape == PacketShape::kTwoShot) {
        TestHooks::BeforeSignal(value, 1);
        for (int j = 1; j < world; ++j) StorePacket(runner.Slot(runner.Peer(j), rank, 1) + i, sum, value);
      }
    }
  }
  if constexpr (kShape == PacketShape::kTwoShot) {
    // Parts differ in length by their last packets: each source is waited for by itself.
    for (int64_t i = first; i < longest; i += step) {
      for (int j = 1; j < world; ++j) {
        const int peer = runner.Peer(j);
        if (i >= runner.Packets(launch.count[peer])) continue;
        const Packet* slot = runner.Slot(rank, peer, 1) + i;
        typename LaunchContext::PacketWaitBudget wait_budget(context);
        Packet packet = LoadPacket(slot);
        while (!TestHooks::IsOf(value, packet.launch_number)) {
          if (!wait_budget.Continue(peer, packet.launch_number)) return false;
          packet = LoadPacket(slot);
        }
        StorePiece<Element>(launch.destination[peer], i, launch.count[peer], packet.data);
      }
    }
  }
  return true;
}

template <typename Element, int kMax, PacketShape kShape, typename TestHooks>
__global__ void __launch_bounds__(kCollectiveThreads)
    RunPackets(const __grid_constant__ PacketsLaunch launch) {
  if (IsCancelled(launch.guard)) return;
  ExchangePackets<Element, kMax, kShape, TestHooks>(
      launch, EngineLaunchContext(launch.launch_number, launch.limits), 0);
}

template <typename Element, int kMax, PacketShape kShape, typename TestHooks>
__global__ void __launch_bounds__(kCollectiveThreads)
    RunClientPackets(const __grid_constant__ ClientPacketsLaunch launch) {
  WaitForPrimary();
  const ClientLaunchContext context(launch.group_state);
  const bool ended =
      context.HasFailed() || !ExchangePackets<Element, kMax, kShape, TestHooks>(
                                 launch.packets, context, context.half() * launch.half_packets);
  if (__syncthreads_or(ended)) return;
  TriggerDependents();
  context.ReportProgress();
}

// The kernel for a launch's type, shape and world size. `Launch`: PacketsLaunch or ClientPacketsLaunch.
template <typename TestHooks, typename Launch = PacketsLaunch>
struct PacketKernels {
  using Kernel = void (*)(const Launch);
  template <typename Element, int kMax, PacketShape kShape>
  static Kernel OfLaunch() {
    if constexpr (std::is_same_v<Launch, ClientPacketsLaunch>) {
      return &RunClientPackets<Element, kMax, kShape, TestHooks>;
    } else {
      return &RunPackets<Element, kMax, kShape, TestHooks>;
    }
  }
  template <typename Element, PacketShape kShape>
  static Kernel OfWorld(int world) {
    if (world <= 2) return OfLaunch<Element, 2, kShape>();
    if (world <= 4) return OfLaunch<Element, 4, kShape>();
    return OfLaunch<Element, 8, kShape>();
  }
  template <typename Element>
  static Kernel OfShape(PacketShape shape, int world) {
    if (shape == PacketShape::kTwoShot) return OfWorld<Element, PacketShape::kTwoShot>(world);
    return OfWorld<Element, PacketShape::kSum>(world);
  }
  static Kernel Of(DType type, PacketShape shape, int world) {
    // Gathered bytes are bytes whatever their type.
    if (shape == PacketShape::kGather) return OfWorld<uint8_t, PacketShape::kGather>(world);
    switch (type) {
      case DType::kF32: return OfShape<float>(shape, world);
      case DType::kF16: return OfShape<__half>(shape, world);
      case DType::kBf16: return OfShape<__nv_bfloat16>(shape, world);
      case DType::kF8E4M3: return OfShape<__nv_fp8_e4m3>(shape, world);
      case DType::kF8E5M2: return OfShape<__nv_fp8_e5m2>(shape, world);
      default: break;
    }
    switch (DTypeBytes(type)) {
      case 1: return OfShape<uint8_t>(shape, world);
      case 4: return OfShape<uint32_t>(shape, world);
      default: return OfShape<uint64_t>(shape, world);
    }
  }
};

}  // namespace tandem::cuda
