// Products against an fp64 reference, over types, strides, scales and chunk signals.
#include "kernels/host/matmul.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "kernels/host/word_wait.h"

namespace tandem::host {
namespace {

std::atomic<bool> never_cancelled{false};
const TaskContext kMatmulContext{&never_cancelled, nullptr};

// A tensor with its memory.
struct Tensor {
  std::vector<uint8_t> memory;
  DeviceView view;

  Tensor(DType dtype, std::vector<int64_t> extent, std::vector<int64_t> stride = {}, int64_t span = 0) {
    if (stride.empty()) stride = ContiguousStrides(extent);
    int64_t last = 0;
    for (size_t d = 0; d < extent.size(); ++d) last += (extent[d] - 1) * stride[d];
    memory.resize(static_cast<size_t>(std::max(last + 1, span)) * DTypeBytes(dtype) + 8);
    view = {reinterpret_cast<std::byte*>(memory.data()), dtype, extent, stride};
  }
  void Fill(uint32_t seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    size_t count = (memory.size() - 8) / DTypeBytes(view.dtype);
    for (size_t i = 0; i < count; ++i) StoreFromFloat(memory.data(), view.dtype, i, normal(random));
  }
  // Element (row, column) with the leading dimensions folded.
  int64_t At(int64_t row, int64_t column) const {
    int64_t offset = column * view.stride.back();
    for (size_t d = view.extent.size() - 1; d-- > 0;) {
      offset += row % view.extent[d] * view.stride[d];
      row /= view.extent[d];
    }
    return offset;
  }
  float Get(int64_t row, int64_t column) const {
    return LoadAsFloat(memory.data(), view.dtype, static_cast<size_t>(At(row, column)));
  }
};

int64_t Rows(const Tensor& tensor) {
  int64_t rows = 1;
  for (size_t d = 0; d + 1 < tensor.view.extent.size(); ++d) rows *= tensor.view.extent[d];
  return rows;
}

std::vector<double> Reference(const Tensor& a, const Tensor& b) {
  int64_t m = Rows(a), k = a.view.extent.back(), n = b.view.extent[1];
  std::vector<double> out(static_cast<size_t>(m * n));
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t l = 0; l < k; ++l) {
      double left = a.Get(i, l);
      for (int64_t j = 0; j < n; ++j) out[static_cast<size_t>(i * n + j)] += left * b.Get(l, j);
    }
  }
  return out;
}

double RelativeError(const Tensor& c, const std::vector<double>& expected) {
  double error = 0, norm = 0;
  int64_t n = c.view.extent.back();
  for (size_t i = 0; i < expected.size(); ++i) {
    auto index = static_cast<int64_t>(i);
    double difference = c.Get(index / n, index % n) - expected[i];
    error += difference * difference;
    norm += expected[i] * expected[i];
  }
  return std::sqrt(error / std::max(norm, 1e-30));
}

MatmulArgs Args(const Tensor& a, const Tensor& b, const Tensor& c) {
  MatmulArgs args;
  args.a = a.view;
  args.b = b.view;
  args.c = c.view;
  return args;
}

TEST(MatmulTest, TypesAndSizes) {
  struct Case {
    DType in, out;
    double tolerance;
  };
  for (Case test : {Case{DType::kF32, DType::kF32, 2e-6}, Case{DType::kBf16, DType::kF32, 2e-6},
                    Case{DType::kBf16, DType::kBf16, 4e-3}, Case{DType::kF16, DType::kF16, 1e-3},
                    Case{DType::kF8E4M3, DType::kF32, 2e-6}, Case{DType::kF8E5M2, DType::kBf16, 4e-3},
                    Case{DType::kF8E4M3, DType::kF8E5M2, 2e-1}}) {
    for (auto [m, n, k] : {std::array<int64_t, 3>{1, 1, 1}, {5, 3, 2}, {17, 33, 65}, {64, 48, 130}}) {
      Tensor a(test.in, {m, k}), b(test.in, {k, n}), c(test.out, {m, n});
      a.Fill(1);
      b.Fill(2);
      MatmulArgs args = Args(a, b, c);
      ASSERT_TRUE(CheckMatmul(args).ok());
      RunMatmul(args, kMatmulContext);
      EXPECT_LT(RelativeError(c, Reference(a, b)), test.tolerance)
          << DTypeName(test.in) << " " << DTypeName(test.out) << " " << m << "x" << n << "x" << k;
    }
  }
}

