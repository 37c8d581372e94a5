#include "client/nccl/thread_group.h"

#include <utility>

#include "client/nccl/collectives.h"
#include "client/nccl/real_nccl.h"

namespace tandem::nccl {

ThreadGroup& ThisGroup() {
  thread_local ThreadGroup group;
  return group;
}

void ThreadGroup::HandOver() {
  if (!active() || handed_over_) return;
  handed_over_ = true;
  error_ = Real().GroupStart();
  if (!kept_) return;
  const NcclCall call = *std::exchange(kept_, std::nullopt);
  const ncclResult_t passed = PassToNccl(call, kGrouped);
  if (error_ == ncclSuccess) error_ = passed;
}

ncclResult_t ThreadGroup::Add(const NcclCall& call) {
  // A call that NCCL runs in any case may use what the program frees before the group's end.
  if (kept_ || WhyNot(call) != nullptr) HandOver();
  if (handed_over_) return PassToNccl(call, kGrouped);
  kept_ = call;
  return ncclSuccess;
}

ncclResult_t ThreadGroup::End() {
  if (depth_ == 0) return Real().GroupEnd();  // NCCL reports the misuse
  if (--depth_ > 0) return ncclSuccess;
  if (std::exchange(handed_over_, false)) {
    const ncclResult_t earlier = std::exchange(error_, ncclSuccess);
    const ncclResult_t ended = Real().GroupEnd();
    return ended == ncclSuccess || ended == ncclInProgress ? (earlier == ncclSuccess ? ended : earlier)
                                                           : ended;
  }
  if (!kept_) return ncclSuccess;
  return RunCollective(*std::exchange(kept_, std::nullopt));
}

ncclResult_t ThreadGroup::SimulateEnd(ncclSimInfo_t* info) {
  HandOver();
  if (depth_ > 0) --depth_;
  if (depth_ == 0) {
    handed_over_ = false;
    error_ = ncclSuccess;
  }
  return Real().GroupSimulateEnd(info);
}

}  // namespace tandem::nccl
