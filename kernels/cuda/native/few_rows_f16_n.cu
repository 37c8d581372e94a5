#include "kernels/cuda/native/few_rows_variant.cuh"
TANDEM_FEW_ROWS_VARIANTS(f16_n, __half, __half, __half, true)
