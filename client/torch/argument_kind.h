// File: argument_kind.h
//
// The types of arguments that kernels of torch.ops.tandem take. Knows nothing of torch.
#pragma once

#include <cstdint>

namespace tandem::torch_ops {

enum class ArgumentKind : uint8_t {
  kTensor,
  kOptionalTensor,
  kTensors,
  kOptionalTensors,  // Tensor[]?
  kTensorsOrNone,    // Tensor?[]
  kInt,
  kInts,
  kOptionalInts,  // int[]?
  kBool,
  kBools,
  kFloat,
  kType,
  kOptionalType,  // ScalarType?
  kTypesOrNone,   // ScalarType?[]
  kText,
  kGroupName,
};

}  // namespace tandem::torch_ops
