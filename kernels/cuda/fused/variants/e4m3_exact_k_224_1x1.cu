#include "kernels/cuda/fused/kernel/variant.cuh"
TANDEM_FUSED_VARIANT(e4m3_exact_k_224_1x1, __nv_fp8_e4m3, __nv_fp8_e4m3, __nv_bfloat16, false, 224, 1, 1,
                     false, true)