TEST(MatmulTest, StridesTransposedFoldedAndBroadcast) {
  for (DType type : {DType::kF32, DType::kBf16}) {
    std::vector<Tensor> lefts, rights, outs;
    lefts.emplace_back(type, std::vector<int64_t>{12, 20});                               // contiguous
    lefts.emplace_back(type, std::vector<int64_t>{12, 20}, std::vector<int64_t>{1, 12});  // transposed
    lefts.emplace_back(type, std::vector<int64_t>{3, 4, 20},
                       std::vector<int64_t>{200, 20, 1});  // rows do not merge
    lefts.emplace_back(type, std::vector<int64_t>{4, 3, 20}, std::vector<int64_t>{20, 90, 1});
    lefts.emplace_back(type, std::vector<int64_t>{12, 20}, std::vector<int64_t>{50, 2});  // no stride is 1
    lefts.emplace_back(type, std::vector<int64_t>{12, 20}, std::vector<int64_t>{0, 1});   // one row, repeated
    rights.emplace_back(type, std::vector<int64_t>{20, 9});
    rights.emplace_back(type, std::vector<int64_t>{20, 9}, std::vector<int64_t>{1, 20});
    rights.emplace_back(type, std::vector<int64_t>{20, 9}, std::vector<int64_t>{30, 3});
    for (auto& left : lefts) left.Fill(3);
    for (auto& right : rights) right.Fill(4);
    for (auto& left : lefts) {
      for (auto& right : rights) {
        std::vector<int64_t> extent = left.view.extent;
        extent.back() = 9;
        std::vector<int64_t> wide = ContiguousStrides(extent);
        for (auto& stride : wide) stride *= 2;
        for (const std::vector<int64_t>& stride : {ContiguousStrides(extent), wide}) {
          Tensor c(type, extent, stride);
          MatmulArgs args = Args(left, right, c);
          ASSERT_TRUE(CheckMatmul(args).ok());
          RunMatmul(args, kMatmulContext);
          EXPECT_LT(RelativeError(c, Reference(left, right)), type == DType::kF32 ? 2e-6 : 4e-3);
        }
      }
    }
  }
}

TEST(MatmulTest, AlphaAccumulateScalesBiasAndResultScale) {
  constexpr int64_t kM = 10, kN = 6, kK = 16;
  Tensor a(DType::kF8E4M3, {kM, kK}), b(DType::kF8E4M3, {kK, kN}), c(DType::kF32, {kM, kN});
  Tensor scale_a(DType::kF32, {kM, 1}), scale_b(DType::kF32, {1, kN}), bias(DType::kF32, {kN});
  Tensor result_scale(DType::kF32, {});
  a.Fill(1), b.Fill(2), c.Fill(3), scale_a.Fill(4), scale_b.Fill(5), bias.Fill(6), result_scale.Fill(7);
  MatmulArgs args = Args(a, b, c);
  args.alpha = 0.5f;
  args.accumulate = args.has_scale_a = args.has_scale_b = args.has_bias = args.has_result_scale = true;
  args.scale_a = scale_a.view;
  args.scale_b = scale_b.view;
  args.bias = bias.view;
  args.result_scale = result_scale.view;
  std::vector<double> expected = Reference(a, b);
  for (int64_t i = 0; i < kM; ++i) {
    for (int64_t j = 0; j < kN; ++j) {
      double& value = expected[static_cast<size_t>(i * kN + j)];
      value = value * 0.5 * scale_a.Get(i, 0) * scale_b.Get(0, j) + c.Get(i, j);
      value = (value + LoadAsFloat(bias.memory.data(), DType::kF32, static_cast<size_t>(j))) *
              LoadAsFloat(result_scale.memory.data(), DType::kF32, 0);
    }
  }
  ASSERT_TRUE(CheckMatmul(args).ok());
  RunMatmul(args, kMatmulContext);
  EXPECT_LT(RelativeError(c, expected), 2e-6);
  // Plain accumulation takes the direct path.
  MatmulArgs plain = Args(a, b, c);
  plain.accumulate = true;
  std::vector<double> sum = Reference(a, b);
  for (int64_t i = 0; i < kM * kN; ++i) sum[static_cast<size_t>(i)] += c.Get(i / kN, i % kN);
  RunMatmul(plain, kMatmulContext);
  EXPECT_LT(RelativeError(c, sum), 2e-6);
}

