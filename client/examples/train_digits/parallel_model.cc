#include "client/examples/train_digits/parallel_model.h"

#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>

namespace tandem::digits {
namespace {

constexpr Milliseconds kStepDeadline{60000};

double Microseconds() {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

Result<std::unique_ptr<ParallelModel>> ParallelModel::Create(const std::shared_ptr<Client>& client,
                                                             const std::shared_ptr<Group>& group,
                                                             const ModelShape& shape, uint64_t seed,
                                                             const AlgorithmChoice& choice,
                                                             const std::string& prefix) {
  std::unique_ptr<ParallelModel> model(new ParallelModel(shape, group->rank()));
  TANDEM_ASSIGN_OR_RETURN(model->stream_, HostStream::Create());
  TANDEM_RETURN_IF_ERROR(model->Allocate(client, group));
  model->Initialize(seed);
  TANDEM_RETURN_IF_ERROR(model->Prepare(group, choice, prefix));
  return model;
}

void ParallelModel::Initialize(uint64_t seed) {
  InitialParameters initial(shape_, seed);
  int cut = shape_.local_hidden();
  std::memcpy(replicated_, initial.replicated.data(), initial.replicated.size() * sizeof(float));
  MatrixMap(w1_, shape_.width, cut) = initial.w1.middleCols(rank_ * cut, cut);
  MatrixMap(b1_, 1, cut) = initial.b1.middleCols(rank_ * cut, cut);
  MatrixMap(w2_, cut, shape_.width) = initial.w2.middleRows(rank_ * cut, cut);
  replicated_momentum_.assign(initial.replicated.size(), 0.0f);
  w1_momentum_.assign(static_cast<size_t>(shape_.width * cut), 0.0f);
  w2_momentum_ = w1_momentum_;
  b1_momentum_.assign(static_cast<size_t>(cut), 0.0f);
  w1_gradient_ = w1_momentum_;
  w2_gradient_ = w2_momentum_;
  b1_gradient_ = b1_momentum_;
}

Status ParallelModel::Compute(std::function<void()> work) { return stream_->Enqueue(std::move(work)); }

Status ParallelModel::Launch(PlanIndex index) {
  TimedPlan& timed = plans_[index];
  double* start = &launch_start_[index];
  TANDEM_RETURN_IF_ERROR(stream_->Enqueue([start] { *start = Microseconds(); }));
  TANDEM_RETURN_IF_ERROR(timed.plan->Launch(stream_.get(), timed.bindings).WithContext(timed.name));
  return stream_->Enqueue([start, &timed] { timed.microseconds.push_back(Microseconds() - *start); });
}

Status ParallelModel::EnqueueForward(const Batch& batch, StepResult* result) {
  int m = shape_.local_rows(), rows = shape_.rows(), cut = shape_.local_hidden(), width = shape_.width;
  TANDEM_RETURN_IF_ERROR(Compute([this, &batch, m, width] {
    ReplicatedView p(replicated_, shape_);
    MatrixMap(h_, m, width) = (batch.x * p.w0).rowwise() + p.b0.row(0);
  }));
  TANDEM_RETURN_IF_ERROR(Launch(kUp));
  TANDEM_RETURN_IF_ERROR(
      Compute([this, rows, cut] { Gelu(ConstMatrixMap(z_, rows, cut), MatrixMap(a_, rows, cut)); }));
  TANDEM_RETURN_IF_ERROR(Launch(kDown));
  return Compute([this, &batch, m, width, result] {
    ReplicatedView p(replicated_, shape_);
    y_ = MatrixMap(h_, m, width) + MatrixMap(block_, m, width);
    logits_ = (y_ * p.wh).rowwise() + p.bh.row(0);
    SoftmaxLoss(logits_, batch, &d_logits_, &result->loss_sum, &result->correct);
  });
}

Status ParallelModel::EnqueueBackward(const Batch& batch) {
  int m = shape_.local_rows(), rows = shape_.rows(), cut = shape_.local_hidden(), width = shape_.width;
  TANDEM_RETURN_IF_ERROR(Compute([this, m, width] {
    ReplicatedView p(replicated_, shape_), g(bucket_, shape_);
    g.wh = y_.transpose() * d_logits_;
    g.bh = d_logits_.colwise().sum();
    MatrixMap dy(dy_, m, width);
    dy = d_logits_ * p.wh.transpose();
    g.b2 = dy.colwise().sum();
  }));
  TANDEM_RETURN_IF_ERROR(Launch(kDownGrad));
  TANDEM_RETURN_IF_ERROR(Compute([this, rows, cut, width] {
    ConstMatrixMap dy(reinterpret_cast<const float*>(gathered_dy_->data()), rows, width);
    ConstMatrixMap h(reinterpret_cast<const float*>(gathered_h_->data()), rows, width);
    MatrixMap(w2_gradient_.data(), cut, width) = MatrixMap(a_, rows, cut).transpose() * dy;
    MatrixMap dz(dz_, rows, cut);
    GeluBackward(ConstMatrixMap(z_, rows, cut), ConstMatrixMap(da_, rows, cut), dz);
    MatrixMap(w1_gradient_.data(), width, cut) = h.transpose() * dz;
    MatrixMap(b1_gradient_.data(), 1, cut) = dz.colwise().sum();
  }));
  TANDEM_RETURN_IF_ERROR(Launch(kUpGrad));
  return Compute([this, &batch, m, width] {
    ReplicatedView g(bucket_, shape_);
    Matrix dh = MatrixMap(dy_, m, width) + MatrixMap(dh_, m, width);
    g.w0 = batch.x.transpose() * dh;
    g.b0 = dh.colwise().sum();
  });
}

Result<StepResult> ParallelModel::Finish(const StepResult& local) {
  auto tail = static_cast<size_t>(shape_.replicated());
  // The loss and the count of right answers ride at the end of the gradients' all-reduce.
  TANDEM_RETURN_IF_ERROR(Compute([this, tail, &local] {
    bucket_[tail] = static_cast<float>(local.loss_sum);
    bucket_[tail + 1] = static_cast<float>(local.correct);
  }));
  TANDEM_RETURN_IF_ERROR(Launch(kGradients));
  Status synchronized = stream_->Synchronize(kStepDeadline);
  for (TimedPlan& timed : plans_) TANDEM_RETURN_IF_ERROR(timed.plan->Wait(kStepDeadline).WithContext(timed.name));
  TANDEM_RETURN_IF_ERROR(synchronized);
  return StepResult{bucket_[tail], static_cast<int>(bucket_[tail + 1])};
}

// A failed Launch leaves work on the stream that refers to the step's locals, so every way out drains the stream first.
Result<StepResult> ParallelModel::TrainStep(const Batch& batch) {
  StepResult local;
  Status status = EnqueueForward(batch, &local);
  if (status.ok()) status = EnqueueBackward(batch);
  if (!status.ok()) {
    TANDEM_RETURN_IF_ERROR(stream_->Synchronize(kStepDeadline));
    return status;
  }
  Result<StepResult> result = Finish(local);
  if (!result.ok()) {
    TANDEM_RETURN_IF_ERROR(stream_->Synchronize(kStepDeadline));
    return result;
  }
  Update();
  return result;
}

Result<StepResult> ParallelModel::EvaluateStep(const Batch& batch) {
  StepResult local;
  Status status = EnqueueForward(batch, &local);
  Result<StepResult> result = status.ok() ? Finish(local) : Result<StepResult>(status);
  if (!result.ok()) TANDEM_RETURN_IF_ERROR(stream_->Synchronize(kStepDeadline));
  return result;
}

std::array<std::pair<float*, size_t>, 4> ParallelModel::Parameters() {
  auto shard = static_cast<size_t>(shape_.width * shape_.local_hidden());
  return {{{replicated_, static_cast<size_t>(shape_.replicated())},
           {w1_, shard},
           {b1_, static_cast<size_t>(shape_.local_hidden())},
           {w2_, shard}}};
}

void ParallelModel::Update() {
  auto parameters = Parameters();
  const float* gradients[] = {bucket_, w1_gradient_.data(), b1_gradient_.data(), w2_gradient_.data()};
  float* momenta[] = {replicated_momentum_.data(), w1_momentum_.data(), b1_momentum_.data(), w2_momentum_.data()};
  for (size_t i = 0; i < parameters.size(); ++i) {
    SgdStep(parameters[i].first, gradients[i], momenta[i], parameters[i].second, kLearningRate, kMomentum);
  }
}

Status ParallelModel::Save(const std::string& path) const {
  std::string partial = path + ".partial";
  {
    std::ofstream file(partial, std::ios::binary);
    auto write = [&file](const float* data, size_t count) {
      file.write(reinterpret_cast<const char*>(data), static_cast<std::streamsize>(count * sizeof(float)));
    };
    for (auto [data, count] : const_cast<ParallelModel*>(this)->Parameters()) write(data, count);
    for (const auto* momentum : {&replicated_momentum_, &w1_momentum_, &b1_momentum_, &w2_momentum_}) {
      write(momentum->data(), momentum->size());
    }
    if (!file.flush()) return Internal("cannot write the checkpoint " + partial);
  }
  if (std::rename(partial.c_str(), path.c_str()) != 0) return SystemError("rename " + path, errno);
  return Status::Ok();
}

Status ParallelModel::Load(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  auto read = [&file](float* data, size_t count) {
    file.read(reinterpret_cast<char*>(data), static_cast<std::streamsize>(count * sizeof(float)));
  };
  for (auto [data, count] : Parameters()) read(data, count);
  for (auto* momentum : {&replicated_momentum_, &w1_momentum_, &b1_momentum_, &w2_momentum_}) {
    read(momentum->data(), momentum->size());
  }
  if (!file) return NotFound("cannot read the checkpoint " + path);
  return Status::Ok();
}

Status ParallelModel::Release() {
  for (TimedPlan& timed : plans_) TANDEM_RETURN_IF_ERROR(timed.plan->Release());
  return Status::Ok();
}

}  // namespace tandem::digits
