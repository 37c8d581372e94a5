#include "tests/conformance/compare.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace tandem::conformance {
namespace {

// Half a unit in the last place, relative; and the smallest step near zero.
struct Precision {
  double relative, absolute;
};
Precision PrecisionOf(DType dtype) {
  switch (dtype) {
    case DType::kF32: return {0x1p-24, 0x1p-126};  // subnormal sums may be flushed
    case DType::kF16: return {0x1p-11, 0x1p-24};
    case DType::kBf16: return {0x1p-8, 0x1p-126};
    case DType::kF8E4M3: return {0x1p-4, 0x1p-9};
    case DType::kF8E5M2: return {0x1p-3, 0x1p-16};
    default: return {0, 0};
  }
}

// The bound of the whole output's relative error, in the norm (fp32: 1e-6 * sqrt(K); bf16: 4e-3), after at
// most two roundings to its type.
double NormBound(DType dtype, bool fp8_operands, double k) {
  switch (dtype) {
    // The tensor cores' accumulators of fp8 products keep fewer bits than fp32.
    case DType::kF32: return fp8_operands ? 1e-3 : 1e-6 * std::sqrt(std::max(k, 1.0));
    case DType::kF16: return fp8_operands ? 1.5e-3 : 1e-3;
    case DType::kBf16: return 4e-3;
    case DType::kF8E4M3: return 0.06;
    case DType::kF8E5M2: return 0.12;
    default: return 0;
  }
}

// The growth of that bound: errors of independent roundings add as squares. Four of bf16 give 3.2e-3 in the
// mean of small outputs, and more than 4e-3 in one of some thousand.
double RoundingGrowth(int roundings) { return std::sqrt(std::max(1.0, roundings / 2.0)); }

// The error that the tensor cores' accumulators add to fp8 products with fast accumulation on CUDA, in units
// of the sum's magnitude. An instruction sums 32 terms. Then the accumulator is cut to 13 bits of fraction,
// an error of at most two units in the last place. Without fast accumulation parts of the sum are promoted to
// fp32.
//
// Hopper's accumulators keep about 14 bits by the DeepSeek-V3 Technical Report, arXiv 2412.19437, section
// 3.3.2. There the relative error is nearly 2 % at K = 4096. "Some Matrix Multiplication Engines Are Not As
// Accurate As We Thought", pytorch.org, 2025, has 13 bits of fraction, truncated.
double FastAccumulation(double terms) { return 0x1p-12 * std::ceil(terms / 32); }

// The largest finite e5m2.
constexpr double kMaxE5M2 = 57344;

// Whether the element may be right although the sum `want` of inputs of magnitude `parts` has infinities.
// NCCL rounds what each rank adds by CUDA's constructors of e5m2, which saturate infinities
// (docs/requests.md): an infinite sum comes out as the largest number. Where infinities of both signs meet,
// it depends on the order what is left of them.
bool IsSaturated(double want, double parts, double got) {
  if (std::isinf(want)) return got == std::copysign(kMaxE5M2, want);
  return std::isnan(want) && std::isinf(parts) && std::fabs(got) <= kMaxE5M2;
}

// "[1, 3, 0]": the packed index as coordinates.
std::string Coordinates(const std::vector<int64_t>& shape, int64_t index) {
  std::vector<int64_t> at(shape.size());
  for (size_t d = shape.size(); d-- > 0;) {
    at[d] = index % shape[d];
    index /= shape[d];
  }
  std::string text = "[";
  for (size_t d = 0; d < at.size(); ++d) text += (d ? ", " : "") + std::to_string(at[d]);
  return text + "]";
}

std::string Hex(const std::byte* bytes, size_t count) {
  std::string text = "0x";
  for (size_t i = count; i-- > 0;) {
    text += "0123456789abcdef"[static_cast<unsigned>(bytes[i]) >> 4];
    text += "0123456789abcdef"[static_cast<unsigned>(bytes[i]) & 15];
  }
  return text;
}

std::string CompareBytes(const TensorSpec& spec, const std::vector<std::byte>& want,
                         const std::vector<std::byte>& have) {
  if (want.size() != have.size()) {
    return "the reference has " + std::to_string(want.size()) + " bytes, the output " +
           std::to_string(have.size());
  }
  if (want.empty() || std::memcmp(want.data(), have.data(), want.size()) == 0) return {};
  const size_t width = DTypeBytes(spec.dtype);
  size_t wrong = 0, first = want.size();
  for (size_t i = 0; i < want.size(); i += width) {
    if (std::memcmp(&want[i], &have[i], width) == 0) continue;
    if (wrong++ == 0) first = i;
  }
  return std::to_string(wrong) + " elements differ; first " +
         Coordinates(spec.shape, static_cast<int64_t>(first / width)) + " is " + Hex(&have[first], width) +
         ", must be " + Hex(&want[first], width);
}

}  // namespace