// Columns [first_column, first_column + N) of blocks of 128, and a last block of K that is short.
void ExpectBlockScaled(int64_t rows, int64_t n, int64_t k, int first_column, bool each, bool by_columns,
                       DType out) {
  const int64_t blocks = (k + kScaleBlock - 1) / kScaleBlock;
  const int64_t factors = each ? n : (first_column + n + kScaleBlock - 1) / kScaleBlock;
  Tensor a(DType::kF8E4M3, {rows, k}), b(DType::kF8E4M3, {k, n}, {1, k}), c(out, {rows, n});
  Tensor scale_a(DType::kF32, {rows, blocks},
                 by_columns ? std::vector<int64_t>{1, rows + 3} : std::vector<int64_t>{});
  Tensor scale_b(DType::kF32, {blocks, factors},
                 by_columns ? std::vector<int64_t>{1, blocks + 1} : std::vector<int64_t>{});
  a.Fill(1), b.Fill(2), c.Fill(3), scale_a.Fill(4), scale_b.Fill(5);
  MatmulArgs args = Args(a, b, c);
  args.alpha = 0.5f;
  args.has_scale_a = args.has_scale_b = args.block_scales = true;
  args.accumulate = out == DType::kF32;
  args.scale_a = scale_a.view;
  args.scale_b = scale_b.view;
  args.first_column = first_column;
  std::vector<double> expected(static_cast<size_t>(rows * n));
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      double sum = args.accumulate ? c.Get(i, j) : 0;
      for (int64_t l = 0; l < k; ++l) {
        const int64_t block = l / kScaleBlock;
        sum += 0.5 * scale_a.Get(i, block) * scale_b.Get(block, each ? j : (first_column + j) / kScaleBlock) *
               static_cast<double>(a.Get(i, l)) * b.Get(l, j);
      }
      expected[static_cast<size_t>(i * n + j)] = sum;
    }
  }
  ASSERT_TRUE(CheckMatmul(args).ok()) << CheckMatmul(args).ToString();
  RunMatmul(args, kMatmulContext);
  EXPECT_LT(RelativeError(c, expected), out == DType::kF32 ? 2e-6 : 4e-3)
      << rows << "x" << n << "x" << k << " from column " << first_column << (each ? " each" : "");
}

TEST(MatmulTest, ScalesByBlocks) {
  for (bool by_columns : {false, true}) {
    for (DType out : {DType::kF32, DType::kBf16}) {
      ExpectBlockScaled(5, 3, 64, 0, false, by_columns, out);
      ExpectBlockScaled(33, 130, 300, 0, false, by_columns, out);
      ExpectBlockScaled(33, 130, 300, 0, true, by_columns, out);
      ExpectBlockScaled(7, 70, 256, 70, false, by_columns, out);
      ExpectBlockScaled(7, 2, 129, 127, false, by_columns, out);
    }
  }
}

