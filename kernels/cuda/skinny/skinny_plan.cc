#include "kernels/cuda/skinny/skinny_plan.h"

#include <memory>

#include "kernels/cuda/fused/fused_launch.h"

namespace tandem::cuda {
namespace {

// The parameters of launches with one set of addresses.
class PreparedSkinny : public PreparedWork {
 public:
  PreparedSkinny(const SkinnyParams& params, const SkinnyVariant* variant, int ctas)
      : params_(params), variant_(variant), ctas_(ctas) {}

  Status Enqueue(const CollectiveArgs& args, CUstream_st* stream, const SkinnyCalls& calls) {
    params_.epoch = args.epoch;
    params_.abort_word = reinterpret_cast<const uint64_t*>(args.abort_word);
    params_.timeout_ns = TimeLimit(args.abort_word);
    params_.guard_word = reinterpret_cast<const uint64_t*>(args.guard.word);
    params_.guard_value = args.guard.value;
    return calls.launch(params_, *variant_, ctas_, stream);
  }

 private:
  SkinnyParams params_;
  const SkinnyVariant* variant_;
  int ctas_;
};

Result<std::unique_ptr<PreparedWork>> Prepare(const CollectiveArgs& args, void* state) {
  TANDEM_ASSIGN_OR_RETURN(const SkinnyMatmul few, MakeSkinnyMatmul(args, state));
  TANDEM_ASSIGN_OR_RETURN(const SkinnyVariant* variant, FindSkinnyVariant(few));
  TANDEM_ASSIGN_OR_RETURN(const SkinnyParams params, MakeSkinnyParams(few));
  return std::unique_ptr<PreparedWork>(std::make_unique<PreparedSkinny>(params, variant, few.layout.ctas()));
}

}  // namespace

bool TakesSkinny(const SkinnyArgs& args) { return TakesSkinny(args, SkinnyVariants()); }

Status EnqueueSkinny(const CollectiveArgs& args, void* state, CUstream_st* stream, const SkinnyCalls& calls) {
  std::unique_ptr<PreparedWork> unkept;
  std::unique_ptr<PreparedWork>& prepared = args.prepared != nullptr ? *args.prepared : unkept;
  if (prepared == nullptr) {
    TANDEM_ASSIGN_OR_RETURN(prepared, Prepare(args, state));
  }
  return static_cast<PreparedSkinny&>(*prepared).Enqueue(args, stream, calls);
}

}  // namespace tandem::cuda
