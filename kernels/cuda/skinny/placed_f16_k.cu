#include "kernels/cuda/skinny/placed_skinny.cuh"
TANDEM_PLACED_SKINNY_VARIANTS(f16_k, __half, __half, __half, false)
