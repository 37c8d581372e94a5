// File: parallel_model.h
//
// One rank's share of the model, trained through Tandem: the block's four fused operations and the all-reduce
// of what is replicated. A step is enqueued on one stream from end to end (local mathematics as host
// functions between launches, on mirrors of the device's memory) and synchronised once.
#pragma once

#include <array>
#include <functional>
#include <initializer_list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "client/device/rank_device.h"
#include "examples/train_digits/model.h"
#include "tandem/client.h"

namespace tandem::digits {

// The algorithms that a training asks for. kUnfused sets on_unfused to allow; everything else refuses to run
// unfused.
struct AlgorithmChoice {
  Algorithm up = Algorithm::kPipeline;       // forward all-gather→matmul
  Algorithm down = Algorithm::kRing;         // forward matmul→reduce-scatter
  Algorithm down_grad = Algorithm::kRing;    // backward all-gather→matmul
  Algorithm up_grad = Algorithm::kPipeline;  // backward matmul→reduce-scatter
  Algorithm gradients = Algorithm::kAuto;    // all-reduce
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
  std::unique_ptr<RankEvent> start, end;
  bool launched = false;  // in this step
};

// A tensor on the device, and its bytes in a mirror on the host, where local mathematics is done.
struct Tensor {
  float* host = nullptr;
  size_t count = 0;
  const Memory* memory = nullptr;
  RankMirror* mirror = nullptr;
  size_t offset() const { return static_cast<size_t>(reinterpret_cast<std::byte*>(host) - mirror->data()); }
  size_t bytes() const { return count * sizeof(float); }
};

class ParallelModel {
 public:
  // Allocates memory in `group`, prepares the plans under keys that begin with `prefix`, and sets the initial
  // parameters.
  static Result<std::unique_ptr<ParallelModel>> Create(const std::shared_ptr<Client>& client,
                                                       const std::shared_ptr<Group>& group,
                                                       const std::shared_ptr<RankDevice>& device,
                                                       const ModelShape& shape, uint64_t seed,
                                                       const AlgorithmChoice& choice,
                                                       const std::string& prefix);

  // Forward, backward, update.
  Result<StepResult> TrainStep(const Batch& batch);
  // Forward only.
  Result<StepResult> EvaluateStep(const Batch& batch);

  // The gradients of the last step: the replicated ones (equal on all ranks), and this rank's shards.
  const float* replicated_gradient() const { return bucket_.host; }
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

  ParallelModel(std::shared_ptr<RankDevice> device, const ModelShape& shape, int rank)
      : shape_(shape), rank_(rank), device_(std::move(device)) {}
  Status Allocate(const std::shared_ptr<Client>& client, const std::shared_ptr<Group>& group);
  Status Prepare(const std::shared_ptr<Group>& group, const AlgorithmChoice& choice,
                 const std::string& prefix);
  Status Initialize(uint64_t seed);

  // Enqueue parts of a step on the stream.
  Status Launch(PlanIndex index);
  // Brings `reads` to the host, works there, and takes `writes` back: on the host backend just the work.
  Status Compute(std::initializer_list<Tensor> reads, std::function<void()> work,
                 std::initializer_list<Tensor> writes);
  Status EnqueueForward(const Batch& batch, StepResult* result);
  Status EnqueueBackward(const Batch& batch);
  Status Update();
  Status UploadParameters();
  Result<StepResult> Finish(const StepResult& local);

  std::array<Tensor, 4> Parameters() const { return {replicated_, w1_, b1_, w2_}; }

  ModelShape shape_;
  int rank_ = 0;
  std::shared_ptr<RankDevice> device_;
  std::shared_ptr<Memory> arena_;
  std::shared_ptr<SymmetricTensor> gathered_h_, gathered_dy_;
  std::unique_ptr<RankMirror> arena_mirror_, gathered_h_mirror_, gathered_dy_mirror_;
  std::vector<TimedPlan> plans_;

  // In the arena.
  Tensor replicated_, bucket_, w1_, b1_, w2_;
  Tensor h_, z_, a_, block_;
  Tensor dy_, da_, dz_, dh_;
  // In symmetric memory.
  Tensor all_h_, all_dy_;
  // Local to the process.
  Matrix y_, logits_, d_logits_;
  std::vector<float> w1_gradient_, b1_gradient_, w2_gradient_;
  std::vector<float> replicated_momentum_, w1_momentum_, b1_momentum_, w2_momentum_;
  std::unique_ptr<RankStream> stream_;  // last: its work refers to all of the above
};

}  // namespace tandem::digits
