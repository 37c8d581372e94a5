// The kernels of torch.ops.tandem and their registration.
#include <torch/csrc/stable/library.h>

#include <algorithm>
#include <memory>
#include <stdexcept>
#include <utility>

#include "client/torch/call_arguments.h"
#include "client/torch/kernel_state.h"
#include "client/torch/plan_launch.h"
#include "client/torch/schema_kinds.h"

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
constexpr ResultKind ResultOf(std::string_view schema) {
  if (schema == "Tensor") return ResultKind::kTensor;
  return schema == "(Tensor, Tensor[])" ? ResultKind::kWholeAndProducts : ResultKind::kGatheredAndProducts;
}
bool HasProducts(ResultKind kind) {
  return kind == ResultKind::kGatheredAndProducts || kind == ResultKind::kWholeAndProducts;
}

// One overload of an op. Its arguments stand in the schema's order, as torch_ops.def has them.
struct Overload {
  const char* python_op;  // "tandem::_all_reduce": Python's kernel for the calls that the table does not have
  const char* name;       // "out"; "" for the default overload
  ResultKind result;
  std::span<const ArgumentKind> arguments;
};

struct DeleteList {
  using pointer = StableListHandle;
  void operator()(StableListHandle list) const { (void)torch_delete_list(list); }
};
using UniqueList = std::unique_ptr<StableListHandle, DeleteList>;

// Puts the products into a list, and before it the gathered A, which is behind them. The tensors stay the
// caller's if it throws.
void ReturnProducts(ResultKind kind, std::span<const AtenTensorHandle> tensors, size_t products,
                    StableIValue* stack) {
  const bool whole = kind == ResultKind::kWholeAndProducts;
  if (tensors.size() < products + (whole ? 1 : 0)) throw std::runtime_error("tandem: results are missing");
  StableListHandle made = nullptr;
  CheckTorch(torch_new_list_reserve_size(products, &made), "makes a list");
  UniqueList list(made);
  for (AtenTensorHandle product : tensors.first(products)) {
    CheckTorch(torch_list_push_back(list.get(), Boxed(product)), "fills a list");
  }
  if (whole) {
    stack[0] = Boxed(tensors[products]);
  } else {
    stack[0] = Boxed(tensors.size() > products ? new StableIValue(Boxed(tensors[products])) : nullptr);
  }
  stack[1] = Boxed(list.release());
}

// The tensors that a kernel or Python has made. Deletes those that torch has not got.
class CallResults {
 public:
  CallResults() = default;
  ~CallResults() {
    for (AtenTensorHandle tensor : tensors()) (void)aoti_torch_delete_tensor_object(tensor);
  }
  CallResults(const CallResults&) = delete;
  CallResults& operator=(const CallResults&) = delete;

  void Allocate(const ResultForm& form, const CallRows& rows, const CallTensor& like) {
    std::array<int64_t, kMaxDims> shape;
    if (form.shape.size() > shape.size()) throw std::runtime_error("tandem: a result of so many dimensions");
    std::copy(form.shape.begin(), form.shape.end(), shape.begin());
    if (form.rows) shape[0] = rows.Extent(shape[0]);
    CheckTorch(aoti_torch_empty_strided(static_cast<int64_t>(form.shape.size()), shape.data(),
                                        form.strides.data(), TorchDType(form.dtype), like.device_type,
                                        like.device_index, &tensors_[count_]),
               "allocates a result");
    ++count_;
  }
  // Takes what the list has, but for what is too much. The list stays the caller's.
  void Take(StableListHandle list) {
    size_t size = 0;
    CheckTorch(torch_list_size(list, &size), "reads a list");
    for (size_t i = 0; i < std::min(size, tensors_.size()); ++i) {
      StableIValue tensor = 0;
      CheckTorch(torch_list_get_item(list, i, &tensor), "reads a list");
      tensors_[count_++] = Unboxed<AtenTensorHandle>(tensor);
    }
  }
  std::span<const AtenTensorHandle> tensors() const { return {tensors_.data(), count_}; }

