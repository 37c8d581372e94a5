#include "kernels/cuda/fused/fused_plan.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <optional>
#include <string>

#include "kernels/cuda/fused/fused_views.h"
#include "kernels/cuda/fused/scales.h"
#include "kernels/cuda/fused/tiling.h"

namespace tandem::cuda {
namespace {

bool SameShape(const MatmulArgs& a, const MatmulArgs& b) {
  return a.b.data == b.b.data && a.b.extent == b.b.extent && a.b.stride == b.b.stride && a.alpha == b.alpha &&
         a.has_scale_a == b.has_scale_a && a.has_scale_b == b.has_scale_b && a.has_bias == b.has_bias &&
         a.has_result_scale == b.has_result_scale && a.a.dtype == b.a.dtype && a.b.dtype == b.b.dtype &&
         a.c.dtype == b.c.dtype && a.fast_accumulation == b.fast_accumulation &&
         a.block_scales == b.block_scales && a.fixed_order == b.fixed_order;
}

// The rows of parts: of all but the short ones, and of those, 0 if there are none.
struct Heights {
  int64_t high = 0, low = 0;
  bool Have(int64_t rows) const { return rows > 0 && (rows == high || rows == low); }
};

// Nothing where parts have more than two heights, or short parts take the place of those that arrive.
std::optional<Heights> HeightsOf(const std::vector<FusedPart>& parts) {
  Heights heights;
  bool arrive = false;
  for (const FusedPart& part : parts) {
    const auto a = FoldRows(part.matmul.a);
    if (!a) return std::nullopt;
    heights.high = std::max(heights.high, a->count);
    arrive = arrive || !part.waits.empty();
  }
  for (const FusedPart& part : parts) {
    const int64_t rows = FoldRows(part.matmul.a)->count;
    if (rows == heights.high) continue;
    if (arrive || (heights.low != 0 && rows != heights.low)) return std::nullopt;
    heights.low = rows;
  }
  return heights;
}

// The kernel counts in 32 bits, of rows up to 8 at a time (BlockScaledSums).
bool FitsStep(int64_t stride) { return stride >= 0 && stride <= std::numeric_limits<int32_t>::max(); }
bool FitsRowStep(int64_t stride) { return FitsStep(stride) && FitsStep(8 * stride); }

// Whether views of equal extents have equal steps wherever there is more than one element.
bool HaveEqualSteps(const DeviceView& a, const DeviceView& b) {
  for (size_t d = 0; d < a.extent.size(); ++d) {
    if (a.extent[d] > 1 && a.stride[d] != b.stride[d]) return false;
  }
  return a.extent.size() == b.extent.size();
}

// Scales by blocks: A's of rows and blocks of K at any two strides, those of `first`; B's of whole blocks of
// columns.
bool TakesBlockScales(const MatmulArgs& matmul, const MatmulArgs& first) {
  if (!matmul.block_scales) return true;
  const DeviceView &of_a = matmul.scale_a, &of_b = matmul.scale_b;
  constexpr int64_t kBlock = 128;
  const int64_t k_blocks = (matmul.b.extent[0] + kBlock - 1) / kBlock,
                n_blocks = (matmul.b.extent[1] + kBlock - 1) / kBlock;
  const bool f32 = of_a.dtype == DType::kF32 && of_b.dtype == DType::kF32;
  return matmul.has_scale_a && matmul.has_scale_b && f32 && matmul.a.extent.size() == 2 &&
         of_a.extent.size() == 2 && of_a.extent[0] == matmul.a.extent[0] && of_a.extent[1] == k_blocks &&
         HaveEqualSteps(of_a, first.scale_a) && FitsRowStep(of_a.stride[0]) && FitsStep(of_a.stride[1]) &&
         matmul.first_column == 0 && of_b.extent == std::vector<int64_t>{k_blocks, n_blocks} &&
         FitsStep(of_b.stride[0]) && FitsStep(of_b.stride[1]);
}

bool TakesPart(const FusedPart& part, const FusedPart& first, const Heights& heights) {
  const MatmulArgs& matmul = part.matmul;
  if (!SameShape(matmul, first.matmul) || matmul.accumulate || matmul.has_chunk_signals) return false;
  auto a = FoldRows(matmul.a), c = FoldRows(matmul.c);
  if (!a || !c || !heights.Have(a->count) || a->count != c->count) return false;
  if (!TakesBlockScales(matmul, first.matmul)) return false;
  if (!matmul.block_scales && !TakesScale(matmul.has_scale_a, matmul.scale_a)) return false;
  if (!part.sums && part.deliveries.size() > 1) return false;
  for (const FusedDelivery& delivery : part.deliveries) {
    auto to = FoldRows(delivery.to);
    if (!to || to->count != c->count || to->columns != c->columns || delivery.to.dtype != matmul.c.dtype ||
        delivery.rank < 0 || delivery.rank >= kMaxRanks) {
      return false;
    }
  }
  if (!part.sums) return true;
  if (part.sum.scale != 1.0f || part.own < 0 || matmul.has_bias || matmul.has_result_scale) return false;
  auto out = FoldRows(part.sum.dst);
  if (!out || out->count != c->count || part.sum.dst.dtype != matmul.c.dtype) return false;
  for (size_t s = 0; s < part.sum.sources.size(); ++s) {
    if (static_cast<int>(s) == part.own) continue;
    auto slot = FoldRows(part.sum.sources[s]);
    if (!slot || slot->count != c->count || slot->columns != c->columns ||
        part.sum.sources[s].dtype != matmul.c.dtype) {
      return false;
    }
  }
  return part.sum.sources.size() <= kMaxRanks;
}

// Parts that are summed share the order of their sources, bias and scale.
bool SameSum(const FusedPart& part, const FusedPart& first) {
  return part.own == first.own && part.sum.sources.size() == first.sum.sources.size() &&
         part.sum.has_bias == first.sum.has_bias && part.sum.has_result_scale == first.sum.has_result_scale;
}

void SetTypes(const MatmulArgs& matmul, FusedMatmul* fused) {
  fused->type = matmul.a.dtype;
  fused->b_type = matmul.b.dtype;
  fused->out_type = matmul.c.dtype;
  fused->blocks = matmul.block_scales;
  // Not every width of tiles has a kernel that sums fp8 in the tensor cores, so a fixed order is the exact
  // one.
  fused->exact =
      IsFloat8(matmul.a.dtype) && (!matmul.fast_accumulation || matmul.block_scales || matmul.fixed_order);
  fused->fixed_order = matmul.fixed_order;
}

}  // namespace

bool TakesFused(const CollectiveArgs& args, std::span<const FusedVariant> variants) {
  const auto* fused = args.As<FusedArgs>();
  if (fused == nullptr || fused->parts.empty() || fused->parts.size() > kMaxPieces) return false;
  const std::vector<FusedPart>& parts = fused->parts;
  const FusedPart& first = parts.front();
  const MatmulArgs& matmul = first.matmul;
  if (matmul.b.extent.size() != 2 || matmul.a.extent.empty()) return false;
  const bool float8 = IsFloat8(matmul.a.dtype);
  if (matmul.b.extent[0] == 0 || matmul.b.extent[1] == 0) return false;
  const bool rows = matmul.b.stride[1] == 1;
  if (!rows && matmul.b.stride[0] != 1) return false;
  if (matmul.b.stride[rows ? 0 : 1] * static_cast<int64_t>(DTypeBytes(matmul.b.dtype)) % kTmaBytes != 0)
    return false;
  if (!matmul.block_scales && !TakesScale(matmul.has_scale_b, matmul.scale_b)) return false;
  FusedMatmul probe(variants);
  SetTypes(matmul, &probe);
  probe.b_along_n = rows && !(float8 && matmul.b.stride[0] == 1);
  const FusedPart* sums = nullptr;
  const std::optional<Heights> heights = HeightsOf(parts);
  if (!heights || TilesM(static_cast<int64_t>(parts.size()), heights->high) > kMaxTilesM) return false;
  for (const FusedPart& part : parts) {
    if (!TakesPart(part, first, *heights)) return false;
    if (part.sums && sums == nullptr) sums = &part;
    if (part.sums && !SameSum(part, *sums)) return false;
    if (!TakesBias(part.matmul.has_bias, part.matmul.bias, matmul.c.dtype)) return false;
    if (part.sums && !TakesBias(part.sum.has_bias, part.sum.bias, matmul.c.dtype)) return false;
  }
  if (sums != nullptr) {
    MatmulPiece piece = {};
    probe.pieces.push_back(piece);
  }
  probe.tiling.cluster_m = 1;  // what there is for all types
  return FindFusedVariant(probe).ok();
}

namespace {

// Sets the number of words that signal a delivery: one, or one for each word band.
Status SetWords(size_t words, FusedMatmul* fused) {
  if (words <= 1) return Status::Ok();
  if (words > kMaxWordBands || (fused->word_bands > 1 && static_cast<size_t>(fused->word_bands) != words)) {
    return Unimplemented("deliveries that are signalled in " + std::to_string(words) + " words");
  }
  fused->word_bands = static_cast<int>(words);
  return Status::Ok();
}

// Where the sums of `part` lie and which words tell that they are there: each source's one after another.
Status PlaceSum(const FusedPart& part, const Slices& slots, MatmulPiece* piece, FusedMatmul* fused) {
  if (!fused->slot_of.empty()) return Unimplemented("more than one sum");
  const size_t sources = part.sum.sources.size() - 1;
  const size_t words = sources == 0 ? 0 : part.sum_waits.size() / sources;
  if (words == 0 || words * sources != part.sum_waits.size()) {
    return Unimplemented("a sum that waits for other words than its sources'");
  }
  TANDEM_RETURN_IF_ERROR(SetWords(words, fused));
  fused->position = part.own;
  piece->first_slot = 0;
  for (size_t s = 0; s < part.sum.sources.size(); ++s) {
    if (static_cast<int>(s) == part.own) continue;
    const auto* first = &part.sum_waits[fused->arrived.size() * words];
    for (size_t word = 1; word < words; ++word) {
      if (first[word] != first[0] + word)
        return Unimplemented("a source's words that do not lie side by side");
    }
    fused->arrived.push_back(reinterpret_cast<const uint64_t*>(first[0]));
    fused->slot_of.push_back(slots.IndexOf(part.sum.sources[s].data));
  }
  return Status::Ok();
}

// Where the piece's result goes: its own place, and copies of it.
Status SetOutputs(const FusedPart& part, OutputMaps* out, MatmulPiece* piece, FusedMatmul* fused) {
  piece->first_copy = static_cast<int16_t>(fused->copies.size());
  const std::vector<Output> outputs = OutputsOf(part);
  for (size_t o = 0; o < outputs.size(); ++o) {
    const auto [map, slice] = out->Place(outputs[o], piece->rows);
    auto* done = reinterpret_cast<uint64_t*>(outputs[o].done);
    if (o > 0) {
      MatmulCopy copy = {};
      copy.done = done;
      copy.map = map;
      copy.slice = slice;
      fused->copies.push_back(copy);
      continue;
    }
    piece->out_map = map;
    piece->out_slice = slice;
    piece->done = done;
  }
  piece->copies = static_cast<int16_t>(fused->copies.size() - static_cast<size_t>(piece->first_copy));
  piece->words = 1;
  for (const FusedDelivery& delivery : part.deliveries) {
    TANDEM_RETURN_IF_ERROR(SetWords(static_cast<size_t>(delivery.words), fused));
    if (delivery.words != part.deliveries.front().words)
      return Unimplemented("deliveries of a part signalled in different words");
    piece->words = static_cast<int16_t>(delivery.words);
  }
  piece->on_the_way = !part.sums && piece->copies > 0 ? 1 : 0;
  return Status::Ok();
}

// The factors and the bias of the piece's epilogue.
Status SetFactors(const FusedPart& part, MatmulPiece* piece, FusedMatmul* fused) {
  if (part.matmul.has_scale_a) {
    piece->row_scale = reinterpret_cast<const float*>(part.matmul.scale_a.data);
    // A single row's factor is also one for all.
    fused->row_scales = fused->row_scales || (!fused->blocks && *StepOf(part.matmul.scale_a) == 1);
  }
  const bool in_sum = part.sums;
  const bool has_bias = in_sum ? part.sum.has_bias : part.matmul.has_bias;
  const bool has_scale = in_sum ? part.sum.has_result_scale : part.matmul.has_result_scale;
  const DeviceView& bias = in_sum ? part.sum.bias : part.matmul.bias;
  if (has_bias) {
    if (fused->n > 1 && *StepOf(bias) == 0) return Unimplemented("a bias of one element");
    fused->bias = bias.data;
    fused->bias_is_float = bias.dtype == DType::kF32;
  }
  if (has_scale) {
    fused->result_scale =
        reinterpret_cast<const float*>((in_sum ? part.sum.result_scale : part.matmul.result_scale).data);
  }
  piece->finish = has_bias || has_scale ? 1 : 0;
  return Status::Ok();
}

void SetScaleSteps(const MatmulArgs& matmul, FusedMatmul* fused) {
  if (matmul.has_scale_b) {
    fused->column_scale = reinterpret_cast<const float*>(matmul.scale_b.data);
    fused->column_scales = !fused->blocks && *StepOf(matmul.scale_b) == 1;
  }
  if (fused->blocks) {
    fused->row_scale_step = static_cast<int32_t>(matmul.scale_a.stride[0]);
    fused->row_scale_block_step = static_cast<int32_t>(matmul.scale_a.stride[1]);
    fused->column_scale_block_step = static_cast<int32_t>(matmul.scale_b.stride[0]);
    fused->column_scale_step = static_cast<int32_t>(matmul.scale_b.stride[1]);
  }
}

}  // namespace

Result<FusedMatmul> MakeFusedMatmul(const CollectiveArgs& args, const FusedMemory& memory,
                                    std::span<const FusedVariant> variants, int sms) {
  if (!TakesFused(args, variants)) return Unimplemented("no fused kernel for these parts");
  const FusedArgs& work = *args.As<FusedArgs>();
  const std::vector<FusedPart>& parts = work.parts;
  const FusedPart& first = parts.front();
  const MatmulArgs& matmul = first.matmul;
  const size_t element = DTypeBytes(matmul.a.dtype), out_element = DTypeBytes(matmul.c.dtype);
  FusedMatmul fused(variants);
  SetTypes(matmul, &fused);
  const Heights heights = *HeightsOf(parts);
  fused.rows = heights.high;
  fused.k = matmul.b.extent[0];
  fused.n = matmul.b.extent[1];
  // A single row or column of B is contiguous either way; its columns are then what float8 needs.
  fused.b_along_n = matmul.b.stride[1] == 1 && !(IsFloat8(fused.type) && matmul.b.stride[0] == 1);
  fused.b = {matmul.b.data, matmul.b.stride[fused.b_along_n ? 0 : 1], 1, 0};
  if (reinterpret_cast<uintptr_t>(matmul.b.data) % kTmaBytes != 0)
    return Unimplemented("B is not aligned to 16 bytes");

  // A: map 0 for parts that are here already, map 1 for parts that arrive, or short ones. C: see Output.
  const auto is_short = [&heights](const FusedPart& part) {
    return FoldRows(part.matmul.a)->count == heights.low;
  };
  const auto a_map = [&](const FusedPart& part) { return part.waits.empty() && !is_short(part) ? 0 : 1; };
  Slices a[2], slots;
  OutputMaps out(heights.low);
  for (const FusedPart& part : parts) {
    a[a_map(part)].addresses.push_back(part.matmul.a.data);
    out.Add(part);
    for (size_t s = 0; part.sums && s < part.sum.sources.size(); ++s) {
      if (static_cast<int>(s) != part.own) slots.addresses.push_back(part.sum.sources[s].data);
    }
  }
  for (Slices& slices : a) TANDEM_RETURN_IF_ERROR(slices.Arrange("A"));
  TANDEM_RETURN_IF_ERROR(out.Arrange(out_element, fused.out));
  TANDEM_RETURN_IF_ERROR(slots.Arrange("the partial sums"));

  int64_t a_pitch[2] = {-1, -1};
  for (const FusedPart& part : parts) {
    MatmulPiece piece = {};
    piece.rows = static_cast<int32_t>(FoldRows(part.matmul.a)->count);
    piece.a_map = static_cast<int16_t>(a_map(part));
    const int64_t pitch = FoldRows(part.matmul.a)->pitch;
    if (a_pitch[piece.a_map] >= 0 && a_pitch[piece.a_map] != pitch)
      return Unimplemented("parts of different pitch");
    a_pitch[piece.a_map] = pitch;
    piece.a_slice = a[piece.a_map].IndexOf(part.matmul.a.data);
    TANDEM_RETURN_IF_ERROR(SetOutputs(part, &out, &piece, &fused));
    if (part.waits.size() > 1) return Unimplemented("a part that waits for several words");
    if (!part.waits.empty()) piece.ready = reinterpret_cast<const uint64_t*>(part.waits[0]);
    piece.first_slot = -1;
    TANDEM_RETURN_IF_ERROR(SetFactors(part, &piece, &fused));
    if (part.sums) {
      TANDEM_RETURN_IF_ERROR(PlaceSum(part, slots, &piece, &fused));
      fused.slots = slots.Matrix(FoldRows(part.sum.sources[part.own == 0 ? 1 : 0])->pitch, out_element);
      fused.slots.rows = piece.rows;
    }
    fused.pieces.push_back(piece);
  }
  for (int i = 0; i < 2; ++i) {
    if (a[i].base != nullptr) fused.a[i] = a[i].Matrix(a_pitch[i], element);
  }
  if (heights.low > 0) fused.a[1].rows = heights.low;
  SetScaleSteps(matmul, &fused);
  fused.alpha = matmul.alpha;
  fused.memory = memory;
  fused.tiling = ChooseTiling(fused, sms);
  fused.runs = ChooseRuns(fused);
  fused.launch_number = args.launch_number;
  for (const Word* word : work.closing) fused.closing.push_back(reinterpret_cast<const uint64_t*>(word));
  fused.entered = reinterpret_cast<const uint64_t*>(work.entered);
  fused.abort_word = reinterpret_cast<const uint64_t*>(args.abort_word);
  fused.timeout_ns = TimeLimit(args.abort_word);
  return fused;
}

}  // namespace tandem::cuda
