// File: fused_variant_list.h
//
// TANDEM_FUSED_VARIANTS(X): X of the name of each compiled variant of the fused kernel, a file of variants/.
// Both tables have them: engines' (fused_variants.cc) and clients' (client_fused_variants.cc).
#pragma once

// clang-format off
#define TANDEM_FUSED_VARIANTS(X) \
  X(bf16_k_256_1x1_sums) \
  X(f16_k_256_1x1_sums) \
  X(f16_n_256_1x1_sums) \
  X(bf16_f32_k_256_1x1_sums) \
  X(bf16_f32_n_256_1x1_sums) \
  X(f16_f32_k_256_1x1_sums) \
  X(f16_f32_n_256_1x1_sums) \
  X(e4m3_f16_k_256_1x1_sums) \
  X(e4m3_f32_k_256_1x1_sums) \
  X(bf16_k_256_2x1) \
  X(bf16_k_256_1x2) \
  X(bf16_k_256_2x1_sums) \
  X(bf16_k_224_2x1) \
  X(bf16_n_256_1x1_sums) \
  X(bf16_n_256_2x1_sums) \
  X(e4m3_k_256_1x1_sums) \
  X(e4m3_k_256_2x1_sums) \
  X(e4m3_k_224_2x1) \
  X(e4m3_exact_k_256_1x1_sums) \
  X(e4m3_exact_k_256_1x1) \
  X(e4m3_exact_k_192_1x1) \
  X(e4m3_exact_k_224_1x1) \
  X(e4m3_f16_exact_k_256_1x1_sums) \
  X(e4m3_f32_exact_k_256_1x1_sums) \
  X(e4m3_e5m2_exact_k_256_1x1_sums) \
  X(e4m3_e5m2_exact_k_192_1x1) \
  X(e4m3_e5m2_k_256_1x1_sums) \
  X(e4m3_e5m2_k_256_2x1_sums) \
  X(e4m3_e5m2_f16_exact_k_256_1x1_sums) \
  X(e4m3_e5m2_f32_exact_k_256_1x1_sums) \
  X(e5m2_e4m3_exact_k_256_1x1_sums) \
  X(e5m2_e4m3_exact_k_192_1x1) \
  X(e5m2_e4m3_k_256_1x1_sums) \
  X(e5m2_e4m3_k_256_2x1_sums) \
  X(e5m2_e4m3_f16_exact_k_256_1x1_sums) \
  X(e5m2_e4m3_f32_exact_k_256_1x1_sums) \
  X(e5m2_exact_k_256_1x1_sums) \
  X(e5m2_exact_k_192_1x1) \
  X(e5m2_f16_exact_k_256_1x1_sums) \
  X(e5m2_f32_exact_k_256_1x1_sums) \
  X(e4m3_blocks_k_256_1x1_sums) \
  X(e4m3_blocks_k_192_1x1)
// clang-format on
