#include "kernels/cuda/native/variant.cuh"
TANDEM_FUSED_VARIANT(bf16_n_256_2x1, __nv_bfloat16, kBf16, __nv_bfloat16, kBf16, true, 256, 2, 1, false)
