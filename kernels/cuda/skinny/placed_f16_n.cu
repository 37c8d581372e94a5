#include "kernels/cuda/skinny/placed_skinny.cuh"
TANDEM_PLACED_SKINNY_VARIANTS(f16_n, __half, __half, __half, true)
