// File: client_skinny.h
//
// The skinny kernel for client placement (docs/client-placement.md): a launch takes its number, and with it
// the half of workspace, from counters in device memory. Plain structs, for code that nvcc does not compile.
//
// A CTA gives up in a wait, or at its begin if the group has failed. It then runs to its end without a wait
// and publishes nothing: no shard, no sum, no word. Its counters stay.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/backend.h"
#include "kernels/cuda/collectives/client_launch.h"
#include "kernels/cuda/skinny/skinny.h"
#include "kernels/cuda/skinny/skinny_matmul.h"
#include "tandem/status.h"

struct CUstream_st;

namespace tandem::cuda {

// A kernel's parameters. Launch e uses `area + (e & 1) * half_bytes` of each rank. `abort_word`, `failure`,
// `pushed`, guard, `launch_number` and time limit are not read.
struct ClientSkinnyLaunch : SkinnyParams {
  CUtensorMap odd_others;  // as `others`, of odd numbers
  GroupDeviceState group_state;
  int64_t half_bytes;
};
static_assert(sizeof(ClientSkinnyLaunch) <= 4096, "a kernel's parameters");

// A launch's kernel with its parameters.
struct ClientSkinnyKernel {
  ClientSkinnyLaunch launch;
  const SkinnyVariant* variant;
  int ctas;
};

// All compiled variants.
std::span<const SkinnyVariant> ClientSkinnyVariants();

// The kernel, without the state of the group, for `args`, a skinny product. Its areas are those of even
// launches; `half_bytes` is a multiple of 16. UNIMPLEMENTED: there is no kernel for this product.
// INVALID_ARGUMENT: the product is not bound.
Result<ClientSkinnyKernel> MakeClientSkinny(const CollectiveArgs& args, uint64_t half_bytes);
// The same of a matmul and its variant, which must outlive the kernel.
Result<ClientSkinnyKernel> MakeClientSkinny(const SkinnyMatmul& matmul, const SkinnyVariant& variant,
                                            uint64_t half_bytes);

// Enqueues the kernel on `stream` of the current context. INVALID_ARGUMENT for more CTAs than there are
// counters.
Status LaunchClientSkinny(const ClientSkinnyKernel& kernel, CUstream_st* stream);

// Loads the kernel into the current context: see LoadClientPhases.
Status LoadClientSkinny(const ClientSkinnyKernel& kernel);

}  // namespace tandem::cuda
