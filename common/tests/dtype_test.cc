#include "tandem/dtype.h"

#include <gtest/gtest.h>

#include <Eigen/Core>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

namespace tandem {
namespace {

template <typename EigenType>
uint16_t EigenBits(float value) {
  EigenType rounded(value);
  uint16_t bits;
  std::memcpy(&bits, &rounded, sizeof(bits));
  return bits;
}

TEST(DType, HalfAndBfloat16AgreeWithEigenOnRandomBits) {
  std::mt19937 random(1);
  for (int i = 0; i < 200000; ++i) {
    uint32_t bits = random();
    float value;
    std::memcpy(&value, &bits, sizeof(value));
    if (std::isnan(value)) continue;
    ASSERT_EQ(FloatToF16(value), EigenBits<Eigen::half>(value)) << value;
    ASSERT_EQ(FloatToBf16(value), EigenBits<Eigen::bfloat16>(value)) << value;
  }
}

TEST(DType, EveryFloat8RoundTrips) {
  for (int bits = 0; bits < 256; ++bits) {
    auto byte = static_cast<uint8_t>(bits);
    if (float value = E4M3ToFloat(byte); !std::isnan(value)) {
      EXPECT_EQ(FloatToE4M3(value), byte) << value;
    }
    if (float value = E5M2ToFloat(byte); !std::isnan(value)) {
      EXPECT_EQ(FloatToE5M2(value), byte) << value;
    }
  }
}

TEST(DType, Float8EdgesFollowOcp) {
  EXPECT_EQ(E4M3ToFloat(0x7e), 448.0f);
  EXPECT_EQ(E4M3ToFloat(0x01), std::ldexp(1.0f, -9));
  EXPECT_EQ(FloatToE4M3(1e9f), 0x7e);
  EXPECT_EQ(FloatToE4M3(-1e9f), 0xfe);
  EXPECT_EQ(FloatToE4M3(464.0f), 0x7e);
  EXPECT_TRUE(std::isnan(E4M3ToFloat(FloatToE4M3(std::nanf("")))));
  EXPECT_EQ(E5M2ToFloat(0x7b), 57344.0f);
  EXPECT_TRUE(std::isinf(E5M2ToFloat(FloatToE5M2(1e9f))));
  EXPECT_EQ(FloatToE5M2(-std::numeric_limits<float>::max()), 0xfc);
  EXPECT_EQ(FloatToE5M2(1.125f), FloatToE5M2(1.0f));  // a tie goes to the even mantissa
}

TEST(DType, NamesParseBack) {
  for (int i = 0; i <= 7; ++i) {
    auto type = static_cast<DType>(i);
    Result<DType> parsed = ParseDType(DTypeName(type));
    ASSERT_TRUE(parsed.ok());
    EXPECT_EQ(*parsed, type);
  }
  EXPECT_EQ(ParseDType("f64").status().code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace tandem
