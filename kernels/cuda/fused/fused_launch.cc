#include "kernels/cuda/fused/fused_launch.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>
#include <string>

#include "kernels/cuda/fused/blocks.h"
#include "kernels/cuda/fused/runtime_status.h"
#include "kernels/cuda/fused/tensor_map.h"

namespace tandem::cuda {

namespace {

std::atomic<int> engines_on_device = 1;

bool NeedsSums(const FusedMatmul& matmul) {
  return std::any_of(matmul.pieces.begin(), matmul.pieces.end(),
                     [](const MatmulPiece& piece) { return piece.first_slot >= 0; });
}

Status CheckScales(const FusedMatmul& matmul, const FusedVariant& variant) {
  if (variant.blocks != matmul.blocks)
    return InvalidArgument("a kernel for scales by blocks, or a product with them, alone");
  const auto has_scale = [](const MatmulPiece& piece) { return piece.row_scale != nullptr; };
  if (matmul.blocks && (matmul.column_scale == nullptr ||
                        !std::all_of(matmul.pieces.begin(), matmul.pieces.end(), has_scale))) {
    return InvalidArgument("scales by blocks are those of both operands");
  }
  if (!IsFloat8(static_cast<DType>(variant.type)) &&
      (matmul.column_scale != nullptr ||
       std::any_of(matmul.pieces.begin(), matmul.pieces.end(), has_scale))) {
    return Unimplemented("scales of 16-bit operands");
  }
  return Status::Ok();
}

// Whether the parameters have room for what the matmul has.
Status CheckCounts(const FusedMatmul& matmul) {
  if (matmul.rows <= 0 || matmul.n <= 0 || matmul.k <= 0) return InvalidArgument("an empty product");
  if (matmul.pieces.empty() || matmul.pieces.size() > kMaxPieces) {
    return InvalidArgument(std::to_string(matmul.pieces.size()) + " pieces");
  }
  if (TilesM(static_cast<int64_t>(matmul.pieces.size()), matmul.rows) > kMaxTilesM) {
    return InvalidArgument(std::to_string(matmul.pieces.size()) + " pieces of " +
                           std::to_string(matmul.rows) + " rows");
  }
  if (matmul.arrived.size() > kMaxRanks - 1 || matmul.slot_of.size() != matmul.arrived.size()) {
    return InvalidArgument(std::to_string(matmul.arrived.size()) + " sources of partial sums in " +
                           std::to_string(matmul.slot_of.size()) + " slots");
  }
  if (matmul.copies.size() > kMaxCopies)
    return InvalidArgument(std::to_string(matmul.copies.size()) + " copies of pieces");
  if (matmul.closing.size() > kMaxClosing)
    return InvalidArgument(std::to_string(matmul.closing.size()) + " words at the end");
  if (matmul.word_bands < 1 || matmul.word_bands > kMaxWordBands) {
    return InvalidArgument(std::to_string(matmul.word_bands) + " word bands");
  }
  return Status::Ok();
}

Status MakeTensorMaps(const FusedMatmul& matmul, const FusedVariant& variant, FusedMatmulParams* params) {
  const DType out_type = matmul.out_type;
  const int box_bytes = variant.box_columns * static_cast<int>(DTypeBytes(out_type));
  const auto rows_of = [&matmul](const MatrixSlices& slices) {
    return slices.rows > 0 ? slices.rows : matmul.rows;
  };
  for (int i = 0; i < 2; ++i) {
    if (matmul.a[i].data != nullptr) {
      TANDEM_RETURN_IF_ERROR(MakeTensorMap("A", matmul.a[i], matmul.type, matmul.k, rows_of(matmul.a[i]),
                                           kTileRows / variant.cluster_n, &params->a[i]));
    }
  }
  for (int i = 0; i < kMaxOutMaps; ++i) {
    if (matmul.out[i].data != nullptr) {
      TANDEM_RETURN_IF_ERROR(MakeTensorMap("C", matmul.out[i], out_type, matmul.n, rows_of(matmul.out[i]), 64,
                                           &params->out[i], box_bytes));
    }
  }
  if (matmul.b_along_n) {
    TANDEM_RETURN_IF_ERROR(MakeTensorMap("B", matmul.b, matmul.b_type, matmul.n, matmul.k, 64, &params->b));
  } else {
    TANDEM_RETURN_IF_ERROR(MakeTensorMap("B", matmul.b, matmul.b_type, matmul.k, matmul.n,
                                         variant.tile_n / variant.cluster_m, &params->b));
  }
  if (matmul.slots.data == nullptr) return Status::Ok();
  return MakeTensorMap("a partial sum", matmul.slots, out_type, matmul.n, rows_of(matmul.slots), kTileRows,
                       &params->slots, box_bytes);
}

Status SetPieces(const FusedMatmul& matmul, FusedMatmulParams* params) {
  // Where a slice begins, and its pitch: for what does not go by TMA.
  const auto slice_of = [&matmul](int map, int slice) {
    const MatrixSlices& all = matmul.out[map];
    return static_cast<const uint8_t*>(all.data) +
           static_cast<size_t>(all.slice_pitch * slice) * DTypeBytes(matmul.out_type);
  };
  const auto pitch_of = [&matmul](int map) {
    return static_cast<uint32_t>(static_cast<size_t>(matmul.out[map].pitch) * DTypeBytes(matmul.out_type));
  };
  for (size_t i = 0; i < matmul.pieces.size(); ++i) {
    MatmulPiece& piece = params->piece[i] = matmul.pieces[i];
    const int64_t rows = RowsOf(matmul, piece);
    if (rows > matmul.rows) return InvalidArgument("a piece of more rows than the others");
    piece.rows = static_cast<int32_t>(rows);
    piece.out = slice_of(piece.out_map, piece.out_slice);
    piece.out_pitch = pitch_of(piece.out_map);
    piece.words = std::max<int16_t>(1, piece.words);
  }
  for (size_t i = 0; i < matmul.copies.size(); ++i) {
    params->copy[i] = matmul.copies[i];
    params->copy[i].to = const_cast<uint8_t*>(slice_of(matmul.copies[i].map, matmul.copies[i].slice));
    params->copy[i].pitch = pitch_of(matmul.copies[i].map);
  }
  return Status::Ok();
}

void SetWordsAndSlots(const FusedMatmul& matmul, const FusedVariant& variant, FusedMatmulParams* params) {
  std::copy(matmul.arrived.begin(), matmul.arrived.end(), params->arrived);
  std::copy(matmul.closing.begin(), matmul.closing.end(), params->closing);
  std::copy(matmul.slot_of.begin(), matmul.slot_of.end(), params->slot_of);
  params->closings = static_cast<int32_t>(matmul.closing.size());
  params->sources = static_cast<int32_t>(matmul.arrived.size());
  params->position = matmul.position;
  params->word_bands = matmul.word_bands;
  params->word_step = matmul.word_step;
  const int64_t band_columns = WordBandColumns(matmul),
                unit_columns = int64_t{variant.tile_n} * variant.cluster_n;
  params->band_units_n =
      static_cast<int32_t>(band_columns % unit_columns == 0 ? band_columns / unit_columns : 0);
}

// Cuts the product into units of work, and the last wave of these where tiles are shared.
Status CutUnits(const FusedMatmul& matmul, const FusedVariant& variant, FusedMatmulParams* params) {
  const int64_t units_m = Blocks(matmul.rows, int64_t{kTileRows} * variant.cluster_m);  // of a piece
  params->units_n = static_cast<int32_t>(Blocks(matmul.n, int64_t{variant.tile_n} * variant.cluster_n));
  params->tiles_m = static_cast<int32_t>(units_m) * variant.cluster_m;
  if (params->units_n >= kMaxUnitsN) return InvalidArgument(std::to_string(matmul.n) + " columns");
  params->k_blocks = static_cast<int32_t>(Blocks(matmul.k, variant.k_block));
  for (const MatmulBand& band : CutBands(matmul, units_m, variant.cluster_m, params->units_n)) {
    if (params->bands == kMaxBands) return InvalidArgument("too many bands");
    params->band[params->bands++] = band;
    params->units += band.m_tiles * band.n_tiles;
  }
  const int cluster = variant.cluster_m * variant.cluster_n;
  const int clusters = (matmul.tiling.ctas > 0 ? matmul.tiling.ctas : SmCount()) / cluster;
  params->split.from = params->units;
  if (SharesTiles(matmul, variant) && clusters * cluster <= kMaxCtas) {
    const StreamKSplit split =
        SplitLastWave(params->units, clusters, params->k_blocks, variant.tile_n, matmul.tiling.part_cost);
    if (split.units > 0) params->split = split;
  }
  // The store warp's chunks must not reach beyond N.
  const bool carries = matmul.n * static_cast<int64_t>(DTypeBytes(matmul.out_type)) % kTmaBytes == 0;
  params->direct_from =
      carries ? std::max(0, params->units - std::min(params->units, matmul.tiling.direct_tiles)) : 0;
  return Status::Ok();
}

void SetEpilogue(const FusedMatmul& matmul, FusedMatmulParams* params) {
  params->rounds_own = matmul.fixed_order ? 1 : 0;
  params->alpha = matmul.alpha;
  params->column_scale = matmul.column_scale;
  params->bias = matmul.bias;
  params->result_scale = matmul.result_scale;
  params->row_scale_step = matmul.row_scales ? 1 : 0;
  params->column_scale_step = matmul.column_scales ? 1 : 0;
  if (matmul.blocks) {
    params->row_scale_step = matmul.row_scale_step;
    params->column_scale_step = matmul.column_scale_step;
    params->row_scale_block_step = matmul.row_scale_block_step;
    params->column_scale_block_step = matmul.column_scale_block_step;
  }
  params->bias_is_float = matmul.bias_is_float ? 1 : 0;
  params->n = static_cast<int32_t>(matmul.n);
}

void SetMemory(const FusedMatmul& matmul, FusedMatmulParams* params) {
  params->launch_number = matmul.launch_number;
  params->entered = matmul.entered;
  params->abort_word = matmul.abort_word;
  params->guard_word = matmul.guard_word;
  params->guard_value = matmul.guard_value;
  params->timeout_ns = matmul.timeout_ns;
  auto* state = static_cast<uint32_t*>(matmul.memory.state);
  params->work_counter = state;
  params->failure = state + 1;
  params->counters = state + 32;
  params->partial_words = params->counters + kMaxPieces * kMaxWordBands;
  params->partials = static_cast<float*>(matmul.memory.partials);
}

}  // namespace

void ShareSms(int engines) { engines_on_device = std::max(1, engines); }

int SmCount() {
  int device = 0, count = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return 0;
  if (cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device) != cudaSuccess) return 0;
  const int engines = engines_on_device;
  // On a shared device some SMs stay free for work that kernels wait for and the driver does by kernels:
  // copies within the device.
  return engines == 1 ? count : count / engines - 1;
}

