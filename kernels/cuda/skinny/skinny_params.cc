// From a product of few rows to the kernel's parameters, for engines and clients.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <string>

#include "kernels/cuda/fused/runtime_status.h"
#include "kernels/cuda/fused/tensor_map.h"
#include "kernels/cuda/skinny/skinny_matmul.h"

namespace tandem::cuda {
namespace {

// The bytes that a rank's links carry, all peers together, in a cycle of an SM: some 360 GB/s at 1.75 GHz.
// Slower links only queue the stores.
constexpr int64_t kLinkBytesPerCycle = 208;
// Until the peers' first columns can be here: some 4 µs.
constexpr int32_t kFirstCycles = 7000;

// A unit of the shard on its way to all peers.
int32_t CyclesOfUnit(const SkinnyLayout& layout) {
  const int64_t bytes = layout.rows * layout.blocks_per_unit() * 128 * (layout.world - 1);
  return static_cast<int32_t>(std::max<int64_t>(1, bytes / kLinkBytesPerCycle));
}

bool Aligned(const void* address, int64_t pitch, int64_t element) {
  return reinterpret_cast<uintptr_t>(address) % 16 == 0 && pitch * element % 16 == 0;
}

}  // namespace

Result<const SkinnyVariant*> FindSkinnyVariant(const SkinnyMatmul& matmul,
                                               std::span<const SkinnyVariant> variants) {
  const SkinnyLayout& layout = matmul.layout;
  for (const SkinnyVariant& variant : variants) {
    if (variant.type == static_cast<uint8_t>(matmul.type) &&
        variant.b_type == static_cast<uint8_t>(matmul.b_type) &&
        variant.out_type == static_cast<uint8_t>(matmul.out_type) && variant.exact == matmul.exact &&
        variant.b_along_n == matmul.b_along_n && variant.tile_n == layout.tile_n &&
        variant.cluster_m == layout.cluster_m && variant.cluster_n == layout.cluster_n) {
      return &variant;
    }
  }
  return Unimplemented("no skinny kernel for " + std::string(DTypeName(matmul.type)) + " and " +
                       std::string(DTypeName(matmul.b_type)) + " to " +
                       std::string(DTypeName(matmul.out_type)) + (matmul.exact ? ", exact" : "") +
                       (matmul.b_along_n ? ", B's rows" : ", B's columns") + " contiguous, tiles of " +
                       std::to_string(layout.tile_n) + " columns, clusters of " +
                       std::to_string(layout.cluster_m) + "×" + std::to_string(layout.cluster_n));
}

Status MakeOthersMap(const SkinnyMatmul& matmul, CUtensorMap* map) {
  const SkinnyLayout& layout = matmul.layout;
  const MatrixSlices others{matmul.area[static_cast<size_t>(matmul.rank)], layout.k, layout.world,
                            layout.slot_bytes() / layout.element_bytes};
  return MakeTensorMap("the gathered A", others, matmul.type, layout.k, layout.rows, layout.box_rows(), map);
}

Status LoadSkinnyVariant(const SkinnyVariant& variant) {
  TANDEM_RETURN_IF_ERROR(
      RuntimeStatus("cudaFuncSetAttribute",
                    cudaFuncSetAttribute(variant.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                         static_cast<int>(variant.shared_bytes))));
  cudaFuncAttributes attributes = {};
  return RuntimeStatus("cudaFuncGetAttributes", cudaFuncGetAttributes(&attributes, variant.kernel));
}

Result<SkinnyParams> MakeSkinnyParams(const SkinnyMatmul& matmul) {
  const SkinnyLayout& layout = matmul.layout;
  const int64_t element = layout.element_bytes;
  const bool gathers = layout.kind == SkinnyKind::kGather;
  SkinnyParams params = {};
  params.plain_a = Aligned(matmul.a, matmul.a_pitch, element) ? 0 : 1;
  params.plain_b = Aligned(matmul.b, matmul.b_pitch, element) ? 0 : 1;
  params.c_vectors = Aligned(matmul.c, matmul.c_pitch, layout.out_bytes) ? 1 : 0;
  const int box_rows = layout.box_rows();
  if (params.plain_a == 0) {
    const MatrixSlices own{matmul.a, matmul.a_pitch, 1, 0};
    TANDEM_RETURN_IF_ERROR(MakeTensorMap("A", own, matmul.type, layout.k, gathers ? layout.rows : layout.m,
                                         box_rows, &params.own));
  }
  if (gathers) {
    TANDEM_RETURN_IF_ERROR(MakeOthersMap(matmul, &params.others));
  }
  if (params.plain_b == 0) {
    const MatrixSlices b{matmul.b, matmul.b_pitch, 1, 0};
    if (matmul.b_along_n) {
      TANDEM_RETURN_IF_ERROR(MakeTensorMap("B", b, matmul.b_type, layout.n, layout.k, 64, &params.b));
    } else {
      TANDEM_RETURN_IF_ERROR(MakeTensorMap("B", b, matmul.b_type, layout.k, layout.n,
                                           layout.tile_n / layout.cluster_m, &params.b));
    }
  }
  for (size_t rank = 0; rank < 8; ++rank) {
    params.area[rank] = matmul.area[rank];
    params.words[rank] = matmul.words[rank];
    params.arrived[rank] = matmul.arrived[rank];
  }
  params.a = static_cast<const std::byte*>(matmul.a);
  params.b_data = static_cast<const std::byte*>(matmul.b);
  params.c = static_cast<std::byte*>(matmul.c);
  params.a_pitch = matmul.a_pitch * element;
  params.b_pitch = matmul.b_pitch * element;
  params.c_pitch = matmul.c_pitch * layout.out_bytes;
  params.slot_bytes = layout.slot_bytes();
  params.behind_slots = layout.behind_slots();
  params.fragment_bytes = layout.fragment_bytes();
  params.row_scale = matmul.row_scale;
  params.column_scale = matmul.column_scale;
  params.bias = matmul.bias;
  params.result_scale = matmul.result_scale;
  params.abort_word = matmul.abort_word;
  params.guard_word = matmul.guard_word;
  params.guard_value = matmul.guard_value;
  if (auto* state = static_cast<uint32_t*>(matmul.state); state != nullptr) {
    params.failure = state + 1;
    static_assert(128 + sizeof(uint64_t) * SkinnyLayout::kMaxUnits <= kFusedStateBytes);
    params.pushed = reinterpret_cast<uint64_t*>(state + 32);
  }
  params.launch_number = matmul.launch_number;
  params.timeout_ns = matmul.timeout_ns;
  params.alpha = matmul.alpha;
  params.kind = static_cast<int32_t>(layout.kind);
  params.rank = matmul.rank;
  params.world = layout.world;
  params.rows = static_cast<int32_t>(layout.rows);
  params.m = static_cast<int32_t>(layout.m);
  params.n = static_cast<int32_t>(layout.n);
  params.k_bytes = static_cast<int32_t>(layout.k * element);
  params.k_blocks = layout.k_blocks();
  params.units = layout.units();
  params.blocks_per_unit = layout.blocks_per_unit();
  params.cycles_per_unit = CyclesOfUnit(layout);
  params.first_units =
      static_cast<int32_t>(std::clamp(kFirstCycles / params.cycles_per_unit, 1, layout.units()));
  params.segment = layout.segment;
  params.box_rows = box_rows;
  params.tiles_m = layout.tiles_m;
  params.tiles = layout.ctas();
  params.one_step = layout.one_step ? 1 : 0;
  params.rounds_own = matmul.fixed_order ? 1 : 0;
  params.row_scale_step = matmul.row_scales ? 1 : 0;
  params.column_scale_step = matmul.column_scales ? 1 : 0;
  params.row_scales_travel = matmul.row_scales_travel ? 1 : 0;
  params.bias_is_float = matmul.bias_is_float ? 1 : 0;
  return params;
}

}  // namespace tandem::cuda
