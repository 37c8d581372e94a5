#include "kernels/cuda/fused/kernel/variant.cuh"
TANDEM_FUSED_VARIANT(f16_f32_n_256_1x1_sums, __half, __half, float, true, 256, 1, 1, true)
