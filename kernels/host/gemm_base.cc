// The matrix product for the base instruction set of the architecture.
#define Eigen EigenForBase
#define TANDEM_GEMM_NAME GemmBase
#define TANDEM_ORDERED_GEMM_NAME OrderedGemmBase
#include "kernels/host/gemm_kernel.inc"