TEST(MatmulTest, ScalesByBlocksMustFit) {
  Tensor a(DType::kF8E4M3, {4, 200}), b(DType::kF8E4M3, {200, 130}), c(DType::kF32, {4, 130});
  Tensor scale_a(DType::kF32, {4, 2}), scale_b(DType::kF32, {2, 2}), short_a(DType::kF32, {4, 1}),
      wide(DType::kF32, {2, 3});
  MatmulArgs args = Args(a, b, c);
  args.has_scale_a = args.has_scale_b = args.block_scales = true;
  args.scale_a = scale_a.view;
  args.scale_b = scale_b.view;
  EXPECT_TRUE(CheckMatmul(args).ok());
  args.first_column = 127;  // 130 columns from there reach a third block
  EXPECT_FALSE(CheckMatmul(args).ok());
  args.scale_b = wide.view;
  EXPECT_TRUE(CheckMatmul(args).ok());
  args.first_column = 128;
  EXPECT_FALSE(CheckMatmul(args).ok());
  args.first_column = 0;
  EXPECT_FALSE(CheckMatmul(args).ok());
  args.scale_b = scale_b.view;
  args.scale_a = short_a.view;
  EXPECT_FALSE(CheckMatmul(args).ok());
  args.scale_a = scale_a.view;
  args.has_scale_b = false;
  EXPECT_FALSE(CheckMatmul(args).ok());
}

TEST(MatmulTest, NoElementsAndNoDepth) {
  Tensor a(DType::kF32, {2, 1}), b(DType::kF32, {1, 3}), c(DType::kF32, {2, 3});
  c.Fill(1);
  MatmulArgs args = Args(a, b, c);
  args.a.extent = {2, 0};
  args.b.extent = {0, 3};
  ASSERT_TRUE(CheckMatmul(args).ok());
  RunMatmul(args, kMatmulContext);
  EXPECT_EQ(c.Get(1, 2), 0.0f);
  args.a.extent = {0, 1};
  args.b.extent = {1, 3};
  args.c.extent = {0, 3};
  ASSERT_TRUE(CheckMatmul(args).ok());
  RunMatmul(args, kMatmulContext);
}

TEST(MatmulTest, RunsAreBitwiseEqual) {
  Tensor a(DType::kBf16, {70, 300}), b(DType::kBf16, {300, 90}), c(DType::kBf16, {70, 90}),
      d(DType::kBf16, {70, 90});
  a.Fill(1);
  b.Fill(2);
  RunMatmul(Args(a, b, c), kMatmulContext);
  RunMatmul(Args(a, b, d), kMatmulContext);
  EXPECT_EQ(c.memory, d.memory);
}

