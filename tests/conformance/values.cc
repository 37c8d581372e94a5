#include "tests/conformance/values.h"

#include <cmath>
#include <cstring>
#include <limits>

namespace tandem::conformance {
namespace {

double Uniform(uint64_t bits) { return static_cast<double>(bits >> 11) * 0x1p-52 - 1.0; }

bool IsScale(Role role) {
  return role == Role::kScaleA || role == Role::kScaleB || role == Role::kResultScale ||
         role == Role::kStaticScale;
}

// Sums over eight ranks, and products of short rows, stay exact: fp8 has two or three bits of mantissa.
double ExactValue(DType dtype, bool matmul, uint64_t bits) {
  if (IsFloat8(dtype)) return static_cast<double>(bits % 2);
  if (matmul) return static_cast<double>(bits % 5) - 2.0;
  if (!IsFloating(dtype)) return static_cast<double>(bits % 23);
  return static_cast<double>(bits % 17) - 8.0;
}

// One element in `period` is out of the ordinary.
double SpecialValue(DType dtype, bool matmul, uint64_t bits, double ordinary) {
  const uint64_t period = matmul ? 1009 : 53;  // one in a row of A spoils the whole row of C
  if (bits % period != 0) return ordinary;
  const double infinity = std::numeric_limits<double>::infinity();
  const bool finite = dtype == DType::kF8E4M3;  // which has no infinity
  switch (bits / period % 5) {
    case 0: return std::nan("");
    case 1: return finite ? std::nan("") : infinity;
    case 2: return finite ? 0.0 : -infinity;
    case 3: return -0.0;
    default: return dtype == DType::kF32 ? 0x1p-140 : dtype == DType::kF16 ? 0x1p-24 : 0x1p-16;
  }
}

// The patterns that collectives with a flag in the data are known to stumble over (nccl-tests, LL and Lamport
// kernels).
uint64_t SentinelBits(uint64_t bits) {
  static constexpr uint64_t kPatterns[] = {0x8000000080000000u, 0xfffafffafffafffau, 0xffffffffffffffffu, 0u,
                                           0x7fc000007fc00000u, 0x0000000100000001u};
  return kPatterns[bits % 6];
}

// Whether all ranks hold the same in this slot, by the operation's definition.
bool IsShared(const OpRequest& request, Role role, const TensorSpec& spec) {
  if (request.op == Op::kMatmulAllReduce) return role == Role::kBias || role == Role::kResultScale;
  if (request.op != Op::kAllGatherMatmul || role != Role::kScaleA) return false;
  return spec.shape != OwnScaleShape(request);
}

}  // namespace

bool HasBlockScales(const OpRequest& request) {
  const int slot = FindSlot(request, Role::kScaleB);
  if (slot < 0) return false;
  const std::vector<int64_t>& scale = request.operands[static_cast<size_t>(slot)].spec.shape;
  const int64_t n = request.operands[static_cast<size_t>(FindSlot(request, Role::kB))].spec.shape[1];
  return CountOf(scale) != 1 && scale != std::vector<int64_t>{1, n};
}

std::vector<int64_t> OwnScaleShape(const OpRequest& request) {
  std::vector<int64_t> shape = request.operands[static_cast<size_t>(FindSlot(request, Role::kA))].spec.shape;
  shape.back() = HasBlockScales(request) ? (shape.back() + kScaleBlock - 1) / kScaleBlock : 1;
  return shape;
}

std::vector<std::byte> MakeValues(const Case& test, int rank, int slot, uint64_t seed) {
  const OpRequest& request = test.requests[static_cast<size_t>(rank)];
  const auto& [role, spec, symmetric, alias] = request.operands[static_cast<size_t>(slot)];
  const size_t width = DTypeBytes(spec.dtype);
  const auto count = static_cast<size_t>(CountOf(spec.shape));
  const bool matmul = FindSlot(request, Role::kA) >= 0;
  const uint64_t key = Mix(Mix(seed, static_cast<uint64_t>(slot)),
                           IsShared(request, role, spec) ? 0 : static_cast<uint64_t>(rank) + 1);
  std::vector<std::byte> packed(count * width);
  for (size_t i = 0; i < count; ++i) {
    const uint64_t bits = Mix(key, i);
    if (test.values == Values::kBits) {
      const uint64_t raw = bits % 7 == 0 ? SentinelBits(bits / 7) : bits;
      std::memcpy(packed.data() + i * width, &raw, width);
      continue;
    }
    double value = Uniform(bits);
    if (role == Role::kChunkSignals) {
      value = 1;
    } else if (IsScale(role)) {
      value = test.values == Values::kExact ? (bits % 2 ? 0.5 : 2.0) : 0.5 + 0.5 * std::fabs(value);
    } else if (test.values == Values::kExact || !IsFloating(spec.dtype)) {
      value = ExactValue(spec.dtype, matmul, bits);
    } else if (test.values == Values::kSpecial && role != Role::kBias) {
      value = SpecialValue(spec.dtype, matmul, Mix(bits, 1), value);
    }
    if (spec.dtype == DType::kI64) {
      const auto whole = static_cast<int64_t>(value);
      std::memcpy(packed.data() + i * width, &whole, width);
    } else {
      StoreFromFloat(packed.data(), spec.dtype, i, static_cast<float>(value));
    }
  }
  return packed;
}

std::vector<double> ToDoubles(const std::vector<std::byte>& packed, DType dtype) {
  const size_t count = packed.size() / DTypeBytes(dtype);
  std::vector<double> values(count);
  for (size_t i = 0; i < count; ++i) {
    if (dtype == DType::kI64) {
      int64_t whole = 0;
      std::memcpy(&whole, packed.data() + i * sizeof(whole), sizeof(whole));
      values[i] = static_cast<double>(whole);
    } else if (dtype == DType::kI32) {
      int32_t whole = 0;
      std::memcpy(&whole, packed.data() + i * sizeof(whole), sizeof(whole));
      values[i] = whole;
    } else {
      values[i] = LoadAsFloat(packed.data(), dtype, i);
    }
  }
  return values;
}

namespace {

// Calls `visit(element offset)` for each element, last dimension fastest.
template <typename Visit>
void ForEachOffset(const TensorSpec& spec, Visit visit) {
  const std::vector<int64_t> strides = spec.strides.empty() ? ContiguousStrides(spec.shape) : spec.strides;
  std::vector<int64_t> index(spec.shape.size(), 0);
  for (int64_t left = CountOf(spec.shape); left > 0; --left) {
    int64_t offset = 0;
    for (size_t d = 0; d < index.size(); ++d) offset += index[d] * strides[d];
    visit(static_cast<size_t>(offset));
    for (size_t d = index.size(); d-- > 0;) {
      if (++index[d] < spec.shape[d]) break;
      index[d] = 0;
    }
  }
}

}  // namespace

void Scatter(const TensorSpec& spec, const std::vector<std::byte>& packed, std::byte* tensor) {
  if (packed.empty()) return;
  if (spec.strides.empty()) {
    std::memcpy(tensor, packed.data(), packed.size());
    return;
  }
  const size_t width = DTypeBytes(spec.dtype);
  const std::byte* from = packed.data();
  ForEachOffset(spec, [&](size_t offset) {
    std::memcpy(tensor + offset * width, from, width);
    from += width;
  });
}

std::vector<std::byte> Gather(const TensorSpec& spec, const std::byte* tensor) {
  const size_t width = DTypeBytes(spec.dtype);
  std::vector<std::byte> packed(static_cast<size_t>(CountOf(spec.shape)) * width);
  if (packed.empty()) return packed;
  if (spec.strides.empty()) {
    std::memcpy(packed.data(), tensor, packed.size());
    return packed;
  }
  std::byte* to = packed.data();
  ForEachOffset(spec, [&](size_t offset) {
    std::memcpy(to, tensor + offset * width, width);
    to += width;
  });
  return packed;
}

}  // namespace tandem::conformance
