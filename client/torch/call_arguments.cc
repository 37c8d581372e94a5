#include "client/torch/call_arguments.h"

#include <bit>
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

// Whether elements lie in one place: such a tensor cannot be written, and Python's kernel says so.
bool SharesElements(std::span<const int64_t> shape, std::span<const int64_t> strides) {
  for (size_t i = 0; i < shape.size(); ++i) {
    if (shape[i] > 1 && strides[i] == 0) return true;
  }
  return false;
}

// The kind of a value. Values of other kinds own nothing.
enum class Holds : uint8_t { kPlain, kTensor, kText, kOptional, kList };
struct Form {
  Holds holds = Holds::kPlain;
  ArgumentKind inner = ArgumentKind::kInt;  // of an optional, or of a list's elements
};

constexpr Form FormOf(ArgumentKind kind) {
  switch (kind) {
    case ArgumentKind::kTensor: return {Holds::kTensor};
    case ArgumentKind::kOptionalTensor: return {Holds::kOptional, ArgumentKind::kTensor};
    case ArgumentKind::kTensors: return {Holds::kList, ArgumentKind::kTensor};
    case ArgumentKind::kOptionalTensors: return {Holds::kOptional, ArgumentKind::kTensors};
    case ArgumentKind::kTensorsOrNone: return {Holds::kList, ArgumentKind::kOptionalTensor};
    case ArgumentKind::kInts: return {Holds::kList, ArgumentKind::kInt};
    case ArgumentKind::kOptionalInts: return {Holds::kOptional, ArgumentKind::kInts};
    case ArgumentKind::kBools: return {Holds::kList, ArgumentKind::kBool};
    case ArgumentKind::kOptionalType: return {Holds::kOptional, ArgumentKind::kType};
    case ArgumentKind::kTypesOrNone: return {Holds::kList, ArgumentKind::kOptionalType};
    case ArgumentKind::kText:
    case ArgumentKind::kGroupName: return {Holds::kText};
    case ArgumentKind::kInt:
    case ArgumentKind::kBool:
    case ArgumentKind::kFloat:
    case ArgumentKind::kType: return {};
  }
  return {};
}

void Release(StableIValue value, ArgumentKind kind) {
  const Form form = FormOf(kind);
  switch (form.holds) {
    case Holds::kPlain: return;
    case Holds::kTensor: (void)aoti_torch_delete_tensor_object(As<AtenTensorHandle>(value)); return;
    case Holds::kText: (void)torch_delete_string(As<StringHandle>(value)); return;
    case Holds::kOptional:
      if (auto* inner = As<StableIValue*>(value); inner != nullptr) {
        Release(*inner, form.inner);
        delete inner;
      }
      return;
    case Holds::kList: {  // deleting a list does not delete its elements
      const auto list = As<StableListHandle>(value);
      size_t size = 0;
      if (torch_list_size(list, &size) != AOTI_TORCH_SUCCESS) size = 0;
      for (size_t i = 0; i < size; ++i) {
        StableIValue element = 0;
        if (torch_list_get_item(list, i, &element) == AOTI_TORCH_SUCCESS) Release(element, form.inner);
      }
      (void)torch_delete_list(list);
      return;
    }
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
  const bool shares = !tensor.contiguous && SharesElements(tensor.shape, tensor.strides);
  key->Add(byte(dims) | byte(tensor.dtype) << 8 | byte(tensor.device_type) << 16 |
           byte(tensor.device_index) << 24 | uint64_t{shares} << 32);
  key->AddShape(tensor.shape);
  if (tensor.device_type != aoti_torch_device_type_cpu()) key->Add(tensor.strides);
  return dims <= 0xFF;
}

bool CallArguments::AddList(StableListHandle list, ArgumentKind element, CallKey* key) {
  size_t size = 0;
  CheckTorch(torch_list_size(list, &size), "reads a list");
  key->Add(size);
  if (first_list_ == 0) first_list_ = size;
  for (size_t i = 0; i < size; ++i) {
    StableIValue value = 0;
    CheckTorch(torch_list_get_item(list, i, &value), "reads a list");
    if (!Add(value, element, key)) return false;
  }
  return true;
}

bool CallArguments::Add(StableIValue value, ArgumentKind kind, CallKey* key) {
  const Form form = FormOf(kind);
  switch (form.holds) {
    case Holds::kTensor: return AddTensor(As<AtenTensorHandle>(value), key);
    case Holds::kList: return AddList(As<StableListHandle>(value), form.inner, key);
    case Holds::kOptional: {
      const auto* inner = As<const StableIValue*>(value);
      key->Add(inner == nullptr ? 0 : 1);
      return inner == nullptr || Add(*inner, form.inner, key);
    }
    case Holds::kText:
      if (kind == ArgumentKind::kGroupName) {
        group_name_ = Text(value);
      } else {
        key->Add(Text(value));
      }
      return true;
    case Holds::kPlain: break;
  }
  if (kind == ArgumentKind::kBool) {
    key->Add(As<bool>(value) ? 1 : 0);
  } else if (kind == ArgumentKind::kFloat) {
    key->Add(std::bit_cast<uint64_t>(As<double>(value)));
  } else if (kind == ArgumentKind::kType) {
    key->Add(As<uint32_t>(value));
  } else {
    key->Add(static_cast<uint64_t>(As<int64_t>(value)));
  }
  return true;
}

bool CallArguments::Read(CallKey* key) {
  for (size_t i = 0; i < kinds_.size(); ++i) {
    if (!Add(stack_[i], kinds_[i], key)) return false;
  }
  return !key->overflowed();
}

}  // namespace tandem::torch_ops