TEST(MatmulTest, ChunksAreReadOnlyOnceTheirSignalIsSet) {
  constexpr int64_t kRows = 10, kK = 8, kN = 4;
  constexpr int kChunks = 4, kPivot = 2;  // runs of 3, 3, 3 and 1 rows
  Tensor a(DType::kF32, {kRows, kK}), b(DType::kF32, {kK, kN}), c(DType::kF32, {kRows, kN}),
      source(DType::kF32, {kRows, kK});
  source.Fill(1);
  b.Fill(2);
  alignas(4) uint32_t signals[kChunks] = {};
  MatmulArgs args = Args(a, b, c);
  args.has_chunk_signals = true;
  args.chunk_signals = {reinterpret_cast<std::byte*>(signals), DType::kI32, {kChunks}, {1}};
  args.chunk_pivot = kPivot;
  ASSERT_TRUE(CheckMatmul(args).ok());
  std::thread runner([&] { RunMatmul(args, kMatmulContext); });
  for (int i = 0; i < kChunks; ++i) {
    int chunk = (kPivot + i) % kChunks;
    size_t first = static_cast<size_t>(chunk) * 3 * kK * 4;
    size_t bytes = std::min<size_t>(3 * kK * 4, static_cast<size_t>(kRows) * kK * 4 - first);
    std::memcpy(a.memory.data() + first, source.memory.data() + first, bytes);
    __atomic_store_n(&signals[chunk], 1u, __ATOMIC_RELEASE);
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  runner.join();
  EXPECT_LT(RelativeError(c, Reference(source, b)), 2e-6);
}

// Rows of a product of many rows, computed again alone and in other places, with B in either layout.
TEST(MatmulTest, AFixedOrderGivesARowTheSameBitsInEveryProduct) {
  constexpr int64_t kM = 37, kN = 45, kK = 203;
  for (auto [in, out] : {std::pair{DType::kF32, DType::kF32},
                         {DType::kBf16, DType::kF32},
                         {DType::kBf16, DType::kBf16},
                         {DType::kF8E4M3, DType::kBf16}}) {
    Tensor a(in, {kM, kK}), b(in, {kK, kN}), whole(out, {kM, kN});
    Tensor columns(in, {kK, kN}, {1, kK});
    a.Fill(1);
    b.Fill(2);
    for (int64_t i = 0; i < kK * kN; ++i) {
      StoreFromFloat(columns.memory.data(), in, static_cast<size_t>(columns.At(i / kN, i % kN)),
                     b.Get(i / kN, i % kN));
    }
    MatmulArgs args = Args(a, b, whole);
    args.fixed_order = true;
    RunMatmul(args, kMatmulContext);
    EXPECT_LT(RelativeError(whole, Reference(a, b)), 4e-3);
    const size_t row_bytes = kN * DTypeBytes(out);
    for (int64_t rows : {1, 2, 5, 16}) {
      for (const Tensor* of_b : {&b, &columns}) {
        Tensor few(in, {rows, kK}), result(out, {rows, kN});
        std::vector<int64_t> chosen;
        for (int64_t i = 0; i < rows; ++i) chosen.push_back((i * 11 + rows) % kM);
        for (int64_t i = 0; i < rows; ++i) {
          std::memcpy(
              few.memory.data() + i * kK * static_cast<int64_t>(DTypeBytes(in)),
              a.memory.data() + chosen[static_cast<size_t>(i)] * kK * static_cast<int64_t>(DTypeBytes(in)),
              kK * DTypeBytes(in));
        }
        MatmulArgs part = Args(few, *of_b, result);
        part.fixed_order = true;
        RunMatmul(part, kMatmulContext);
        for (int64_t i = 0; i < rows; ++i) {
          const auto at = static_cast<size_t>(chosen[static_cast<size_t>(i)]);
          EXPECT_EQ(std::memcmp(result.memory.data() + static_cast<size_t>(i) * row_bytes,
                                whole.memory.data() + at * row_bytes, row_bytes),
                    0)
              << DTypeName(in) << " to " << DTypeName(out) << ", row " << at << " in " << rows;
        }
      }
    }
  }
}

TEST(MatmulTest, RefusesWhatDoesNotFit) {
  Tensor a(DType::kF32, {4, 5}), b(DType::kF32, {5, 6}), c(DType::kF32, {4, 6});
  EXPECT_TRUE(CheckMatmul(Args(a, b, c)).ok());
  EXPECT_FALSE(CheckMatmul(Args(a, c, b)).ok());
  EXPECT_FALSE(CheckMatmul(Args(b, b, c)).ok());
  MatmulArgs args = Args(a, b, c);
  args.has_bias = true;
  args.bias = a.view;
  EXPECT_FALSE(CheckMatmul(args).ok());
  args = Args(a, b, c);
  args.has_chunk_signals = true;
  args.chunk_signals.extent = {2};
  args.chunk_pivot = 2;
  EXPECT_FALSE(CheckMatmul(args).ok());
  args = Args(a, b, c);
  args.a.dtype = DType::kI32;
  EXPECT_FALSE(CheckMatmul(args).ok());
}

}  // namespace
}  // namespace tandem::host
