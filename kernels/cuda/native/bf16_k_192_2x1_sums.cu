#include "kernels/cuda/native/variant.cuh"
TANDEM_FUSED_VARIANT(bf16_k_192_2x1_sums, __nv_bfloat16, kBf16, __nv_bfloat16, kBf16, false, 192, 2, 1, true)
