// File: dtype.h
//
// `DType`: the element types of tensors, and conversions between them and float. Conversions round to nearest
// even. e4m3 saturates to ±448 and has no infinity (OCP FP8); e5m2 overflows to infinity. All functions are
// pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "tandem/status.h"

namespace tandem {

enum class DType : uint8_t {
  kF32 = 0,
  kF16 = 1,
  kBf16 = 2,
  kF8E4M3 = 3,
  kF8E5M2 = 4,
  kI32 = 5,
  kI64 = 6,
  kU8 = 7
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

// "f32", "bf16", "f8e4m3", … and back; INVALID_ARGUMENT lists the names.
std::string_view DTypeName(DType type);
Result<DType> ParseDType(std::string_view name);

// Scalar conversions by bits.
float F16ToFloat(uint16_t bits);
uint16_t FloatToF16(float value);
float Bf16ToFloat(uint16_t bits);
uint16_t FloatToBf16(float value);
float E4M3ToFloat(uint8_t bits);
uint8_t FloatToE4M3(float value);
float E5M2ToFloat(uint8_t bits);
uint8_t FloatToE5M2(float value);

// Element `index` of an array of `type`, as float, and back. Integers convert by value.
float LoadAsFloat(const void* base, DType type, size_t index);
void StoreFromFloat(void* base, DType type, size_t index, float value);

}  // namespace tandem
