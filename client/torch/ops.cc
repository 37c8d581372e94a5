// The kernels of torch.ops.tandem and their registration.
#include <torch/csrc/stable/library.h>

#include <stdexcept>
#include <utility>

#include "client/torch/call_arguments.h"
#include "client/torch/kernel_state.h"
#include "client/torch/plan_launch.h"

namespace tandem::torch_ops {
namespace {

template <typename T>
StableIValue Boxed(T value) {
  return torch::stable::detail::from(value);
}
template <typename T>
T Unboxed(StableIValue value) {
  return torch::stable::detail::to<T>(value);
}

enum class ResultKind : uint8_t {
  kNothing,
  kTensor,
  kGatheredAndProducts,  // (Tensor?, Tensor[])
  kWholeAndProducts,     // (Tensor, Tensor[])
};
bool HasProducts(ResultKind kind) {
  return kind == ResultKind::kGatheredAndProducts || kind == ResultKind::kWholeAndProducts;
}

// One overload of an op. Its arguments stand in the schema's order, as _schemas.py of the package has them.
struct Overload {
  const char* python_op;  // "tandem::_all_reduce": Python's kernel for the calls that the table does not have
  const char* name;       // "out"; "" for the default overload
  ResultKind result;
  std::span<const ArgumentKind> arguments;
};

// Puts the products into a list, and before it the gathered A, which is behind them.
void ReturnProducts(ResultKind kind, std::span<const StableIValue> tensors, size_t products,
                    StableIValue* stack) {
  const bool whole = kind == ResultKind::kWholeAndProducts;
  if (tensors.size() < products + (whole ? 1 : 0)) throw std::runtime_error("tandem: results are missing");
  StableListHandle list = nullptr;
  CheckTorch(torch_new_list_reserve_size(products, &list), "makes a list");
  for (StableIValue product : tensors.first(products)) {
    CheckTorch(torch_list_push_back(list, product), "fills a list");
  }
  if (whole) {
    stack[0] = tensors[products];
  } else {
    stack[0] = Boxed(tensors.size() > products ? new StableIValue(tensors[products]) : nullptr);
  }
  stack[1] = Boxed(list);
}

// The tensors that a kernel allocates. Deletes those that torch has not got.
class CallResults {
 public:
  CallResults() = default;
  ~CallResults() {
    for (AtenTensorHandle tensor : tensors()) (void)aoti_torch_delete_tensor_object(tensor);
  }
  CallResults(const CallResults&) = delete;
  CallResults& operator=(const CallResults&) = delete;

  void Allocate(const ResultForm& form, const CallTensor& like) {
    CheckTorch(aoti_torch_empty_strided(static_cast<int64_t>(form.shape.size()), form.shape.data(),
                                        form.strides.data(), TorchDType(form.dtype), like.device_type,
                                        like.device_index, &tensors_[count_]),
               "allocates a result");
    ++count_;
  }
  std::span<const AtenTensorHandle> tensors() const { return {tensors_.data(), count_}; }

  // Gives them to torch as the op's results. A tensor behind the `products` is the gathered A.
  void Return(ResultKind kind, size_t products, StableIValue* stack) {
    if (kind == ResultKind::kTensor) stack[0] = Boxed(tensors_[0]);
    if (HasProducts(kind)) {
      std::array<StableIValue, CallArguments::kMaxTensors> boxed;
      for (size_t i = 0; i < count_; ++i) boxed[i] = Boxed(tensors_[i]);
      ReturnProducts(kind, {boxed.data(), count_}, products, stack);
    }
    count_ = 0;
  }

