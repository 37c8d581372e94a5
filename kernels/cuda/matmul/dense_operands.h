// File: dense_operands.h
//
// cuBLASLt takes fp8 operands that lie dense along K only. Others are copied, transposed, into scratch memory
// first.
#pragma once

#include <cstddef>
#include <vector>

#include "kernels/backend.h"
#include "tandem/status.h"

struct CUstream_st;

namespace tandem::cuda {

struct DenseProduct {
  struct Copy {
    bool of_a;              // else of B
    int64_t rows, columns;  // of what is read; columns lie dense
    int64_t in_pitch, out_pitch;
    size_t offset;  // in the scratch memory
  };
  MatmulArgs args;  // with the copies' strides; addresses are set by EnqueueCopies
  std::vector<Copy> copies;
  size_t scratch_bytes = 0;  // 0: the product as it was
};

// The product with its fp8 operands dense along K. Left as they are: operands dense along neither dimension,
// an A of several leading dimensions, an A whose chunks are waited for.
DenseProduct MakeDense(const MatmulArgs& args);

// Enqueues the copies into `scratch` (scratch_bytes, aligned to 256) and points the product at them.
Status EnqueueCopies(DenseProduct* product, std::byte* scratch, CUstream_st* stream);

}  // namespace tandem::cuda
