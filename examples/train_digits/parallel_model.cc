#include "examples/train_digits/parallel_model.h"

#include <cstdio>
#include <cstring>
#include <fstream>
#include <utility>

namespace tandem::digits {
namespace {

constexpr Milliseconds kStepDeadline{60000};

}  // namespace

Result<std::unique_ptr<ParallelModel>> ParallelModel::Create(const std::shared_ptr<Client>& client,
                                                             const std::shared_ptr<Group>& group,
                                                             const std::shared_ptr<RankDevice>& device,
                                                             const ModelShape& shape, uint64_t seed,
                                                             const AlgorithmChoice& choice,
                                                             const std::string& prefix) {
  std::unique_ptr<ParallelModel> model(new ParallelModel(device, shape, group->rank()));
  TANDEM_ASSIGN_OR_RETURN(model->stream_, device->MakeStream());
  TANDEM_RETURN_IF_ERROR(model->Allocate(client, group));
  TANDEM_RETURN_IF_ERROR(model->Initialize(seed));
  TANDEM_RETURN_IF_ERROR(model->Prepare(group, choice, prefix));
  return model;
}

Status ParallelModel::Initialize(uint64_t seed) {
  InitialParameters initial(shape_, seed);
  int cut = shape_.local_hidden();
  std::memcpy(replicated_.host, initial.replicated.data(), initial.replicated.size() * sizeof(float));
  MatrixMap(w1_.host, shape_.width, cut) = initial.w1.middleCols(rank_ * cut, cut);
  MatrixMap(b1_.host, 1, cut) = initial.b1.middleCols(rank_ * cut, cut);
  MatrixMap(w2_.host, cut, shape_.width) = initial.w2.middleRows(rank_ * cut, cut);
  replicated_momentum_.assign(initial.replicated.size(), 0.0f);
  w1_momentum_.assign(static_cast<size_t>(shape_.width) * static_cast<size_t>(cut), 0.0f);
  w2_momentum_ = w1_momentum_;
  b1_momentum_.assign(static_cast<size_t>(cut), 0.0f);
  w1_gradient_ = w1_momentum_;
  w2_gradient_ = w2_momentum_;
  b1_gradient_ = b1_momentum_;
  return UploadParameters();
}

Status ParallelModel::UploadParameters() {
  for (const Tensor& tensor : Parameters()) {
    TANDEM_RETURN_IF_ERROR(tensor.mirror->ToDevice(*stream_, tensor.offset(), tensor.bytes()));
  }
  return Status::Ok();
}

Status ParallelModel::Compute(std::initializer_list<Tensor> reads, std::function<void()> work,
                              std::initializer_list<Tensor> writes) {
  for (const Tensor& tensor : reads) {
    TANDEM_RETURN_IF_ERROR(tensor.mirror->ToHost(*stream_, tensor.offset(), tensor.bytes()));
  }
  TANDEM_RETURN_IF_ERROR(stream_->Enqueue(std::move(work)));
  for (const Tensor& tensor : writes) {
    TANDEM_RETURN_IF_ERROR(tensor.mirror->ToDevice(*stream_, tensor.offset(), tensor.bytes()));
  }
  return Status::Ok();
}

Status ParallelModel::Launch(PlanIndex index) {
  TimedPlan& timed = plans_[index];
  TANDEM_RETURN_IF_ERROR(stream_->Record(*timed.start));
  TANDEM_RETURN_IF_ERROR(timed.plan->Launch(stream_->ref(), timed.bindings).WithContext(timed.name));
  timed.launched = true;
  return stream_->Record(*timed.end);
}

Status ParallelModel::EnqueueForward(const Batch& batch, StepResult* result) {
  int m = shape_.local_rows(), rows = shape_.rows(), cut = shape_.local_hidden(), width = shape_.width;
  TANDEM_RETURN_IF_ERROR(Compute({},
                                 [this, &batch, m, width] {
                                   ReplicatedView p(replicated_.host, shape_);
                                   MatrixMap(h_.host, m, width) = (batch.x * p.w0).rowwise() + p.b0.row(0);
                                 },
                                 {h_}));
  TANDEM_RETURN_IF_ERROR(Launch(kUp));
  TANDEM_RETURN_IF_ERROR(Compute(
      {z_}, [this, rows, cut] { Gelu(ConstMatrixMap(z_.host, rows, cut), MatrixMap(a_.host, rows, cut)); },
      {a_}));
  TANDEM_RETURN_IF_ERROR(Launch(kDown));
  return Compute({block_},
                 [this, &batch, m, width, result] {
                   ReplicatedView p(replicated_.host, shape_);
                   y_ = MatrixMap(h_.host, m, width) + MatrixMap(block_.host, m, width);
                   logits_ = (y_ * p.wh).rowwise() + p.bh.row(0);
                   SoftmaxLoss(logits_, batch, &d_logits_, &result->loss_sum, &result->correct);
                 },
                 {});
}

Status ParallelModel::EnqueueBackward(const Batch& batch) {
  int m = shape_.local_rows(), rows = shape_.rows(), cut = shape_.local_hidden(), width = shape_.width;
  TANDEM_RETURN_IF_ERROR(Compute({},
                                 [this, m, width] {
                                   ReplicatedView p(replicated_.host, shape_), g(bucket_.host, shape_);
                                   g.wh = y_.transpose() * d_logits_;
                                   g.bh = d_logits_.colwise().sum();
                                   MatrixMap dy(dy_.host, m, width);
                                   dy = d_logits_ * p.wh.transpose();
                                   g.b2 = dy.colwise().sum();
                                 },
                                 {dy_}));
  TANDEM_RETURN_IF_ERROR(Launch(kDownGrad));
  TANDEM_RETURN_IF_ERROR(
      Compute({all_dy_, all_h_, da_},
              [this, rows, cut, width] {
                ConstMatrixMap dy(all_dy_.host, rows, width);
                ConstMatrixMap h(all_h_.host, rows, width);
                MatrixMap(w2_gradient_.data(), cut, width) = MatrixMap(a_.host, rows, cut).transpose() * dy;
                MatrixMap dz(dz_.host, rows, cut);
                GeluBackward(ConstMatrixMap(z_.host, rows, cut), ConstMatrixMap(da_.host, rows, cut), dz);
                MatrixMap(w1_gradient_.data(), width, cut) = h.transpose() * dz;
                MatrixMap(b1_gradient_.data(), 1, cut) = dz.colwise().sum();
              },
              {dz_}));
  TANDEM_RETURN_IF_ERROR(Launch(kUpGrad));
  return Compute({dh_},
                 [this, &batch, m, width] {
                   ReplicatedView g(bucket_.host, shape_);
                   Matrix dh = MatrixMap(dy_.host, m, width) + MatrixMap(dh_.host, m, width);
                   g.w0 = batch.x.transpose() * dh;
                   g.b0 = dh.colwise().sum();
                 },
                 {});
}

Result<StepResult> ParallelModel::Finish(const StepResult& local) {
  auto tail = static_cast<size_t>(shape_.replicated());
  // The loss and the count of right answers ride at the end of the gradients' all-reduce.
  TANDEM_RETURN_IF_ERROR(Compute({},
                                 [this, tail, &local] {
                                   bucket_.host[tail] = static_cast<float>(local.loss_sum);
                                   bucket_.host[tail + 1] = static_cast<float>(local.correct);
                                 },
                                 {bucket_}));
  TANDEM_RETURN_IF_ERROR(Launch(kGradients));
  TANDEM_RETURN_IF_ERROR(bucket_.mirror->ToHost(*stream_, bucket_.offset(), bucket_.bytes()));
  Status synchronized = stream_->Synchronize(kStepDeadline);
  for (TimedPlan& timed : plans_)
    TANDEM_RETURN_IF_ERROR(timed.plan->Wait(kStepDeadline).WithContext(timed.name));
  TANDEM_RETURN_IF_ERROR(synchronized);
  for (TimedPlan& timed : plans_) {
    if (!std::exchange(timed.launched, false)) continue;
    TANDEM_ASSIGN_OR_RETURN(double microseconds, timed.end->MicrosecondsSince(*timed.start));
    timed.microseconds.push_back(microseconds);
  }
  return StepResult{bucket_.host[tail], static_cast<int>(bucket_.host[tail + 1])};
}

// A failed Launch leaves work on the stream that refers to the step's locals, so every way out drains the
// stream first.
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
  TANDEM_RETURN_IF_ERROR(Update());
  return result;
}

