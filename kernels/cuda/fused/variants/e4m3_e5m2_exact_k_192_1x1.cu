#include "kernels/cuda/fused/kernel/variant.cuh"
TANDEM_FUSED_VARIANT(e4m3_e5m2_exact_k_192_1x1, __nv_fp8_e4m3, __nv_fp8_e5m2, __nv_bfloat16, false, 192, 1, 1,
                     false, true)
