// Conversions against the scalar ones, copies and sums against element-by-element references.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "common/op_tables.h"
#include "kernels/host/convert.h"
#include "kernels/host/copy.h"
#include "kernels/host/norm.h"
#include "kernels/host/random_delay.h"
#include "kernels/host/reduce.h"

namespace tandem::host {
namespace {

std::atomic<bool> never{false};
const TaskContext kContext{&never, nullptr};

DeviceView MakeView(void* data, DType dtype, std::vector<int64_t> extent, std::vector<int64_t> stride = {}) {
  if (stride.empty()) stride = ContiguousStrides(extent);
  return {static_cast<std::byte*>(data), dtype, std::move(extent), std::move(stride)};
}

uint32_t Bits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

TEST(ConvertTest, EveryHalfAndBfloatEqualsTheScalarConversion) {
  std::vector<uint16_t> all(65536);
  std::iota(all.begin(), all.end(), 0);
  std::vector<float> half(65536), bfloat(65536);
  ConvertToFloat(all.data(), DType::kF16, 1, 65536, half.data());
  ConvertToFloat(all.data(), DType::kBf16, 1, 65536, bfloat.data());
  for (size_t i = 0; i < 65536; ++i) {
    if (std::isnan(F16ToFloat(all[i])))
      ASSERT_TRUE(std::isnan(half[i])) << i;
    else
      ASSERT_EQ(Bits(half[i]), Bits(F16ToFloat(all[i]))) << i;
    ASSERT_EQ(Bits(bfloat[i]), Bits(Bf16ToFloat(all[i]))) << i;
  }
}

TEST(ConvertTest, EveryFloat8EqualsTheScalarConversion) {
  std::vector<uint8_t> all(256);
  std::iota(all.begin(), all.end(), 0);
  for (DType type : {DType::kF8E4M3, DType::kF8E5M2}) {
    std::vector<float> wide(256);
    ConvertToFloat(all.data(), type, 1, 256, wide.data());
    for (size_t i = 0; i < 256; ++i) {
      float expected = LoadAsFloat(all.data(), type, i);
      if (std::isnan(expected))
        EXPECT_TRUE(std::isnan(wide[i]));
      else
        EXPECT_EQ(Bits(wide[i]), Bits(expected));
    }
  }
}

TEST(ConvertTest, RoundingEqualsTheScalarConversion) {
  std::mt19937 random(3);
  std::vector<float> values = {0.0f,     -0.0f,    INFINITY, -INFINITY, NAN,     -NAN,    65504.0f,
                               65519.9f, 65520.0f, 1e30f,    6.1e-5f,   6.0e-5f, 5.9e-8f, 2.98e-8f,
                               2.99e-8f, 1e-40f,   448.0f,   464.0f,    465.0f};
  for (int i = 0; i < 200000; ++i) {
    uint32_t bits = random();
    float value;
    std::memcpy(&value, &bits, sizeof(value));
    values.push_back(value);
    values.push_back(std::ldexp(static_cast<float>(static_cast<int32_t>(random())),
                                -31 - static_cast<int>(random() % 30)));
  }
  auto count = static_cast<int64_t>(values.size());
  for (DType type : {DType::kF16, DType::kBf16, DType::kF8E4M3, DType::kF8E5M2}) {
    std::vector<uint8_t> fast(values.size() * 2), slow(values.size() * 2);
    ConvertFromFloat(values.data(), count, fast.data(), type, 1);
    for (size_t i = 0; i < values.size(); ++i) StoreFromFloat(slow.data(), type, i, values[i]);
    for (size_t i = 0; i < values.size(); ++i) {
      size_t bytes = DTypeBytes(type);
      ASSERT_EQ(std::memcmp(&fast[i * bytes], &slow[i * bytes], bytes), 0)
          << DTypeName(type) << " " << values[i] << " bits " << Bits(values[i]);
    }
  }
}

TEST(CopyTest, TransposesAndSlicesWithAndWithoutDelays) {
  RandomDelay delay(20, 7);
  for (RandomDelay* pause : {static_cast<RandomDelay*>(nullptr), &delay}) {
    for (DType type : {DType::kU8, DType::kBf16, DType::kF32, DType::kI64}) {
      auto bytes = static_cast<int64_t>(DTypeBytes(type));
      std::vector<uint8_t> source(3 * 5 * 7 * 8), destination(source.size(), 0xee);
      for (size_t i = 0; i < source.size(); ++i) source[i] = static_cast<uint8_t>(i * 37 + i / 251);
      // destination[k][j][i] = source[i][j][k]
      CopyArgs args{{MakeView(source.data(), type, {3, 5, 7}, {35, 7, 1}),
                     MakeView(destination.data(), type, {3, 5, 7}, {1, 3, 15}), true}};
      auto copy = PrepareCopy(args);
      ASSERT_TRUE(copy.ok());
      RunCopy(*copy, TaskContext{&never, pause});
      for (int64_t i = 0; i < 3; ++i) {
        for (int64_t j = 0; j < 5; ++j) {
          for (int64_t k = 0; k < 7; ++k) {
            ASSERT_EQ(std::memcmp(&destination[static_cast<size_t>((k * 15 + j * 3 + i) * bytes)],
                                  &source[static_cast<size_t>((i * 35 + j * 7 + k) * bytes)],
                                  static_cast<size_t>(bytes)),
                      0);
          }
        }
      }
    }
  }
}

TEST(CopyTest, MergesContiguousDimensionsAndTakesScalarsAndNothing) {
  std::vector<float> source(24), destination(24);
  std::iota(source.begin(), source.end(), 1.0f);
  auto merged = PrepareCopy({MakeView(source.data(), DType::kF32, {2, 3, 4}),
                             MakeView(destination.data(), DType::kF32, {2, 3, 4}), true});
  ASSERT_TRUE(merged.ok());
  EXPECT_EQ(merged->box.dims, 1);
  RunCopy(*merged, kContext);
  EXPECT_EQ(source, destination);
  float from = 5, to = 0;
  auto scalar = PrepareCopy({MakeView(&from, DType::kF32, {}), MakeView(&to, DType::kF32, {}), true});
  ASSERT_TRUE(scalar.ok());
  RunCopy(*scalar, kContext);
  EXPECT_EQ(to, 5);
  auto nothing =
      PrepareCopy({MakeView(nullptr, DType::kF32, {0, 3}), MakeView(nullptr, DType::kF32, {0, 3}), true});
  ASSERT_TRUE(nothing.ok());
  RunCopy(*nothing, kContext);
}

TEST(CopyTest, RefusesUnlikeViews) {
  float data[4] = {};
  EXPECT_FALSE(PrepareCopy({MakeView(data, DType::kF32, {4}), MakeView(data, DType::kF32, {3}), true}).ok());
  EXPECT_FALSE(PrepareCopy({MakeView(data, DType::kF32, {4}), MakeView(data, DType::kI32, {4}), true}).ok());
  EXPECT_FALSE(
      PrepareCopy({MakeView(nullptr, DType::kF32, {4}), MakeView(data, DType::kF32, {4}), true}).ok());
}

TEST(ReduceTest, FixedOrderOneRounding) {
  std::mt19937 random(11);
  std::normal_distribution<float> normal;
  for (DType type : {DType::kF32, DType::kF16, DType::kBf16}) {
    for (int64_t count : {0, 1, 7, 2048, 5001}) {
      for (size_t world_size : {1u, 3u, 8u}) {
        size_t n = static_cast<size_t>(count);
        std::vector<std::vector<uint8_t>> inputs(world_size, std::vector<uint8_t>(n * 4 + 4));
        for (auto& input : inputs) {
          for (size_t i = 0; i < n; ++i) StoreFromFloat(input.data(), type, i, normal(random));
        }
        ReduceArgs args;
        for (auto& input : inputs) args.sources.push_back(MakeView(input.data(), type, {count}));
        args.dst = MakeView(inputs[0].data(), type, {count});  // in place
        args.scale = 0.5f;
        std::vector<uint8_t> expected(n * 4 + 4);
        for (size_t i = 0; i < n; ++i) {
          float sum = LoadAsFloat(inputs[0].data(), type, i);
          for (size_t r = 1; r < world_size; ++r) sum += LoadAsFloat(inputs[r].data(), type, i);
          StoreFromFloat(expected.data(), type, i, sum * 0.5f);
        }
        auto reduce = PrepareReduce(args);
        ASSERT_TRUE(reduce.ok());
        RunReduce(*reduce, kContext);
        EXPECT_EQ(std::memcmp(inputs[0].data(), expected.data(), n * DTypeBytes(type)), 0);
      }
    }
  }
}

// Two elements reduced, in the widest type of their kind.
template <typename Number>
Number Reduced(ReduceOp op, Number a, Number b) {
  switch (op) {
    case ReduceOp::kMin: return std::isnan(double(a)) || std::isnan(double(b)) ? a + b : std::min(a, b);
    case ReduceOp::kMax: return std::isnan(double(a)) || std::isnan(double(b)) ? a + b : std::max(a, b);
    case ReduceOp::kProduct: return a * b;
    default: break;
  }
  if constexpr (std::is_integral_v<Number>) {
    if (op == ReduceOp::kBitAnd) return a & b;
    if (op == ReduceOp::kBitOr) return a | b;
    if (op == ReduceOp::kBitXor) return a ^ b;
  }
  return a + b;
}

template <typename Number>
void CheckReductions(DType type, const std::vector<Number>& a, const std::vector<Number>& b) {
  const auto count = static_cast<int64_t>(a.size() / 2);
  for (const auto& [op, name] : kNamedValues<ReduceOp>) {
    if (op == ReduceOp::kAvg || (IsFloating(type) && IsBitwise(op))) continue;
    std::vector<Number> first = a, second = b, out(a.size() / 2);
    ReduceArgs args;
    args.reduce_op = op;
    args.sources = {MakeView(first.data(), type, {count}, {2}), MakeView(second.data(), type, {count}, {2})};
    args.dst = MakeView(out.data(), type, {count});
    auto reduce = PrepareReduce(args);
    ASSERT_TRUE(reduce.ok()) << reduce.status().ToString();
    RunReduce(*reduce, kContext);
    for (size_t i = 0; i < out.size(); ++i) {
      using Wide = std::conditional_t<std::is_same_v<Number, int32_t>, int64_t, Number>;
      const auto want = static_cast<Number>(Reduced<Wide>(op, a[2 * i], b[2 * i]));
      const bool nans = std::isnan(double(want)) && std::isnan(double(out[i]));
      EXPECT_TRUE(out[i] == want || nans) << name << " of " << +a[2 * i] << " and " << +b[2 * i];
    }
  }
}

TEST(ReduceTest, EveryReductionOfEveryKindOfType) {
  const float nan = std::nanf("");
  CheckReductions<float>(DType::kF32, {1.5f, 0, -2, 0, nan, 0, 3, 0, 1e30f, 0},
                         {2, 0, -3, 0, 1, 0, nan, 0, 1e30f, 0});
  CheckReductions<int32_t>(DType::kI32, {-5, 0, 7, 0, INT32_MIN, 0}, {3, 0, 9, 0, -1, 0});
  CheckReductions<uint8_t>(DType::kU8, {200, 0, 15, 0}, {100, 0, 0xf0, 0});
  std::mt19937_64 random(5);
  std::vector<int64_t> a(2002), b(2002);
  for (size_t i = 0; i < a.size(); ++i) {
    a[i] = static_cast<int32_t>(random());
    b[i] = static_cast<int32_t>(random());
  }
  CheckReductions<int64_t>(DType::kI64, a, b);
}

TEST(ReduceTest, OnlySumsHaveFactorsAndOnlyIntegersBits) {
  float data[2] = {};
  ReduceArgs args;
  args.sources = {MakeView(data, DType::kF32, {1}), MakeView(data + 1, DType::kF32, {1})};
  args.dst = MakeView(data, DType::kF32, {1});
  args.reduce_op = ReduceOp::kBitOr;
  EXPECT_EQ(PrepareReduce(args).status().code(), Code::kInvalidArgument);
  args.reduce_op = ReduceOp::kMax;
  EXPECT_TRUE(PrepareReduce(args).ok());
  args.scale = 0.5f;
  EXPECT_EQ(PrepareReduce(args).status().code(), Code::kInvalidArgument);
  args.scale = 1;
  args.reduce_op = ReduceOp::kAvg;
  EXPECT_EQ(PrepareReduce(args).status().code(), Code::kInvalidArgument);
}

TEST(ReduceTest, WireTypeBiasAndResultScaleOnStridedRows) {
  constexpr int64_t kRows = 3, kColumns = 5;
  std::vector<float> wire(2 * kRows * kColumns), bias(kColumns);
  std::iota(wire.begin(), wire.end(), 0.25f);
  std::iota(bias.begin(), bias.end(), 100.0f);
  float result_scale = 2.0f;
  std::vector<uint16_t> out(kRows * 8, 0);
  ReduceArgs args;
  args.sources = {MakeView(wire.data(), DType::kF32, {kRows, kColumns}),
                  MakeView(wire.data() + kRows * kColumns, DType::kF32, {kRows, kColumns})};
  args.dst = MakeView(out.data(), DType::kBf16, {kRows, kColumns}, {8, 1});
  args.has_bias = args.has_result_scale = true;
  args.bias = MakeView(bias.data(), DType::kF32, {kColumns});
  args.result_scale = MakeView(&result_scale, DType::kF32, {});
  auto reduce = PrepareReduce(args);
  ASSERT_TRUE(reduce.ok()) << reduce.status().ToString();
  RunReduce(*reduce, kContext);
  for (int64_t i = 0; i < kRows; ++i) {
    for (int64_t j = 0; j < kColumns; ++j) {
      auto at = static_cast<size_t>(i * kColumns + j);
      float sum = (wire[at] + wire[at + kRows * kColumns] + bias[static_cast<size_t>(j)]) * 2.0f;
      EXPECT_EQ(out[static_cast<size_t>(i * 8 + j)], FloatToBf16(sum));
    }
    EXPECT_EQ(out[static_cast<size_t>(i * 8 + 5)], 0);
  }
}

// The root mean square of each row in double precision, from the sum with the residual as it is rounded or not.
void CheckNormsOfRows(bool unrounded) {
  std::mt19937 random(3);
  std::uniform_real_distribution<float> values(-2, 2);
  for (DType type : {DType::kF32, DType::kF16, DType::kBf16}) {
    for (const bool residual : {false, true}) {
      for (const bool in_place : {false, true}) {
        constexpr int64_t kRows = 3, kColumns = 37;
        const std::vector<int64_t> extent = {1, kRows, kColumns};
        std::vector<std::vector<uint8_t>> memory(5, std::vector<uint8_t>(kRows * kColumns * 4));
        for (auto& each : memory) {
          for (size_t i = 0; i < kRows * kColumns; ++i) StoreFromFloat(each.data(), type, i, values(random));
        }
        const auto before = memory;
        NormArgs args;
        args.sum = MakeView(memory[0].data(), type, extent);
        args.weight = MakeView(memory[1].data(), type, {kColumns});
        args.out = MakeView(memory[in_place ? 0 : 2].data(), type, extent);
        args.epsilon = 0.25f;
        args.has_residual = residual;
        args.unrounded = unrounded;
        if (residual) args.residual = MakeView(memory[3].data(), type, extent);
        if (residual) args.residual_out = MakeView(memory[in_place ? 3 : 4].data(), type, extent);
        ASSERT_TRUE(CheckNorm(args).ok());
        RunNorm(args);
        for (size_t row = 0; row < kRows; ++row) {
          std::vector<double> normed(kColumns);
          double squares = 0;
          for (size_t i = 0; i < kColumns; ++i) {
            const size_t at = row * kColumns + i;
            float value = LoadAsFloat(before[0].data(), type, at);
            if (residual) {
              std::vector<uint8_t> rounded(4);
              value += LoadAsFloat(before[3].data(), type, at);
              StoreFromFloat(rounded.data(), type, 0, value);
              const float kept = LoadAsFloat(rounded.data(), type, 0);
              EXPECT_EQ(kept, LoadAsFloat(args.residual_out.data, type, at));
              if (!unrounded) value = kept;
            }
            normed[i] = static_cast<double>(value);
            squares += normed[i] * normed[i];
          }
          const double root = std::sqrt(squares / kColumns + 0.25);
          const double step = type == DType::kF32 ? 1e-6 : type == DType::kF16 ? 0x1p-11 : 0x1p-8;
          for (size_t i = 0; i < kColumns; ++i) {
            const double want =
                normed[i] / root * static_cast<double>(LoadAsFloat(before[1].data(), type, i));
            EXPECT_NEAR(static_cast<double>(LoadAsFloat(args.out.data, type, row * kColumns + i)), want,
                        1.01 * step * std::fabs(want) + 1e-7);
          }
        }
      }
    }
  }
}

TEST(NormTest, RowsOfEveryTypeInPlaceAndOutOfIt) {
  for (const bool unrounded : {false, true}) CheckNormsOfRows(unrounded);
}

// The relative error of a norm of bf16 rows against one in double precision.
double ErrorOfNorm(bool unrounded) {
  constexpr int64_t kRows = 16, kColumns = 512, kAll = kRows * kColumns;
  std::mt19937 random(4);
  std::uniform_real_distribution<float> values(-2, 2);
  std::vector<std::vector<uint8_t>> memory(5, std::vector<uint8_t>(kAll * 2));
  for (auto& each : memory) {
    for (size_t i = 0; i < kAll; ++i) StoreFromFloat(each.data(), DType::kBf16, i, values(random));
  }
  const std::vector<int64_t> extent = {kRows, kColumns};
  NormArgs args;
  args.sum = MakeView(memory[0].data(), DType::kBf16, extent);
  args.weight = MakeView(memory[1].data(), DType::kBf16, {kColumns});
  args.out = MakeView(memory[2].data(), DType::kBf16, extent);
  args.has_residual = true;
  args.residual = MakeView(memory[3].data(), DType::kBf16, extent);
  args.residual_out = MakeView(memory[4].data(), DType::kBf16, extent);
  args.unrounded = unrounded;
  RunNorm(args);
  const auto at = [&](size_t slot, size_t i) {
    return static_cast<double>(LoadAsFloat(memory[slot].data(), DType::kBf16, i));
  };
  double error = 0, whole = 0;
  for (size_t row = 0; row < kRows; ++row) {
    double squares = 0;
    for (size_t i = row * kColumns; i < (row + 1) * kColumns; ++i) {
      squares += (at(0, i) + at(3, i)) * (at(0, i) + at(3, i));
    }
    for (size_t i = 0; i < kColumns; ++i) {
      const size_t of = row * kColumns + i;
      const double want = (at(0, of) + at(3, of)) / std::sqrt(squares / kColumns) * at(1, i);
      error += (at(2, of) - want) * (at(2, of) - want);
      whole += want * want;
    }
  }
  return std::sqrt(error / whole);
}

TEST(NormTest, OneRoundingIsNearerToDoublePrecisionThanTwo) {
  const double once = ErrorOfNorm(true), twice = ErrorOfNorm(false);
  EXPECT_GT(once, 0x1p-11);  // the output is bf16 too
  EXPECT_LT(once, 0.8 * twice);
}

TEST(NormTest, OperandsThatDoNotFitAreRefused) {
  std::vector<float> memory(64);
  NormArgs args;
  args.sum = args.out = MakeView(memory.data(), DType::kF32, {3, 5});
  args.weight = MakeView(memory.data() + 32, DType::kF32, {5});
  EXPECT_TRUE(CheckNorm(args).ok());
  const auto refused = [&](const auto& change) {
    NormArgs changed = args;
    change(&changed);
    EXPECT_EQ(CheckNorm(changed).code(), Code::kInvalidArgument);
  };
  refused([](NormArgs* a) { a->weight.extent = {4}; });
  refused([](NormArgs* a) { a->weight.dtype = DType::kBf16; });
  refused([](NormArgs* a) { a->weight.stride = {2}; });
  refused([](NormArgs* a) { a->sum.extent = {5, 3}; });
  refused([](NormArgs* a) { a->out.stride = {6, 1}; });
  refused([](NormArgs* a) { a->out.dtype = a->sum.dtype = a->weight.dtype = DType::kI32; });
  refused([](NormArgs* a) { a->has_residual = true; });
}

TEST(ReduceTest, IntegersSumExactlyAndTakeNoScale) {
  std::vector<int64_t> a = {(int64_t{1} << 60) + 1, -5}, b = {1, 7}, out(2);
  ReduceArgs args;
  args.sources = {MakeView(a.data(), DType::kI64, {2}), MakeView(b.data(), DType::kI64, {2})};
  args.dst = MakeView(out.data(), DType::kI64, {2});
  auto reduce = PrepareReduce(args);
  ASSERT_TRUE(reduce.ok());
  RunReduce(*reduce, kContext);
  EXPECT_EQ(out[0], (int64_t{1} << 60) + 2);
  EXPECT_EQ(out[1], 2);
  args.scale = 0.5f;
  EXPECT_EQ(PrepareReduce(args).status().code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace tandem::host
