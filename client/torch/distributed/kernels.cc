// Kernels of c10d's ops, in front of torch's own: every collective of torch.distributed passes here, of dist.*,
// functional collectives, DTensor, FSDP2 and DDP alike.
#include "client/torch/distributed/kernels.h"

#include <c10/util/Exception.h>
#include <torch/library.h>

#include <tuple>

#include "client/torch/distributed/served.h"

namespace tandem::torch_distributed {
namespace {

using ::c10d::OpType;
using ::c10d::ReduceOp;
using Group = c10::intrusive_ptr<::c10d::ProcessGroup>;
using Reduction = c10::intrusive_ptr<ReduceOp>;
using Work = c10::intrusive_ptr<::c10d::Work>;
using Tensors = std::vector<at::Tensor>;

constexpr const char* kUnfit = "sizes, types or layouts of its tensors do not fit";
constexpr const char* kSparse = "its tensor is sparse";

bool Overlap(const at::Tensor& one, const at::Tensor& other) {
  const auto* first = static_cast<const char*>(one.const_data_ptr());
  const auto* second = static_cast<const char*>(other.const_data_ptr());
  return first < second + other.nbytes() && second < first + one.nbytes();
}

template <typename Options>
Options WithTimeout(int64_t timeout, bool async) {
  Options options;
  options.timeout = std::chrono::milliseconds(timeout);
  options.asyncOp = async;
  return options;
}

c10::intrusive_ptr<::c10d::Backend> BackendOf(const Group& group, const at::Tensor& tensor) {
  return group->getBackend(tensor.device().type());
}

// Adds the steps of tensors that are summed or broadcast in place. One with gaps goes through a copy, since a
// rank's layout must not decide who runs the call.
void AddInPlace(at::TensorList tensors, Call* call) {
  std::vector<std::pair<at::Tensor, at::Tensor>> copied;
  for (const at::Tensor& tensor : tensors) {
    at::Tensor flat = Flat(tensor);
    if (!flat.defined()) {
      const at::Tensor copy = tensor.contiguous();
      flat = Flat(copy);
      copied.emplace_back(tensor, copy);
    }
    call->steps.push_back({std::move(flat), {}});
  }
  if (copied.empty()) return;
  call->after = [copied = std::move(copied)] {
    for (const auto& [tensor, copy] : copied) tensor.copy_(copy);
  };
}

// Adds the step that reads `input` and writes `output`. Returns false where one of them has no flat form.
bool AddStep(const at::Tensor& output, const at::Tensor& input, std::vector<TensorStep>* steps) {
  if (!output.is_contiguous() || !input.is_contiguous() || output.scalar_type() != input.scalar_type())
    return false;
  // A gather's input may be its own part of the output.
  steps->push_back({Overlap(output, input) ? Flat(input).clone() : Flat(input), Flat(output)});
  return true;
}

std::vector<TensorStep> Each(at::TensorList outputs, at::TensorList inputs, ServedGroup& group) {
  std::vector<TensorStep> steps;
  if (outputs.size() != inputs.size() || !group.Takes(inputs[0].device().type())) return {};
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!AddStep(outputs[i], inputs[i], &steps)) return {};
  }
  return steps;
}

// Whether each output has a rank's elements for each rank of the group, or the other way round.
bool Multiply(const std::vector<TensorStep>& steps, const ServedGroup& group, bool scatters) {
  for (const TensorStep& step : steps) {
    const int64_t small = (scatters ? step.output : step.input).numel();
    if (small * group.size() != (scatters ? step.input : step.output).numel()) return false;
  }
  return true;
}

Work RunOr(Call call, const at::Tensor& first, const char* reason) {
  if (!call.steps.empty()) return Run(std::move(call));
  LeaveToBackend(call, first, reason);
  return call.backend();
}

std::tuple<Tensors, Work> AllReduce(at::TensorList tensors, const Group& group, const Reduction& reduction,
                                    const std::optional<at::Tensor>& sparse, bool async, int64_t timeout) {
  Tensors all = tensors.vec();
  auto options = WithTimeout<::c10d::AllreduceOptions>(timeout, async);
  options.reduceOp = *reduction;
  options.sparseIndices = sparse;
  Call call{.op = Collective::kAllReduce,
            .group = StateOf(group),
            .type = OpType::ALLREDUCE,
            .reduction = reduction->op_,
            .async = async,
            .outputs = all};
  call.backend = [all, group, options]() mutable {
    return BackendOf(group, all[0])->allreduce(all, options);
  };
  if (tensors.size() == 1 && !sparse) AddInPlace(tensors, &call);
  Work work = RunOr(std::move(call), all[0], sparse ? kSparse : kUnfit);
  return {std::move(all), std::move(work)};
}

