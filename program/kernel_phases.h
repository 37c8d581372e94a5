// File: kernel_phases.h
//
// A collective's expansion as the phases of one kernel. The kernel works in blocks: block b of every rank
// handles the b-th part of each item and exchanges words with block b of the peers only. So the order of
// steps holds within a block and not between blocks. `PlanKernels` finds the collectives for which that is
// enough, alike for all ranks of a plan.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "program/program.h"

namespace tandem::plan {

// Words from one block's word to the next one's: neighbours are polled by different blocks.
inline constexpr int kKernelWordStride = 2;
inline constexpr int kMaxKernelBlocks = 64;
// CTAs of a client's fused kernel, one an SM.
inline constexpr int kMaxFusedBlocks = 256;
inline constexpr int kMaxDenseBlocks = 128;

using KernelItem = KernelSum<Ref>;

// The word (writer, index) of the reader; `rank` is the other side.
struct KernelWord {
  uint8_t rank = 0;
  uint16_t index = 0;  // of the expansion's signal; see KernelWordIndex
};

// Waits, then items, then signals.
struct KernelPhase {
  std::vector<KernelWord> waits;
  std::vector<KernelItem> items;
  std::vector<KernelWord> signals;
};

// The word of block 0 for the expansion's signal `index`; block b's lies b * kKernelWordStride further.
int KernelWordIndex(const CollectiveStep& step, int index);

// The expansion in phases: signals move behind the items that follow them up to the next wait, waits before
// the items that precede them since the last signal; neither can add a deadlock. Nothing when it holds steps
// that the kernel has not, several types, or more than a kernel takes.
std::optional<std::vector<KernelPhase>> FusePhases(const CollectiveStep& step);

// The exchange of kLowLatency's kernel.
using PacketPlan = PacketPieces<Ref>;

// The packets of a low-latency all-reduce (by `shots`), all-gather or reduce-scatter. Nothing when its
// operands are not contiguous or a piece does not fit into its slot of the packets.
std::optional<PacketPlan> PlanPackets(const CollectiveStep& step, int world_size);
// The most bytes of a piece that fit.
uint64_t MaxPacketPieceBytes(PacketExchange exchange, int world_size, bool dense);

// Sets `blocks` and the words of the collective of `programs` (all ranks of a plan), if no other step signals
// or waits and a kernel can run it. The choice depends on all ranks' views and so is one for
// all. `sms`: those that the kernel may take on each GPU, a block each; 0: no bound.
void PlanKernels(std::vector<RankProgram>* programs, int sms);

}  // namespace tandem::plan
