#include "kernels/cuda/skinny/client_skinny.cuh"
TANDEM_CLIENT_SKINNY_VARIANTS(f16_n, __half, __half, __half, true)
