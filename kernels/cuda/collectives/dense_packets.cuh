// File: dense_packets.cuh
//
// The kernel of dense packets: sums of floating-point pieces, with all of the link for data. A slot that
// holds zeros is empty. A 16-byte store fills it whole, and its reader empties it again. (TensorRT-LLM's
// "Lamport" all-reduce marks empty slots too, by negative zeros and in three buffers.)
//
// The first 32 bits of a packet travel inverted, so that only the word of all ones would look empty. In each
// type that is a NaN, and another NaN goes in its place.
//
// Why two halves suffice: a slot of launch e is emptied in launch e. The peer fills it again in launch e + 2,
// which begins after this rank's launch e has ended (docs/client-placement.md).
#pragma once

#include "kernels/cuda/collectives/packets.cuh"

namespace tandem::cuda {

// Threads of a block that move no data. Those of the first block meet the peers.
inline constexpr unsigned kMeetingThreads = 32;

// A NaN of the type in all of 32 bits, not all ones.
template <typename Element>
inline constexpr uint32_t kOtherNan = sizeof(Element) == 4   ? 0xFFFFFFFE
                                      : sizeof(Element) == 2 ? 0xFFFEFFFE
                                                             : 0x7F7F7F7F;

// Sixteen bytes of a piece: `index` counts them; the last ones may be fewer, and the address may be any.
template <typename Element>
__device__ inline uint4 LoadWord16(const void* piece, int64_t index, int64_t count) {
  constexpr int kCount = Word16<Element>::kCount;
  const int64_t first = index * kCount;
  if (reinterpret_cast<uintptr_t>(piece) % 16 == 0 && first + kCount <= count) {
    return static_cast<const uint4*>(piece)[index];
  }
  Word16<Element> loaded;
  loaded.word = {};
#pragma unroll
  for (int e = 0; e < kCount; ++e) {
    if (first + e < count) loaded.element[e] = static_cast<const Element*>(piece)[first + e];
  }
  return loaded.word;
}
template <typename Element>
__device__ inline void StoreWord16(void* piece, int64_t index, int64_t count, const Word16<Element>& word) {
  constexpr int kCount = Word16<Element>::kCount;
  const int64_t first = index * kCount;
  if (reinterpret_cast<uintptr_t>(piece) % 16 == 0 && first + kCount <= count) {
    static_cast<uint4*>(piece)[index] = word.word;
    return;
  }
#pragma unroll
  for (int e = 0; e < kCount; ++e) {
    if (first + e < count) static_cast<Element*>(piece)[first + e] = word.element[e];
  }
}

template <typename Element, int kMax, PacketShape kShape, typename Probe>
class DenseExchange {
 public:
  __device__ DenseExchange(const PlacedPacketsLaunch& launch, const PlacedRendezvous& rendezvous)
      : launch_(launch.packets),
        rendezvous_(rendezvous),
        half_offset_(rendezvous.half() * launch.half_packets),
        dense_offset_(launch.dense_offset + rendezvous.half() * launch.dense_half),
        dense_slot_(launch.dense_slot) {}

  // Returns false in a thread that has given up. The last warp of each block moves no data.
  __device__ bool Run() const {
    const unsigned movers = blockDim.x - kMeetingThreads;
    if (threadIdx.x >= movers) return blockIdx.x != 0 || Meet(static_cast<int>(threadIdx.x - movers));
    const int64_t first = int64_t{blockIdx.x} * movers + threadIdx.x;
    const int64_t step = int64_t{gridDim.x} * movers;
    int64_t longest = 0;
    for (int p = 0; p < launch_.world; ++p) longest = max(longest, Packets(launch_.count[p]));
    Probe::BeforeSignal(rendezvous_.value(), 0);
    SendPieces(first, step, longest);
    return Sum(first, step) && (kShape != PacketShape::kTwoShot || TakeSums(first, step, longest));
  }

 private:
  // Packets of a thread that are in flight together.
  static constexpr int kSendUnroll = 4, kSumUnroll = kMax <= 2 ? 4 : kMax <= 4 ? 2 : 1;

  static __device__ int64_t Packets(int64_t count) {
    return (count + Word16<Element>::kCount - 1) / Word16<Element>::kCount;
  }
  __device__ int Peer(int step) const {
    const int peer = launch_.rank + step;
    return peer >= launch_.world ? peer - launch_.world : peer;
  }
  // The packet with the writer's number: of another plan or launch, it ends this one.
  __device__ Packet* Header(int reader, int writer) const {
    return launch_.area[reader] + half_offset_ + writer * launch_.slot_packets;
  }
  __device__ Packet* Slot(int reader, int writer, int shot) const {
    const int distance = writer > reader ? writer - reader : writer - reader + launch_.world;
    return launch_.area[reader] + dense_offset_ +
           (int64_t{shot} * (launch_.world - 1) + distance - 1) * dense_slot_;
  }

