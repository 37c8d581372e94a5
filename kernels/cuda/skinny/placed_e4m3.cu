#include "kernels/cuda/skinny/placed_skinny.cuh"
TANDEM_PLACED_SKINNY_VARIANTS(e4m3, __nv_fp8_e4m3, __nv_fp8_e4m3, __nv_bfloat16, false)
