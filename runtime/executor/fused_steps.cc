#include "runtime/executor/fused_steps.h"

#include <algorithm>
#include <string>

namespace tandem::runtime {
namespace {

constexpr int64_t kMaxExtent =
    int64_t{1} << 30;  // of a matrix for the skinny kernel, which counts bytes of a row in an int

class Cutter {
 public:
  explicit Cutter(int rank) : rank_(rank) {}

  // False: the step has no place here.
  bool Take(const plan::Step& step) {
    return std::visit([this](const auto& work) { return Add(work); }, step.work);
  }
  bool Complete() const { return !parts_.empty() && !Copied(); }
  FusedCut Cut() && { return {meeting_, std::move(pushes_), std::move(parts_), entered_, std::move(waits_)}; }

 private:
  bool Copied() const { return copied_ != nullptr; }
  bool IsFirst() const { return parts_.empty(); }
  // Whether what is waited for stands before all deliveries: one word of this rank's own.
  bool TakeEntry() {
    const bool first = std::all_of(parts_.begin(), parts_.end(),
                                   [](const FusedSteps& part) { return part.deliveries.empty(); });
    if (!first || waits_.size() != 1 || waits_.front()->from_rank != rank_) return false;
    entered_ = waits_.front();
    waits_.clear();
    return true;
  }
  FusedSteps& Last() { return parts_.back(); }

  bool Add(const plan::WaitStep& wait) {
    if (IsFirst() && wait.index == meeting_) return true;
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
  bool Push(const plan::CopyStep& copy) {
    if (meeting_ < 0 || copy.dst.ref.rank == rank_) return false;
    pushes_.push_back({&copy, nullptr, 1});
    return true;
  }
  // Before the first product: a word of the handshake, or of what has been pushed.
  bool Begin(const plan::SignalStep& signal) {
    if (pushes_.empty()) {
      if (signal.to_rank == rank_ || (meeting_ >= 0 && signal.index != meeting_)) return false;
      meeting_ = signal.index;
      return true;
    }
    DeliverySteps& last = pushes_.back();
    if (last.signal != nullptr || signal.to_rank != last.copy->dst.ref.rank) return false;
    last.signal = &signal;
    return true;
  }
  bool Add(const plan::CopyStep& copy) {
    if (IsFirst()) return Push(copy);
    if (Copied() || made_ == nullptr || copy.src != *made_ || copy.dst.ref.rank == rank_) return false;
    if (!waits_.empty() && !TakeEntry()) return false;
    // A product that is not summed is stored once.
    if (Last().sum == nullptr && !Last().deliveries.empty()) return false;
    copied_ = &copy;
    return true;
  }
  bool Add(const plan::SignalStep& signal) {
    if (IsFirst()) return Begin(signal);
    if (made_ == nullptr || !waits_.empty()) return false;
    if (Copied()) {
      if (signal.to_rank != copied_->dst.ref.rank) return false;
      Last().deliveries.push_back({copied_, &signal, 1});
      copied_ = nullptr;
      return true;
    }
    if (!Last().deliveries.empty()) {
      DeliverySteps& reported = Last().deliveries.back();
      return signal.to_rank == reported.signal->to_rank &&
             signal.index == reported.signal->index + reported.signals++;
    }
    if (signal.to_rank != rank_) return false;
    Last().done = &signal;
    made_ = nullptr;
    return true;
  }
  template <class Other>
  bool Add(const Other&) {
    return false;
  }

  int rank_;
  int meeting_ = -1;
  std::vector<DeliverySteps> pushes_;
  std::vector<FusedSteps> parts_;
  std::vector<const plan::WaitStep*> waits_;
  const plan::WaitStep* entered_ = nullptr;
  const plan::View* made_ = nullptr;        // by the last part, unless it has its own signal
  const plan::CopyStep* copied_ = nullptr;  // a delivery that has no signal yet
};

}  // namespace

Result<FusedCut> CutFusedSteps(const plan::CollectiveStep& step, int rank) {
  Cutter cutter(rank);
  size_t i = 0;
  for (; i < step.expansion.size() && cutter.Take(step.expansion[i]); ++i) {
  }
  if (i < step.expansion.size() || !cutter.Complete()) {
    return InvalidArgument("step " + std::to_string(i) + " has no place in a fused matmul");
  }
  return std::move(cutter).Cut();
}

Result<SkinnyLayout> SkinnyLayoutOf(const plan::CollectiveStep& step, int world_size) {
  const plan::MatmulStep& matmul = step.skinny->matmul;
  if (matmul.a.extent.size() != 2 || matmul.b.extent.size() != 2 || matmul.c.extent.size() != 2 ||
      matmul.accumulate || matmul.has_chunk_signals) {
    return InvalidArgument("no product of matrices for the skinny kernel");
  }
  for (const plan::View* view : {&matmul.a, &matmul.b, &matmul.c}) {
    if (std::max(view->extent[0], view->extent[1]) > kMaxExtent)
      return InvalidArgument("too much for the skinny kernel");
  }
  const int64_t n = matmul.b.extent[1], k = matmul.b.extent[0], a_rows = matmul.a.extent[0],
                c_rows = matmul.c.extent[0];
  SkinnyKind kind = SkinnyKind::kGather;
  int64_t m = a_rows * world_size;
  if (step.op == Op::kMatmulReduceScatter || step.op == Op::kMatmulAllReduce) {
    kind = step.op == Op::kMatmulAllReduce ? SkinnyKind::kAllReduce : SkinnyKind::kScatter;
    m = a_rows;
  } else if (step.op != Op::kAllGatherMatmul) {
    return InvalidArgument("an operation that the skinny kernel has not");
  }
  const bool gathers = kind == SkinnyKind::kGather;
  bool fits = matmul.a.extent[1] == k && matmul.c.extent[1] == n &&
              (gathers || !step.skinny->scales_travel) &&
              (kind == SkinnyKind::kScatter ? c_rows * world_size : c_rows) == m;
  const auto covers = [&](bool has, const plan::View& view, int64_t elements, bool or_one) {
    const int64_t there = view.extent.empty() ? 1 : view.extent[0];
    fits = fits && (!has || (view.extent.size() <= 1 && (there == elements || (or_one && there == 1))));
  };
  const bool travels = step.skinny->scales_travel;
  fits = fits && (matmul.has_scale_a || !travels);
  covers(matmul.has_scale_a, matmul.scale_a, travels ? a_rows : m, !travels);
  covers(matmul.has_scale_b, matmul.scale_b, n, true);
  covers(matmul.has_bias, matmul.bias, n, false);
  covers(matmul.has_result_scale, matmul.result_scale, 1, false);
  if (!fits) return InvalidArgument("views for the skinny kernel that do not belong together");
  const auto layout = MakeSkinnyLayout(
      kind, world_size, m, n, k, static_cast<int>(DTypeBytes(matmul.a.dtype)),
      static_cast<int>(DTypeBytes(matmul.c.dtype)), RunsAlongN(matmul.b), step.skinny->most_ctas);
  if (!layout) return InvalidArgument("more than the skinny kernel computes at once");
  return *layout;
}

}  // namespace tandem::runtime
