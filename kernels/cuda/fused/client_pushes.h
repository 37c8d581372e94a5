// File: client_pushes.h
//
// How a client-placed gather's shard is cut into the chunks that its kernel's warps copy to the peers.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/backend.h"
#include "kernels/cuda/fused/client_params.h"
#include "tandem/status.h"

namespace tandem::cuda {

// `counters`: ClientFusedMemory::pushed. Both sides of a push have equal extents. UNIMPLEMENTED: they lie in
// no common rows of bytes, are empty, or have no word.
Result<ClientPushes> MakePushes(std::span<const FusedPush> pushes, uint32_t* counters);

}  // namespace tandem::cuda