  // Gives them to torch as the op's results. A tensor behind the `products` is the gathered A. Others were for
  // the launch alone, and go.
  void Return(ResultKind kind, size_t products, StableIValue* stack) {
    size_t returned = 0;
    if (kind == ResultKind::kTensor) {
      stack[0] = Boxed(tensors_[0]);
      returned = 1;
    } else if (HasProducts(kind)) {
      ReturnProducts(kind, tensors(), products, stack);
      returned = count_;
    }
    for (AtenTensorHandle tensor : tensors().subspan(returned)) (void)aoti_torch_delete_tensor_object(tensor);
    count_ = 0;
  }

 private:
  static constexpr size_t kMaxDims = 64;  // torch's own bound

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
  const UniqueList list(Unboxed<StableListHandle>(stack[0]));
  CallResults results;
  results.Take(list.get());
  results.Return(kind, products, stack);
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
  PlanTable::Found found = ThePlanTable().Find(arguments.group_name(), key);
  if (found.plan == nullptr) return false;
  for (const ResultForm& form : found.plan->results) {
    results->Allocate(form, found.rows, arguments.tensors().front());
  }
  if (found.plan->may_be_symmetric != 0 && (found.symmetric != nullptr || found.plan->symmetric != 0)) {
    static const SymmetricRanges none;
    const SymmetricRanges& ranges = found.symmetric != nullptr ? *found.symmetric : none;
    const uint32_t symmetric =
        SymmetricSlots(*found.plan, found.rows, ranges, arguments.tensors(), results->tensors());
    if (symmetric != found.plan->symmetric) found = ThePlanTable().FindSymmetric(found.group, key, symmetric);
    if (found.plan == nullptr) return false;
  }
  RunOutcome outcome =
      RunPlan(*found.group, *found.plan, found.rows, arguments.tensors(), results->tensors(), &WaitOn);
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

// KERNEL(function, op, overload, schema of the arguments, result) defines a boxed kernel.
#define TANDEM_TORCH_KERNEL(function, op, overload, schema, kind)               \
  void function(StableIValue* stack, uint64_t, uint64_t) {                      \
    static constexpr auto kinds = SchemaKinds<CountArguments(schema)>(schema);  \
    static constexpr Overload described{"tandem::_" op, overload, kind, kinds}; \
    Run(described, stack);                                                      \
  }

#define TANDEM_TORCH_OP_SEVERAL(function, name, types, arguments, into, outs, result)             \
  TANDEM_TORCH_KERNEL(function, #name, "", arguments, ResultOf(result))                           \
  TANDEM_TORCH_KERNEL(function##Out, #name, "out", into ", " outs, ResultKind::kNothing)          \
  TANDEM_TORCH_KERNEL(function##Noted, #name, "noted", arguments ", str graph", ResultOf(result)) \
  TANDEM_TORCH_KERNEL(function##NotedOut, #name, "noted_out", into ", str graph, " outs, ResultKind::kNothing)
#define TANDEM_TORCH_OP(function, name, types, arguments, out) \
  TANDEM_TORCH_OP_SEVERAL(function, name, types, arguments, arguments, out, "Tensor")
#define TANDEM_TORCH_OP_IN_PLACE(function, name, arguments) \
  TANDEM_TORCH_KERNEL(function, #name, "", arguments, ResultKind::kNothing)
#include "client/torch/torch_ops.def"

void RegisterAll(torch::stable::detail::StableLibrary& library) {
#define TANDEM_TORCH_OP_SEVERAL(function, name, types, arguments, into, outs, result) \
  library.impl(#name, &function).impl(#name ".out", &function##Out);                  \
  library.impl(#name ".noted", &function##Noted).impl(#name ".noted_out", &function##NotedOut);
#define TANDEM_TORCH_OP(function, name, types, arguments, out) \
  TANDEM_TORCH_OP_SEVERAL(function, name, types, arguments, arguments, out, "Tensor")
#define TANDEM_TORCH_OP_IN_PLACE(function, name, arguments) library.impl(#name, &function);
#include "client/torch/torch_ops.def"
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(tandem, CPU, library) { RegisterAll(library); }
STABLE_TORCH_LIBRARY_IMPL(tandem, CUDA, library) { RegisterAll(library); }

}  // namespace tandem::torch_ops
