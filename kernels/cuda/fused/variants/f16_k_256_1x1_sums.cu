#include "kernels/cuda/fused/kernel/variant.cuh"
TANDEM_FUSED_VARIANT(f16_k_256_1x1_sums, __half, __half, __half, false, 256, 1, 1, true)
