// File: skinny_matmul.h
//
// The skinny kernel's host side: which products it takes, how its parameters are made, and its launch.
//
// Thread rule: thread-safe; calls act on the current context's device.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/cuda/fused/fused_launch.h"
#include "kernels/cuda/skinny/skinny.h"
#include "program/skinny_layout.h"
#include "tandem/dtype.h"
#include "tandem/status.h"

struct CUstream_st;

namespace tandem::cuda {

inline constexpr int kSkinnyThreads = 384;  // of a CTA

struct SkinnyMatmul {
  SkinnyLayout layout;
  DType type = DType::kBf16, b_type = DType::kBf16, out_type = DType::kBf16;
  bool exact = false, fixed_order = false;  // as FusedMatmul's
  bool b_along_n = true;                    // B is [K, N] with contiguous rows; else with contiguous columns
  int rank = 0;
  // Gather: this rank's rows of A, and all rows of C. Scatter: all rows of A, this rank's of C. All-reduce:
  // all of both. Pitches in elements, any alignment.
  const void* a = nullptr;
  const void* b = nullptr;
  void* c = nullptr;
  int64_t a_pitch = 0, b_pitch = 0, c_pitch = 0;
  // By rank: the exchange area (layout.area_bytes(), multiples of 256) as this rank reaches it, the first of
  // this rank's words there, and the rank's first word here. For this rank itself: the area only.
  std::array<std::byte*, 8> area{};
  std::array<uint64_t*, 8> words{};
  std::array<const uint64_t*, 8> arrived{};
  float alpha = 1.0f;
  const float* row_scale = nullptr;  // see SkinnyParams
  const float* column_scale = nullptr;
  const void* bias = nullptr;
  const float* result_scale = nullptr;
  bool row_scales = false, column_scales = false;  // one each, else one for all
  bool row_scales_travel = false;
  bool bias_is_float = false;
  uint64_t launch_number = 0;
  const uint64_t* abort_word = nullptr;
  const uint64_t* guard_word = nullptr;  // see SkinnyParams
  uint64_t guard_value = 0;
  uint64_t timeout_ns = kUnabortedLimitNs;  // see FusedMatmul
  // kFusedStateBytes of device memory, zero before the first launch; one launch at a time. Null: of launches
  // that a client places.
  void* state = nullptr;
};

// All variants that engines launch.
std::span<const SkinnyVariant> SkinnyVariants();

// The variant for `matmul`'s types, B's layout and tiles, of `variants` or of SkinnyVariants(). UNIMPLEMENTED
// names what there is none for.
Result<const SkinnyVariant*> FindSkinnyVariant(const SkinnyMatmul& matmul,
                                               std::span<const SkinnyVariant> variants);
Result<const SkinnyVariant*> FindSkinnyVariant(const SkinnyMatmul& matmul);

// The map of the peers' shards in this rank's own area, of a gather.
Status MakeOthersMap(const SkinnyMatmul& matmul, CUtensorMap* map);

// Makes a launch's parameters.
Result<SkinnyParams> MakeSkinnyParams(const SkinnyMatmul& matmul);

// Enqueues the kernel.
Status LaunchSkinny(const SkinnyParams& params, const SkinnyVariant& variant, int ctas, CUstream_st* stream);

// Loads one variant into the current context, with the shared memory that it needs.
Status LoadSkinnyVariant(const SkinnyVariant& variant);

// Loads every variant that engines launch: see LoadFusedKernels.
Status LoadSkinnyKernels();

}  // namespace tandem::cuda
