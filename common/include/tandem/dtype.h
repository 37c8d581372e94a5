// File: dtype.h
//
// Names of element types, and the conversions between them and float. Conversions round to
// nearest even; e4m3 saturates to ±448 and has no infinity (OCP FP8), e5m2 overflows to infinity.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "tandem/element_type.h"
#include "tandem/status.h"

namespace tandem {

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
