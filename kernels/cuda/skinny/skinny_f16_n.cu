#include "kernels/cuda/skinny/skinny_variant.cuh"
TANDEM_SKINNY_VARIANTS(f16_n, __half, __half, __half, true)
