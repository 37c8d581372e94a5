#include "kernels/cuda/fused/kernel/variant.cuh"
TANDEM_FUSED_VARIANT(e4m3_f16_exact_k_256_1x1_sums, __nv_fp8_e4m3, __nv_fp8_e4m3, __half, false, 256, 1, 1,
                     true, true)
