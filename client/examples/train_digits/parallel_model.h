// File: parallel_model.h
//
// One rank's share of the model, trained through Tandem: the block's four fused operations and the all-reduce of what is
// replicated. A step is enqueued on one stream from end to end (local mathematics as host functions between launches)
// and synchronised once.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "client/examples/train_digits/model.h"
#include "tandem/client.h"
#include "tandem/host_stream.h"

namespace tandem::digits {

// The algorithms that a training asks for. kUnfused sets on_unfused to allow; everything else refuses to run unfused.
struct AlgorithmChoice {
  Algorithm up = Algorithm::kPipeline;         // forward all-gather→matmul
  Algorithm down = Algorithm::kRing;           // forward matmul→reduce-scatter
  Algorithm down_grad = Algorithm::kRing;      // backward all-gather→matmul
  Algorithm up_grad = Algorithm::kPipeline;    // backward matmul→reduce-scatter
  Algorithm gradients = Algorithm::kAuto;      // all-reduce
  std::string Name() const;
};

struct StepResult {
  double loss_sum = 0;  // over all ranks' samples
  int correct = 0;
};

// A prepared plan with what its launches took, from the stream's reaching the launch to its going on.
struct TimedPlan {
  std::string name;
  std::shared_ptr<Plan> plan;
  std::vector<Binding> bindings;
  std::vector<double> microseconds;
};

class ParallelModel {
 public:
  // Allocates memory in `group`, prepares the plans under keys that begin with `prefix`, and sets the initial parameters.
  static Result<std::unique_ptr<ParallelModel>> Create(const std::shared_ptr<Client>& client,
                                                       const std::shared_ptr<Group>& group, const ModelShape& shape,
                                                       uint64_t seed, const AlgorithmChoice& choice,
                                                       const std::string& prefix);

  // Forward, backward, update.
  Result<StepResult> TrainStep(const Batch& batch);
  // Forward only.
  Result<StepResult> EvaluateStep(const Batch& batch);

  // The gradients of the last step: the replicated ones (equal on all ranks), and this rank's shards.
  const float* replicated_gradient() const { return bucket_; }
  const std::vector<float>& w1_gradient() const { return w1_gradient_; }
  const std::vector<float>& b1_gradient() const { return b1_gradient_; }
  const std::vector<float>& w2_gradient() const { return w2_gradient_; }

  // Parameters and momenta of this rank, to a file (written whole, then renamed) and back.
  Status Save(const std::string& path) const;
  Status Load(const std::string& path);

  const std::vector<TimedPlan>& plans() const { return plans_; }
  // Ends the plans; the launches have ended.
  Status Release();

 private:
  enum PlanIndex { kUp = 0, kDown = 1, kDownGrad = 2, kUpGrad = 3, kGradients = 4, kPlans = 5 };

  ParallelModel(const ModelShape& shape, int rank) : shape_(shape), rank_(rank) {}
  Status Allocate(const std::shared_ptr<Client>& client, const std::shared_ptr<Group>& group);
  Status Prepare(const std::shared_ptr<Group>& group, const AlgorithmChoice& choice, const std::string& prefix);
  void Initialize(uint64_t seed);

  // Enqueue parts of a step on the stream.
  Status Launch(PlanIndex index);
  Status Compute(std::function<void()> work);
  Status EnqueueForward(const Batch& batch, StepResult* result);
  Status EnqueueBackward(const Batch& batch);
  void Update();
  Result<StepResult> Finish(const StepResult& local);

  std::array<std::pair<float*, size_t>, 4> Parameters();

  ModelShape shape_;
  int rank_ = 0;
  std::shared_ptr<Memory> arena_;
  std::shared_ptr<SymmetricTensor> gathered_h_, gathered_dy_;
  std::vector<TimedPlan> plans_;
  std::vector<double> launch_start_;

  // In the arena.
  float *replicated_ = nullptr, *bucket_ = nullptr, *w1_ = nullptr, *b1_ = nullptr, *w2_ = nullptr;
  float *h_ = nullptr, *z_ = nullptr, *a_ = nullptr, *block_ = nullptr;
  float *dy_ = nullptr, *da_ = nullptr, *dz_ = nullptr, *dh_ = nullptr;
  // Local to the process.
  Matrix y_, logits_, d_logits_;
  std::vector<float> w1_gradient_, b1_gradient_, w2_gradient_;
  std::vector<float> replicated_momentum_, w1_momentum_, b1_momentum_, w2_momentum_;
  std::unique_ptr<HostStream> stream_;  // last: its work refers to all of the above
};

}  // namespace tandem::digits
