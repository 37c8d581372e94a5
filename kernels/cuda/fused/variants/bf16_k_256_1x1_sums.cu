#include "kernels/cuda/fused/kernel/variant.cuh"
TANDEM_FUSED_VARIANT(bf16_k_256_1x1_sums, __nv_bfloat16, __nv_bfloat16, __nv_bfloat16, false, 256, 1, 1, true)
