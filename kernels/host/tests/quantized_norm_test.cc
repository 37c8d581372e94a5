// The host backend's norms whose rows are quantised.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "kernels/host/norm.h"

namespace tandem::host {
namespace {

constexpr int64_t kRows = 3;

DeviceView ViewOf(void* data, DType type, std::vector<int64_t> extent, std::vector<int64_t> stride = {}) {
  DeviceView view;
  view.data = static_cast<std::byte*>(data);
  view.dtype = type;
  view.stride = stride.empty() ? ContiguousStrides(extent) : std::move(stride);
  view.extent = std::move(extent);
  return view;
}

// A norm of bf16 rows, quantised with so many scales for each; 0: with a given one.
class QuantizedRows {
 public:
  QuantizedRows(int64_t columns, int64_t scales, DType type = DType::kBf16)
      : columns_(columns), memory_(4, std::vector<uint8_t>(static_cast<size_t>(kRows * columns) * 4)) {
    std::mt19937 random(7);
    std::uniform_real_distribution<float> values(-2, 2);
    for (auto& each : memory_) {
      for (size_t i = 0; i < static_cast<size_t>(kRows * columns); ++i)
        StoreFromFloat(each.data(), type, i, values(random) * std::exp2(static_cast<float>(i % 20) - 10));
    }
    const std::vector<int64_t> extent = {kRows, columns};
    args.sum = ViewOf(memory_[0].data(), type, extent);
    args.out = ViewOf(memory_[1].data(), type, extent);
    args.weight = ViewOf(memory_[2].data(), type, {columns});
    args.epsilon = 1e-5f;
    args.has_quantized = true;
    args.quantized = ViewOf(memory_[3].data(), DType::kF8E4M3, extent);
    args.has_static_scale = scales == 0;
    args.has_scales = scales > 0;
    if (scales == 0) args.static_scale = ViewOf(scales_, DType::kF32, {1});
    if (scales > 0) args.scales = ViewOf(scales_, DType::kF32, {kRows, scales}, {1, 4});  // by columns
  }
  void Set(size_t i, float value) { StoreFromFloat(memory_[0].data(), args.sum.dtype, i, value); }
  float scale(int64_t row, int64_t block) const { return scales_[row + 4 * block]; }
  float out(int64_t row, int64_t i) const {
    return LoadAsFloat(args.out.data, args.out.dtype, static_cast<size_t>(row * columns_ + i));
  }
  uint8_t quantized(int64_t row, int64_t i) const {
    return memory_[3][static_cast<size_t>(row * columns_ + i)];
  }

  NormArgs args;

 private:
  int64_t columns_;
  std::vector<std::vector<uint8_t>> memory_;
  float scales_[16] = {0.25f, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1};
};

TEST(QuantizedNorm, HasTheScalesOfRowsAndBlocks) {
  for (const DType type : {DType::kF32, DType::kF16, DType::kBf16}) {
    for (const int64_t scales : {0, 1, 3}) {
      constexpr int64_t kColumns = 300;
      QuantizedRows rows(kColumns, scales, type);
      ASSERT_TRUE(CheckNorm(rows.args).ok());
      RunNorm(rows.args);
      for (int64_t row = 0; row < kRows; ++row) {
        for (int64_t i = 0; i < kColumns; ++i) {
          const int64_t block = scales == 3 ? i / 128 : 0;
          float most = 0;
          for (int64_t k = 0; k < kColumns; ++k) {
            if (scales != 3 || k / 128 == block) most = std::max(most, std::fabs(rows.out(row, k)));
          }
          const float scale = scales == 0 ? 0.25f : std::max(most, 1.0f / 512) / 448.0f;
          if (scales > 0) {
            EXPECT_EQ(rows.scale(row, block), scale);
          }
          EXPECT_EQ(rows.quantized(row, i), FloatToE4M3(rows.out(row, i) / scale)) << row << ", " << i;
        }
      }
    }
  }
}

TEST(QuantizedNorm, OfZerosHasTheLeastScale) {
  QuantizedRows rows(8, 1);
  for (size_t i = 8; i < 16; ++i) rows.Set(i, 0);
  RunNorm(rows.args);
  EXPECT_EQ(rows.scale(1, 0), 1.0f / 512 / 448);
  for (int64_t i = 0; i < 8; ++i) EXPECT_EQ(rows.quantized(1, i) & 0x7f, 0);
  EXPECT_EQ(rows.scale(3, 0), -1) << "behind the rows";
}

TEST(QuantizedNorm, SaturatesAndKeepsNans) {
  QuantizedRows given(8, 0);
  for (size_t i = 0; i < 8; ++i) StoreFromFloat(given.args.weight.data, DType::kBf16, i, 1e9f);
  RunNorm(given.args);
  for (int64_t i = 0; i < 8; ++i) EXPECT_EQ(given.quantized(0, i) & 0x7f, 0x7e);
  QuantizedRows made(8, 1);
  made.Set(3, std::numeric_limits<float>::quiet_NaN());
  RunNorm(made.args);
  EXPECT_TRUE(std::isnan(made.scale(0, 0)));
  for (int64_t i = 0; i < 8; ++i) EXPECT_EQ(made.quantized(0, i) & 0x7f, 0x7f);
  EXPECT_FALSE(std::isnan(made.scale(1, 0)));
}

TEST(QuantizedNorm, OperandsThatDoNotFitAreRefused) {
  QuantizedRows given(8, 0), made(8, 1);
  const auto refused = [](NormArgs args, const auto& change) {
    change(&args);
    EXPECT_EQ(CheckNorm(args).code(), Code::kInvalidArgument);
  };
  for (const NormArgs& args : {given.args, made.args}) {
    EXPECT_TRUE(CheckNorm(args).ok());
    refused(args, [](NormArgs* a) { a->quantized.dtype = DType::kF8E5M2; });
    refused(args, [](NormArgs* a) { a->quantized.extent = {8, kRows}; });
    refused(args, [](NormArgs* a) { a->quantized.stride = {9, 1}; });
    refused(args, [](NormArgs* a) { a->has_quantized = false; });
    refused(args, [](NormArgs* a) { a->has_static_scale = a->has_scales = false; });
    refused(args, [](NormArgs* a) { a->quantized.data = nullptr; });
  }
  refused(given.args, [](NormArgs* a) { a->static_scale.dtype = DType::kF16; });
  refused(given.args, [](NormArgs* a) { a->static_scale = ViewOf(a->static_scale.data, DType::kF32, {2}); });
  refused(made.args, [](NormArgs* a) { a->scales.extent = {kRows, 2}; });
  refused(made.args, [](NormArgs* a) { a->scales.dtype = DType::kBf16; });
}

}  // namespace
}  // namespace tandem::host
