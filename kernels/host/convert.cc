#include "kernels/host/convert.h"

#include <array>
#include <bit>
#include <cstring>

namespace tandem::host {
namespace {

// Branch-free binary16 → float: the bits, moved into a float's fields, are the value times 2^-112, subnormals
// included.
inline float HalfToFloat(uint16_t half) {
  uint32_t magnitude = (half & 0x7fffu) << 13;
  float scaled = std::bit_cast<float>(magnitude) * 0x1p112f;
  uint32_t finite = std::bit_cast<uint32_t>(scaled);
  uint32_t special = magnitude | 0x7f800000u;
  uint32_t bits = magnitude >= (0x7c00u << 13) ? special : finite;
  return std::bit_cast<float>(bits | (static_cast<uint32_t>(half & 0x8000u) << 16));
}

// float → binary16, to nearest even, by selects (after F. Giesen, "Float->half variants",
// float_to_half_fast3_rtne).
inline uint16_t FloatToHalf(float value) {
  constexpr uint32_t kInfinity = 255u << 23;
  constexpr uint32_t kAboveHalf = (127u + 16u) << 23;  // 2^16: everything from here on is infinity
  constexpr uint32_t kSmallestNormal = 113u << 23;     // 2^-14
  constexpr uint32_t kDenormalMagic = ((127u - 15u) + (23u - 10u) + 1u) << 23;
  uint32_t bits = std::bit_cast<uint32_t>(value);
  uint32_t sign = bits & 0x80000000u;
  bits ^= sign;
  uint32_t special = bits > kInfinity ? 0x7e00u : 0x7c00u;
  uint32_t denormal =
      std::bit_cast<uint32_t>(std::bit_cast<float>(bits) + std::bit_cast<float>(kDenormalMagic)) -
      kDenormalMagic;
  uint32_t normal = (bits + ((15u - 127u) << 23) + 0xfffu + ((bits >> 13) & 1u)) >> 13;
  uint32_t half = bits >= kAboveHalf ? special : (bits < kSmallestNormal ? denormal : normal);
  return static_cast<uint16_t>(half | (sign >> 16));
}

inline float BfloatToFloat(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

inline uint16_t FloatToBfloat(float value) {
  uint32_t bits = std::bit_cast<uint32_t>(value);
  uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  uint32_t not_a_number = (bits >> 16) | 0x40u;
  return static_cast<uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? not_a_number : rounded);
}

using Table = std::array<float, 256>;

template <float (*Convert)(uint8_t)>
const Table& TableOf() {
  static const Table table = [] {
    Table values;
    for (int i = 0; i < 256; ++i) values[i] = Convert(static_cast<uint8_t>(i));
    return values;
  }();
  return table;
}

// The stride of 1 gets a separate loop, which vectorises. Elements are aligned to their size.
template <typename T, typename F>
void Load(const void* source, int64_t stride, int64_t count, float* out, F convert) {
  const T* elements = static_cast<const T*>(source);
  if (stride == 1) {
    for (int64_t i = 0; i < count; ++i) out[i] = convert(elements[i]);
  } else {
    for (int64_t i = 0; i < count; ++i) out[i] = convert(elements[i * stride]);
  }
}

template <typename T, typename F>
void Store(const float* values, int64_t count, void* destination, int64_t stride, F convert) {
  T* elements = static_cast<T*>(destination);
  if (stride == 1) {
    for (int64_t i = 0; i < count; ++i) elements[i] = convert(values[i]);
  } else {
    for (int64_t i = 0; i < count; ++i) elements[i * stride] = convert(values[i]);
  }
}

}  // namespace

void ConvertToFloat(const void* source, DType type, int64_t stride, int64_t count, float* out) {
  if (count <= 0) return;
  switch (type) {
    case DType::kF32:
      if (stride == 1) {
        std::memcpy(out, source, static_cast<size_t>(count) * sizeof(float));
      } else {
        Load<float>(source, stride, count, out, [](float value) { return value; });
      }
      return;
    case DType::kF16: Load<uint16_t>(source, stride, count, out, HalfToFloat); return;
    case DType::kBf16: Load<uint16_t>(source, stride, count, out, BfloatToFloat); return;
    case DType::kF8E4M3: {
      const float* table = TableOf<E4M3ToFloat>().data();
      Load<uint8_t>(source, stride, count, out, [table](uint8_t bits) { return table[bits]; });
      return;
    }
    case DType::kF8E5M2: {
      const float* table = TableOf<E5M2ToFloat>().data();
      Load<uint8_t>(source, stride, count, out, [table](uint8_t bits) { return table[bits]; });
      return;
    }
    case DType::kI32:
      Load<int32_t>(source, stride, count, out, [](int32_t value) { return static_cast<float>(value); });
      return;
    case DType::kI64:
      Load<int64_t>(source, stride, count, out, [](int64_t value) { return static_cast<float>(value); });
      return;
    case DType::kU8:
      Load<uint8_t>(source, stride, count, out, [](uint8_t value) { return static_cast<float>(value); });
      return;
  }
}

void ConvertFromFloat(const float* values, int64_t count, void* destination, DType type, int64_t stride) {
  if (count <= 0) return;
  switch (type) {
    case DType::kF32:
      if (stride == 1) {
        std::memcpy(destination, values, static_cast<size_t>(count) * sizeof(float));
      } else {
        Store<float>(values, count, destination, stride, [](float value) { return value; });
      }
      return;
    case DType::kF16: Store<uint16_t>(values, count, destination, stride, FloatToHalf); return;
    case DType::kBf16: Store<uint16_t>(values, count, destination, stride, FloatToBfloat); return;
    case DType::kF8E4M3: Store<uint8_t>(values, count, destination, stride, FloatToE4M3); return;
    case DType::kF8E5M2: Store<uint8_t>(values, count, destination, stride, FloatToE5M2); return;
    case DType::kI32:
    case DType::kI64:
    case DType::kU8:
      for (int64_t i = 0; i < count; ++i) {
        StoreFromFloat(destination, type, static_cast<size_t>(i * stride), values[i]);
      }
      return;
  }
}

}  // namespace tandem::host
