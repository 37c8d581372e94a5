// File: element_type.h
//
// `DType`, the element types of tensors. Apart from dtype.h: device code need not see the status type.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tandem {

// Element types.
enum class DType : uint8_t {
  kF32 = 0,
  kF16 = 1,
  kBf16 = 2,
  // OCP FP8, saturating at +-448, without infinities
  kF8E4M3 = 3,
  // OCP FP8
  kF8E5M2 = 4,
  kI32 = 5,
  kI64 = 6,
  kU8 = 7,
};

// Bytes of one element.
constexpr size_t DTypeBytes(DType type) {
  switch (type) {
    case DType::kI64: return 8;
    case DType::kF32:
    case DType::kI32: return 4;
    case DType::kF16:
    case DType::kBf16: return 2;
    case DType::kF8E4M3:
    case DType::kF8E5M2:
    case DType::kU8: return 1;
  }
  return 0;
}
constexpr bool IsFloat8(DType type) { return type == DType::kF8E4M3 || type == DType::kF8E5M2; }
constexpr bool IsFloating(DType type) { return type <= DType::kF8E5M2; }
constexpr bool IsValid(DType type) { return static_cast<uint8_t>(type) <= 7; }

}  // namespace tandem
