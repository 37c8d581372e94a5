#include "kernels/cuda/skinny/skinny_variant.cuh"
TANDEM_SKINNY_VARIANTS(f16_k, __half, __half, __half, false)
