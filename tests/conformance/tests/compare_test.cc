// That the conformance suite notices what is wrong: planted errors, each of the smallest kind that matters.
#include "tests/conformance/compare.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>

#include "tests/conformance/layout.h"
#include "tests/conformance/matrix.h"

namespace tandem::conformance {
namespace {

using ::testing::HasSubstr;

constexpr int kWorld = 3;

Case AllReduceCase(DType dtype, Values values) {
  Matrix matrix(kWorld, 1);
  OpRequest request;
  request.op = Op::kAllReduce;
  request.algorithm = Algorithm::kTwoShot;
  request.operands = {MakeOperand(Role::kInput, dtype, {257}), MakeOperand(Role::kOutput, dtype, {257})};
  matrix.Add(request, {.values = values});
  return matrix.Take()[0];
}

// The output as a right run would leave it.
std::vector<std::byte> RightOutput(const TensorSpec& spec, const Expected& expected) {
  if (expected.values.empty()) return expected.bytes;
  std::vector<std::byte> packed(expected.values.size() * DTypeBytes(spec.dtype));
  for (size_t i = 0; i < expected.values.size(); ++i) {
    StoreFromFloat(packed.data(), spec.dtype, i, static_cast<float>(expected.values[i]));
  }
  return packed;
}

std::string Judge(const Case& test, const Expected& expected, const std::vector<std::byte>& packed) {
  return CompareOutput(test, 0, 1, kWorld, expected, packed);
}

TEST(CompareTest, ARightSumPassesAndOneWrongElementDoesNot) {
  for (DType dtype : {DType::kF32, DType::kF16, DType::kBf16, DType::kF8E4M3, DType::kF8E5M2, DType::kI32}) {
    for (Values values : {Values::kRandom, Values::kExact, Values::kSpecial}) {
      if (dtype == DType::kI32 && values == Values::kSpecial) continue;
      const Case test = AllReduceCase(dtype, values);
      const Expected expected = ComputeExpected(test, MakeInputs(test, 5), 0, 1);
      std::vector<std::byte> packed = RightOutput(test.requests[0].operands[1].spec, expected);
      EXPECT_EQ(Judge(test, expected, packed), "") << DTypeName(dtype) << static_cast<int>(values);
      size_t finite = 200;
      while (!std::isfinite(expected.values[finite])) ++finite;
      StoreFromFloat(packed.data(), dtype, finite, static_cast<float>(expected.values[finite]) + 3.0f);
      EXPECT_THAT(Judge(test, expected, packed), HasSubstr("[" + std::to_string(finite) + "]")) << DTypeName(dtype);
    }
  }
}

TEST(CompareTest, NaNAndInfinityMustComeOutAsTheyAre) {
  const Case test = AllReduceCase(DType::kF32, Values::kSpecial);
  const Expected expected = ComputeExpected(test, MakeInputs(test, 5), 0, 1);
  const std::vector<std::byte> right = RightOutput(test.requests[0].operands[1].spec, expected);
  std::set<std::string> kinds;
  for (size_t i = 0; i < expected.values.size(); ++i) {
    if (std::isfinite(expected.values[i])) continue;
    kinds.insert(std::isnan(expected.values[i]) ? "nan" : expected.values[i] > 0 ? "inf" : "-inf");
    std::vector<std::byte> packed = right;
    StoreFromFloat(packed.data(), DType::kF32, i, 1.0f);
    EXPECT_NE(Judge(test, expected, packed), "") << i;
    StoreFromFloat(packed.data(), DType::kF32, i,
                   std::isnan(expected.values[i]) ? std::numeric_limits<float>::infinity()
                                                  : static_cast<float>(-expected.values[i]));
    EXPECT_NE(Judge(test, expected, packed), "") << i;
  }
  EXPECT_EQ(kinds.size(), 3u);
}

TEST(CompareTest, MovedBytesMustBeTheSameToTheBit) {
  Matrix matrix(kWorld, 1);
  OpRequest request;
  request.op = Op::kAllGather;
  request.algorithm = Algorithm::kSm;
  request.operands = {MakeOperand(Role::kInput, DType::kF16, {2, 5}), MakeOperand(Role::kOutput, DType::kF16, {2, 15})};
  request.dim = 1;
  matrix.Add(request, {.values = Values::kBits});
  const Case test = matrix.Take()[0];
  const AllInputs inputs = MakeInputs(test, 9);
  const Expected expected = ComputeExpected(test, inputs, 1, 1);
  ASSERT_EQ(expected.bytes.size(), 60u);
  // Element [1, 7] is rank 1's [1, 2].
  EXPECT_EQ(expected.bytes[(15 + 7) * 2], inputs[1][0][(5 + 2) * 2]);
  std::vector<std::byte> packed = expected.bytes;
  packed[45] ^= std::byte{0x80};
  EXPECT_THAT(Judge(test, expected, packed), HasSubstr("1 elements differ; first [1, 7]"));
}

TEST(CompareTest, ASystematicErrorShowsInTheNorm) {
  const Case test = AllReduceCase(DType::kBf16, Values::kRandom);
  Expected expected = ComputeExpected(test, MakeInputs(test, 5), 0, 1);
  std::vector<std::byte> packed = RightOutput(test.requests[0].operands[1].spec, expected);
  for (double& value : expected.values) value *= 1.006;  // within each element's bound
  EXPECT_THAT(Judge(test, expected, packed), HasSubstr("norm"));
}

TEST(LayoutTest, TensorsKeepTheirShiftAndGuards) {
  Case test = AllReduceCase(DType::kF16, Values::kRandom);
  test.shift = {3, 5};
  test.skew = 1;
  Result<Layout> layout = MakeLayout(test, 2);
  ASSERT_TRUE(layout.ok());
  EXPECT_EQ(layout->places[0].offset % 256, 2u * (3 + 2));
  EXPECT_EQ(layout->places[1].offset % 256, 2u * (5 + 2));
  EXPECT_GE(layout->places[0].offset, kGuardBytes);
  EXPECT_GE(layout->places[1].offset, layout->places[0].offset + 257 * 2 + kGuardBytes);
  EXPECT_GE(layout->own_bytes, layout->places[1].offset + 257 * 2 + kGuardBytes);
}

TEST(ValuesTest, StridedTensorsAreScatteredAndGathered) {
  const TensorSpec spec{DType::kI32, {2, 3}, {1, 4}};
  std::vector<std::byte> packed(24), tensor(64, std::byte{0xcc});
  for (size_t i = 0; i < packed.size(); ++i) packed[i] = static_cast<std::byte>(i);
  Scatter(spec, packed, tensor.data());
  EXPECT_EQ(tensor[(2 * 4 + 1) * 4], packed[5 * 4]);
  EXPECT_EQ(tensor[2 * 4], std::byte{0xcc});
  EXPECT_EQ(Gather(spec, tensor.data()), packed);
}

TEST(MatrixTest, NamesAreUniqueAndEveryOperationIsThere) {
  for (int world : {1, 2, 4}) {
    std::set<std::string> names;
    std::set<Op> ops;
    for (const Case& test : MakeMatrix(world, 3)) {
      EXPECT_TRUE(names.insert(test.name).second) << test.name;
      EXPECT_EQ(test.requests.size(), static_cast<size_t>(world));
      ops.insert(test.requests[0].op);
    }
    EXPECT_EQ(ops.size(), world == 1 ? 12u : 13u);
    EXPECT_GT(names.size(), 1000u);
  }
}

}  // namespace
}  // namespace tandem::conformance
