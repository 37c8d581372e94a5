#include "tandem/dtype.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <string>

#include "common/op_tables.h"

namespace tandem {
namespace {

// Rounds `value` to a small float of `exponent_bits` and `mantissa_bits` by nearest even, subnormals
// included. A value beyond the format's range keeps its sign and gets all exponent and mantissa bits set. A
// value that rounds up out of the range gets the exponent above the largest. The caller treats both as its
// format demands.
uint32_t RoundToSmall(float value, int exponent_bits, int mantissa_bits) {
  uint32_t bits = std::bit_cast<uint32_t>(value);
  uint32_t sign = bits >> 31;
  int exponent = static_cast<int>((bits >> 23) & 0xff) - 127;
  uint64_t mantissa = (bits & 0x7fffff) | (((bits >> 23) & 0xff) != 0 ? 0x800000u : 0u);
  int bias = (1 << (exponent_bits - 1)) - 1;
  int min_exponent = 1 - bias;
  int shift = 23 - mantissa_bits;
  int stored = exponent + bias;
  if (exponent < min_exponent) {
    shift += min_exponent - exponent;
    stored = 0;
  }
  if (shift > 40) shift = 40;
  uint64_t half = uint64_t{1} << (shift - 1);
  uint64_t rest = mantissa & ((uint64_t{1} << shift) - 1);
  uint64_t kept = mantissa >> shift;
  if (rest > half || (rest == half && (kept & 1) != 0)) ++kept;
  // `kept` includes the hidden bit for normal numbers, so adding it carries into the exponent by itself.
  uint64_t magnitude = stored == 0 ? kept : (static_cast<uint64_t>(stored - 1) << mantissa_bits) + kept;
  // Without the clamp a large exponent would run over into the sign bit and above it.
  uint64_t all_ones = (uint64_t{1} << (exponent_bits + mantissa_bits)) - 1;
  if (magnitude > all_ones) magnitude = all_ones;
  return static_cast<uint32_t>(magnitude) | (sign << (exponent_bits + mantissa_bits));
}

float FromSmall(uint32_t bits, int exponent_bits, int mantissa_bits) {
  uint32_t sign = (bits >> (exponent_bits + mantissa_bits)) & 1;
  int exponent = static_cast<int>((bits >> mantissa_bits) & ((1u << exponent_bits) - 1));
  uint32_t mantissa = bits & ((1u << mantissa_bits) - 1);
  int bias = (1 << (exponent_bits - 1)) - 1;
  float magnitude = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), 1 - bias - mantissa_bits)
                                  : std::ldexp(static_cast<float>(mantissa | (1u << mantissa_bits)),
                                               exponent - bias - mantissa_bits);
  return sign != 0 ? -magnitude : magnitude;
}

uint32_t SignOf(float value) { return std::bit_cast<uint32_t>(value) >> 31; }

}  // namespace

std::string_view DTypeName(DType type) { return IsValid(type) ? NameOf(type) : "invalid"; }

Result<DType> ParseDType(std::string_view name) {
  if (const auto type = ValueOf<DType>(name)) return *type;
  return InvalidArgument("dtype '" + std::string(name) + "' is none of " + ListedNames<DType>());
}

float F16ToFloat(uint16_t bits) {
  if ((bits & 0x7c00) == 0x7c00) {
    uint32_t wide = (static_cast<uint32_t>(bits & 0x8000) << 16) | 0x7f800000 |
                    (static_cast<uint32_t>(bits & 0x3ff) << 13);
    return std::bit_cast<float>(wide);
  }
  return FromSmall(bits, 5, 10);
}

uint16_t FloatToF16(float value) {
  uint32_t sign = SignOf(value) << 15;
  if (std::isnan(value)) return static_cast<uint16_t>(sign | 0x7e00);
  if (std::isinf(value)) return static_cast<uint16_t>(sign | 0x7c00);
  uint32_t bits = RoundToSmall(value, 5, 10);
  if ((bits & 0x7fff) >= 0x7c00) return static_cast<uint16_t>(sign | 0x7c00);
  return static_cast<uint16_t>(bits);
}

float Bf16ToFloat(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

uint16_t FloatToBf16(float value) {
  uint32_t bits = std::bit_cast<uint32_t>(value);
  if (std::isnan(value)) return static_cast<uint16_t>((bits >> 16) | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

float E4M3ToFloat(uint8_t bits) {
  if ((bits & 0x7f) == 0x7f) return std::nanf("");
  return FromSmall(bits, 4, 3);
}

uint8_t FloatToE4M3(float value) {
  uint32_t sign = SignOf(value) << 7;
  if (std::isnan(value)) return static_cast<uint8_t>(sign | 0x7f);
  if (std::fabs(value) > 448.0f) return static_cast<uint8_t>(sign | 0x7e);
  return static_cast<uint8_t>(RoundToSmall(value, 4, 3));
}

float E5M2ToFloat(uint8_t bits) { return F16ToFloat(static_cast<uint16_t>(bits << 8)); }

uint8_t FloatToE5M2(float value) {
  uint32_t sign = SignOf(value) << 7;
  if (std::isnan(value)) return static_cast<uint8_t>(sign | 0x7e);
  if (std::isinf(value)) return static_cast<uint8_t>(sign | 0x7c);
  uint32_t bits = RoundToSmall(value, 5, 2);
  if ((bits & 0x7f) >= 0x7c) return static_cast<uint8_t>(sign | 0x7c);
  return static_cast<uint8_t>(bits);
}

float LoadAsFloat(const void* base, DType type, size_t index) {
  const auto* bytes = static_cast<const unsigned char*>(base) + index * DTypeBytes(type);
  auto load = [bytes]<typename T>(T value) {
    std::memcpy(&value, bytes, sizeof(T));
    return value;
  };
  switch (type) {
    case DType::kF32: return load(float{});
    case DType::kF16: return F16ToFloat(load(uint16_t{}));
    case DType::kBf16: return Bf16ToFloat(load(uint16_t{}));
    case DType::kF8E4M3: return E4M3ToFloat(*bytes);
    case DType::kF8E5M2: return E5M2ToFloat(*bytes);
    case DType::kI32: return static_cast<float>(load(int32_t{}));
    case DType::kI64: return static_cast<float>(load(int64_t{}));
    case DType::kU8: return *bytes;
  }
  return 0;
}

void StoreFromFloat(void* base, DType type, size_t index, float value) {
  auto* bytes = static_cast<unsigned char*>(base) + index * DTypeBytes(type);
  auto store = [bytes](auto bits) { std::memcpy(bytes, &bits, sizeof(bits)); };
  switch (type) {
    case DType::kF32: store(value); break;
    case DType::kF16: store(FloatToF16(value)); break;
    case DType::kBf16: store(FloatToBf16(value)); break;
    case DType::kF8E4M3: store(FloatToE4M3(value)); break;
    case DType::kF8E5M2: store(FloatToE5M2(value)); break;
    case DType::kI32: store(static_cast<int32_t>(value)); break;
    case DType::kI64: store(static_cast<int64_t>(value)); break;
    case DType::kU8: store(static_cast<uint8_t>(value)); break;
  }
}

}  // namespace tandem
