// The matrix product for the base instruction set of the architecture.
#define Eigen EigenForBase
#define TANDEM_GEMM_NAME GemmBase
#include "kernels/host/gemm_kernel.inc"
