#include "kernels/cuda/skinny/client_skinny.cuh"
TANDEM_CLIENT_SKINNY_VARIANTS(bf16_k, __nv_bfloat16, __nv_bfloat16, __nv_bfloat16, false)
