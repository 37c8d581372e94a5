#include "kernels/cuda/skinny/skinny_variant.cuh"
TANDEM_SKINNY_VARIANTS(bf16_n, __nv_bfloat16, __nv_bfloat16, __nv_bfloat16, true)
