// The matrix product for x86-64 with AVX2 and FMA; compiled with the options that allow them.
#define Eigen EigenForAvx2
#define TANDEM_GEMM_NAME GemmAvx2
#define TANDEM_ORDERED_GEMM_NAME OrderedGemmAvx2
#include "kernels/host/gemm_kernel.inc"
