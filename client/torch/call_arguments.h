// File: call_arguments.h
//
// The arguments of a boxed call of an op, on torch's stable ABI.
#pragma once

#include <torch/csrc/stable/c/shim.h>

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

#include "client/torch/argument_kind.h"
#include "client/torch/call_key.h"

namespace tandem::torch_ops {

// Raises RuntimeError if a function of torch's shim has failed. torch has printed why.
void CheckTorch(AOTITorchError error, const char* what);

// A tensor of a call. Extents belong to the tensor.
struct CallTensor {
  AtenTensorHandle handle = nullptr;
  bool contiguous = false;
  int32_t dtype = 0, device_type = 0, device_index = 0;  // torch's numbers
  void* data = nullptr;
  std::span<const int64_t> shape, strides;
};

// Owns the arguments on the stack until they are handed on.
class CallArguments {
 public:
  static constexpr size_t kMaxTensors = 28;  // slots of a request

  CallArguments(StableIValue* stack, std::span<const ArgumentKind> kinds) : stack_(stack), kinds_(kinds) {}
  ~CallArguments();
  CallArguments(const CallArguments&) = delete;
  CallArguments& operator=(const CallArguments&) = delete;

  // Reads the arguments, and adds all that the call's plan depends on to the key: strides on CUDA only, since
  // CPU tensors are copied. For CPU tensors the key has only whether elements share memory. Returns false for
  // a call that has no key. Throws if torch fails.
  bool Read(CallKey* key);
  std::string_view group_name() const { return group_name_; }
  // In the schema's order; optional ones that were left out are not among them.
  std::span<const CallTensor> tensors() const { return {tensors_.data(), count_}; }
  // Elements of the first list of tensors; 0 if there is none.
  size_t first_list() const { return first_list_; }

  // Leaves the arguments to whoever gets the stack. Texts and tensors are not to be used after it.
  void HandOn() { handed_on_ = true; }

 private:
  bool AddTensor(AtenTensorHandle handle, CallKey* key);
  bool AddList(StableListHandle list, ArgumentKind element, CallKey* key);
  bool Add(StableIValue value, ArgumentKind kind, CallKey* key);

  StableIValue* const stack_;
  const std::span<const ArgumentKind> kinds_;
  std::string_view group_name_;
  std::array<CallTensor, kMaxTensors> tensors_;
  size_t count_ = 0, first_list_ = 0;
  bool handed_on_ = false;
};

}  // namespace tandem::torch_ops
