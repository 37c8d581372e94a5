#include "client/torch/distributed/served.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/as_strided.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/distributed/c10d/exception.h>

#include "client/torch/distributed/attempt.h"

namespace tandem::torch_distributed {

Attempt*& ThisAttempt() {
  thread_local Attempt* attempt = nullptr;
  return attempt;
}

bool& ThisThreadCoalesces() {
  thread_local bool coalesces = false;
  return coalesces;
}

namespace {

using ::c10d::ReduceOp;

bool Sums(Collective op) { return op == Collective::kAllReduce || op == Collective::kReduceScatter; }

// The name of a reduction for Tandem's ops; null where they have none, as for a factor of a rank's own.
const char* NameOf(ReduceOp::RedOpType reduction) {
  switch (reduction) {
    case ReduceOp::SUM: return "sum";
    case ReduceOp::AVG: return "avg";
    case ReduceOp::PRODUCT: return "product";
    case ReduceOp::MIN: return "min";
    case ReduceOp::MAX: return "max";
    case ReduceOp::BAND: return "band";
    case ReduceOp::BOR: return "bor";
    case ReduceOp::BXOR: return "bxor";
    default: return nullptr;
  }
}

// Why Tandem does not reduce elements of this type so; null where it does. Complex numbers travel as pairs.
const char* WhyNotReduced(ReduceOp::RedOpType reduction, c10::ScalarType type) {
  if (NameOf(reduction) == nullptr) return "Tandem has no such reduction";
  const bool bits = reduction == ReduceOp::BAND || reduction == ReduceOp::BOR || reduction == ReduceOp::BXOR;
  if (reduction == ReduceOp::AVG && !c10::isFloatingType(type)) return "Tandem averages floating point alone";
  if (bits && !c10::isIntegralType(type, /*includeBool=*/true)) return "bits of integers alone are reduced";
  if (c10::isComplexType(type) && reduction != ReduceOp::SUM)
    return "Tandem has only sums of complex numbers";
  // A sum of truth values is their disjunction for some backends, and their number for others.
  if (type == c10::ScalarType::Bool && reduction == ReduceOp::SUM) return "Tandem has no sums of Bool";
  return nullptr;
}

// The type in which Tandem runs it: elements that are only moved travel as bits. Undefined: none.
c10::ScalarType CarriedType(Collective op, c10::ScalarType type) {
  switch (type) {
    case c10::ScalarType::Float:
    case c10::ScalarType::Half:
    case c10::ScalarType::BFloat16:
    case c10::ScalarType::Int:
    case c10::ScalarType::Long:
    case c10::ScalarType::Byte: return type;
    case c10::ScalarType::Bool: return c10::ScalarType::Byte;
    case c10::ScalarType::ComplexFloat: return Sums(op) ? c10::ScalarType::Float : c10::ScalarType::Long;
    default: break;
  }
  if (Sums(op)) return c10::ScalarType::Undefined;
  switch (c10::elementSize(type)) {
    case 1: return c10::ScalarType::Byte;
    case 2: return c10::ScalarType::BFloat16;
    case 4: return c10::ScalarType::Int;
    case 8:
    case 16: return c10::ScalarType::Long;
    default: return c10::ScalarType::Undefined;
  }
}

uint64_t BytesOf(const Call& call) {
  uint64_t bytes = 0;
  for (const TensorStep& step : call.steps) {
    bytes += std::max<uint64_t>(step.input.nbytes(), step.output.defined() ? step.output.nbytes() : 0);
  }
  return bytes;
}

uint32_t KindOf(const Call& call) {
  const at::Tensor& first = call.steps.front().input;
  return static_cast<uint32_t>(first.is_cpu()) << 24 | static_cast<uint32_t>(call.op) << 16 |
         static_cast<uint32_t>(first.scalar_type()) << 8 | static_cast<uint32_t>(call.reduction);
}

// Why the call is the backend's to run; nothing where Tandem may.
std::optional<std::string> Reason(const Call& call, const ServedGroup& state, uint64_t bytes) {
  if (ThisAttempt() != nullptr) return "it is part of a call that Tandem has declined";
  if (ThisThreadCoalesces()) return "its backend coalesces it with others";
  if (state.size() == 1) return "the group has one rank";
  if (call.steps.empty() || bytes == 0) return "it has no elements";
  const at::Tensor& first = call.steps.front().input;
  for (const TensorStep& step : call.steps) {
    if (step.input.scalar_type() != first.scalar_type()) return "its tensors have several types";
    if (step.input.numel() == 0) return "one of its tensors has no elements";
  }
  if (CarriedType(call.op, first.scalar_type()) == c10::ScalarType::Undefined)
    return std::string("Tandem has no sums of ") + c10::toString(first.scalar_type());
  if (Sums(call.op)) {
    if (const char* why = WhyNotReduced(call.reduction, first.scalar_type())) return why;
  }
  return state.Declined(KindOf(call));
}

struct Operation {
  const char* name;
  const char* overload;
};
constexpr std::array<Operation, kCollectives> kOperations = {{{"tandem::all_reduce_", ""},
                                                              {"tandem::all_gather", "out"},
                                                              {"tandem::reduce_scatter", "out"},
                                                              {"tandem::all_to_all", "out"},
                                                              {"tandem::broadcast_", ""}}};

const c10::OperatorHandle& HandleOf(Collective op) {
  static const auto handles = [] {
    std::vector<c10::OperatorHandle> found;
    for (const Operation& one : kOperations) {
      found.push_back(c10::Dispatcher::singleton().findSchemaOrThrow(one.name, one.overload));
    }
    return found;
  }();
  return handles[static_cast<size_t>(op)];
}

at::Tensor Carried(Collective op, const at::Tensor& tensor) {
  const c10::ScalarType type = CarriedType(op, tensor.scalar_type());
  return type == tensor.scalar_type() ? tensor : tensor.view(type);
}

void CallOp(const Call& call, const std::string& group_name, const TensorStep& step) {
  std::vector<c10::IValue> stack;
  stack.emplace_back(Carried(call.op, step.input));
  if (Sums(call.op)) stack.emplace_back(NameOf(call.reduction));
  if (call.op == Collective::kBroadcast) {
    stack.emplace_back(call.root);
  } else if (call.op != Collective::kAllReduce) {
    stack.emplace_back(int64_t{0});  // along the one dimension
  }
  stack.emplace_back(group_name);
  if (step.output.defined()) stack.emplace_back(Carried(call.op, step.output));
  HandleOf(call.op).callBoxed(stack);
}

void RunSteps(const Call& call, const std::string& group_name) {
  const at::AutoDispatchBelowADInplaceOrView below;
  for (const TensorStep& step : call.steps) CallOp(call, group_name, step);
  if (call.after) call.after();
}

// Returns false where Python has declined the call.
bool Try(const Call& call, uint64_t bytes) {
  Attempt attempt;
  try {
    const AttemptScope scope(&attempt);
    RunSteps(call, call.group->name());
  } catch (const std::exception& error) {
    if (attempt.decline == Decline::kNone) TORCH_CHECK_WITH(DistBackendError, false, error.what());
  }
  switch (attempt.decline) {
    case Decline::kNone: TheTallies().Add(call.op, bytes, ""); return true;
    case Decline::kOnce: break;
    case Decline::kKind: call.group->Decline(KindOf(call), attempt.reason); break;
    case Decline::kGroup: call.group->DeclineAll(attempt.reason); break;
  }
  TheTallies().Add(call.op, bytes, attempt.reason);
  return false;
}

void KeepUntil(const c10::Stream& stream, const c10::impl::VirtualGuardImpl& guard,
               const at::Tensor& tensor) {
  if (tensor.defined()) guard.recordDataPtrOnStream(tensor.storage().data_ptr(), stream);
}

c10::intrusive_ptr<::c10d::Work> RunOnStream(const Call& call, uint64_t bytes) {
  ServedGroup& group = *call.group;
  const at::Device device = call.steps.front().input.device();
  const c10::DeviceGuard on_device(device);
  if (!call.async) {
    if (!Try(call, bytes)) return nullptr;
    return c10::make_intrusive<StreamWork>(group.rank(), call.type, call.outputs, std::nullopt);
  }
  const c10::impl::VirtualGuardImpl guard(device.type());
  const c10::Stream side = group.SideStream(device);
  c10::Event ready(device.type());
  ready.record(guard.getStream(device));
  ready.block(side);
  {
    const c10::StreamGuard on_side(side);
    if (!Try(call, bytes)) return nullptr;
  }
  for (const TensorStep& step : call.steps) {
    KeepUntil(side, guard, step.input);
    KeepUntil(side, guard, step.output);
  }
  for (const at::Tensor& output : call.outputs) KeepUntil(side, guard, output);
  return c10::make_intrusive<StreamWork>(group.rank(), call.type, call.outputs, side);
}

c10::intrusive_ptr<::c10d::Work> RunOnHost(const Call& call, uint64_t bytes) {
  ServedGroup& group = *call.group;
  auto work = c10::make_intrusive<HostWork>(group.rank(), call.type, call.outputs);
  // A kind's first call is waited for: a backend that runs it instead has it in the order of the calls.
  if (call.async && group.Served(KindOf(call))) {
    group.queue().Run(
        work,
        [call, bytes] {
          if (!Try(call, bytes)) call.backend()->wait();
        },
        /*async=*/true);
    return work;
  }
  bool taken = false;
  group.queue().Run(
      work, [&] { taken = Try(call, bytes); }, /*async=*/false);
  if (!taken) return nullptr;
  group.Serve(KindOf(call));
  return work;
}

}  // namespace

at::Tensor Flat(const at::Tensor& tensor) {
  if (!tensor.is_non_overlapping_and_dense()) return {};
  if (tensor.dim() == 1) return tensor;
  const at::AutoDispatchBelowADInplaceOrView below;
  return at::as_strided(tensor, {tensor.numel()}, {1});
}

void LeaveToBackend(const Call& call, const at::Tensor& tensor, const char* reason) {
  const uint64_t bytes = tensor.is_sparse() ? tensor._values().nbytes() : tensor.nbytes();
  if (call.group->Takes(tensor.device().type())) TheTallies().Add(call.op, bytes, reason);
}

c10::intrusive_ptr<::c10d::Work> Run(Call call) {
  ServedGroup& group = *call.group;
  if (!group.Takes(call.steps.front().input.device().type())) return call.backend();
  const uint64_t bytes = BytesOf(call);
  if (const std::optional<std::string> reason = Reason(call, group, bytes)) {
    if (ThisAttempt() == nullptr) TheTallies().Add(call.op, bytes, *reason);
    return call.backend();
  }
  const bool on_host = call.steps.front().input.is_cpu();
  auto work = on_host ? RunOnHost(call, bytes) : RunOnStream(call, bytes);
  return work == nullptr ? call.backend() : work;
}

}  // namespace tandem::torch_distributed
