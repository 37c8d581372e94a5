// File: aligned_vectors.h
//
// cuBLASLt refuses to enqueue fp8 products whose scales or bias do not begin at a multiple of 16 bytes. Its
// heuristics do not see those addresses and list candidates all the same. A chunk's scales
// begin at four bytes for each row before them, and the user's own where they please: those are copied to
// where they may lie.
#pragma once

#include <cstddef>

#include "drivers/cublaslt/cublas_lt.h"
#include "drivers/cuda/cuda_driver.h"
#include "tandem/status.h"

namespace tandem::cuda {

inline constexpr size_t kVectorAlignment = 16;
// Scratch memory of one lane's copies: vectors of half a million factors together.
inline constexpr size_t kVectorScratchBytes = size_t{2} << 20;

// Enqueues copies of the scales (those by blocks apart, see block_scales.h) and the bias that begin between
// multiples of kVectorAlignment into `scratch` (kVectorScratchBytes, aligned to 256), and points `operands`
// at them. Others stay where they are. False, with nothing enqueued, when the copies do not fit. Work that is
// enqueued later on `stream` may use `scratch` again.
Result<bool> AlignVectors(const LtProduct& product, std::byte* scratch, CudaDriver& driver, CUstream stream,
                          LtOperands* operands);

}  // namespace tandem::cuda
