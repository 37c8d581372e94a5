// File: cublas_lt.h
//
// `CublasLt`: the one wrapper of cuBLASLt, on the level that Tandem needs: a product described once, its
// candidates listed, and one of them run.
#pragma once

#include <cublasLt.h>
#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tandem/status.h"

namespace tandem::cuda {

// A matrix in cuBLASLt's column-major words: `rows` × `columns`, column j begins at j * leading elements.
struct LtMatrix {
  cudaDataType_t type = CUDA_R_32F;
  uint64_t rows = 0, columns = 0;
  int64_t leading = 0;
  bool transposed = false;  // the operand is this matrix's transpose
  bool operator==(const LtMatrix&) const = default;
};

// The factors of an fp8 operand, f32. With lines for rows of op(X) or columns of op(Y), and L blocks of 128
// of K, the last of which may be shorter:
enum class LtScale : uint8_t {
  kNone,
  kTensor,   // one for all
  kVector,   // one for each line
  kBlocks,   // one for each line and block: [L][lines]. Hopper only, as the next
  kSquares,  // one for each 128 lines and block: [lines / 128][L to the next multiple of 4]. Not for both
             // operands
};

// D = alpha * op(X) op(Y) + beta * D (+ bias along D's rows).
struct LtProduct {
  LtMatrix x, y, d;
  cublasComputeType_t compute = CUBLAS_COMPUTE_32F;
  bool fast_accumulation = false;  // fp8 only
  // fp8; where not kNone, LtOperands has the addresses at the run. Blocks need lines in multiples of 4.
  LtScale x_scales = LtScale::kNone, y_scales = LtScale::kNone;
  bool has_bias = false;
  cudaDataType_t bias_type = CUDA_R_32F;
  uint32_t alignment = 16;  // bytes that every address is a multiple of
  bool operator==(const LtProduct&) const = default;

  uint64_t k() const { return x.transposed ? x.rows : x.columns; }
  bool HasBlockScales() const { return x_scales >= LtScale::kBlocks || y_scales >= LtScale::kBlocks; }
};

struct LtProductHash {
  size_t operator()(const LtProduct& product) const {
    size_t hash = product.alignment;
    for (const LtMatrix* matrix : {&product.x, &product.y, &product.d}) {
      for (const uint64_t word : {matrix->rows, matrix->columns, static_cast<uint64_t>(matrix->leading),
                                  static_cast<uint64_t>(matrix->type)}) {
        hash = (hash ^ word) * 0x9E3779B97F4A7C15u;
        hash ^= hash >> 32;
      }
    }
    return hash;
  }
};

// The arguments of a run beside the product.
struct LtOperands {
  const void* x = nullptr;
  const void* y = nullptr;
  void* d = nullptr;
  const void* x_scale = nullptr;
  const void* y_scale = nullptr;
  const void* bias = nullptr;
  float alpha = 1.0f, beta = 0.0f;
};

class CublasLt {
 public:
  virtual ~CublasLt() = default;
  // The library's own: an algorithm's words mean the same to one version alone.
  virtual uint64_t Version() const = 0;
  // The heuristics' candidates, best guess first, at most `most`; each carries its algorithm and workspace.
  // Empty when cuBLASLt has nothing for the product.
  virtual Result<std::vector<cublasLtMatmulAlgo_t>> Candidates(const LtProduct& product,
                                                               size_t workspace_bytes, int most) = 0;
  // Whether an algorithm that was a candidate for another product can run this one with that workspace.
  virtual Result<bool> Supports(const LtProduct& product, const cublasLtMatmulAlgo_t& algorithm,
                                size_t workspace_bytes) = 0;
  virtual Status Run(const LtProduct& product, const LtOperands& operands,
                     const cublasLtMatmulAlgo_t& algorithm, void* workspace, size_t workspace_bytes,
                     CUstream stream) = 0;
};

// How algorithms that split K may add their parts, as a mask of cublasLtReductionScheme_t: so that every
// element is rounded once to D's type, as plans promise. In place and in the output's type each part is
// rounded to D's type before the sum; those are left out unless D is f32, the type of the sum itself.
uint32_t ReductionSchemes(const LtProduct& product);

// The status of a failed call: "cublasLtMatmul: cuBLAS error 7: …".
Status CublasStatus(const char* call, cublasStatus_t status, const char* text);

// Loads libcublasLt.so.13, or takes the one that the process has loaded, and makes a handle for the current
// context's device. UNAVAILABLE where there is none. Thread-safe once made. Never unloaded.
Result<CublasLt*> LoadCublasLt();

// Loads the library alone, ahead of the above: it needs no context, and any thread may do it. A failure is
// returned there too.
Status PreloadCublasLt();

}  // namespace tandem::cuda