const FusedVariant* FusedVariantFor(const FusedMatmul& matmul, const FusedTiling& tiling) {
  const bool sums = NeedsSums(matmul);
  // In this order: a kernel whose sums are as asked, then a more exact one, then one that adds partial sums
  // only if it must.
  auto rank = [&](const FusedVariant& variant) {
    return (variant.exact == matmul.exact ? 2 : 0) + (variant.sums == sums ? 1 : 0);
  };
  const FusedVariant* found = nullptr;
  for (const FusedVariant& variant : matmul.variants) {
    if (variant.type != static_cast<uint8_t>(matmul.type) ||
        variant.b_type != static_cast<uint8_t>(matmul.b_type) ||
        variant.out_type != static_cast<uint8_t>(matmul.out_type) || variant.b_along_n != matmul.b_along_n ||
        variant.blocks != matmul.blocks || variant.tile_n != tiling.tile_n ||
        variant.cluster_m != tiling.cluster_m || variant.cluster_n != tiling.cluster_n) {
      continue;
    }
    if ((matmul.exact && !variant.exact) || (sums && !variant.sums)) continue;
    if (found == nullptr || rank(variant) > rank(*found)) found = &variant;
  }
  return found;
}

Result<const FusedVariant*> FindFusedVariant(const FusedMatmul& matmul) {
  if (const FusedVariant* found = FusedVariantFor(matmul, matmul.tiling); found != nullptr) return found;
  return Unimplemented(
      "no fused kernel for " + std::string(DTypeName(matmul.type)) + " and " +
      std::string(DTypeName(matmul.b_type)) + " to " + std::string(DTypeName(matmul.out_type)) +
      (matmul.exact ? ", exact" : "") + (matmul.blocks ? ", scales by blocks" : "") +
      (matmul.b_along_n ? ", B's rows" : ", B's columns") + " contiguous, tiles of 128×" +
      std::to_string(matmul.tiling.tile_n) + ", clusters of " + std::to_string(matmul.tiling.cluster_m) +
      "×" + std::to_string(matmul.tiling.cluster_n));
}

