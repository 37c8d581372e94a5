#include "kernels/cuda/native/few_rows_plan.h"

#include <memory>

#include "kernels/cuda/native/native_matmul.h"
#include "kernels/cuda/native/scales.h"

namespace tandem::cuda {
namespace {

bool HasRows(const DeviceView& view) { return view.extent.size() == 2 && (view.extent[1] == 1 || view.stride[1] == 1); }

// What depends on types and numbers only.
FewRowsMatmul WithoutAddresses(const FewRowsArgs& args) {
  const MatmulArgs& matmul = args.matmul;
  FewRowsMatmul few;
  few.layout = args.layout;
  few.type = matmul.a.dtype;
  few.b_type = matmul.b.dtype;
  few.out_type = matmul.c.dtype;
  few.exact = IsFloat8(matmul.a.dtype) && !matmul.fast_accumulation;
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

// The parameters of launches with one set of addresses.
class PreparedFewRows : public PreparedWork {
 public:
  PreparedFewRows(const FewRowsParams& params, const FewRowsVariant* variant, int ctas)
      : params_(params), variant_(variant), ctas_(ctas) {}

  Status Enqueue(const CollectiveArgs& args, CUstream_st* stream, const FewRowsCalls& calls) {
    params_.epoch = args.epoch;
    params_.abort_word = reinterpret_cast<const uint64_t*>(args.abort_word);
    params_.timeout_ns = TimeLimit(args.abort_word);
    params_.guard_word = reinterpret_cast<const uint64_t*>(args.guard.word);
    params_.guard_value = args.guard.value;
    return calls.launch(params_, *variant_, ctas_, stream);
  }

 private:
  FewRowsParams params_;
  const FewRowsVariant* variant_;
  int ctas_;
};

Result<std::unique_ptr<PreparedWork>> Prepare(const CollectiveArgs& args, void* state) {
  TANDEM_ASSIGN_OR_RETURN(const FewRowsMatmul few, MakeFewRowsMatmul(args, state));
  TANDEM_ASSIGN_OR_RETURN(const FewRowsVariant* variant, FindFewRowsVariant(few));
  TANDEM_ASSIGN_OR_RETURN(const FewRowsParams params, MakeFewRowsParams(few));
  return std::unique_ptr<PreparedWork>(std::make_unique<PreparedFewRows>(params, variant, few.layout.ctas()));
}

}  // namespace

bool TakesFewRows(const FewRowsArgs& args) {
  const MatmulArgs& matmul = args.matmul;
  if (!HasRows(matmul.a) || !HasRows(matmul.c) || matmul.b.extent.size() != 2) return false;
  if (RunsAlongN(matmul.b) && matmul.b.stride[1] != 1) return false;
  if (matmul.accumulate || matmul.chunk_signals != nullptr || matmul.block_scales) return false;
  if (args.layout.k * args.layout.element_bytes % 16 != 0) return false;  // what shards are pushed by
  if (!TakesScale(matmul.has_scale_a, matmul.scale_a) || !TakesScale(matmul.has_scale_b, matmul.scale_b)) return false;
  if (!TakesScale(matmul.has_result_scale, matmul.result_scale)) return false;
  if (!TakesBias(matmul.has_bias, matmul.bias, matmul.c.dtype)) return false;
  return FindFewRowsVariant(WithoutAddresses(args)).ok();
}

Result<FewRowsMatmul> MakeFewRowsMatmul(const CollectiveArgs& args, void* state) {
  const FewRowsArgs& few_rows = *args.few_rows;
  if (!TakesFewRows(few_rows)) return Unimplemented("no few-rows kernel for this product");
  const auto world = static_cast<size_t>(few_rows.layout.world);
  if (few_rows.areas.size() != world || few_rows.words.size() != world || few_rows.arrived.size() != world) {
    return InvalidArgument("areas or words of another number of ranks");
  }
  const MatmulArgs& matmul = few_rows.matmul;
  if (matmul.a.data == nullptr || matmul.b.data == nullptr || matmul.c.data == nullptr) {
    return InvalidArgument("a product that is not bound");
  }
  FewRowsMatmul few = WithoutAddresses(few_rows);
  few.rank = args.rank;
  few.a = matmul.a.data;
  few.b = matmul.b.data;
  few.c = matmul.c.data;
  for (size_t rank = 0; rank < world; ++rank) {
    few.area[rank] = few_rows.areas[rank].data;
    few.words[rank] = reinterpret_cast<uint64_t*>(few_rows.words[rank]);
    few.arrived[rank] = reinterpret_cast<const uint64_t*>(few_rows.arrived[rank]);
  }
  if (matmul.has_scale_a) few.row_scale = reinterpret_cast<const float*>(matmul.scale_a.data);
  if (matmul.has_scale_b) few.column_scale = reinterpret_cast<const float*>(matmul.scale_b.data);
  if (matmul.has_bias) few.bias = matmul.bias.data;
  if (matmul.has_result_scale) few.result_scale = reinterpret_cast<const float*>(matmul.result_scale.data);
  few.epoch = args.epoch;
  few.abort_word = reinterpret_cast<const uint64_t*>(args.abort_word);
  few.timeout_ns = TimeLimit(args.abort_word);
  few.guard_word = reinterpret_cast<const uint64_t*>(args.guard.word);
  few.guard_value = args.guard.value;
  few.state = state;
  return few;
}

Status EnqueueFewRows(const CollectiveArgs& args, void* state, CUstream_st* stream, const FewRowsCalls& calls) {
  std::unique_ptr<PreparedWork> unkept;
  std::unique_ptr<PreparedWork>& prepared = args.prepared != nullptr ? *args.prepared : unkept;
  if (prepared == nullptr) {
    TANDEM_ASSIGN_OR_RETURN(prepared, Prepare(args, state));
  }
  return static_cast<PreparedFewRows&>(*prepared).Enqueue(args, stream, calls);
}

}  // namespace tandem::cuda
