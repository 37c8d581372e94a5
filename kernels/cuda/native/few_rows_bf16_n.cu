#include "kernels/cuda/native/few_rows_variant.cuh"
TANDEM_FEW_ROWS_VARIANTS(bf16_n, __nv_bfloat16, __nv_bfloat16, __nv_bfloat16, true)