int64_t TilesM(int64_t pieces, int64_t rows) { return pieces * Blocks(rows, kTileRows); }

int64_t WordBandColumns(const FusedMatmul& matmul) {
  return Blocks(Blocks(matmul.n, kWordBandColumns), matmul.word_bands) * kWordBandColumns;
}

std::vector<MatmulBand> CutBands(const FusedMatmul& matmul, int64_t units_m, int cluster_m, int64_t units_n) {
  // A run is cut into bands of equal height, as near to the wanted one as can be: higher where there would be
  // too many.
  int64_t wanted = std::max(1, matmul.tiling.band_tiles / cluster_m);
  auto height_of = [&](const PieceRun& run) {
    const MatmulPiece& last = matmul.pieces[static_cast<size_t>(run.first + run.count) - 1];
    return units_m * (run.count - 1) + Blocks(RowsOf(matmul, last), int64_t{kTileRows} * cluster_m);
  };
  auto bands_at = [&](int64_t most) {
    int64_t bands = 0;
    for (const PieceRun& run : matmul.runs) bands += Blocks(height_of(run), most);
    return bands;
  };
  while (wanted < units_m * kMaxPieces && bands_at(wanted) > kMaxBands) wanted *= 2;
  std::vector<MatmulBand> cut;
  int64_t units = 0;
  for (const PieceRun& run : matmul.runs) {
    const int64_t height = height_of(run), bands = Blocks(height, wanted);
    int64_t first_n = 0, n_tiles = units_n;
    if (run.word_band >= 0) {
      const int64_t wide =
          WordBandColumns(matmul) / (int64_t{matmul.tiling.tile_n} * matmul.tiling.cluster_n);
      first_n = std::min(units_n, wide * run.word_band);
      n_tiles = std::min(units_n - first_n, wide);
      if (n_tiles == 0) continue;
    }
    for (int64_t i = 0; i < bands; ++i) {
      const int64_t first = height * i / bands, end = height * (i + 1) / bands;
      MatmulBand band = {};
      band.first_unit = static_cast<int32_t>(units);
      band.first_m = static_cast<int16_t>(units_m * run.first + first);
      band.m_tiles = static_cast<int16_t>(end - first);
      band.first_n = static_cast<int16_t>(first_n);
      band.n_tiles = static_cast<int16_t>(n_tiles);
      band.backwards =
          static_cast<int32_t>(cut.size() & 1);  // what of B the last band ended with is still in L2
      units += (end - first) * n_tiles;
      cut.push_back(band);
    }
  }
  return cut;
}

