// File: client_launch.h
//
// Launchers of the collectives' kernels for client placement (docs/client-placement.md): a launch takes its
// number from counters in device memory, so a graph can replay it. Plain structs, for code that nvcc does not
// compile.
//
// A kernel ends early, with undefined outputs, when the verdict page cuts its launch off, when a wait takes
// longer than the time limit, or when a peer runs another launch. The first thread that gives up fills the
// report. A block that has given up publishes nothing and does not count. Kernels never trap.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/device/collective.h"
#include "program/launch_word.h"
#include "program/skinny_layout.h"
#include "tandem/status.h"

struct CUstream_st;

namespace tandem::cuda {

// Counters of a rank, one for each block that a kernel may have.
inline constexpr int kLaunchCounters = 256;
inline constexpr int kPushedUnits = SkinnyLayout::kMaxUnits;

// Why a kernel has given up.
enum class AbortReason : uint64_t {
  kNone = 0,
  kCutOff,    // the verdict page ends the launch
  kLate,      // a wait has met the time limit
  kMismatch,  // the peer runs another plan, or its tag differs
  kDesync,    // the peer is ahead by more than one launch
};

// The first failure of a rank's launches. In pinned host memory; `kind` is written last, with release order.
struct LaunchReport {
  uint64_t kind;    // AbortReason
  uint64_t number;  // of the launch
  uint64_t peer;    // the rank that the launch waited for
  uint64_t seen;    // the peer's word or packet
  uint64_t plan;    // of the launch
};

// The memory that all launches of a group share, as their kernels see it.
struct GroupDeviceState {
  uint64_t* counters;  // kLaunchCounters; launches that have ended. Private device memory
  uint64_t* failed;    // not 0 once a block has given up. Private device memory
  uint64_t* looked;    // when a thread last read *first_aborted_launch, in ns. Private device memory
  const uint64_t* first_aborted_launch;  // launches from this number on give up; 0: none do. Host memory
  LaunchReport* report;                  // host memory
  const uint64_t* own_words;             // of this rank's signal area, by the rank that writes them
  int64_t words_per_peer;
  uint64_t timeout_ns;  // of all waits of a thread together; 0: no limit
  uint64_t tag;         // below 2^kLaunchTagBits
  uint64_t plan;        // for the report
  uint64_t* pushed;     // kPushedUnits; of a gather's shard, the last launch that pushed each. Private device
                        // memory, zero before the first launch
};

// A launch of number e uses addresses `+ half_bytes` for odd e: of pointers whose bit in `halved` is set.
struct ClientPhasesLaunch {
  PhasesLaunch phases;  // `launch_number`, `limits` and `guard` are not read
  GroupDeviceState group_state;
  int64_t half_bytes;
  uint32_t halved[(kMaxPointers + 31) / 32];
};
static_assert(sizeof(ClientPhasesLaunch) <= 4096, "a kernel's parameters");

struct ClientPacketsLaunch {
  PacketsLaunch
      packets;  // `launch_number`, `limits` and `guard` are not read; `area` is that of even numbers
  GroupDeviceState group_state;
  int64_t half_packets;
  bool dense;  // by dense packets; these, in packets: from `area` to their even half, and of one
  int64_t dense_offset, dense_half, dense_slot;
};

// INVALID_ARGUMENT for more blocks than there are counters.
Status LaunchClientPhases(const ClientPhasesLaunch& launch, CUstream_st* stream);
Status LaunchClientPackets(const ClientPacketsLaunch& launch, CUstream_st* stream);

// Loads the kernel of such a launch into the current context: a first launch that loads may wait for the
// whole context, and so for a kernel that waits for a peer.
Status LoadClientPhases(const ClientPhasesLaunch& launch);
Status LoadClientPackets(const ClientPacketsLaunch& launch);

}  // namespace tandem::cuda
