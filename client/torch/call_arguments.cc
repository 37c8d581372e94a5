#include "client/torch/call_arguments.h"

#include <stdexcept>
#include <string>

namespace tandem::torch_ops {
namespace {

// Values lie in the lowest bytes of a StableIValue.
template <typename T>
T As(StableIValue value) {
  static_assert(sizeof(T) <= sizeof(value));
  T result;
  std::memcpy(&result, &value, sizeof(T));
  return result;
}

std::string_view Text(StableIValue value) {
  const auto handle = As<StringHandle>(value);
  const char* data = nullptr;
  size_t size = 0;
  CheckTorch(torch_string_c_str(handle, &data), "reads a text");
  CheckTorch(torch_string_length(handle, &size), "reads a text");
  return {data, size};
}

bool IsContiguous(std::span<const int64_t> shape, std::span<const int64_t> strides) {
  int64_t step = 1;
  for (size_t i = shape.size(); i-- > 0;) {
    if (shape[i] == 0) return true;
    if (shape[i] != 1 && strides[i] != step) return false;
    step *= shape[i];
  }
  return true;
}

// The list holds handles; deleting it does not delete them.
void ReleaseTensors(StableListHandle list) {
  size_t size = 0;
  if (torch_list_size(list, &size) != AOTI_TORCH_SUCCESS) size = 0;
  for (size_t i = 0; i < size; ++i) {
    StableIValue element = 0;
    if (torch_list_get_item(list, i, &element) == AOTI_TORCH_SUCCESS)
      (void)aoti_torch_delete_tensor_object(As<AtenTensorHandle>(element));
  }
  (void)torch_delete_list(list);
}

void Release(StableIValue value, ArgumentKind kind) {
  switch (kind) {
    case ArgumentKind::kTensor: (void)aoti_torch_delete_tensor_object(As<AtenTensorHandle>(value)); return;
    case ArgumentKind::kTensors: ReleaseTensors(As<StableListHandle>(value)); return;
    case ArgumentKind::kText:
    case ArgumentKind::kGroupName: (void)torch_delete_string(As<StringHandle>(value)); return;
    case ArgumentKind::kOptionalTensor:
    case ArgumentKind::kOptionalTensors:
      if (auto* inner = As<StableIValue*>(value); inner != nullptr) {
        Release(*inner,
                kind == ArgumentKind::kOptionalTensor ? ArgumentKind::kTensor : ArgumentKind::kTensors);
        delete inner;
      }
      return;
    case ArgumentKind::kInt:
    case ArgumentKind::kBool: return;
  }
}

}  // namespace

void CheckTorch(AOTITorchError error, const char* what) {
  if (error != AOTI_TORCH_SUCCESS)
    throw std::runtime_error(std::string("tandem: torch fails where it ") + what);
}

CallArguments::~CallArguments() {
  if (handed_on_) return;
  for (size_t i = 0; i < kinds_.size(); ++i) Release(stack_[i], kinds_[i]);
}

bool CallArguments::AddTensor(AtenTensorHandle handle, CallKey* key) {
  if (count_ == tensors_.size()) return false;
  CallTensor& tensor = tensors_[count_++];
  tensor.handle = handle;
  int64_t dims = 0;
  int64_t *shape = nullptr, *strides = nullptr;
  bool failed = aoti_torch_get_dim(handle, &dims) != AOTI_TORCH_SUCCESS;
  failed = failed || aoti_torch_get_sizes(handle, &shape) != AOTI_TORCH_SUCCESS;
  failed = failed || aoti_torch_get_strides(handle, &strides) != AOTI_TORCH_SUCCESS;
  failed = failed || aoti_torch_get_dtype(handle, &tensor.dtype) != AOTI_TORCH_SUCCESS;
  failed = failed || aoti_torch_get_device_type(handle, &tensor.device_type) != AOTI_TORCH_SUCCESS;
  failed = failed || aoti_torch_get_device_index(handle, &tensor.device_index) != AOTI_TORCH_SUCCESS;
  failed = failed || aoti_torch_get_data_ptr(handle, &tensor.data) != AOTI_TORCH_SUCCESS;
  CheckTorch(failed ? AOTI_TORCH_FAILURE : AOTI_TORCH_SUCCESS, "reads a tensor");
  tensor.shape = {shape, static_cast<size_t>(dims)};
  tensor.strides = {strides, static_cast<size_t>(dims)};
  tensor.contiguous = IsContiguous(tensor.shape, tensor.strides);
  const auto byte = [](int64_t value) { return static_cast<uint64_t>(value) & 0xFF; };
  key->Add(byte(dims) | byte(tensor.dtype) << 8 | byte(tensor.device_type) << 16 |
           byte(tensor.device_index) << 24);
  key->Add(tensor.shape);
  if (tensor.device_type != aoti_torch_device_type_cpu()) key->Add(tensor.strides);
  return dims <= 0xFF;
}

bool CallArguments::AddTensors(StableIValue list, CallKey* key) {
  const auto handle = As<StableListHandle>(list);
  size_t size = 0;
  CheckTorch(torch_list_size(handle, &size), "reads a list");
  key->Add(size);
  if (first_list_ == 0) first_list_ = size;
  for (size_t i = 0; i < size; ++i) {
    StableIValue element = 0;
    CheckTorch(torch_list_get_item(handle, i, &element), "reads a list");
    if (!AddTensor(As<AtenTensorHandle>(element), key)) return false;
  }
  return true;
}

bool CallArguments::Read(CallKey* key) {
  for (size_t i = 0; i < kinds_.size(); ++i) {
    const StableIValue value = stack_[i];
    bool known = true;
    switch (kinds_[i]) {
      case ArgumentKind::kTensor: known = AddTensor(As<AtenTensorHandle>(value), key); break;
      case ArgumentKind::kTensors: known = AddTensors(value, key); break;
      case ArgumentKind::kOptionalTensor:
      case ArgumentKind::kOptionalTensors: {
        const auto* inner = As<const StableIValue*>(value);
        key->Add(inner == nullptr ? 0 : 1);
        if (inner == nullptr) break;
        known = kinds_[i] == ArgumentKind::kOptionalTensor ? AddTensor(As<AtenTensorHandle>(*inner), key)
                                                           : AddTensors(*inner, key);
        break;
      }
      case ArgumentKind::kInt: key->Add(static_cast<uint64_t>(As<int64_t>(value))); break;
      case ArgumentKind::kBool: key->Add(As<bool>(value) ? 1 : 0); break;
      case ArgumentKind::kText: key->Add(Text(value)); break;
      case ArgumentKind::kGroupName: group_name_ = Text(value); break;
    }
    if (!known) return false;
  }
  return !key->overflowed();
}

}  // namespace tandem::torch_ops