std::string CompareOutput(const Case& test, int rank, int slot, const Execution& execution,
                          const Expected& expected, const std::vector<std::byte>& packed) {
  const OpRequest& request = test.requests[static_cast<size_t>(rank)];
  const TensorSpec& spec = request.operands[static_cast<size_t>(slot)].spec;
  if (expected.values.empty()) return CompareBytes(spec, expected.bytes, packed);
  const std::vector<double> have = ToDoubles(packed, spec.dtype);
  if (expected.elements.empty() && have.size() != expected.values.size())
    return "the reference has another size";

  const int a = FindSlot(request, Role::kA);
  const bool fp8 = a >= 0 && IsFloat8(request.operands[static_cast<size_t>(a)].spec.dtype);
  double k = 1;  // terms of one sum
  if (a >= 0)
    k = static_cast<double>(request.operands[static_cast<size_t>(FindSlot(request, Role::kB))].spec.shape[0]);
  const auto world = static_cast<double>(test.requests.size());
  const bool reduced = request.op == Op::kMatmulReduceScatter || request.op == Op::kMatmulAllReduce;
  const double products = std::max(1.0, reduced ? k * world : k);
  k = (k + 2) * world;
  const double fast = fp8 && request.fast_accumulation && execution.cuda ? FastAccumulation(products) : 0;
  const bool saturates = execution.cuda && execution.algorithm == Algorithm::kNccl &&
                         spec.dtype == DType::kF8E5M2 && request.wire != WireType::kF32;
  // The sum with the residual is rounded, and the norm.
  const int roundings = execution.roundings + (HasNorm(request) ? 2 : 0);
  const bool exact =
      (test.values == Values::kExact && request.reduce_op == ReduceOp::kSum) || !IsFloating(spec.dtype);
  const Precision precision = PrecisionOf(spec.dtype);
  const double accumulator = fp8 ? 0x1p-12 : 0x1p-24 * (2 + 2 * std::sqrt(k));
  double error2 = 0, norm2 = 0;
  for (size_t i = 0; i < expected.values.size(); ++i) {
    const int64_t index = expected.elements.empty() ? static_cast<int64_t>(i) : expected.elements[i];
    const double want = expected.values[i], got = have[static_cast<size_t>(index)];
    bool right = false;
    if (!std::isfinite(want)) {
      right = (std::isnan(want) ? std::isnan(got) : got == want) ||
              (saturates && IsSaturated(want, expected.parts[i], got));
    } else {
      // The running sum of random terms of either sign hardly leaves six deviations of their number.
      const double magnitude = std::max(std::fabs(want), 6 * expected.terms[i] / std::sqrt(products));
      const double bound = exact ? 0
                                 : precision.relative * (roundings + 1) * expected.parts[i] +
                                       std::max(accumulator * expected.terms[i], fast * magnitude) +
                                       precision.absolute * (roundings + 1);
      right = std::fabs(got - want) <= bound;
      error2 += (got - want) * (got - want);
      norm2 += want * want;
    }
    if (!right) {
      char text[96];
      std::snprintf(text, sizeof(text), " is %.9g, must be %.9g", got, want);
      return Coordinates(spec.shape, index) + text;
    }
  }
  const double norm = std::sqrt(norm2), error = std::sqrt(error2);
  // In a handful of elements the norm says no more than the bound of each.
  const bool few = expected.values.size() < 64;
  const double bound = std::max(NormBound(spec.dtype, fp8, k) * RoundingGrowth(roundings), fast);
  if (!few && error > bound * norm) {
    char text[96];
    std::snprintf(text, sizeof(text), "relative error %.3g in the norm, at most %.3g", error / norm, bound);
    return text;
  }
  return {};
}

uint64_t HashOf(const std::vector<std::byte>& bytes) {
  uint64_t hash = bytes.size();
  size_t i = 0;
  for (; i + 8 <= bytes.size(); i += 8) {
    uint64_t word = 0;
    std::memcpy(&word, &bytes[i], 8);
    hash = Mix(hash, word);
  }
  for (; i < bytes.size(); ++i) hash = Mix(hash, static_cast<uint64_t>(bytes[i]));
  return hash;
}

}  // namespace tandem::conformance
