// File: dense_packets.cuh
//
// The kernel of dense packets: sums of floating-point pieces, and gathers, with all of the link for data. A
// slot that holds zeros is empty. A 16-byte store fills it whole, and its reader empties it again.
// (TensorRT-LLM's "Lamport" all-reduce marks empty slots too, by negative zeros and in three buffers.)
//
// The first 32 bits of a sum's packet travel inverted, so that only the word of all ones would look empty. In
// each type that is a NaN, and another NaN goes in its place.
//
// Gathered bits arrive as they are. They travel combined with a key of 128 bits, another one in each launch.
// Only 16 bytes that equal the key would look empty, and the launch would end at its deadline. That is as
// likely as two equal random UUIDs.
//
// Why two halves suffice: a slot of launch e is emptied in launch e. The peer fills it again in launch e + 2,
// which begins after this rank's launch e has ended (docs/client-placement.md).
#pragma once

#include <cstdint>

#include "kernels/cuda/collectives/packet_grid.h"
#include "kernels/cuda/collectives/packets.cuh"

namespace tandem::cuda {

// A NaN of the type in all of 32 bits, not all ones.
template <typename Element>
inline constexpr uint32_t kOtherNan = sizeof(Element) == 4 ? 0xFFFFFFFE : 0xFFFEFFFE;

// The key of a launch's gathered packets, by the finalizer of SplitMix64 (Steele, Lea, Flood: Fast splittable
// pseudorandom number generators).
__device__ inline uint64_t MixedBits(uint64_t x) {
  x += 0x9E3779B97F4A7C15;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  return x ^ (x >> 31);
}

// Assumptions of a kernel about a launch. A kernel runs for a few microseconds, so that fetching its code
// takes a good part of them: kernels for less are shorter.
enum class Alignment : uint8_t {
  kNone,
  k16B,            // addresses are multiples of 16 bytes, and pieces whole words of 16 bytes
  k16BSinglePass,  // moreover a thread has at most one word of each piece
};

// Sixteen bytes of a piece: `index` counts them. Unless kWhole, the last ones may be fewer, and the address
// may be any.
template <typename Element, bool kWhole>
__device__ inline uint4 LoadWord16(const void* piece, int64_t index, int64_t count) {
  if constexpr (kWhole) {
    return static_cast<const uint4*>(piece)[index];
  } else {
    constexpr int kCount = Word16<Element>::kCount;
    const int64_t first = index * kCount;
    if (reinterpret_cast<uintptr_t>(piece) % 16 == 0 && first + kCount <= count)
      return static_cast<const uint4*>(piece)[index];
    Word16<Element> loaded;
    loaded.word = {};
#pragma unroll
    for (int e = 0; e < kCount; ++e) {
      if (first + e < count) loaded.element[e] = static_cast<const Element*>(piece)[first + e];
    }
    return loaded.word;
  }
}
template <typename Element, bool kWhole>
__device__ inline void StoreWord16(void* piece, int64_t index, int64_t count, const Word16<Element>& word) {
  if constexpr (kWhole) {
    static_cast<uint4*>(piece)[index] = word.word;
  } else {
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
}

template <typename Element, int kMax, PacketShape kShape, typename TestHooks,
          Alignment kFit = Alignment::kNone>
class DenseExchange {
 public:
  __device__ DenseExchange(const ClientPacketsLaunch& launch, const ClientLaunchContext& context)
      : launch_(launch.packets),
        context_(context),
        half_offset_(context.half() * launch.half_packets),
        dense_offset_(launch.dense_offset + context.half() * launch.dense_half),
        dense_slot_(launch.dense_slot) {
    if constexpr (kGathers) {
      key_[0] = MixedBits(context.value());
      key_[1] = MixedBits(key_[0]);
    }
  }

  // kOneWord: where this thread's word of what the next rank gets lies; null if it has none.
  static __device__ const uint4* FirstWord(const PacketsLaunch& launch) {
    const int peer = launch.rank + 1 == launch.world ? 0 : launch.rank + 1;
    const unsigned movers = blockDim.x - kHandshakeThreads;
    const int64_t at = int64_t{blockIdx.x} * movers + threadIdx.x;
    if (threadIdx.x >= movers || at >= Packets(launch.count[peer])) return nullptr;
    return static_cast<const uint4*>(launch.source[peer]) + at;
  }

  // Returns false in a thread that has given up. The last warp of each block moves no data. `first_word`:
  // kOneWord's.
  __device__ bool Run(const uint4& first_word) const {
    const unsigned movers = blockDim.x - kHandshakeThreads;
    if (threadIdx.x >= movers) return blockIdx.x != 0 || Handshake(static_cast<int>(threadIdx.x - movers));
    const int64_t first = int64_t{blockIdx.x} * movers + threadIdx.x;
    const int64_t step = int64_t{gridDim.x} * movers;
    int64_t longest = 0;
#pragma unroll 1
    for (int p = 0; p < launch_.world; ++p) longest = max(longest, Packets(launch_.count[p]));
    TestHooks::BeforeSignal(context_.value(), 0);
    SendPieces(first, step, longest, first_word);
    if constexpr (kGathers) {
      return TakePieces(0, first, step, longest);
    } else {
      return Sum(first, step) && (kShape != PacketShape::kTwoShot || TakePieces(1, first, step, longest));
    }
  }

 protected:
  static constexpr bool kGathers = kShape == PacketShape::kGather;
  static constexpr bool kWhole = kFit != Alignment::kNone, kOneWord = kFit == Alignment::k16BSinglePass;
  // Packets of a thread, for each peer, that are in flight together.
  static constexpr int kSendUnroll = kOneWord ? 1 : 4, kSumUnroll = kMax <= 2 && !kOneWord ? 2 : 1;

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

  __device__ void Send(Packet* to, const uint4& word) const {
    const uint64_t high = word.z | uint64_t{word.w} << 32;
    if constexpr (kGathers) {
      StorePacket(to, (word.x | uint64_t{word.y} << 32) ^ key_[0], high ^ key_[1]);
    } else {
      uint32_t mark = ~word.x;
      if (mark == 0) mark = ~kOtherNan<Element>;
      StorePacket(to, mark | uint64_t{word.y} << 32, high);
    }
  }
  // Whether a packet of this launch is in `packet`. An empty one is what the launch before of the same half
  // has left: test hooks may take it.
  __device__ bool HasArrived(const Packet& packet) const {
    const uint64_t value = context_.value();
    const bool filled =
        kGathers ? (packet.data | packet.launch_number) != 0 : static_cast<uint32_t>(packet.data) != 0;
    return TestHooks::IsOf(value, filled ? value : value - (uint64_t{2} << kLaunchTagBits));
  }
  __device__ uint4 DataOf(const Packet& packet) const {
    const uint64_t low = kGathers ? packet.data ^ key_[0] : packet.data ^ 0xFFFFFFFF;
    const uint64_t high = kGathers ? packet.launch_number ^ key_[1] : packet.launch_number;
    return {static_cast<uint32_t>(low), static_cast<uint32_t>(low >> 32), static_cast<uint32_t>(high),
            static_cast<uint32_t>(high >> 32)};
  }

  // The slow side of a wait: what the peer has written last is in the packet with its number.
  class Waiting {
   public:
    __device__ explicit Waiting(const DenseExchange& exchange) : exchange_(exchange) {}
    __device__ bool Continue(int peer) {
      if (++polls_ % kPollsPerLook != 0) return true;
      const ClientLaunchContext& context = exchange_.context_;
      const uint64_t seen = LoadPacket(exchange_.Header(exchange_.launch_.rank, peer)).launch_number;
      return context.PollFailures(&start_ns_, peer, seen == context.value() ? 0 : seen);
    }

   private:
    const DenseExchange& exchange_;
    uint32_t polls_ = 0;
    uint64_t start_ns_ = 0;
  };

  // Waits for packets first, first + step, … of each peer for which `wanted(u, s)` says so, and empties their
  // slots. Loads of all that have not come are in flight together. False, in all threads of the warp: a wait
  // was ended. All threads of a warp call it, so that they write together again behind it.
  template <int kUnroll, typename Wanted>
  __device__ bool Take(int shot, int64_t first, int64_t step, const Wanted& wanted,
                       Packet (&packets)[kUnroll][kMax]) const {
    const auto slot = [&](int u, int s) { return Slot(launch_.rank, s, shot) + first + u * step; };
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
#pragma unroll
      for (int s = 0; s < kMax; ++s) {
        if (wanted(u, s)) packets[u][s] = LoadPacket(slot(u, s));
      }
    }
    Waiting waiting(*this);
    bool goes_on = true;
    while (goes_on) {
      int missing = -1;
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
#pragma unroll
        for (int s = 0; s < kMax; ++s) {
          if (!wanted(u, s) || HasArrived(packets[u][s])) continue;
          missing = s;
          packets[u][s] = LoadPacket(slot(u, s));
        }
      }
      if (missing < 0) break;
      goes_on = waiting.Continue(missing);
    }
    goes_on = __all_sync(0xFFFFFFFF, goes_on);
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
#pragma unroll
      for (int s = 0; s < kMax; ++s) {
        if (wanted(u, s)) StorePacket(slot(u, s), 0, 0);
      }
    }
    return goes_on;
  }

  __device__ void SendPieces(int64_t first, int64_t step, int64_t longest, const uint4& first_word) const {
    uint4 words[kSendUnroll];
    if constexpr (kOneWord) {
      words[0] = first_word;
      SendSome(first, step, words, launch_.source[Peer(1)]);
    } else {
#pragma unroll 1
      for (int64_t i = first; i < longest; i += kSendUnroll * step) SendSome(i, step, words, nullptr);
    }
  }
  // Packets i, i + step, … of each: one piece goes to all peers, or each gets its own. `loaded`: of which
  // piece `words` are. A gather's own piece stays here.
  __device__ void SendSome(int64_t i, int64_t step, uint4 (&words)[kSendUnroll], const void* loaded) const {
#pragma unroll 1
    for (int j = 1; j < launch_.world; ++j) {
      const int peer = Peer(j);
      const int64_t packets = Packets(launch_.count[peer]);
      if (launch_.source[peer] != loaded) {
        loaded = launch_.source[peer];
#pragma unroll
        for (int u = 0; u < kSendUnroll; ++u) {
          if (i + u * step < packets)
            words[u] = LoadWord16<Element, kWhole>(loaded, i + u * step, launch_.count[peer]);
        }
      }
      Packet* slot = Slot(peer, launch_.rank, 0);
#pragma unroll
      for (int u = 0; u < kSendUnroll; ++u) {
        if (i + u * step < packets) Send(slot + i + u * step, words[u]);
      }
    }
    if constexpr (kGathers) {
      const int rank = launch_.rank;
#pragma unroll
      for (int u = 0; u < kSendUnroll; ++u) {
        if (i + u * step >= Packets(launch_.count[rank])) continue;
        Word16<Element> own;
        own.word = words[u];
        StoreWord16<Element, kWhole>(launch_.destination[rank], i + u * step, launch_.count[rank], own);
      }
    }
  }

  // The sum of the piece that this rank gets; two shots send it on.
  __device__ bool Sum(int64_t first, int64_t step) const {
    const int64_t own = Packets(launch_.count[launch_.rank]);
    if constexpr (kOneWord) {
      return FirstOfWarp(first) >= own || SumSome<1>(first, step, true);
    } else {
      int64_t i = first;
#pragma unroll 1
      for (; kSumUnroll > 1 && FirstOfWarp(i + (kSumUnroll - 1) * step) < own; i += kSumUnroll * step) {
        if (!SumSome<kSumUnroll>(i, step, i == first)) return false;
      }
#pragma unroll 1
      for (; FirstOfWarp(i) < own; i += step) {
        if (!SumSome<1>(i, step, i == first)) return false;
      }
      return true;
    }
  }
  // Packets i, i + step, … of it.
  template <int kUnroll>
  __device__ bool SumSome(int64_t i, int64_t step, bool is_first) const {
    const int rank = launch_.rank, world = launch_.world;
    const int64_t count = launch_.count[rank], own = Packets(count);
    uint4 mine[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (i + u * step < own)
        mine[u] = LoadWord16<Element, kWhole>(launch_.source[rank], i + u * step, count);
    }
    Packet packets[kUnroll][kMax];
    const auto wanted = [&](int u, int s) { return s < world && s != rank && i + u * step < own; };
    if (!Take(0, i, step, wanted, packets)) return false;
    // The same block of each peer runs: no kernel that this one waits for has yet to begin.
    if (is_first) TriggerDependents();
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int64_t at = i + u * step;
      if (at >= own) continue;
      Word16<Element> terms[kMax];
#pragma unroll
      for (int s = 0; s < kMax; ++s) terms[s].word = s == rank ? mine[u] : DataOf(packets[u][s]);
      const Word16<Element> sum = SumOf(terms);
      StoreWord16<Element, kWhole>(launch_.destination[rank], at, count, sum);
      if constexpr (kShape == PacketShape::kTwoShot) {
        TestHooks::BeforeSignal(context_.value(), 1);
#pragma unroll 1
        for (int j = 1; j < world; ++j) Send(Slot(Peer(j), rank, 1) + at, sum.word);
      }
    }
    return true;
  }
  static __device__ int64_t FirstOfWarp(int64_t index) { return index - threadIdx.x % 32; }

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

  // The pieces of the others: sums, or what is gathered. Parts differ in length by their last packets.
  __device__ bool TakePieces(int shot, int64_t first, int64_t step, int64_t longest) const {
    if constexpr (kOneWord) {
      return FirstOfWarp(first) >= longest || TakeSome(shot, first, step, true);
    } else {
#pragma unroll 1
      for (int64_t i = first; FirstOfWarp(i) < longest; i += kSumUnroll * step) {
        if (!TakeSome(shot, i, step, i == first)) return false;
      }
      return true;
    }
  }
  // Packets i, i + step, … of each.
  __device__ bool TakeSome(int shot, int64_t i, int64_t step, bool is_first) const {
    const int rank = launch_.rank, world = launch_.world;
    Packet packets[kSumUnroll][kMax];
    const auto wanted = [&](int u, int s) {
      return s < world && s != rank && i + u * step < Packets(launch_.count[s]);
    };
    if (!Take(shot, i, step, wanted, packets)) return false;
    if (kGathers && is_first) TriggerDependents();  // as in SumSome
#pragma unroll
    for (int u = 0; u < kSumUnroll; ++u) {
#pragma unroll
      for (int s = 0; s < kMax; ++s) {
        if (!wanted(u, s)) continue;
        Word16<Element> word;
        word.word = DataOf(packets[u][s]);
        StoreWord16<Element, kWhole>(launch_.destination[s], i + u * step, launch_.count[s], word);
      }
    }
    return true;
  }

  // Tells the peer this launch's number. The peer's must be the same, or this rank gives up.
  __device__ bool Handshake(int peer) const {
    if (peer >= launch_.world || peer == launch_.rank) return true;
    StorePacket(Header(peer, launch_.rank), 0, context_.value());
    const Packet* header = Header(launch_.rank, peer);
    typename ClientLaunchContext::PacketWaitBudget wait_budget(context_);
    Packet packet = LoadPacket(header);
    while (packet.launch_number != context_.value()) {
      if (!wait_budget.Continue(peer, packet.launch_number)) return false;
      packet = LoadPacket(header);
    }
    return true;
  }

  const PacketsLaunch& launch_;
  const ClientLaunchContext& context_;
  const int64_t half_offset_, dense_offset_, dense_slot_;  // packets
  uint64_t key_[kGathers ? 2 : 1];                         // of gathers
};