Result<StepResult> ParallelModel::EvaluateStep(const Batch& batch) {
  StepResult local;
  Status status = EnqueueForward(batch, &local);
  Result<StepResult> result = status.ok() ? Finish(local) : Result<StepResult>(status);
  if (!result.ok()) TANDEM_RETURN_IF_ERROR(stream_->Synchronize(kStepDeadline));
  return result;
}

Status ParallelModel::Update() {
  auto parameters = Parameters();
  const float* gradients[] = {bucket_.host, w1_gradient_.data(), b1_gradient_.data(), w2_gradient_.data()};
  float* momenta[] = {replicated_momentum_.data(), w1_momentum_.data(), b1_momentum_.data(),
                      w2_momentum_.data()};
  for (size_t i = 0; i < parameters.size(); ++i) {
    SgdStep(parameters[i].host, gradients[i], momenta[i], parameters[i].count, kLearningRate, kMomentum);
  }
  return UploadParameters();
}

Status ParallelModel::Save(const std::string& path) const {
  std::string partial = path + ".partial";
  {
    std::ofstream file(partial, std::ios::binary);
    auto write = [&file](const float* data, size_t count) {
      file.write(reinterpret_cast<const char*>(data), static_cast<std::streamsize>(count * sizeof(float)));
    };
    for (const Tensor& tensor : Parameters()) write(tensor.host, tensor.count);
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
  for (const Tensor& tensor : Parameters()) read(tensor.host, tensor.count);
  for (auto* momentum : {&replicated_momentum_, &w1_momentum_, &b1_momentum_, &w2_momentum_}) {
    read(momentum->data(), momentum->size());
  }
  if (!file) return NotFound("cannot read the checkpoint " + path);
  return UploadParameters();
}

Status ParallelModel::Release() {
  for (TimedPlan& timed : plans_) TANDEM_RETURN_IF_ERROR(timed.plan->Release());
  return Status::Ok();
}

}  // namespace tandem::digits
