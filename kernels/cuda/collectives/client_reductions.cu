// Clients' kernels of reductions that are no sums.
#include <cuda_runtime.h>

#include "kernels/cuda/collectives/reductions.cuh"

namespace tandem::cuda {
namespace {

struct ClientReductions {
  template <typename Element>
  static const void* Of() {
    return reinterpret_cast<const void*>(&RunClientPhases<Element, kMaxGroupRanks, false, NoTestHooks>);
  }
};

}  // namespace

const void* ClientReductionKernel(DType type) { return ReductionKernelOf<ClientReductions>(type); }

}  // namespace tandem::cuda