// Sparse tensors have keys of their own, and torch has kernels for their sums alone. They are counted here.
std::tuple<Tensors, Work> AllReduceSparse(at::TensorList tensors, const Group& group,
                                          const Reduction& reduction, const std::optional<at::Tensor>& sparse,
                                          bool async, int64_t timeout) {
  Tensors all = tensors.vec();
  auto options = WithTimeout<::c10d::AllreduceOptions>(timeout, async);
  options.reduceOp = *reduction;
  options.sparseIndices = sparse;
  LeaveToBackend({.op = Collective::kAllReduce, .group = StateOf(group)}, all[0], kSparse);
  const auto backend = BackendOf(group, all[0]);
  Work work = all[0].is_cuda() ? backend->allreduce_sparse(all, options) : backend->allreduce(all, options);
  return {std::move(all), std::move(work)};
}

Work AllReduceCoalesced(at::TensorList tensors, const Group& group, const Reduction& reduction, bool async,
                        int64_t timeout) {
  Tensors all = tensors.vec();
  ::c10d::AllreduceCoalescedOptions options;
  options.reduceOp = *reduction;
  options.timeout = std::chrono::milliseconds(timeout);
  options.asyncOp = async;
  Call call{.op = Collective::kAllReduce,
            .group = StateOf(group),
            .type = OpType::ALLREDUCE_COALESCED,
            .reduction = reduction->op_,
            .async = async,
            .outputs = all};
  AddInPlace(tensors, &call);
  call.backend = [all, group, options]() mutable {
    return BackendOf(group, all[0])->allreduce_coalesced(all, options);
  };
  return RunOr(std::move(call), all[0], kUnfit);
}

std::tuple<Tensors, Work> Broadcast(at::TensorList tensors, const Group& group, int64_t root,
                                    int64_t root_tensor, bool async, int64_t timeout) {
  Tensors all = tensors.vec();
  auto options = WithTimeout<::c10d::BroadcastOptions>(timeout, async);
  options.rootRank = root;
  options.rootTensor = root_tensor;
  Call call{.op = Collective::kBroadcast,
            .group = StateOf(group),
            .type = OpType::BROADCAST,
            .root = root,
            .async = async,
            .outputs = all};
  call.backend = [all, group, options]() mutable {
    return BackendOf(group, all[0])->broadcast(all, options);
  };
  if (tensors.size() == 1 && root_tensor == 0) AddInPlace(tensors, &call);
  Work work = RunOr(std::move(call), all[0], kUnfit);
  return {std::move(all), std::move(work)};
}

std::tuple<at::Tensor, Work> AllGatherBase(at::Tensor& output, at::Tensor& input, const Group& group,
                                           bool async, int64_t timeout) {
  Call call{.op = Collective::kAllGather,
            .group = StateOf(group),
            .type = OpType::_ALLGATHER_BASE,
            .async = async,
            .outputs = {output}};
  call.backend = [=]() mutable {
    return BackendOf(group, input)
        ->_allgather_base(output, input, WithTimeout<::c10d::AllgatherOptions>(timeout, async));
  };
  call.steps = Each(output, input, *call.group);
  if (!Multiply(call.steps, *call.group, false)) call.steps.clear();
  return {output, RunOr(std::move(call), input, kUnfit)};
}

Work AllGatherCoalesced(at::TensorList outputs, at::TensorList inputs, const Group& group, bool async) {
  Tensors out = outputs.vec(), in = inputs.vec();
  Call call{.op = Collective::kAllGather,
            .group = StateOf(group),
            .type = OpType::COALESCED,
            .async = async,
            .outputs = out};
  call.backend = [=]() mutable {
    ::c10d::AllgatherOptions options;
    options.asyncOp = async;
    return BackendOf(group, in[0])->allgather_into_tensor_coalesced(out, in, options);
  };
  call.steps = Each(outputs, inputs, *call.group);
  if (!Multiply(call.steps, *call.group, false)) call.steps.clear();
  return RunOr(std::move(call), in[0], kUnfit);
}

// A gather into one tensor a rank goes through one that has all.
std::tuple<std::vector<Tensors>, Work> AllGather(const std::vector<Tensors>& outputs, at::TensorList inputs,
                                                 const Group& group, bool async, int64_t timeout) {
  Tensors in = inputs.vec();
  Call call{.op = Collective::kAllGather, .group = StateOf(group), .type = OpType::ALLGATHER, .async = async};
  call.backend = [=]() mutable {
    auto into = outputs;
    return BackendOf(group, in[0])
        ->allgather(into, in, WithTimeout<::c10d::AllgatherOptions>(timeout, async));
  };
  const bool even = call.group->Takes(in[0].device().type()) && in.size() == 1 && outputs.size() == 1 &&
                    outputs[0].size() == static_cast<size_t>(group->getSize()) &&
                    std::all_of(outputs[0].begin(), outputs[0].end(), [&](const at::Tensor& each) {
                      return each.numel() == in[0].numel() && each.scalar_type() == in[0].scalar_type();
                    });
  if (even) {
    const at::Tensor whole = in[0].new_empty({group->getSize(), in[0].numel()});
    call.steps = Each(whole, in[0].contiguous(), *call.group);
    call.outputs = outputs[0];
    call.after = [whole, into = outputs[0]] {
      for (size_t rank = 0; rank < into.size(); ++rank) {
        into[rank].copy_(whole[static_cast<int64_t>(rank)].view(into[rank].sizes()));
      }
    };
  }
  Work work = RunOr(std::move(call), in[0], "its tensors have several shapes");
  return {outputs, std::move(work)};
}

