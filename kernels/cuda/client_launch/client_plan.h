// File: client_plan.h
//
// The arguments of a collective, or of a product of few rows together with its collective, as one launch of a
// client-placed kernel (docs/client-placement.md).
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <variant>

#include "kernels/backend.h"
#include "kernels/cuda/collectives/client_launch.h"
#include "kernels/cuda/collectives/client_norm.h"
#include "kernels/cuda/fused/client_fused.h"
#include "kernels/cuda/skinny/client_skinny.h"
#include "tandem/status.h"

struct CUstream_st;

namespace tandem::cuda {

// The workspaces of a group's client-placed plans, by rank, as mapped here. Half 1 lies `half_bytes` behind
// half 0.
struct ClientHalves {
  std::array<std::byte*, kMaxGroupRanks> workspace{};  // half 0; null: none
  uint64_t half_bytes = 0;                             // a multiple of 16
};

// Where the fused matmuls of a group's plans have their words and memory.
struct ClientFusedPlaces {
  ClientFusedWords words;
  ClientFusedMemory memory;
};

using ClientKernelLaunch = std::variant<ClientPhasesLaunch, ClientPacketsLaunch, ClientNormLaunch,
                                        ClientSkinnyKernel, ClientFusedKernel>;

// The parameters, without the state of the group, of a kernel for `args`, whose addresses are those of an
// even launch. `fused`: for fused matmuls. UNIMPLEMENTED for what no client-placed kernel takes.
// INVALID_ARGUMENT for views that are no runs.
Result<ClientKernelLaunch> MakeClientLaunch(const CollectiveArgs& args, const ClientHalves& halves,
                                            const ClientFusedPlaces* fused = nullptr);

// `kernel` and the norm of what it writes as one launch, if there is a kernel for that.
std::optional<ClientKernelLaunch> WithNorm(const ClientKernelLaunch& kernel, const NormArgs& norm);

// Sets what the launches of a group have in common.
void SetGroupState(ClientKernelLaunch& launch, const GroupDeviceState& group_state);
// Loads the kernel into the current context.
Status Load(const ClientKernelLaunch& launch);
// Enqueues the kernel on `stream` of the current context.
Status Enqueue(const ClientKernelLaunch& launch, CUstream_st* stream);

}  // namespace tandem::cuda
