#include "kernels/cuda/fused/kernel/variant.cuh"
TANDEM_FUSED_VARIANT(bf16_n_256_2x1_sums, __nv_bfloat16, __nv_bfloat16, __nv_bfloat16, true, 256, 2, 1, true)