std::tuple<at::Tensor, Work> ReduceScatterBase(at::Tensor& output, at::Tensor& input, const Group& group,
                                               const Reduction& reduction, bool async, int64_t timeout) {
  Call call{.op = Collective::kReduceScatter,
            .group = StateOf(group),
            .type = OpType::_REDUCE_SCATTER_BASE,
            .reduction = reduction->op_,
            .async = async,
            .outputs = {output}};
  auto options = WithTimeout<::c10d::ReduceScatterOptions>(timeout, async);
  options.reduceOp = *reduction;
  call.backend = [=]() mutable {
    return BackendOf(group, input)->_reduce_scatter_base(output, input, options);
  };
  call.steps = Each(output, input, *call.group);
  if (!Multiply(call.steps, *call.group, true)) call.steps.clear();
  return {output, RunOr(std::move(call), input, kUnfit)};
}

Work ReduceScatterCoalesced(at::TensorList outputs, at::TensorList inputs, const Group& group,
                            const Reduction& reduction, bool async, int64_t timeout) {
  Tensors out = outputs.vec(), in = inputs.vec();
  Call call{.op = Collective::kReduceScatter,
            .group = StateOf(group),
            .type = OpType::COALESCED,
            .reduction = reduction->op_,
            .async = async,
            .outputs = out};
  auto options = WithTimeout<::c10d::ReduceScatterOptions>(timeout, async);
  options.reduceOp = *reduction;
  call.backend = [=]() mutable {
    return BackendOf(group, in[0])->reduce_scatter_tensor_coalesced(out, in, options);
  };
  call.steps = Each(outputs, inputs, *call.group);
  if (!Multiply(call.steps, *call.group, true)) call.steps.clear();
  return RunOr(std::move(call), in[0], kUnfit);
}

// Whether ranks exchange equal parts: this rank's word for it, since each has its own splits.
bool Even(const std::vector<int64_t>& splits, const at::Tensor& tensor, const Group& group) {
  return splits.empty() && tensor.dim() > 0 && tensor.size(0) % group->getSize() == 0;
}

Work AllToAllBase(at::Tensor& output, at::Tensor& input, const Group& group,
                  std::vector<int64_t> output_splits, std::vector<int64_t> input_splits, bool async,
                  int64_t timeout) {
  Call call{.op = Collective::kAllToAll,
            .group = StateOf(group),
            .type = OpType::ALLTOALL_BASE,
            .async = async,
            .outputs = {output}};
  // Splits that are given may be equal on this rank alone: only calls without any are alike on all ranks.
  if (Even(output_splits, output, group) && Even(input_splits, input, group) &&
      output.numel() == input.numel())
    call.steps = Each(output, input, *call.group);
  call.backend = [=]() mutable {
    return BackendOf(group, input)
        ->alltoall_base(output, input, output_splits, input_splits,
                        WithTimeout<::c10d::AllToAllOptions>(timeout, async));
  };
  return RunOr(std::move(call), input, "its splits are given");
}

void Register(torch::Library& library) {
  library.impl("allreduce_", &AllReduce);
  library.impl("allreduce_coalesced_", &AllReduceCoalesced);
  library.impl("broadcast_", &Broadcast);
  library.impl("_allgather_base_", &AllGatherBase);
  library.impl("allgather_into_tensor_coalesced_", &AllGatherCoalesced);
  library.impl("allgather_", &AllGather);
  library.impl("_reduce_scatter_base_", &ReduceScatterBase);
  library.impl("reduce_scatter_tensor_coalesced_", &ReduceScatterCoalesced);
  library.impl("alltoall_base_", &AllToAllBase);
}

// torch warns of kernels that stand in front of others.
class QuietWarnings final : public c10::WarningHandler {
 public:
  void process(const c10::Warning&) override {}
};

}  // namespace

std::vector<std::unique_ptr<torch::Library>> RegisterKernels() {
  QuietWarnings quiet;
  const c10::WarningUtils::WarningHandlerGuard guard(&quiet);
  std::vector<std::unique_ptr<torch::Library>> libraries;
  for (const c10::DispatchKey key : {c10::DispatchKey::CPU, c10::DispatchKey::CUDA}) {
    libraries.push_back(
        std::make_unique<torch::Library>(torch::Library::IMPL, "c10d", key, __FILE__, __LINE__));
    Register(*libraries.back());
  }
  for (const c10::DispatchKey key : {c10::DispatchKey::SparseCPU, c10::DispatchKey::SparseCUDA}) {
    libraries.push_back(
        std::make_unique<torch::Library>(torch::Library::IMPL, "c10d", key, __FILE__, __LINE__));
    libraries.back()->impl("allreduce_", &AllReduceSparse);
  }
  return libraries;
}

}  // namespace tandem::torch_distributed
