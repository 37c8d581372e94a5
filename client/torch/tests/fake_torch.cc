#include "client/torch/tests/fake_torch.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <memory>
#include <string_view>
#include <utility>

#include "client/torch/torch_ops.h"

namespace tandem::torch_ops {
namespace {

constexpr int64_t kElements = 64;
constexpr size_t kBytes = kElements * sizeof(float);
constexpr int32_t kFloat = 6;

struct FakeTensor {
  std::array<int64_t, 1> shape = {kElements}, strides = {1};
  std::vector<float> data = std::vector<float>(kElements);
};
struct FakeStatus {
  int code;
  std::string message, reason;
};
using FakeList = std::vector<StableIValue>;

std::array<std::byte, 4 * kBytes> staging;

template <typename T, typename... Arguments>
T* New(Arguments&&... arguments) {
  const InCall out(false);
  ++Fake().live;
  return new T{std::forward<Arguments>(arguments)...};
}
template <typename T>
void Delete(void* object) {
  if (object == nullptr) return;
  const InCall out(false);
  --Fake().live;
  delete static_cast<T*>(object);
}

StableIValue Boxed(const void* handle) { return reinterpret_cast<uintptr_t>(handle); }
template <typename T>
T* As(StableIValue value) {
  return reinterpret_cast<T*>(static_cast<uintptr_t>(value));
}

// Sets what a function returns, unless the function is to fail.
template <typename T>
AOTITorchError Give(T* result, T value) {
  if (!Fake().shims.Spend()) return AOTI_TORCH_FAILURE;
  *result = value;
  return AOTI_TORCH_SUCCESS;
}

std::map<std::string, Kernel, std::less<>>& TheKernels() {
  static std::map<std::string, Kernel, std::less<>> kernels;
  return kernels;
}

tandem_status* NewStatus(int code, const char* message, const char* reason) {
  return reinterpret_cast<tandem_status*>(New<FakeStatus>(code, message, reason));
}
const FakeStatus& Read(const tandem_status* status) { return *reinterpret_cast<const FakeStatus*>(status); }

tandem_status* Launch(tandem_plan*, tandem_stream*, const tandem_binding* bindings, size_t count,
                      const tandem_launch_options*) {
  if (Fake().launches_fail)
    return NewStatus(TANDEM_UNAVAILABLE, "a peer has ended, which takes a text of some length", "PEER");
  for (size_t i = 1; i < count; ++i) {
    std::memcpy(staging.data() + bindings[i].offset, staging.data() + bindings[0].offset, kBytes);
  }
  Fake().in_flight = Fake().wait_is_long;
  return nullptr;
}
tandem_status* LaunchOnCuda(tandem_plan*, void*, void* const*, size_t, const tandem_launch_options*) {
  return nullptr;
}
// A long launch ends at its second wait.
tandem_status* Wait(tandem_plan*, int64_t) {
  if (std::exchange(Fake().wait_is_long, false))
    return NewStatus(TANDEM_DEADLINE_EXCEEDED, "it has not ended", "NOT_ENDED");
  Fake().in_flight = false;
  return nullptr;
}

// Adds a plan that copies the first argument to each result, and its call.
void AddPlan(size_t results) {
  const InCall in(true);
  const int64_t shape[] = {kElements};
  std::array<tandem_torch_slot, 3> slots{};
  std::array<tandem_torch_result, 2> forms{};
  slots[0] = {TANDEM_TORCH_ARGUMENT, 0, 0, TANDEM_TORCH_NEVER, kBytes, 0};
  for (size_t i = 0; i < results; ++i) {
    slots[i + 1] = {TANDEM_TORCH_RESULT,     static_cast<int>(i), 1, TANDEM_TORCH_ELSEWHERE, kBytes,
                    uint64_t{i + 1} * kBytes};
    forms[i] = {TANDEM_DTYPE_F32, 1, shape, 0};
  }
  const tandem_torch_plan plan = {.plan = reinterpret_cast<tandem_plan*>(&staging),
                                  .stream = reinterpret_cast<tandem_stream*>(&staging),
                                  .deadline_ms = 0,
                                  .rows = -1,
                                  .slot_count = results + 1,
                                  .slots = slots.data(),
                                  .result_count = results,
                                  .results = forms.data(),
                                  .staging_bytes = staging.size(),
                                  .family = {}};
  const uint64_t added = tandem_torch_add_plan(Fake().group, &plan);
  tandem_torch_add_call(Fake().group, added);
}

void RunAllReduce(StableIValue* stack) {
  const float value = ValueOf(stack[0]);
  DeleteTensor(stack[0]);
  Delete<std::string>(As<void>(stack[1]));
  Delete<std::string>(As<void>(stack[2]));
  AddPlan(1);
  stack[0] = NewTensor(value);
}

// The products, and behind them the gathered A.
void RunAllGatherMatmul(StableIValue* stack) {
  const float value = ValueOf(stack[0]);
  DeleteTensor(stack[0]);
  for (StableIValue tensor : TakeList(stack[1])) DeleteTensor(tensor);
  Delete<std::string>(As<void>(stack[3]));
  AddPlan(2);
  stack[0] = Fake().python_fails ? NewList({}) : NewList({NewTensor(value), NewTensor(value)});
}

}  // namespace

FakeTorch& Fake() {
  thread_local FakeTorch fake;
  return fake;
}

void UseFakeLibrary() {
  const tandem_torch_functions functions = {
      .launch_with_options = &Launch,
      .launch_cuda_pointers_with_options = &LaunchOnCuda,
      .plan_wait = &Wait,
      .status_code = [](const tandem_status* status) { return Read(status).code; },
      .status_message = [](const tandem_status* status) { return Read(status).message.c_str(); },
      .status_reason = [](const tandem_status* status) { return Read(status).reason.c_str(); },
      .status_free = &DeleteStatus};
  tandem_torch_use(&functions);
  tandem_torch_set_staging(Fake().group, nullptr, staging.data(), staging.size());
}

Kernel KernelOf(const std::string& name) { return TheKernels().at(name); }

StableIValue NewTensor(float value) {
  auto* tensor = New<FakeTensor>();
  std::fill(tensor->data.begin(), tensor->data.end(), value);
  return Boxed(tensor);
}
StableIValue NewText(const std::string& text) { return Boxed(New<std::string>(text)); }
StableIValue NewList(const std::vector<StableIValue>& elements) {
  const InCall out(false);
  ++Fake().live;
  return Boxed(new FakeList(elements));
}
float ValueOf(StableIValue tensor) { return As<FakeTensor>(tensor)->data.front(); }
void DeleteStatus(tandem_status* status) { Delete<FakeStatus>(status); }
void DeleteTensor(StableIValue tensor) { Delete<FakeTensor>(As<void>(tensor)); }
std::vector<StableIValue> TakeList(StableIValue list) {
  const InCall out(false);
  std::vector<StableIValue> elements = *As<FakeList>(list);
  Delete<FakeList>(As<void>(list));
  return elements;
}

}  // namespace tandem::torch_ops

