#include "kernels/cuda/skinny/placed_skinny.cuh"
TANDEM_PLACED_SKINNY_VARIANTS(bf16_k, __nv_bfloat16, __nv_bfloat16, __nv_bfloat16, false)
