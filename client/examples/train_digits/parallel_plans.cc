// The memory and the plans of a ParallelModel: what is registered, what is symmetric, and what each operation asks for.
#include <utility>

#include "client/examples/train_digits/parallel_model.h"

namespace tandem::digits {
namespace {

constexpr size_t kAlignment = 256;  // bytes

// Lays tensors one after the other in the arena: first to count, then, with a base, to place.
class ArenaLayout {
 public:
  explicit ArenaLayout(std::byte* base = nullptr) : base_(base) {}
  void Place(float** tensor, int64_t count) {
    if (base_ != nullptr) *tensor = reinterpret_cast<float*>(base_ + bytes_);
    bytes_ += (static_cast<size_t>(count) * sizeof(float) + kAlignment - 1) / kAlignment * kAlignment;
  }
  size_t bytes() const { return bytes_; }

 private:
  std::byte* base_;
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
    for (float** tensor : {&h_, &block_, &dy_, &dh_}) layout.Place(tensor, m * width);
    for (float** tensor : {&z_, &a_, &da_, &dz_}) layout.Place(tensor, rows * cut);
    return layout.bytes();
  };
  TANDEM_ASSIGN_OR_RETURN(arena_, client->AllocateRegistered(lay_out(ArenaLayout()), group->gpu_uuid()));
  lay_out(ArenaLayout(arena_->data()));
  // The gathered activations are symmetric, so that peers write their rows in place: no workspace, no copy.
  TANDEM_ASSIGN_OR_RETURN(gathered_h_, group->Allocate({rows, width}, DType::kF32));
  TANDEM_ASSIGN_OR_RETURN(gathered_dy_, group->Allocate({rows, width}, DType::kF32));
  return Status::Ok();
}

Status ParallelModel::Prepare(const std::shared_ptr<Group>& group, const AlgorithmChoice& choice,
                              const std::string& prefix) {
  int64_t m = shape_.local_rows(), rows = shape_.rows(), cut = shape_.local_hidden(), width = shape_.width;
  auto in_arena = [this](const float* tensor) {
    return Binding{arena_.get(),
                   static_cast<uint64_t>(reinterpret_cast<const std::byte*>(tensor) - arena_->data())};
  };
  auto prepare = [&](const std::string& name, Op op, Algorithm algorithm, std::vector<Operand> operands,
                     std::vector<Binding> bindings) -> Status {
    OpRequest request;
    request.op = op;
    request.operands = std::move(operands);
    request.algorithm = algorithm;
    request.on_unfused = algorithm == Algorithm::kUnfused ? OnUnfused::kAllow : OnUnfused::kError;
    Result<std::shared_ptr<Plan>> plan = group->Prepare(prefix + name, request);
    if (!plan.ok()) return plan.status().WithContext("prepare " + name);
    plans_.push_back({name, *plan, std::move(bindings), {}});
    return Status::Ok();
  };
  ReplicatedView parameters(replicated_, shape_);
  launch_start_.assign(kPlans, 0.0);
  TANDEM_RETURN_IF_ERROR(prepare(
      "up", Op::kAllGatherMatmul, choice.up,
      {MakeOperand(Role::kA, m, width), MakeOperand(Role::kB, width, cut), MakeOperand(Role::kC, rows, cut),
       {Role::kBias, {DType::kF32, {cut}, {}}, false, -1}, MakeOperand(Role::kGatheredA, rows, width, true)},
      {in_arena(h_), in_arena(w1_), in_arena(z_), in_arena(b1_), {gathered_h_.get(), 0}}));
  TANDEM_RETURN_IF_ERROR(prepare(
      "down", Op::kMatmulReduceScatter, choice.down,
      {MakeOperand(Role::kA, rows, cut), MakeOperand(Role::kB, cut, width), MakeOperand(Role::kC, m, width),
       {Role::kBias, {DType::kF32, {width}, {}}, false, -1}},
      {in_arena(a_), in_arena(w2_), in_arena(block_), in_arena(parameters.b2.data())}));
  TANDEM_RETURN_IF_ERROR(prepare(
      "down_grad", Op::kAllGatherMatmul, choice.down_grad,
      {MakeOperand(Role::kA, m, width), MakeTransposed(Role::kB, width, cut), MakeOperand(Role::kC, rows, cut),
       MakeOperand(Role::kGatheredA, rows, width, true)},
      {in_arena(dy_), in_arena(w2_), in_arena(da_), {gathered_dy_.get(), 0}}));
  TANDEM_RETURN_IF_ERROR(prepare(
      "up_grad", Op::kMatmulReduceScatter, choice.up_grad,
      {MakeOperand(Role::kA, rows, cut), MakeTransposed(Role::kB, cut, width), MakeOperand(Role::kC, m, width)},
      {in_arena(dz_), in_arena(w1_), in_arena(dh_)}));
  std::vector<int64_t> bucket = {shape_.replicated() + 2};
  return prepare("gradients", Op::kAllReduce, choice.gradients,
                 {{Role::kInput, {DType::kF32, bucket, {}}, false, -1},
                  {Role::kOutput, {DType::kF32, bucket, {}}, false, 0}},
                 {in_arena(bucket_), in_arena(bucket_)});
}

}  // namespace tandem::digits
