#include "kernels/cuda/fused/kernel/variant.cuh"
TANDEM_FUSED_VARIANT(e4m3_k_224_2x1, __nv_fp8_e4m3, __nv_fp8_e4m3, __nv_bfloat16, false, 224, 2, 1, false)
