// File: block_scales.h
//
// Scales by blocks of K on CUDA. cuBLASLt takes no strides for them. A's must lie by columns,
// [blocks][rows]; B's by rows of blocks, [blocks of N][blocks of K to a multiple of 4], or as A's with a
// factor for each column. Most users have them so (PyTorch's scaled products and DeepGEMM want the
// same). Gathered scales, parts of scales, and some users' are rearranged before the product, by a small
// kernel.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/backend.h"
#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/matmul/matmul_plan.h"
#include "tandem/status.h"

namespace tandem::cuda {

// The factors of an operand of `lines` lines and `k` elements of K, as cuBLASLt reads them.
size_t ScaleElements(LtScale scales, uint64_t lines, uint64_t k);

// Points `operands` at the factors of rows [first, last) of A and of B, which is where they are or in
// `scratch` (kBlockScaleBytes, aligned to 256). False, with nothing enqueued, when they do not fit there, or
// when A's are cut otherwise than its rows. `args` has passed host::CheckMatmul, `mapping` is of those rows.
Result<bool> PlaceBlockScales(const MatmulArgs& args, int64_t first, int64_t last, const LtMapping& mapping,
                              std::byte* scratch, CUstream stream, LtOperands* operands);

// The same factors for the plain kernel. UNIMPLEMENTED when A's are cut otherwise than its rows.
Status SetBlockFactors(const MatmulArgs& args, BlockFactors* factors);

}  // namespace tandem::cuda
