#include "kernels/cuda/fused/kernel/variant.cuh"
TANDEM_FUSED_VARIANT(e5m2_f16_exact_k_256_1x1_sums, __nv_fp8_e5m2, __nv_fp8_e5m2, __half, false, 256, 1, 1,
                     true, true)
