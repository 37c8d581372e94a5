#include "kernels/cuda/native/few_rows_variant.cuh"
TANDEM_FEW_ROWS_VARIANTS(e4m3, __nv_fp8_e4m3, __nv_fp8_e4m3, __nv_bfloat16, false)
