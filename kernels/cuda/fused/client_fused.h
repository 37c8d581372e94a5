// File: client_fused.h
//
// The fused matmul kernel for client placement (docs/client-placement.md). A launch is two kernels:
//
//   handshake  one block, which counts the launch. It zeroes this rank's words and meets the peers. From then
//            on peers may write this rank's bulk area and symmetric operands.
//   fused    its words have the value 1 in every launch, so that a graph may hold it. A gather's also sends
//            this rank's data to the peers, by a warp of each CTA.
//
// If the handshake fails, the other one does nothing. A fused kernel that gives up later sets
// GroupDeviceState::failed and writes no word from then on. Plain structs, for code that nvcc does not
// compile.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/backend.h"
#include "kernels/cuda/fused/client_params.h"
#include "kernels/cuda/fused/fused_launch.h"
#include "tandem/status.h"

struct CUstream_st;

namespace tandem::cuda {

// Device memory that the launches of a group share, which follow one another.
struct ClientFusedMemory {
  FusedMemory fused;
  uint64_t* cancelled = nullptr;
  uint32_t* pushed = nullptr;  // 1 + kMaxPushes, zero before the first launch
};

// Where the words of a group's fused launches lie, as mapped here, by rank.
struct ClientFusedWords {
  std::array<uint64_t*, kMaxRanks> handshake{};  // signal areas
  std::array<uint64_t*, kMaxRanks> fused{};      // areas of as many words, for fused kernels alone
  int64_t per_writer = 0;
};

// The parameters of one launch.
struct ClientFusedKernel {
  HandshakeLaunch handshake;
  ClientFusedParams params;
  const FusedVariant* variant;
  int ctas;
};

// All compiled variants.
std::span<const FusedVariant> ClientFusedVariants();

// The kernels, without the state of the group, for `args`, a fused matmul with a handshake, and whose other
// words lie in `words.fused`. UNIMPLEMENTED: there is no kernel, or addresses are not aligned to 16 bytes.
Result<ClientFusedKernel> MakeClientFused(const CollectiveArgs& args, const ClientFusedWords& words,
                                          const ClientFusedMemory& memory);

void SetGroupState(ClientFusedKernel& kernel, const GroupDeviceState& group_state);
// Enqueues the kernels on `stream` of the current context.
Status LaunchClientFused(const ClientFusedKernel& kernel, CUstream_st* stream);
// Loads the kernels into the current context: see LoadClientPhases.
Status LoadClientFused(const ClientFusedKernel& kernel);

// The kernel of client_handshake.cu.
const void* HandshakeKernel();
inline constexpr unsigned kEntryThreads = 512;

}  // namespace tandem::cuda
