// File: gemm.h
//
// C = alpha * A * B (+ C) in fp32, through Eigen or in one order, compiled once for the base instruction set and, on x86-64,
// once more for AVX2 with FMA; the machine's best is chosen at run time. One thread.
#pragma once

#include <cstdint>

namespace tandem::host {

// A matrix of floats: one of the two strides is 1 (or the extent along it is).
struct FloatMatrix {
  float* data = nullptr;
  int64_t row_stride = 0;     // elements from a row to the next
  int64_t column_stride = 1;  // elements from a column to the next
};

// C [m, n] = alpha * A [m, k] * B [k, n], or += with `accumulate`. C's column stride must be 1. Any extent
// may be 0. Results depend on extents and strides only, not on the thread or the run.
void Gemm(const FloatMatrix& a, const FloatMatrix& b, const FloatMatrix& c, int64_t m, int64_t n, int64_t k,
          float alpha, bool accumulate);

// The same, slower. An element's bits depend on its row of A and its column of B alone: its products are added
// along K, one by one. Other extents, and strides, change nothing.
void OrderedGemm(const FloatMatrix& a, const FloatMatrix& b, const FloatMatrix& c, int64_t m, int64_t n,
                 int64_t k, float alpha, bool accumulate);

}  // namespace tandem::host