using namespace tandem::torch_ops;  // NOLINT: this part is all glue
using tandem::InCall;

extern "C" {

uint64_t aoti_torch_abi_version() { return 0; }
int32_t aoti_torch_device_type_cpu() { return 0; }
int32_t aoti_torch_dtype_float32() { return kFloat; }
int32_t aoti_torch_dtype_float16() { return 5; }
int32_t aoti_torch_dtype_bfloat16() { return 15; }
int32_t aoti_torch_dtype_float8_e4m3fn() { return 24; }
int32_t aoti_torch_dtype_float8_e5m2() { return 23; }
int32_t aoti_torch_dtype_int32() { return 3; }
int32_t aoti_torch_dtype_int64() { return 4; }
int32_t aoti_torch_dtype_uint8() { return 0; }

AOTITorchError aoti_torch_library_init_impl(const char*, const char* key, const char*, uint32_t,
                                            TorchLibraryHandle* library) {
  *library = reinterpret_cast<TorchLibraryHandle>(const_cast<char*>(key));
  return AOTI_TORCH_SUCCESS;
}
AOTITorchError aoti_torch_library_init_def(const char*, const char*, uint32_t, TorchLibraryHandle*) {
  return AOTI_TORCH_FAILURE;  // Python defines the ops
}
AOTITorchError aoti_torch_library_init_fragment(const char*, const char*, uint32_t, TorchLibraryHandle*) {
  return AOTI_TORCH_FAILURE;
}
AOTITorchError torch_library_impl(TorchLibraryHandle library, const char* name, Kernel kernel, uint64_t) {
  if (reinterpret_cast<const char*>(library) == std::string_view("CPU")) TheKernels()[name] = kernel;
  return AOTI_TORCH_SUCCESS;
}
AOTITorchError aoti_torch_delete_library_object(TorchLibraryHandle) { return AOTI_TORCH_SUCCESS; }

AOTITorchError aoti_torch_get_dim(AtenTensorHandle, int64_t* dims) { return Give(dims, int64_t{1}); }
AOTITorchError aoti_torch_get_sizes(AtenTensorHandle tensor, int64_t** sizes) {
  return Give(sizes, reinterpret_cast<FakeTensor*>(tensor)->shape.data());
}
AOTITorchError aoti_torch_get_strides(AtenTensorHandle tensor, int64_t** strides) {
  return Give(strides, reinterpret_cast<FakeTensor*>(tensor)->strides.data());
}
AOTITorchError aoti_torch_get_dtype(AtenTensorHandle, int32_t* dtype) { return Give(dtype, kFloat); }
AOTITorchError aoti_torch_get_device_type(AtenTensorHandle, int32_t* type) { return Give(type, 0); }
AOTITorchError aoti_torch_get_device_index(AtenTensorHandle, int32_t* index) { return Give(index, -1); }
AOTITorchError aoti_torch_get_data_ptr(AtenTensorHandle tensor, void** data) {
  return Give(data, static_cast<void*>(reinterpret_cast<FakeTensor*>(tensor)->data.data()));
}
AOTITorchError aoti_torch_empty_strided(int64_t, const int64_t*, const int64_t*, int32_t, int32_t, int32_t,
                                        AtenTensorHandle* tensor) {
  if (!Fake().shims.Spend()) return AOTI_TORCH_FAILURE;
  *tensor = As<AtenTensorOpaque>(NewTensor(-1));
  return AOTI_TORCH_SUCCESS;
}
AOTITorchError aoti_torch_create_tensor_from_blob(void*, int64_t, const int64_t*, const int64_t*, int64_t,
                                                  int32_t, int32_t, int32_t, AtenTensorHandle*) {
  return AOTI_TORCH_FAILURE;  // tensors of this torch are contiguous
}
AOTITorchError aoti_torch_copy_(AtenTensorHandle, AtenTensorHandle, int32_t) { return AOTI_TORCH_FAILURE; }
AOTITorchError aoti_torch_delete_tensor_object(AtenTensorHandle tensor) {
  Delete<FakeTensor>(tensor);
  return AOTI_TORCH_SUCCESS;
}

AOTITorchError torch_string_c_str(StringHandle text, const char** data) {
  return Give(data, reinterpret_cast<std::string*>(text)->c_str());
}
AOTITorchError torch_string_length(StringHandle text, size_t* length) {
  return Give(length, reinterpret_cast<std::string*>(text)->size());
}
AOTITorchError torch_delete_string(StringHandle text) {
  Delete<std::string>(text);
  return AOTI_TORCH_SUCCESS;
}

AOTITorchError torch_new_list_reserve_size(size_t, StableListHandle* list) {
  if (!Fake().shims.Spend()) return AOTI_TORCH_FAILURE;
  *list = As<StableListOpaque>(NewList({}));
  return AOTI_TORCH_SUCCESS;
}
// Reads of lists do not fail, since nobody could delete the elements then.
AOTITorchError torch_list_size(StableListHandle list, size_t* size) {
  *size = reinterpret_cast<FakeList*>(list)->size();
  return AOTI_TORCH_SUCCESS;
}
AOTITorchError torch_list_get_item(StableListHandle list, size_t index, StableIValue* element) {
  *element = reinterpret_cast<FakeList*>(list)->at(index);
  return AOTI_TORCH_SUCCESS;
}
AOTITorchError torch_list_push_back(StableListHandle list, StableIValue element) {
  if (!Fake().shims.Spend()) return AOTI_TORCH_FAILURE;
  const InCall out(false);
  reinterpret_cast<FakeList*>(list)->push_back(element);
  return AOTI_TORCH_SUCCESS;
}
AOTITorchError torch_delete_list(StableListHandle list) {
  Delete<FakeList>(list);
  return AOTI_TORCH_SUCCESS;
}

// Python. Arguments of a call that fails are torch's all the same.
AOTITorchError torch_call_dispatcher(const char* name, const char*, StableIValue* stack, uint64_t) {
  const std::string_view op(name);
  if (op == "tandem::_wait") {
    if (!Fake().shims.Spend()) return AOTI_TORCH_FAILURE;
    Fake().in_flight = false;
    if (Fake().python_fails) tandem_torch_fail("a signal's handler has raised");
    return AOTI_TORCH_SUCCESS;
  }
  const InCall out(false);
  if (Fake().python_fails) {
    const InCall in(true);
    tandem_torch_fail("a failure of Python whose text is of some length");
  }
  if (op == "tandem::_all_reduce") RunAllReduce(stack);
  if (op == "tandem::_all_gather_matmul") RunAllGatherMatmul(stack);
  return AOTI_TORCH_SUCCESS;
}

}  // extern "C"
