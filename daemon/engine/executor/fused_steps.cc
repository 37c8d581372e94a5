#include "daemon/engine/executor/fused_steps.h"

#include <string>

namespace tandem::engine {
namespace {

class Cutter {
 public:
  explicit Cutter(int rank) : rank_(rank) {}

  // False: the step has no place here.
  bool Take(const plan::Step& step) {
    return std::visit([this](const auto& work) { return Add(work); }, step.work);
  }
  bool Complete() const { return waits_.empty() && !Copied(); }
  std::vector<FusedSteps> Parts() && { return std::move(parts_); }

 private:
  bool Copied() const { return copied_ != nullptr; }
  FusedSteps& Last() { return parts_.back(); }

  bool Add(const plan::WaitStep& wait) {
    waits_.push_back(&wait);
    return !Copied();
  }
  bool Add(const plan::MatmulStep& matmul) {
    if (Copied() || matmul.has_chunk_signals) return false;
    parts_.emplace_back();
    Last().matmul = &matmul;
    Last().waits = std::move(waits_);
    waits_ = {};
    made_ = &matmul.c;
    return true;
  }
  bool Add(const plan::ReduceStep& sum) {
    if (Copied() || made_ == nullptr || Last().sum != nullptr || !Last().deliveries.empty()) return false;
    Last().sum = &sum;
    for (size_t s = 0; s < sum.sources.size(); ++s) {
      if (sum.sources[s] == Last().matmul->c) Last().own = static_cast<int>(s);
    }
    Last().sum_waits = std::move(waits_);
    waits_ = {};
    made_ = &sum.dst;
    return true;
  }
  bool Add(const plan::CopyStep& copy) {
    if (Copied() || made_ == nullptr || !waits_.empty() || copy.src != *made_ || copy.dst.ref.rank == rank_) return false;
    // A product that is not summed is stored once.
    if (Last().sum == nullptr && !Last().deliveries.empty()) return false;
    copied_ = &copy;
    return true;
  }
  bool Add(const plan::SignalStep& signal) {
    if (made_ == nullptr || !waits_.empty()) return false;
    if (Copied()) {
      if (signal.to_rank != copied_->dst.ref.rank) return false;
      Last().deliveries.push_back({copied_, &signal});
      copied_ = nullptr;
      return true;
    }
    if (signal.to_rank != rank_ || !Last().deliveries.empty()) return false;
    Last().done = &signal;
    made_ = nullptr;
    return true;
  }
  template <class Other>
  bool Add(const Other&) {
    return false;
  }

  int rank_;
  std::vector<FusedSteps> parts_;
  std::vector<const plan::WaitStep*> waits_;
  const plan::View* made_ = nullptr;          // by the last part, unless it has its own signal
  const plan::CopyStep* copied_ = nullptr;    // a delivery that has no signal yet
};

}  // namespace

Result<std::vector<FusedSteps>> CutFusedSteps(const plan::CollectiveStep& step, int rank) {
  Cutter cutter(rank);
  size_t i = 0;
  for (; i < step.expansion.size() && cutter.Take(step.expansion[i]); ++i) {
  }
  if (i < step.expansion.size() || !cutter.Complete()) {
    return InvalidArgument("step " + std::to_string(i) + " has no place in a fused matmul");
  }
  return std::move(cutter).Parts();
}

}  // namespace tandem::engine
