// A skinny product, as the executor binds it, as the kernel's work: for engines and clients.
#include "kernels/cuda/fused/scales.h"
#include "kernels/cuda/skinny/skinny_plan.h"

namespace tandem::cuda {
namespace {

bool HasRows(const DeviceView& view) {
  return view.extent.size() == 2 && (view.extent[1] == 1 || view.stride[1] == 1);
}

// The part that depends on types and numbers only.
SkinnyMatmul WithoutAddresses(const SkinnyArgs& args) {
  const MatmulArgs& matmul = args.matmul;
  SkinnyMatmul few;
  few.layout = args.layout;
  few.type = matmul.a.dtype;
  few.b_type = matmul.b.dtype;
  few.out_type = matmul.c.dtype;
  few.exact = IsFloat8(matmul.a.dtype) && (!matmul.fast_accumulation || matmul.fixed_order);
  few.fixed_order = matmul.fixed_order;
  few.b_along_n = RunsAlongN(matmul.b);
  few.a_pitch = matmul.a.stride[0];
  few.b_pitch = matmul.b.stride[few.b_along_n ? 0 : 1];
  few.c_pitch = matmul.c.stride[0];
  few.alpha = matmul.alpha;
  // Scales that travel are one for each row, however few there are.
  few.row_scales = matmul.has_scale_a && (args.scales_travel || StepOf(matmul.scale_a) == 1);
  few.column_scales = matmul.has_scale_b && StepOf(matmul.scale_b) == 1;
  few.row_scales_travel = args.scales_travel;
  few.bias_is_float = matmul.has_bias && matmul.bias.dtype == DType::kF32;
  return few;
}

// The form that every variant asks for.
bool HasSkinnyForm(const SkinnyArgs& args) {
  const MatmulArgs& matmul = args.matmul;
  if (!HasRows(matmul.a) || !HasRows(matmul.c) || matmul.b.extent.size() != 2) return false;
  if (RunsAlongN(matmul.b) && matmul.b.stride[1] != 1) return false;
  if (matmul.accumulate || matmul.has_chunk_signals || matmul.block_scales) return false;
  if (args.layout.k * args.layout.element_bytes % 16 != 0) return false;  // what shards are pushed by
  if (!TakesScale(matmul.has_scale_a, matmul.scale_a) || !TakesScale(matmul.has_scale_b, matmul.scale_b))
    return false;
  if (!TakesScale(matmul.has_result_scale, matmul.result_scale)) return false;
  return TakesBias(matmul.has_bias, matmul.bias, matmul.c.dtype);
}

}  // namespace

bool TakesSkinny(const SkinnyArgs& args, std::span<const SkinnyVariant> variants) {
  return HasSkinnyForm(args) && FindSkinnyVariant(WithoutAddresses(args), variants).ok();
}

Result<SkinnyMatmul> MakeSkinnyMatmul(const CollectiveArgs& args, void* state) {
  const auto* work = args.As<SkinnyArgs>();
  if (work == nullptr || !HasSkinnyForm(*work)) return Unimplemented("no skinny kernel for this product");
  const SkinnyArgs& skinny = *work;
  const auto world = static_cast<size_t>(skinny.layout.world);
  if (skinny.areas.size() != world || skinny.words.size() != world || skinny.arrived.size() != world) {
    return InvalidArgument("areas or words of another number of ranks");
  }
  const MatmulArgs& matmul = skinny.matmul;
  if (matmul.a.data == nullptr || matmul.b.data == nullptr || matmul.c.data == nullptr) {
    return InvalidArgument("a product that is not bound");
  }
  SkinnyMatmul few = WithoutAddresses(skinny);
  few.rank = args.rank;
  few.a = matmul.a.data;
  few.b = matmul.b.data;
  few.c = matmul.c.data;
  for (size_t rank = 0; rank < world; ++rank) {
    few.area[rank] = skinny.areas[rank].data;
    few.words[rank] = reinterpret_cast<uint64_t*>(skinny.words[rank]);
    few.arrived[rank] = reinterpret_cast<const uint64_t*>(skinny.arrived[rank]);
  }
  if (matmul.has_scale_a) few.row_scale = reinterpret_cast<const float*>(matmul.scale_a.data);
  if (matmul.has_scale_b) few.column_scale = reinterpret_cast<const float*>(matmul.scale_b.data);
  if (matmul.has_bias) few.bias = matmul.bias.data;
  if (matmul.has_result_scale) few.result_scale = reinterpret_cast<const float*>(matmul.result_scale.data);
  few.launch_number = args.launch_number;
  few.abort_word = reinterpret_cast<const uint64_t*>(args.abort_word);
  few.timeout_ns = TimeLimit(args.abort_word);
  few.guard_word = reinterpret_cast<const uint64_t*>(args.guard.word);
  few.guard_value = args.guard.value;
  few.state = state;
  return few;
}

}  // namespace tandem::cuda