 private:
  std::array<AtenTensorHandle, CallArguments::kMaxTensors> tensors_;
  size_t count_ = 0;
};

// Python makes its exception of the failure; other callers get the text.
[[noreturn]] void Fail(std::string text, tandem_status* status) {
  KernelFailure& failure = ThisThread().failure;
  if (failure.status != nullptr) FreeStatus(failure.status);  // one that nobody has asked for
  failure = {std::move(text), status, true};
  throw std::runtime_error(failure.text);
}

// Calls an op of Python's. Returns false if that has failed; the thread's failure has the text then.
bool CallPython(const char* op, const char* overload, const CallKey* key, StableIValue* stack) {
  KernelThread& thread = ThisThread();
  const CallKey* outer = std::exchange(thread.handed_on, key);
  thread.python_failed = false;
  const AOTITorchError error = torch_call_dispatcher(op, overload, stack, TORCH_ABI_VERSION);
  thread.handed_on = outer;
  if (error != AOTI_TORCH_SUCCESS) Fail(std::string("tandem: torch cannot call ") + op, nullptr);
  return !std::exchange(thread.python_failed, false);
}

// Python continues the wait for a plan, and raises the exception of a signal's handler.
bool WaitOn(uint64_t plan) {
  StableIValue stack[1] = {Boxed(static_cast<int64_t>(plan))};
  return CallPython("tandem::_wait", "", nullptr, stack);
}

// Makes the op's results of the list that Python's kernel has returned: torch's shim of 2.11 cannot return
// values of two types.
void ReturnList(ResultKind kind, size_t products, StableIValue* stack) {
  const auto list = Unboxed<StableListHandle>(stack[0]);
  std::array<StableIValue, CallArguments::kMaxTensors> tensors;
  size_t size = 0;
  CheckTorch(torch_list_size(list, &size), "reads a list");
  size = std::min(size, tensors.size());
  for (size_t i = 0; i < size; ++i) CheckTorch(torch_list_get_item(list, i, &tensors[i]), "reads a list");
  CheckTorch(torch_delete_list(list), "deletes a list");
  ReturnProducts(kind, {tensors.data(), size}, products, stack);
}

// Runs the call by Python. The arguments on the stack go there, and the results come from there.
void HandOn(const Overload& overload, const CallKey* key, size_t products, StableIValue* stack) {
  TheCounts().handed_on.fetch_add(1, std::memory_order_relaxed);
  const bool ran = CallPython(overload.python_op, overload.name, key, stack);
  if (HasProducts(overload.result)) {
    if (ran) return ReturnList(overload.result, products, stack);
    (void)torch_delete_list(Unboxed<StableListHandle>(stack[0]));  // it is empty
  } else if (overload.result == ResultKind::kTensor && !ran) {
    (void)aoti_torch_delete_tensor_object(Unboxed<AtenTensorHandle>(stack[0]));
  }
  if (!ran) Fail(ThisThread().failure.text, nullptr);
}

// Returns false if the call is Python's to run.
bool RunByTable(const CallArguments& arguments, const CallKey& key, CallResults* results) {
  const PlanTable::Found found = ThePlanTable().Find(arguments.group_name(), key);
  if (found.plan == nullptr) return false;
  for (const ResultForm& form : found.plan->results) {
    results->Allocate(form, arguments.tensors().front());
  }
  std::shared_ptr<TablePlan> plan = found.plan;
  if (plan->may_be_symmetric != 0 && (found.symmetric != nullptr || plan->symmetric != 0)) {
    static const SymmetricRanges none;
    const SymmetricRanges& ranges = found.symmetric != nullptr ? *found.symmetric : none;
    const uint32_t symmetric = SymmetricSlots(*plan, ranges, arguments.tensors(), results->tensors());
    if (symmetric != plan->symmetric) plan = ThePlanTable().FindSymmetric(*found.group, key, symmetric);
    if (plan == nullptr) return false;
  }
  RunOutcome outcome = RunPlan(*found.group, *plan, arguments.tensors(), results->tensors(), &WaitOn);
  if (outcome.state == RunState::kGone) return false;
  TheCounts().launched.fetch_add(1, std::memory_order_relaxed);
  if (outcome.state == RunState::kRan) return true;
  if (outcome.status == nullptr) outcome.text = ThisThread().failure.text;
  Fail(std::move(outcome.text), outcome.status);
}

// Whether the table has run a call. If not, its arguments are on the stack still.
struct TriedCall {
  bool ran = false;
  bool has_key = false;
  size_t products = 0;  // of all_gather_matmul
};

TriedCall TryTable(const Overload& overload, StableIValue* stack, CallKey* key) {
  CallResults results;
  TriedCall call;
  {
    CallArguments arguments(stack, overload.arguments);
    call.has_key = arguments.Read(key);
    call.products = arguments.first_list();
    call.ran = call.has_key && RunByTable(arguments, *key, &results);
    if (!call.ran) {
      arguments.HandOn();
      return call;
    }
  }  // the arguments leave the stack before the results come
  results.Return(overload.result, call.products, stack);
  return call;
}

void Run(const Overload& overload, StableIValue* stack) {
  CallKey key;
  key.Add(reinterpret_cast<uintptr_t>(&overload));
  const TriedCall call = TryTable(overload, stack, &key);
  if (!call.ran) HandOn(overload, call.has_key ? &key : nullptr, call.products, stack);
}

// The arguments of an op, and behind them those that its overloads have.
using enum ArgumentKind;
constexpr ArgumentKind kReduce[] = {kTensor, kText, kGroupName};
constexpr ArgumentKind kAlong[] = {kTensor, kInt, kGroupName};
constexpr ArgumentKind kReduceAlong[] = {kTensor, kText, kInt, kGroupName};
constexpr ArgumentKind kProductAlong[] = {kTensor, kTensor, kText, kInt, kGroupName, kOptionalTensor};
constexpr ArgumentKind kProduct[] = {kTensor, kTensor, kText, kGroupName, kOptionalTensor};
constexpr ArgumentKind kReduceNorm[] = {kTensor, kTensor, kTensor, kFloat, kGroupName};
constexpr ArgumentKind kProductNorm[] = {kTensor, kTensor,    kTensor,        kTensor,
                                         kFloat,  kGroupName, kOptionalTensor};
constexpr ArgumentKind kWhole[] = {kTensor, kGroupName};
constexpr ArgumentKind kArriving[] = {kTensor, kTensor, kTensor, kInt, kGroupName};
constexpr ArgumentKind kGatherProducts[] = {kTensor, kTensors, kInt, kGroupName, kOptionalTensors, kBool};

constexpr ArgumentKind kScaledGather[] = {kTensor,    kTensors,       kTensor,        kTensors,     kInt,
                                          kGroupName, kTensorsOrNone, kTensorsOrNone, kTypesOrNone, kBools};
constexpr ArgumentKind kScaledScatter[] = {
    kTensor,    kTensor,       kTensor,         kTensor,         kText,         kInt, kInt,
    kGroupName, kOptionalInts, kOptionalTensor, kOptionalTensor, kOptionalType, kBool};
constexpr ArgumentKind kScaledReduce[] = {kTensor,    kTensor,         kTensor,         kTensor,       kText,
                                          kGroupName, kOptionalTensor, kOptionalTensor, kOptionalType, kBool};
constexpr ArgumentKind kGatherProductsInto[] = {kTensor, kTensors, kInt, kGroupName, kOptionalTensors};

template <size_t N, size_t M>
constexpr std::array<ArgumentKind, N + M> Joined(const ArgumentKind (&first)[N],
                                                 std::array<ArgumentKind, M> more) {
  std::array<ArgumentKind, N + M> all{};
  for (size_t i = 0; i < N; ++i) all[i] = first[i];
  for (size_t i = 0; i < M; ++i) all[N + i] = more[i];
  return all;
}
constexpr std::array<ArgumentKind, 0> kNoMore{};
constexpr std::array<ArgumentKind, 1> kOut{kTensor}, kGraph{kText};
constexpr std::array<ArgumentKind, 2> kGraphAndOut{kText, kTensor}, kOuts{kTensors, kTensors},
    kWholeAndOuts{kTensor, kTensors};
constexpr std::array<ArgumentKind, 3> kGraphAndOuts{kText, kTensors, kTensors},
    kGraphWholeAndOuts{kText, kTensor, kTensors};

// KERNEL(function, op, overload, arguments, more arguments, result) defines a boxed kernel.
#define TANDEM_TORCH_KERNEL(function, op, overload, arguments, more, kind)                  \
  void function(StableIValue* stack, uint64_t, uint64_t) {                                  \
    static constexpr auto kinds = Joined(arguments, more);                                  \
    static constexpr Overload described{"tandem::_" op, overload, ResultKind::kind, kinds}; \
    Run(described, stack);                                                                  \
  }

// An op with one result and its overloads: default, out, and what the compile pass emits.
#define TANDEM_TORCH_OP(name, op, arguments)                                              \
  TANDEM_TORCH_KERNEL(name, op, "", arguments, kNoMore, kTensor)                          \
  TANDEM_TORCH_KERNEL(name##Out, op, "out", arguments, kOut, kNothing)                    \
  TANDEM_TORCH_KERNEL(name##Noted, op, "noted", arguments, kGraph, kTensor)               \
  TANDEM_TORCH_KERNEL(name##NotedOut, op, "noted_out", arguments, kGraphAndOut, kNothing) \
  void Register##name(torch::stable::detail::StableLibrary& library) {                    \
    library.impl(op, &name).impl(op ".out", &name##Out);                                  \
    library.impl(op ".noted", &name##Noted).impl(op ".noted_out", &name##NotedOut);       \
  }

TANDEM_TORCH_OP(AllReduce, "all_reduce", kReduce)
TANDEM_TORCH_OP(AllGather, "all_gather", kAlong)
TANDEM_TORCH_OP(ReduceScatter, "reduce_scatter", kReduceAlong)
TANDEM_TORCH_OP(AllToAll, "all_to_all", kAlong)
TANDEM_TORCH_OP(Broadcast, "broadcast", kAlong)
TANDEM_TORCH_OP(LowContentionAllGather, "low_contention_all_gather", kWhole)
TANDEM_TORCH_OP(LowContentionReduceScatter, "low_contention_reduce_scatter", kReduce)
TANDEM_TORCH_OP(AsyncInputMatmul, "async_input_matmul", kArriving)
TANDEM_TORCH_OP(MatmulReduceScatter, "matmul_reduce_scatter", kProductAlong)
TANDEM_TORCH_OP(MatmulAllReduce, "matmul_all_reduce", kProduct)
TANDEM_TORCH_OP(AllReduceRmsNorm, "all_reduce_rms_norm", kReduceNorm)
TANDEM_TORCH_OP(MatmulAllReduceRmsNorm, "matmul_all_reduce_rms_norm", kProductNorm)
TANDEM_TORCH_KERNEL(AllGatherMatmul, "all_gather_matmul", "", kGatherProducts, kNoMore, kGatheredAndProducts)
TANDEM_TORCH_KERNEL(AllGatherMatmulNoted, "all_gather_matmul", "noted", kGatherProducts, kGraph,
                    kGatheredAndProducts)
TANDEM_TORCH_KERNEL(AllGatherScaledMatmul, "all_gather_scaled_matmul", "", kScaledGather, kNoMore,
                    kWholeAndProducts)
TANDEM_TORCH_KERNEL(AllGatherScaledMatmulNoted, "all_gather_scaled_matmul", "noted", kScaledGather, kGraph,
                    kWholeAndProducts)
TANDEM_TORCH_KERNEL(AllGatherScaledMatmulOut, "all_gather_scaled_matmul", "out", kScaledGather, kWholeAndOuts,
                    kNothing)
TANDEM_TORCH_KERNEL(AllGatherScaledMatmulNotedOut, "all_gather_scaled_matmul", "noted_out", kScaledGather,
                    kGraphWholeAndOuts, kNothing)
TANDEM_TORCH_OP(ScaledMatmulReduceScatter, "scaled_matmul_reduce_scatter", kScaledScatter)
TANDEM_TORCH_OP(ScaledMatmulAllReduce, "scaled_matmul_all_reduce", kScaledReduce)
TANDEM_TORCH_KERNEL(AllGatherMatmulOut, "all_gather_matmul", "out", kGatherProductsInto, kOuts, kNothing)
TANDEM_TORCH_KERNEL(AllGatherMatmulNotedOut, "all_gather_matmul", "noted_out", kGatherProductsInto,
                    kGraphAndOuts, kNothing)

void RegisterAll(torch::stable::detail::StableLibrary& library) {
  RegisterAllReduce(library);
  RegisterAllGather(library);
  RegisterReduceScatter(library);
  RegisterAllToAll(library);
  RegisterBroadcast(library);
  RegisterLowContentionAllGather(library);
  RegisterLowContentionReduceScatter(library);
  RegisterAsyncInputMatmul(library);
  RegisterMatmulReduceScatter(library);
  RegisterMatmulAllReduce(library);
  RegisterAllReduceRmsNorm(library);
  RegisterMatmulAllReduceRmsNorm(library);
  library.impl("all_gather_matmul", &AllGatherMatmul).impl("all_gather_matmul.noted", &AllGatherMatmulNoted);
  library.impl("all_gather_matmul.out", &AllGatherMatmulOut);
  library.impl("all_gather_matmul.noted_out", &AllGatherMatmulNotedOut);
  library.impl("all_gather_scaled_matmul", &AllGatherScaledMatmul);
  library.impl("all_gather_scaled_matmul.noted", &AllGatherScaledMatmulNoted);
  library.impl("all_gather_scaled_matmul.out", &AllGatherScaledMatmulOut);
  library.impl("all_gather_scaled_matmul.noted_out", &AllGatherScaledMatmulNotedOut);
  RegisterScaledMatmulReduceScatter(library);
  RegisterScaledMatmulAllReduce(library);
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(tandem, CPU, library) { RegisterAll(library); }
STABLE_TORCH_LIBRARY_IMPL(tandem, CUDA, library) { RegisterAll(library); }

}  // namespace tandem::torch_ops
