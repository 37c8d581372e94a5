#include "kernels/cuda/skinny/client_skinny.cuh"
TANDEM_CLIENT_SKINNY_VARIANTS(e4m3, __nv_fp8_e4m3, __nv_fp8_e4m3, __nv_bfloat16, false)
