// The memory and the plans of a ParallelModel: what is registered, what is symmetric, and what each operation
// asks for.
#include <utility>

#include "examples/train_digits/parallel_model.h"

namespace tandem::digits {
namespace {

constexpr size_t kAlignment = 256;  // bytes

// Lays tensors one after the other in the arena: first to count, then, with a base, to place.
class ArenaLayout {
 public:
  ArenaLayout() = default;
  ArenaLayout(const Memory* memory, RankMirror* mirror) : memory_(memory), mirror_(mirror) {}
  void Place(Tensor* tensor, int64_t count) {
    const auto elements = static_cast<size_t>(count);
    if (mirror_ != nullptr) {
      *tensor = {reinterpret_cast<float*>(mirror_->data() + bytes_), elements, memory_, mirror_};
    }
    bytes_ += (elements * sizeof(float) + kAlignment - 1) / kAlignment * kAlignment;
  }
  size_t bytes() const { return bytes_; }

 private:
  const Memory* memory_ = nullptr;
  RankMirror* mirror_ = nullptr;
  size_t bytes_ = 0;
};

Operand MakeOperand(Role role, int64_t rows, int64_t columns, bool symmetric = false) {
  return {role, {DType::kF32, {rows, columns}, {}}, symmetric, -1};
}

// A stored [columns, rows] matrix as the [rows, columns] operand that it is the transpose of.
Operand MakeTransposed(Role role, int64_t rows, int64_t columns) {
  return {role, {DType::kF32, {rows, columns}, {1, rows}}, false, -1};
}

}  // namespace

std::string AlgorithmChoice::Name() const {
  std::string name;
  for (Algorithm algorithm : {up, down, down_grad, up_grad, gradients}) {
    if (!name.empty()) name += " / ";
    name += AlgorithmName(algorithm);
  }
  return name;
}

Status ParallelModel::Allocate(const std::shared_ptr<Client>& client, const std::shared_ptr<Group>& group) {
  int64_t m = shape_.local_rows(), rows = shape_.rows(), cut = shape_.local_hidden(), width = shape_.width;
  auto lay_out = [&](ArenaLayout layout) {
    layout.Place(&replicated_, shape_.replicated());
    layout.Place(&bucket_, shape_.replicated() + 2);
    layout.Place(&w1_, width * cut);
    layout.Place(&b1_, cut);
    layout.Place(&w2_, cut * width);
    for (Tensor* tensor : {&h_, &block_, &dy_, &dh_}) layout.Place(tensor, m * width);
    for (Tensor* tensor : {&z_, &a_, &da_, &dz_}) layout.Place(tensor, rows * cut);
    return layout.bytes();
  };
  TANDEM_ASSIGN_OR_RETURN(arena_, client->AllocateRegistered(lay_out(ArenaLayout()), group->gpu_uuid()));
  TANDEM_ASSIGN_OR_RETURN(arena_mirror_, device_->MakeMirror(*arena_));
  lay_out(ArenaLayout(arena_.get(), arena_mirror_.get()));
  // The gathered activations are symmetric, so that peers write their rows in place: no workspace, no copy.
  TANDEM_ASSIGN_OR_RETURN(gathered_h_, group->Allocate({rows, width}, DType::kF32));
  TANDEM_ASSIGN_OR_RETURN(gathered_dy_, group->Allocate({rows, width}, DType::kF32));
  TANDEM_ASSIGN_OR_RETURN(gathered_h_mirror_, device_->MakeMirror(*gathered_h_));
  TANDEM_ASSIGN_OR_RETURN(gathered_dy_mirror_, device_->MakeMirror(*gathered_dy_));
  ArenaLayout(gathered_h_.get(), gathered_h_mirror_.get()).Place(&all_h_, rows * width);
  ArenaLayout(gathered_dy_.get(), gathered_dy_mirror_.get()).Place(&all_dy_, rows * width);
  return Status::Ok();
}

Status ParallelModel::Prepare(const std::shared_ptr<Group>& group, const AlgorithmChoice& choice,
                              const std::string& prefix) {
  int64_t m = shape_.local_rows(), rows = shape_.rows(), cut = shape_.local_hidden(), width = shape_.width;
  auto bind = [](const Tensor& tensor) { return Binding{tensor.memory, tensor.offset()}; };
  auto prepare = [&](const std::string& name, Op op, Algorithm algorithm, std::vector<Operand> operands,
                     std::vector<Binding> bindings) -> Status {
    OpRequest request;
    request.op = op;
    request.operands = std::move(operands);
    request.algorithm = algorithm;
    request.on_unfused = algorithm == Algorithm::kUnfused ? OnUnfused::kAllow : OnUnfused::kError;
    Result<std::shared_ptr<Plan>> plan = group->Prepare(prefix + name, request);
    if (!plan.ok()) return plan.status().WithContext("prepare " + name);
    TimedPlan timed{name, *plan, std::move(bindings), {}, nullptr, nullptr};
    TANDEM_ASSIGN_OR_RETURN(timed.start, device_->MakeEvent());
    TANDEM_ASSIGN_OR_RETURN(timed.end, device_->MakeEvent());
    plans_.push_back(std::move(timed));
    return Status::Ok();
  };
  Tensor b2 = replicated_;
  b2.host = ReplicatedView(replicated_.host, shape_).b2.data();
  TANDEM_RETURN_IF_ERROR(prepare("up", Op::kAllGatherMatmul, choice.up,
                                 {MakeOperand(Role::kA, m, width),
                                  MakeOperand(Role::kB, width, cut),
                                  MakeOperand(Role::kC, rows, cut),
                                  {Role::kBias, {DType::kF32, {cut}, {}}, false, -1},
                                  MakeOperand(Role::kGatheredA, rows, width, true)},
                                 {bind(h_), bind(w1_), bind(z_), bind(b1_), bind(all_h_)}));
  TANDEM_RETURN_IF_ERROR(prepare("down", Op::kMatmulReduceScatter, choice.down,
                                 {MakeOperand(Role::kA, rows, cut),
                                  MakeOperand(Role::kB, cut, width),
                                  MakeOperand(Role::kC, m, width),
                                  {Role::kBias, {DType::kF32, {width}, {}}, false, -1}},
                                 {bind(a_), bind(w2_), bind(block_), bind(b2)}));
  TANDEM_RETURN_IF_ERROR(
      prepare("down_grad", Op::kAllGatherMatmul, choice.down_grad,
              {MakeOperand(Role::kA, m, width), MakeTransposed(Role::kB, width, cut),
               MakeOperand(Role::kC, rows, cut), MakeOperand(Role::kGatheredA, rows, width, true)},
              {bind(dy_), bind(w2_), bind(da_), bind(all_dy_)}));
  TANDEM_RETURN_IF_ERROR(prepare("up_grad", Op::kMatmulReduceScatter, choice.up_grad,
                                 {MakeOperand(Role::kA, rows, cut), MakeTransposed(Role::kB, cut, width),
                                  MakeOperand(Role::kC, m, width)},
                                 {bind(dz_), bind(w1_), bind(dh_)}));
  std::vector<int64_t> bucket = {shape_.replicated() + 2};
  return prepare("gradients", Op::kAllReduce, choice.gradients,
                 {{Role::kInput, {DType::kF32, bucket, {}}, false, -1},
                  {Role::kOutput, {DType::kF32, bucket, {}}, false, 0}},
                 {bind(bucket_), bind(bucket_)});
}

}  // namespace tandem::digits
