// File: values.h
//
// Elements of NCCL's types as numbers, and reductions of them. Tests use small integers, which all types have.
#pragma once

#include <nccl.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "tandem/dtype.h"

namespace tandem::nccl_test {

inline size_t SizeOf(ncclDataType_t type) {
  constexpr size_t sizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
  return sizes[type];
}

template <typename T>
double LoadAs(const void* base, size_t index) {
  T value;
  std::memcpy(&value, static_cast<const std::byte*>(base) + index * sizeof(T), sizeof(T));
  return static_cast<double>(value);
}
template <typename T>
void StoreAs(void* base, size_t index, T value) {
  std::memcpy(static_cast<std::byte*>(base) + index * sizeof(T), &value, sizeof(T));
}

inline double Load(const void* base, ncclDataType_t type, size_t index) {
  switch (type) {
    case ncclInt8: return LoadAs<int8_t>(base, index);
    case ncclUint8: return LoadAs<uint8_t>(base, index);
    case ncclInt32: return LoadAs<int32_t>(base, index);
    case ncclUint32: return LoadAs<uint32_t>(base, index);
    case ncclInt64: return LoadAs<int64_t>(base, index);
    case ncclUint64: return LoadAs<uint64_t>(base, index);
    case ncclFloat32: return LoadAs<float>(base, index);
    case ncclFloat64: return LoadAs<double>(base, index);
    case ncclFloat16: return LoadAsFloat(base, DType::kF16, index);
    case ncclBfloat16: return LoadAsFloat(base, DType::kBf16, index);
    case ncclFloat8e4m3: return LoadAsFloat(base, DType::kF8E4M3, index);
    default: return LoadAsFloat(base, DType::kF8E5M2, index);
  }
}

inline void Store(void* base, ncclDataType_t type, size_t index, double value) {
  const auto whole = static_cast<int64_t>(value);
  switch (type) {
    case ncclInt8: return StoreAs(base, index, static_cast<int8_t>(whole));
    case ncclUint8: return StoreAs(base, index, static_cast<uint8_t>(whole));
    case ncclInt32: return StoreAs(base, index, static_cast<int32_t>(whole));
    case ncclUint32: return StoreAs(base, index, static_cast<uint32_t>(whole));
    case ncclInt64: return StoreAs(base, index, whole);
    case ncclUint64: return StoreAs(base, index, static_cast<uint64_t>(whole));
    case ncclFloat32: return StoreAs(base, index, static_cast<float>(value));
    case ncclFloat64: return StoreAs(base, index, value);
    case ncclFloat16: return StoreFromFloat(base, DType::kF16, index, static_cast<float>(value));
    case ncclBfloat16: return StoreFromFloat(base, DType::kBf16, index, static_cast<float>(value));
    case ncclFloat8e4m3: return StoreFromFloat(base, DType::kF8E4M3, index, static_cast<float>(value));
    default: return StoreFromFloat(base, DType::kF8E5M2, index, static_cast<float>(value));
  }
}

inline double Reduced(std::span<const double> values, ncclRedOp_t reduction) {
  double result = values[0];
  for (const double value : values.subspan(1)) {
    switch (reduction) {
      case ncclProd: result *= value; break;
      case ncclMax: result = std::max(result, value); break;
      case ncclMin: result = std::min(result, value); break;
      default: result += value; break;
    }
  }
  return reduction == ncclAvg ? result / static_cast<double>(values.size()) : result;
}

}  // namespace tandem::nccl_test
