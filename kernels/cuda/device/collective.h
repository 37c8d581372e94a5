// File: collective.h
//
// Launchers of the symmetric-memory kernels: whole collectives as one kernel a rank, that meet over words and
// packets in memory that all ranks map. Plain structs, for code that nvcc does not compile.
//
// Both kernels end early, with undefined outputs, when the abort word is set or a wait takes longer than the
// time limit; they never trap. A wait that runs out of time says so in `trouble`.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/device/launch.h"
#include "tandem/dtype.h"
#include "tandem/status.h"

struct CUstream_st;

namespace tandem::cuda {

inline constexpr int kMaxGroupRanks = 8;
inline constexpr int kCollectiveThreads = 512;  // of a block

// How waits inside a kernel may end without their word.
struct WaitLimits {
  const uint64_t* abort_word = nullptr;  // non-zero ends the wait; null: nothing does
  uint64_t* trouble = nullptr;           // becomes 1 when a wait has run out of time; null: not reported
  uint64_t timeout_ns = 0;               // 0: no limit
};

// --- phases: bulk data by 16-byte words, one signal word for each block ---

inline constexpr int kMaxPhases = 4;
inline constexpr int kMaxItems = 24;
inline constexpr int kMaxPointers = 96;
inline constexpr int kMaxPhaseWords = 80;

// destinations[…][i] = scale * (sources[0][i] + sources[1][i] + …), or another reduction: in this order, fp32
// accumulators, one rounding. One source and scale 1 is a copy. Elements lie in runs of `inner`, `pitch`
// elements from run to run of an operand.
struct PhaseItem {
  int64_t count;  // elements
  int64_t inner;  // elements of a run; `count` when all lie in one
  float scale;
  uint16_t first_pointer;  // in PhasesLaunch::pointer: sources, then destinations
  uint8_t sources;
  uint8_t destinations;
  bool vector;  // all addresses, runs and pitches are multiples of 16 bytes
};

// Waits, then items, then signals.
struct Phase {
  uint16_t first_item, items;
  uint16_t first_wait, waits;      // in PhasesLaunch::word
  uint16_t first_signal, signals;  // in PhasesLaunch::word
};

// Block b of a rank works on the b-th part of every item and meets block b of the peers. So all ranks must
// launch the same number of blocks, and a part of an item on one rank must be a part of an item with the same
// count on the other.
struct PhasesLaunch {
  uint64_t launch_number;
  WaitLimits limits;
  DeviceGuard guard;
  int blocks;
  int word_stride;  // words from block to block
  int phases;
  uint8_t type;       // DType
  bool sums;          // some item has several sources or a scale
  uint8_t reduce_op;  // ReduceOp of such items
  Phase phase[kMaxPhases];
  PhaseItem item[kMaxItems];
  void* pointer[kMaxPointers];
  int64_t pitch[kMaxPointers];
  uint64_t* word[kMaxPhaseWords];  // of block 0
};
Status LaunchPhases(const PhasesLaunch& launch, CUstream_st* stream);

// --- packets: small data with the flag beside them ---

// Eight bytes of data and the launch's number, written and read whole.
struct alignas(16) Packet {
  uint64_t data;
  uint64_t launch_number;
};

enum class PacketShape : uint8_t {
  kSum,      // destination[rank] = scale * sum over ranks s of the piece that s sends here
  kGather,   // destination[s] = the piece that s sends here, for all s
  kTwoShot,  // source[p] is part p of one tensor: its owner p sums it and sends the sum to all
};

struct PacketsLaunch {
  uint64_t launch_number;
  WaitLimits limits;
  DeviceGuard guard;
  int blocks;
  int rank, world;
  uint8_t type;  // DType
  PacketShape shape;
  float scale;
  int64_t count[kMaxGroupRanks];  // elements of piece p; equal for all p save for kTwoShot
  const void* source[kMaxGroupRanks];
  void* destination[kMaxGroupRanks];
  // This launch's half of the packets in rank p's memory. The slot of the rank that writes them is at
  // rank * slot_packets; the second shot's slots lie world * slot_packets behind the first's.
  Packet* area[kMaxGroupRanks];
  int64_t slot_packets;
};
Status LaunchPackets(const PacketsLaunch& launch, CUstream_st* stream);

// --- waits of a lane ---

// Holds the stream until *word >= 1, or until the limits end the wait.
Status LaunchAwaitWord32(const uint32_t* word, const WaitLimits& limits, CUstream_st* stream);

// Loads the kernels of this file into the current context; see LoadKernels.
Status CollectiveKernelsLoad();

}  // namespace tandem::cuda