  static __device__ void Send(Packet* to, const uint4& word) {
    uint32_t mark = ~word.x;
    if (mark == 0) mark = ~kOtherNan<Element>;
    StorePacket(to, mark | uint64_t{word.y} << 32, word.z | uint64_t{word.w} << 32);
  }
  // Whether a packet of this launch is in `packet`. An empty one is what the launch before of the same half
  // has left: a probe may take it.
  __device__ bool HasCome(const Packet& packet) const {
    const uint64_t value = rendezvous_.value();
    const bool filled = static_cast<uint32_t>(packet.data) != 0;
    return Probe::IsOf(value, filled ? value : value - (uint64_t{2} << kLaunchTagBits));
  }
  static __device__ uint4 DataOf(const Packet& packet) {
    return {~static_cast<uint32_t>(packet.data), static_cast<uint32_t>(packet.data >> 32),
            static_cast<uint32_t>(packet.epoch), static_cast<uint32_t>(packet.epoch >> 32)};
  }

  // The slow side of a wait: what the peer has written last is in the packet with its number.
  class Waiting {
   public:
    __device__ explicit Waiting(const DenseExchange& exchange) : exchange_(exchange) {}
    __device__ bool Continue(int peer) {
      if (++polls_ % kPollsPerLook != 0) return true;
      const PlacedRendezvous& rendezvous = exchange_.rendezvous_;
      const uint64_t seen = LoadPacket(exchange_.Header(exchange_.launch_.rank, peer)).epoch;
      return rendezvous.Look(polls_ / kPollsPerLook, &start_ns_, peer, seen == rendezvous.value() ? 0 : seen);
    }

   private:
    const DenseExchange& exchange_;
    uint32_t polls_ = 0;
    uint64_t start_ns_ = 0;
  };

  // Waits for the packet in `slot`, of which `packet` is what has been seen, and empties the slot.
  __device__ bool Take(Packet* slot, int peer, Packet* packet) const {
    if (!HasCome(*packet)) {
      Waiting waiting(*this);
      do {
        if (!waiting.Continue(peer)) return false;
        *packet = LoadPacket(slot);
      } while (!HasCome(*packet));
    }
    StorePacket(slot, 0, 0);
    return true;
  }

  __device__ void SendPieces(int64_t first, int64_t step, int64_t longest) const {
    for (int64_t i = first; i < longest; i += kSendUnroll * step) {
      uint4 words[kSendUnroll];
      const void* loaded = nullptr;  // one piece goes to all peers, or each gets its own
      for (int j = 1; j < launch_.world; ++j) {
        const int peer = Peer(j);
        const int64_t packets = Packets(launch_.count[peer]);
        if (launch_.source[peer] != loaded) {
          loaded = launch_.source[peer];
#pragma unroll
          for (int u = 0; u < kSendUnroll; ++u) {
            if (i + u * step < packets)
              words[u] = LoadWord16<Element>(loaded, i + u * step, launch_.count[peer]);
          }
        }
        Packet* slot = Slot(peer, launch_.rank, 0);
#pragma unroll
        for (int u = 0; u < kSendUnroll; ++u) {
          if (i + u * step < packets) Send(slot + i + u * step, words[u]);
        }
      }
    }
  }

  // The sum of the piece that this rank gets; two shots send it on.
  __device__ bool Sum(int64_t first, int64_t step) const {
    const int rank = launch_.rank, world = launch_.world;
    const int64_t count = launch_.count[rank], own = Packets(count);
    for (int64_t i = first; i < own; i += kSumUnroll * step) {
      Packet packets[kSumUnroll][kMax];
      uint4 mine[kSumUnroll];
#pragma unroll
      for (int u = 0; u < kSumUnroll; ++u) {
        const int64_t at = i + u * step;
        if (at >= own) continue;
        mine[u] = LoadWord16<Element>(launch_.source[rank], at, count);
#pragma unroll
        for (int s = 0; s < kMax; ++s) {
          if (s < world && s != rank) packets[u][s] = LoadPacket(Slot(rank, s, 0) + at);
        }
      }
#pragma unroll
      for (int u = 0; u < kSumUnroll; ++u) {
        const int64_t at = i + u * step;
        if (at >= own) continue;
        Word16<Element> terms[kMax];
#pragma unroll
        for (int s = 0; s < kMax; ++s) {
          if (s >= world) continue;
          if (s != rank && !Take(Slot(rank, s, 0) + at, s, &packets[u][s])) return false;
          terms[s].word = s == rank ? mine[u] : DataOf(packets[u][s]);
        }
        // The same block of each peer runs: no kernel that this one waits for has yet to begin.
        if (u == 0 && i == first) LetNextBegin();
        const Word16<Element> sum = SumOf(terms);
        StoreWord16<Element>(launch_.destination[rank], at, count, sum);
        if constexpr (kShape == PacketShape::kTwoShot) {
          Probe::BeforeSignal(rendezvous_.value(), 1);
          for (int j = 1; j < world; ++j) Send(Slot(Peer(j), rank, 1) + at, sum.word);
        }
      }
    }
    return true;
  }

