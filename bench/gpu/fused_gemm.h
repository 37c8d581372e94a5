// File: fused_gemm.h
//
// A product by one variant of the fused kernel, and the same by cuBLASLt.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "bench/gpu/fused_rig.h"
#include "kernels/cuda/fused/fused_launch.h"

namespace tandem::bench {

struct Shape {
  int64_t m, n, k;
};

// Those of a 70B model's layers, as ranks have them.
inline constexpr Shape kTimedShapes[] = {{2048, 7168, 8192}, {4096, 7168, 8192}, {8192, 7168, 8192},
                                         {2048, 8192, 7168}, {8192, 8192, 7168}, {8192, 3584, 4096}};

struct Operands {
  std::byte *a, *b, *c, *reference;
  // By blocks, as cuBLASLt wants them: [blocks of K][m], and [blocks of n][blocks of K to a multiple of 4].
  // Null: none.
  std::byte *scale_a = nullptr, *scale_b = nullptr;
};

// The types of a variant's operands.
struct GemmTypes {
  DType a = DType::kBf16, b = DType::kBf16, c = DType::kBf16;
  bool fast = true;     // of fp8: cuBLASLt's fast accumulation
  bool along_n = true;  // B's rows are contiguous, else its columns
  bool blocks = false;  // scales by blocks

  explicit GemmTypes(const cuda::FusedVariant& variant)
      : a(static_cast<DType>(variant.type)),
        b(static_cast<DType>(variant.b_type)),
        c(static_cast<DType>(variant.out_type)),
        fast(!variant.exact),
        along_n(variant.b_along_n),
        blocks(variant.blocks) {}
  bool operator==(const GemmTypes&) const = default;

  size_t BytesOfA(const Shape& s) const { return static_cast<size_t>(s.m * s.k) * DTypeBytes(a); }
  size_t BytesOfB(const Shape& s) const { return static_cast<size_t>(s.n * s.k) * DTypeBytes(b); }
  size_t BytesOfC(const Shape& s) const { return static_cast<size_t>(s.m * s.n) * DTypeBytes(c); }
  int64_t Blocks(int64_t extent) const { return (extent + kScaleBlock - 1) / kScaleBlock; }
  int64_t PitchOfScaleB(const Shape& s) const { return (Blocks(s.k) + 3) / 4 * 4; }
  size_t BytesOfScaleA(const Shape& s) const {
    return blocks ? static_cast<size_t>(s.m * Blocks(s.k)) * 4 : 0;
  }
  size_t BytesOfScaleB(const Shape& s) const {
    return blocks ? static_cast<size_t>(PitchOfScaleB(s) * Blocks(s.n)) * 4 : 0;
  }
};

// Random scales, if there are any.
void AddScales(Gpu& gpu, const GemmTypes& types, const Shape& s, Operands* o);

// Random operands, and one place for both results. Sets that are used in turn leave nothing of each other in
// L2.
std::vector<Operands> OperandSets(Gpu& gpu, const GemmTypes& types, const Shape& s, size_t count);

// cuBLASLt's, into `reference`.
MatmulArgs LtArgs(const GemmTypes& types, const Shape& s, const Operands& o);

// The fused kernel's, into `c`: in `pieces` pieces, which divide s.m.
cuda::FusedMatmul FusedArgs(const GemmTypes& types, const Shape& s, const Operands& o, int pieces,
                            const cuda::FusedMemory& memory);

// Runs `variant` beside cuBLASLt on awkward shapes. fp8 variants also run over a long K beside exact sums on
// the CPU. An exact variant must give the same bits, and a fast variant of the same types must not. Prints
// the findings. Returns false if something is wrong.
bool CheckVariant(Gpu& gpu, const cuda::FusedMemory& memory, const cuda::FusedVariant& variant);

}  // namespace tandem::bench
