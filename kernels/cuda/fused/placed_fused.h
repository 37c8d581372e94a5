// File: placed_fused.h
//
// The fused matmul kernel for client placement (docs/client-placement.md). A launch is two or three kernels:
//
//   meeting  one block, which counts the launch. It zeroes this rank's words and meets the peers. From then
//            on peers may write this rank's bulk area and symmetric operands.
//   push     of a gather: sends this rank's data to the peers while the products run.
//   fused    its words have the value 1 in every launch, so that a graph may hold it.
//
// If the meeting fails, the other two do nothing. A fused kernel that gives up later sets LaunchFrame::failed
// and writes no word from then on. Plain structs, for code that nvcc does not compile.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/backend.h"
#include "kernels/cuda/collectives/placed.h"
#include "kernels/cuda/fused/fused_launch.h"
#include "tandem/status.h"

struct CUstream_st;

namespace tandem::cuda {

struct MeetingLaunch {
  LaunchFrame frame;
  uint64_t* told[kMaxRanks];           // by rank: this rank's word there
  const uint64_t* awaited[kMaxRanks];  // by rank: its word here
  uint64_t* words;                     // of the fused kernel, that peers write here
  int64_t word_count;
  uint64_t* cancelled;  // set to 1 if the launch must do nothing, else to 0
  int rank, world;
};

// Rows of bytes that a rank copies to a peer. A multiple of `width` bytes, as are addresses and pitches.
struct PushedRows {
  const std::byte* from;
  std::byte* to;
  int64_t rows, row_bytes, from_pitch, to_pitch;  // in bytes
  uint64_t* done;                                 // set to 1 once all is there; null: the next one's tells
  int width;                                      // 16, 4 or 1
};
inline constexpr int kMaxPushes = 2 * kMaxRanks;  // a shard and its scales for each peer

struct PushLaunch {
  PushedRows push[kMaxPushes];
  int pushes;
  const uint64_t* cancelled;
  uint32_t* arrived;  // kMaxPushes counters in device memory, zero between launches
};

// Device memory that the launches of a group share, which follow one another.
struct PlacedFusedMemory {
  FusedMemory fused;
  uint64_t* cancelled = nullptr;
  uint32_t* pushed = nullptr;  // kMaxPushes, zero before the first launch
};

// Where the words of a group's fused launches lie, as mapped here, by rank.
struct PlacedFusedWords {
  std::array<uint64_t*, kMaxRanks> meeting{};  // signal areas
  std::array<uint64_t*, kMaxRanks> fused{};    // areas of as many words, for fused kernels alone
  int64_t per_writer = 0;
};

// The parameters of one launch.
struct PlacedFusedKernel {
  MeetingLaunch meeting;
  PushLaunch push;
  FusedMatmulParams params;
  const FusedVariant* variant;
  int ctas;
};

// All compiled variants.
std::span<const FusedVariant> PlacedFusedVariants();

// The kernels, without their frame, for `args`, which has parts and a meeting, and whose other words lie in
// `words.fused`. UNIMPLEMENTED: there is no kernel, or addresses are not aligned to 16 bytes.
Result<PlacedFusedKernel> MakePlacedFused(const CollectiveArgs& args, const PlacedFusedWords& words,
                                          const PlacedFusedMemory& memory);

void SetFrame(PlacedFusedKernel& kernel, const LaunchFrame& frame);
// Enqueues the kernels on `stream` of the current context.
Status LaunchPlacedFused(const PlacedFusedKernel& kernel, CUstream_st* stream);
// Loads the kernels into the current context: see LoadPlacedPhases.
Status LoadPlacedFused(const PlacedFusedKernel& kernel);

// The kernels of placed_meeting.cu.
const void* MeetingKernel();
const void* PushKernel();
inline constexpr unsigned kEntryThreads = 512, kPushThreads = 512;
// Enough for the links, as with all-gathers by SMs, and few enough to leave the products their SMs.
inline constexpr unsigned kPushBlocks = 24;

}  // namespace tandem::cuda
