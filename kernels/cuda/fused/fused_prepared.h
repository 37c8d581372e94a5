// File: fused_prepared.h
//
// The parameters of a multiplying kernel's launches with one set of addresses: tensor maps, pieces and bands,
// made once.
#pragma once

#include <memory>

#include "kernels/backend.h"
#include "kernels/cuda/fused/fused_launch.h"
#include "tandem/status.h"

namespace tandem::cuda {

// The parameters of a fused or skinny kernel and the variant to launch. Thread rule: one thread at a time.
template <class Params, class Variant>
class PreparedKernel : public PreparedWork {
 public:
  // The function that puts the kernel on a stream; tests replace it.
  using Launch = Status (*)(const Params& params, const Variant& variant, int ctas, CUstream_st* stream);

  PreparedKernel(const Params& params, const Variant* variant, int ctas)
      : params_(params), variant_(variant), ctas_(ctas) {}

  // Enqueues one launch: `args` has what changes from one to the next, its launch number, abort word and
  // guard.
  Status Enqueue(const CollectiveArgs& args, CUstream_st* stream, Launch launch) {
    params_.launch_number = args.launch_number;
    params_.abort_word = reinterpret_cast<const uint64_t*>(args.abort_word);
    params_.timeout_ns = TimeLimit(args.abort_word);
    params_.guard_word = reinterpret_cast<const uint64_t*>(args.guard.word);
    params_.guard_value = args.guard.value;
    return launch(params_, *variant_, ctas_, stream);
  }

 private:
  Params params_;
  const Variant* variant_;
  int ctas_;
};

// Enqueues what `args.prepared` keeps. `make` returns a Result<std::unique_ptr<Kernel>> for the first launch
// with these addresses, or for each where nothing is kept.
template <class Kernel, class Make>
Status EnqueuePrepared(const CollectiveArgs& args, CUstream_st* stream, typename Kernel::Launch launch,
                       const Make& make) {
  std::unique_ptr<PreparedWork> unkept;
  std::unique_ptr<PreparedWork>& prepared = args.prepared != nullptr ? *args.prepared : unkept;
  if (prepared == nullptr) {
    TANDEM_ASSIGN_OR_RETURN(prepared, make());
  }
  return static_cast<Kernel&>(*prepared).Enqueue(args, stream, launch);
}

using PreparedFused = PreparedKernel<FusedMatmulParams, FusedVariant>;

}  // namespace tandem::cuda
