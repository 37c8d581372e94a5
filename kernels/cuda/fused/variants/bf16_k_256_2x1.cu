#include "kernels/cuda/fused/kernel/variant.cuh"
TANDEM_FUSED_VARIANT(bf16_k_256_2x1, __nv_bfloat16, __nv_bfloat16, __nv_bfloat16, false, 256, 2, 1, false)
