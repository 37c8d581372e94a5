#include "kernels/host/gemm.h"

namespace tandem::host {

using GemmFunction = void (*)(const FloatMatrix& a, const FloatMatrix& b, const FloatMatrix& c, int64_t m,
                              int64_t n, int64_t k, float alpha, bool accumulate);

// Defined by gemm_kernel.inc in gemm_base.cc and gemm_avx2.cc.
void GemmBase(const FloatMatrix& a, const FloatMatrix& b, const FloatMatrix& c, int64_t m, int64_t n,
              int64_t k, float alpha, bool accumulate);
void GemmAvx2(const FloatMatrix& a, const FloatMatrix& b, const FloatMatrix& c, int64_t m, int64_t n,
              int64_t k, float alpha, bool accumulate);
void OrderedGemmBase(const FloatMatrix& a, const FloatMatrix& b, const FloatMatrix& c, int64_t m, int64_t n,
                     int64_t k, float alpha, bool accumulate);
void OrderedGemmAvx2(const FloatMatrix& a, const FloatMatrix& b, const FloatMatrix& c, int64_t m, int64_t n,
                     int64_t k, float alpha, bool accumulate);

namespace {

struct GemmFunctions {
  GemmFunction fastest, ordered;
};

GemmFunctions Choose() {
#ifdef TANDEM_GEMM_AVX2
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return {GemmAvx2, OrderedGemmAvx2};
#endif
  return {GemmBase, OrderedGemmBase};
}

const GemmFunctions& Functions() {
  static const GemmFunctions functions = Choose();
  return functions;
}

void Run(GemmFunction gemm, const FloatMatrix& a, const FloatMatrix& b, const FloatMatrix& c, int64_t m,
         int64_t n, int64_t k, float alpha, bool accumulate) {
  if (m <= 0 || n <= 0) return;
  if (k <= 0) {
    for (int64_t row = 0; !accumulate && row < m; ++row) {
      for (int64_t column = 0; column < n; ++column) c.data[row * c.row_stride + column] = 0;
    }
    return;
  }
  gemm(a, b, c, m, n, k, alpha, accumulate);
}

}  // namespace

void Gemm(const FloatMatrix& a, const FloatMatrix& b, const FloatMatrix& c, int64_t m, int64_t n, int64_t k,
          float alpha, bool accumulate) {
  Run(Functions().fastest, a, b, c, m, n, k, alpha, accumulate);
}

void OrderedGemm(const FloatMatrix& a, const FloatMatrix& b, const FloatMatrix& c, int64_t m, int64_t n,
                 int64_t k, float alpha, bool accumulate) {
  Run(Functions().ordered, a, b, c, m, n, k, alpha, accumulate);
}

}  // namespace tandem::host