  // In the order of ranks.
  __device__ Word16<Element> SumOf(const Word16<Element> (&terms)[kMax]) const {
    using Accumulator = Accumulation<Element>;
    Word16<Element> out;
#pragma unroll
    for (int e = 0; e < Word16<Element>::kCount; ++e) {
      auto sum = Accumulator::Load(terms[0].element[e]);
#pragma unroll
      for (int s = 1; s < kMax; ++s) {
        if (s < launch_.world) sum = Accumulator::Add(sum, Accumulator::Load(terms[s].element[e]));
      }
      Accumulator::Store(sum, launch_.scale, &out.element[e]);
    }
    return out;
  }

  // The sums of the other owners. Parts differ in length by their last packets.
  __device__ bool TakeSums(int64_t first, int64_t step, int64_t longest) const {
    const int rank = launch_.rank, world = launch_.world;
    for (int64_t i = first; i < longest; i += step) {
      Packet packets[kMax];
#pragma unroll
      for (int s = 0; s < kMax; ++s) {
        if (s < world && s != rank && i < Packets(launch_.count[s]))
          packets[s] = LoadPacket(Slot(rank, s, 1) + i);
      }
#pragma unroll
      for (int s = 0; s < kMax; ++s) {
        if (s >= world || s == rank || i >= Packets(launch_.count[s])) continue;
        if (!Take(Slot(rank, s, 1) + i, s, &packets[s])) return false;
        Word16<Element> sum;
        sum.word = DataOf(packets[s]);
        StoreWord16<Element>(launch_.destination[s], i, launch_.count[s], sum);
      }
    }
    return true;
  }

  // Tells the peer this launch's number. The peer's must be the same, or this rank gives up.
  __device__ bool Meet(int peer) const {
    if (peer >= launch_.world || peer == launch_.rank) return true;
    StorePacket(Header(peer, launch_.rank), 0, rendezvous_.value());
    const Packet* header = Header(launch_.rank, peer);
    typename PlacedRendezvous::PacketPatience patience(rendezvous_);
    Packet packet = LoadPacket(header);
    while (packet.epoch != rendezvous_.value()) {
      if (!patience.Continue(peer, packet.epoch)) return false;
      packet = LoadPacket(header);
    }
    return true;
  }

  const PacketsLaunch& launch_;
  const PlacedRendezvous& rendezvous_;
  const int64_t half_offset_, dense_offset_, dense_slot_;  // packets
};

template <typename Element, int kMax, PacketShape kShape, typename Probe>
__global__ void __launch_bounds__(kCollectiveThreads + kMeetingThreads)
    RunPlacedDense(const __grid_constant__ PlacedPacketsLaunch launch) {
  AwaitEarlierWork();
  const PlacedRendezvous rendezvous(launch.frame);
  const DenseExchange<Element, kMax, kShape, Probe> exchange(launch, rendezvous);
  if (__syncthreads_or(rendezvous.HasFailed() || !exchange.Run())) return;
  LetNextBegin();
  rendezvous.Count();
}

// The kernel for a launch's type, shape and world size; null for a type or shape that has none.
template <typename Probe>
struct DenseKernels {
  using Kernel = void (*)(const PlacedPacketsLaunch);
  template <typename Element, PacketShape kShape>
  static Kernel OfWorld(int world) {
    if (world <= 2) return &RunPlacedDense<Element, 2, kShape, Probe>;
    if (world <= 4) return &RunPlacedDense<Element, 4, kShape, Probe>;
    return &RunPlacedDense<Element, 8, kShape, Probe>;
  }
  template <typename Element>
  static Kernel OfShape(PacketShape shape, int world) {
    if (shape == PacketShape::kTwoShot) return OfWorld<Element, PacketShape::kTwoShot>(world);
    return shape == PacketShape::kSum ? OfWorld<Element, PacketShape::kSum>(world) : nullptr;
  }
  static Kernel Of(DType type, PacketShape shape, int world) {
    switch (type) {
      case DType::kF32: return OfShape<float>(shape, world);
      case DType::kF16: return OfShape<__half>(shape, world);
      case DType::kBf16: return OfShape<__nv_bfloat16>(shape, world);
      case DType::kF8E4M3: return OfShape<__nv_fp8_e4m3>(shape, world);
      case DType::kF8E5M2: return OfShape<__nv_fp8_e5m2>(shape, world);
      default: return nullptr;
    }
  }
};

inline unsigned DenseThreads(const PacketsLaunch& launch) {
  return PacketThreads(launch, static_cast<int64_t>(sizeof(uint4))) + kMeetingThreads;
}

}  // namespace tandem::cuda
