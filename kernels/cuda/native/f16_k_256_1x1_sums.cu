#include "kernels/cuda/native/variant.cuh"
TANDEM_FUSED_VARIANT(f16_k_256_1x1_sums, __half, kF16, __half, kF16, false, 256, 1, 1, true)