Result<FusedMatmulParams> MakeFusedParams(const FusedMatmul& matmul, const FusedVariant& variant) {
  TANDEM_RETURN_IF_ERROR(CheckScales(matmul, variant));
  TANDEM_RETURN_IF_ERROR(CheckCounts(matmul));
  FusedMatmulParams params = {};
  TANDEM_RETURN_IF_ERROR(MakeTensorMaps(matmul, variant, &params));
  TANDEM_RETURN_IF_ERROR(SetPieces(matmul, &params));
  SetWordsAndSlots(matmul, variant, &params);
  TANDEM_RETURN_IF_ERROR(CutUnits(matmul, variant, &params));
  SetEpilogue(matmul, &params);
  SetMemory(matmul, &params);
  return params;
}

Status LaunchFused(const FusedMatmulParams& params, const FusedVariant& variant, int ctas,
                   CUstream_st* stream) {
  const int cluster = variant.cluster_m * variant.cluster_n;
  if (ctas <= 0) ctas = SmCount();
  ctas = std::min(ctas, (params.split.from + params.split.segments) * cluster) / cluster * cluster;
  if (ctas <= 0) return InvalidArgument("no CTA to run on");
  void* arguments[] = {const_cast<FusedMatmulParams*>(&params)};
  return RuntimeStatus("cudaLaunchKernel",
                       cudaLaunchKernel(variant.kernel, dim3(static_cast<unsigned>(ctas)),
                                        dim3(kFusedThreads), arguments, variant.shared_bytes, stream));
}

Status LoadFusedKernel(const FusedVariant& variant) {
  TANDEM_RETURN_IF_ERROR(
      RuntimeStatus("cudaFuncSetAttribute",
                    cudaFuncSetAttribute(variant.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                         static_cast<int>(variant.shared_bytes))));
  cudaFuncAttributes attributes = {};
  return RuntimeStatus("cudaFuncGetAttributes", cudaFuncGetAttributes(&attributes, variant.kernel));
}

}  // namespace tandem::cuda
