#include "kernels/cuda/matmul/matmul_trial.h"

#include <algorithm>
#include <chrono>

namespace tandem::cuda {
namespace {

constexpr int kTrials = 3;  // runs of a round
// A run that may take less than the CPU needs for its launch, and how many of them are timed at once.
constexpr float kBriefMs = 0.1f;
constexpr int kBriefTrials = 8;
// The longest pause. Runs that take the CPU longer still are timed all the same.
constexpr float kMaxPauseMs = 1.0f;

// Multiplications and additions of an H200 in a millisecond at its peak. A faster GPU only tries less.
double OperationsPerMs(cudaDataType_t type) {
  if (type == CUDA_R_32F) return 6.7e10;
  return type == CUDA_R_16F || type == CUDA_R_16BF ? 1e12 : 2e12;
}

float MsSince(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<float, std::milli>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace

float LeastMs(const LtProduct& product) {
  const double operations = 2.0 * static_cast<double>(product.d.rows) *
                            static_cast<double>(product.d.columns) * static_cast<double>(product.k());
  return static_cast<float>(operations / OperationsPerMs(product.x.type));
}

MatmulTrial::MatmulTrial(const Work& work, const std::vector<cublasLtMatmulAlgo_t>& candidates)
    : work_(work), candidates_(candidates), times_(candidates.size(), kNever), out_(candidates.size()) {}

Result<size_t> MatmulTrial::Fastest() {
  TANDEM_ASSIGN_OR_RETURN(start_, work_.driver.EventCreate(CU_EVENT_DEFAULT));
  auto end = work_.driver.EventCreate(CU_EVENT_DEFAULT);
  Status status = end.status();
  if (end.ok()) end_ = *end;
  for (size_t round = 0; round < work_.left->rounds && !over_; ++round) {
    for (size_t i = 0; i < candidates_.size() && status.ok() && !over_; ++i) status = Visit(round, i);
  }
  (void)work_.driver.EventDestroy(start_);
  if (end.ok()) (void)work_.driver.EventDestroy(end_);
  TANDEM_RETURN_IF_ERROR(status);
  if (over_)
    work_.left->budget_ms = 0;  // for less than a run of this product, none of the next one's is begun
  if (best_ == kNever) return candidates_.size();
  const auto fastest = static_cast<size_t>(std::min_element(times_.begin(), times_.end()) - times_.begin());
  TANDEM_RETURN_IF_ERROR(LoadAdding(fastest));
  return fastest;
}

// A product that adds to its old C may run other kernels. They must be loaded before a stream waits: loading
// waits for the streams. Only fp32 partial sums are added to.
Status MatmulTrial::LoadAdding(size_t i) {
  if (work_.product.d.type != CUDA_R_32F) return Status::Ok();
  LtOperands operands = work_.operands;
  operands.beta = 1.0f;
  (void)work_.lt.Run(work_.product, operands, candidates_[i], work_.workspace, work_.workspace_bytes,
                     work_.stream);
  return work_.driver.StreamSynchronize(work_.stream);
}

Status MatmulTrial::Visit(size_t round, size_t i) {
  if (out_[i]) return Status::Ok();
  *work_.last = "candidate " + std::to_string(i + 1) + " of " + std::to_string(candidates_.size());
  if (round == 0) return VisitFirst(i);
  return times_[i] > work_.left->far_behind * best_ ? Status::Ok() : VisitAgain(i);
}

Status MatmulTrial::VisitFirst(size_t i) {
  if (best_ != kNever && 2 * best_ > work_.left->budget_ms) {
    over_ = true;
    return Status::Ok();
  }
  TANDEM_RETURN_IF_ERROR(work_.driver.EventRecord(start_, work_.stream));
  const auto begun = std::chrono::steady_clock::now();
  TANDEM_RETURN_IF_ERROR(WarmUp(i));
  if (out_[i]) return Status::Ok();
  // A kernel's first launch loads it: once, and whatever the product.
  const float loading = MsSince(begun);
  TANDEM_ASSIGN_OR_RETURN(const float elapsed, Elapsed());
  const float warm = std::max(0.0f, elapsed - loading);
  work_.left->budget_ms -= warm;
  if (warm > work_.left->budget_ms) {
    Count(i, warm);
    over_ = true;
    return Status::Ok();
  }
  // Candidates that come behind it are as slow as it is, more or less, and want a warm-up and a run each.
  const float spare = work_.left->budget_ms - 2 * warm * static_cast<float>(candidates_.size() - i - 1);
  return Time(i, spare >= kTrials * warm ? kTrials : std::max(1, static_cast<int>(spare / warm)), warm);
}

Status MatmulTrial::VisitAgain(size_t i) {
  if ((kTrials + 1) * times_[i] > work_.left->budget_ms) {
    over_ = true;
    return Status::Ok();
  }
  TANDEM_RETURN_IF_ERROR(WarmUp(i));
  if (out_[i]) return Status::Ok();
  work_.left->budget_ms -= times_[i];
  return Time(i, kTrials, times_[i]);
}

Status MatmulTrial::WarmUp(size_t i) {
  if (Run(i).ok()) return Status::Ok();
  // A candidate that is refused is left out; the others may serve.
  out_[i] = true;
  // Unless it is the context that is lost: the call says the same of both.
  return work_.driver.StreamSynchronize(work_.stream);
}

Status MatmulTrial::Time(size_t i, int runs, float about_ms) {
  const bool pauses = work_.left->budget_ms > kMaxPauseMs;
  if (pauses && about_ms < kBriefMs) return TimeBrief(i);
  TANDEM_RETURN_IF_ERROR(work_.driver.EventRecord(start_, work_.stream));
  for (int run = 0; run < runs; ++run) TANDEM_RETURN_IF_ERROR(Run(i));
  TANDEM_ASSIGN_OR_RETURN(const float elapsed, Elapsed());
  work_.left->budget_ms -= elapsed;
  Count(i, elapsed / static_cast<float>(runs));
  return Status::Ok();
}

Status MatmulTrial::TimeBrief(size_t i) {
  for (;;) {
    const auto begun = std::chrono::steady_clock::now();
    TANDEM_RETURN_IF_ERROR(work_.pause(static_cast<uint64_t>(pause_ms_ * 1e6f), work_.stream));
    TANDEM_RETURN_IF_ERROR(work_.driver.EventRecord(start_, work_.stream));
    for (int run = 0; run < kBriefTrials; ++run) TANDEM_RETURN_IF_ERROR(Run(i));
    const float enqueued = MsSince(begun);
    TANDEM_ASSIGN_OR_RETURN(const float elapsed, Elapsed());
    work_.left->budget_ms -= pause_ms_ + elapsed;
    if (enqueued <= pause_ms_ || pause_ms_ >= kMaxPauseMs) {
      Count(i, elapsed / static_cast<float>(kBriefTrials));
      return Status::Ok();
    }
    pause_ms_ = std::min(kMaxPauseMs, 2 * enqueued);
  }
}

Status MatmulTrial::Run(size_t i) {
  return work_.lt.Run(work_.product, work_.operands, candidates_[i], work_.workspace, work_.workspace_bytes,
                      work_.stream);
}

Result<float> MatmulTrial::Elapsed() {
  TANDEM_RETURN_IF_ERROR(work_.driver.EventRecord(end_, work_.stream));
  TANDEM_RETURN_IF_ERROR(work_.driver.StreamSynchronize(work_.stream));
  return work_.driver.EventElapsedTime(start_, end_);
}

void MatmulTrial::Count(size_t i, float ms) {
  times_[i] = std::min(times_[i], ms);
  best_ = std::min(best_, times_[i]);
}

}  // namespace tandem::cuda
