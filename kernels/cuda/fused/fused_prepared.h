// File: fused_prepared.h
//
// The parameters of a fused matmul's launches with one set of addresses: tensor maps, pieces and bands, made
// once.
#pragma once

#include "kernels/backend.h"
#include "kernels/cuda/fused/fused_launch.h"
#include "tandem/status.h"

namespace tandem::cuda {

// The calls that put work on a stream; tests replace them.
struct FusedCalls {
  decltype(&LaunchFused) launch = &LaunchFused;
};

// Thread rule: one thread at a time.
class PreparedFused : public PreparedWork {
 public:
  // `ctas`: see LaunchFused.
  PreparedFused(const FusedMatmulParams& params, const FusedVariant* variant, int ctas)
      : params_(params), variant_(variant), ctas_(ctas) {}

  // Enqueues one launch: `args` has what changes from one to the next, its epoch, abort word and guard.
  Status Enqueue(const CollectiveArgs& args, CUstream_st* stream, const FusedCalls& calls) {
    params_.epoch = args.epoch;
    params_.abort_word = reinterpret_cast<const uint64_t*>(args.abort_word);
    params_.timeout_ns = TimeLimit(args.abort_word);
    params_.guard_word = reinterpret_cast<const uint64_t*>(args.guard.word);
    params_.guard_value = args.guard.value;
    return calls.launch(params_, *variant_, ctas_, stream);
  }

 private:
  FusedMatmulParams params_;
  const FusedVariant* variant_;
  int ctas_;
};

}  // namespace tandem::cuda
