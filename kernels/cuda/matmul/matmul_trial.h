// File: matmul_trial.h
//
// `MatmulTrial`: runs cuBLASLt's candidates for a product and finds the fastest, within a budget of time.
#pragma once

#include <cstddef>
#include <limits>
#include <string>
#include <vector>

#include "drivers/cublaslt/cublas_lt.h"
#include "drivers/cuda/cuda_driver.h"
#include "tandem/status.h"

namespace tandem::cuda {

// The limit of GPU time for the trials of one prepared product, all shapes and alignments together.
// They run on the engine's only thread, whose silence the supervisor bounds (30 s), and launches wait behind
// them. Eight candidates of a product of 1 ms take 130 ms; of one that is much longer, fewer candidates are
// tried, or less often.
inline constexpr float kTrialBudgetMs = 200;

// What the trials of one product may take.
struct TrialEffort {
  float budget_ms = kTrialBudgetMs;  // of the GPU's time
  // A candidate's time is the best of so many, so that disturbances are left out. A round takes the mean of some
  // runs behind one that warms up.
  size_t rounds = 4;
  // Candidates that take so many times as long as the fastest after a round run no more.
  float far_behind = 1.4f;
  bool unaligned = true;  // operands that are aligned to their elements only are tried as well
};

// The time that the product takes at least, on any GPU so far: products that take longer than the budget are
// not tried at all.
float LeastMs(const LtProduct& product);

// Thread rule: one thread at a time.
class MatmulTrial {
 public:
  // Everything outlives the trial. `last` gets the candidate that ran last, `left` the rest of the budget.
  struct Work {
    CudaDriver& driver;
    CublasLt& lt;
    const LtProduct& product;
    const LtOperands& operands;
    std::byte* workspace;
    size_t workspace_bytes;
    CUstream stream;
    Status (*pause)(uint64_t ns, CUstream stream);
    std::string* last;
    TrialEffort* left;
  };
  MatmulTrial(const Work& work, const std::vector<cublasLtMatmulAlgo_t>& candidates);

  // The fastest candidate's index; candidates.size() when none runs. Candidates beyond the budget do not
  // count. May leave work on the stream where it fails.
  Result<size_t> Fastest();

 private:
  static constexpr float kNever = std::numeric_limits<float>::infinity();

  Status Visit(size_t round, size_t i);
  // In the first round: one run that warms up, the cost of which is not known before, then as many as fit,
  // three at most.
  Status VisitFirst(size_t i);
  Status VisitAgain(size_t i);
  // A run that is refused takes the candidate out.
  Status WarmUp(size_t i);
  // `about_ms`: what a run takes, as far as it is known.
  Status Time(size_t i, int runs, float about_ms);
  // The runs behind a pause of the stream, in which they are enqueued: a brief product ends sooner than the
  // CPU enqueues the next one.
  Status TimeBrief(size_t i);
  Status Run(size_t i);
  Status LoadAdding(size_t i);
  // Records the end behind the stream's work and waits for it: since the start was recorded.
  Result<float> Elapsed();
  void Count(size_t i, float ms);

  Work work_;
  const std::vector<cublasLtMatmulAlgo_t>& candidates_;
  CUevent start_ = nullptr, end_ = nullptr;
  std::vector<float> times_;  // of a run, by candidate
  std::vector<bool> out_;
  float best_ = kNever;
  float pause_ms_ = 0.05f;  // grows until it suffices
  bool over_ = false;       // the next run would not fit into the budget
};

}  // namespace tandem::cuda
