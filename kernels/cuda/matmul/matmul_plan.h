// File: matmul_plan.h
//
// How a product runs on CUDA: mapped to cuBLASLt where its strides and types allow, with the best of
// cuBLASLt's candidates remembered for each shape; by the kernel of any strides otherwise.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "drivers/cublaslt/cublas_lt.h"
#include "kernels/backend.h"
#include "kernels/cuda/device/cuda_device.h"
#include "kernels/cuda/matmul/aligned_vectors.h"
#include "kernels/cuda/matmul/choice_store.h"
#include "kernels/cuda/matmul/matmul_trial.h"
#include "kernels/cuda/matmul/trial_memory.h"
#include "tandem/status.h"

namespace tandem::cuda {

// Scratch memory of one lane's products: cuBLASLt's workspace, then the copies of vectors. Where scales are
// by blocks, the workspace ends kBlockScaleBytes earlier and they lie there.
inline constexpr size_t kMatmulWorkspaceBytes = size_t{32} << 20;
inline constexpr size_t kMatmulScratchBytes = kMatmulWorkspaceBytes + kVectorScratchBytes;
inline constexpr size_t kBlockScaleBytes = kMatmulWorkspaceBytes / 2;

// A product in cuBLASLt's words.
struct LtMapping {
  LtProduct product;
  bool swapped = false;  // X is B and Y is A: C lies row-major
  // op(X), op(Y) and D as views: X's address is `swapped ? b : a`, and so on.
};

// cuBLASLt's workspace for the product.
inline size_t WorkspaceBytes(const LtProduct& product) {
  return kMatmulWorkspaceBytes - (product.HasBlockScales() ? kBlockScaleBytes : 0);
}

// Maps rows [0, rows) of `args`; nothing when cuBLASLt cannot take it, *reason says why. Addresses are not
// read; alignment is `alignment`.
std::optional<LtMapping> MapToLt(const MatmulArgs& args, int64_t rows, uint32_t alignment,
                                 std::string* reason);

// The calls that put work on a stream; tests replace them.
struct TrialCalls {
  Status (*fill)(void* data, DType type, int64_t count, uint32_t seed, CUstream_st* stream);  // LaunchRandom
  Status (*pause)(uint64_t ns, CUstream_st* stream);                                          // LaunchPause
};
extern const TrialCalls kTrialCalls;

// The choice among cuBLASLt's candidates for every product seen. Thread-safe.
class MatmulChooser {
 public:
  // `lt` may be null: then nothing is chosen and every product runs on the plain kernel. `store`: what trials of
  // other processes chose; null: nothing.
  MatmulChooser(std::shared_ptr<CudaDevice> device, CublasLt* lt, int candidates,
                const TrialCalls& calls = kTrialCalls, std::unique_ptr<ChoiceStore> store = nullptr)
      : device_(std::move(device)),
        lt_(lt),
        most_candidates_(candidates),
        calls_(calls),
        trial_memory_(device_),
        store_(std::move(store)) {}

  // Times the candidates on random operands on the service stream and remembers the fastest, for aligned
  // addresses, and for addresses aligned to their elements only. If the time or the memory does not suffice for
  // all: the fastest of those tried, or the heuristics' first. A stored choice runs alone, which loads its
  // kernels; a trial of all candidates is stored.
  Status Prepare(const MatmulArgs& args, const TrialEffort& effort);
  // Unmaps the memory that trials keep from one to the next.
  void GiveBackTrialMemory();
  // Enqueues the product, with `scratch` (kMatmulScratchBytes) for it alone until later work of `stream`.
  // Never times: a product that differs from tried ones in its rows alone takes the choice of the one with
  // the next more rows, the kernel of which is loaded. Any other one takes the heuristics' first candidate. A
  // product that cuBLASLt refuses runs on the plain kernel from then on. A repeatable one takes the heuristics'
  // first candidate, whatever was tried.
  Status Enqueue(const MatmulArgs& args, std::byte* scratch, CUstream stream);

 private:
  // none: cuBLASLt has nothing.
  using Choice = std::optional<cublasLtMatmulAlgo_t>;
  struct Tried {
    LtProduct of_any_rows;  // the product with no rows
    uint64_t rows = 0;
    cublasLtMatmulAlgo_t algorithm = {};
  };

  Status EnqueueRows(const MatmulArgs& args, int64_t first, int64_t last, std::byte* scratch,
                     CUstream stream);
  void Forget(const LtProduct& product);
  // `left`: what the trials may still take; null: no trial.
  Result<Choice> Choose(const LtMapping& mapping, TrialEffort* left);
  // Adds what was chosen for the next fewer and the next more rows: the heuristics do not list all that is fast.
  Status AddNeighbours(const LtMapping& mapping, std::vector<cublasLtMatmulAlgo_t>* candidates) const;
  Result<Choice> ChooseUntried(const LtMapping& mapping);
  Result<Choice> ChooseStored(const LtProduct& product, const TrialEffort& effort);
  Result<Choice> ChooseTried(const LtMapping& mapping, TrialEffort* left);
  // The heuristics' first candidate.
  Result<Choice> ChooseFirst(const LtMapping& mapping);
  Result<size_t> Fastest(const LtProduct& product, const std::vector<cublasLtMatmulAlgo_t>& candidates,
                         TrialEffort* left);
  // Fastest's work on the stream, which it leaves behind; `last` says what came last.
  Result<size_t> TryAll(const LtProduct& product, const std::vector<cublasLtMatmulAlgo_t>& candidates,
                        TrialEffort* left, std::string* last);

  std::shared_ptr<CudaDevice> device_;
  CublasLt* const lt_;
  const int most_candidates_;
  const TrialCalls calls_;
  mutable std::mutex mutex_;
  std::mutex trial_mutex_;  // one trial at a time: they share the service stream and the memory
  TrialMemory trial_memory_;
  const std::unique_ptr<ChoiceStore> store_;
  struct Known {
    Choice choice;
    bool tried = false;
  };
  std::unordered_map<LtProduct, Known, LtProductHash> choices_;
  std::unordered_map<LtProduct, Choice, LtProductHash> first_choices_;  // of repeatable products
  std::vector<Tried> tried_;
};

// The dtype in CUDA's words; nothing for integers.
std::optional<cudaDataType_t> LtType(DType type);

}  // namespace tandem::cuda