template <typename Element, int kMax, PacketShape kShape, typename TestHooks, Alignment kFit>
__global__ void __launch_bounds__(kCollectiveThreads + kHandshakeThreads)
    RunClientDense(const __grid_constant__ ClientPacketsLaunch launch) {
  using Exchange = DenseExchange<Element, kMax, kShape, TestHooks, kFit>;
  uint64_t first = 0;
  if constexpr (kFit == Alignment::k16BSinglePass) {
    first = reinterpret_cast<uint64_t>(Exchange::FirstWord(launch.packets));
    asm volatile("" : "+l"(first));  // found while earlier work ends
  }
  WaitForPrimary();
  uint4 first_word = {};  // loaded while the launch's number is
  if (first != 0) first_word = *reinterpret_cast<const uint4*>(first);
  const ClientLaunchContext context(launch.group_state);
  const Exchange exchange(launch, context);
  if (__syncthreads_or(context.HasFailed() || !exchange.Run(first_word))) return;
  TriggerDependents();
  context.ReportProgress();
}

// The kernel for a launch's type, shape and world size; null for a type that has none.
template <typename TestHooks, Alignment kFit = Alignment::kNone>
struct DenseKernels {
  using Kernel = void (*)(const ClientPacketsLaunch);
  template <typename Element, PacketShape kShape>
  static Kernel OfWorld(int world) {
    if constexpr (kShape != PacketShape::kTwoShot) {  // two ranks send as much by one shot
      if (world <= 2) return &RunClientDense<Element, 2, kShape, TestHooks, kFit>;
    }
    if (world <= 4) return &RunClientDense<Element, 4, kShape, TestHooks, kFit>;
    return &RunClientDense<Element, 8, kShape, TestHooks, kFit>;
  }
  template <typename Element>
  static Kernel OfShape(PacketShape shape, int world) {
    if (shape == PacketShape::kTwoShot) return OfWorld<Element, PacketShape::kTwoShot>(world);
    return OfWorld<Element, PacketShape::kSum>(world);
  }
  static Kernel Of(DType type, PacketShape shape, int world) {
    if (shape == PacketShape::kGather)
      return OfWorld<uint8_t, PacketShape::kGather>(world);  // bytes of any type
    switch (type) {
      case DType::kF32: return OfShape<float>(shape, world);
      case DType::kF16: return OfShape<__half>(shape, world);
      case DType::kBf16: return OfShape<__nv_bfloat16>(shape, world);
      default: return nullptr;
    }
  }
};

}  // namespace tandem::cuda
