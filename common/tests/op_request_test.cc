#include "tandem/op_request.h"

#include <gtest/gtest.h>

#include <limits>

namespace tandem {
namespace {

TEST(OpRequest, NamesParseBack) {
  for (int i = 1; i <= 13; ++i) {
    auto op = static_cast<Op>(i);
    ASSERT_TRUE(ParseOp(OpName(op)).ok()) << i;
    EXPECT_EQ(*ParseOp(OpName(op)), op);
  }
  for (int i = 0; i <= 13; ++i) {
    auto algorithm = static_cast<Algorithm>(i);
    ASSERT_TRUE(ParseAlgorithm(AlgorithmName(algorithm)).ok()) << i;
    EXPECT_EQ(*ParseAlgorithm(AlgorithmName(algorithm)), algorithm);
  }
}

TEST(OpRequest, SpanBytesFollowsStrides) {
  EXPECT_EQ(*SpanBytes({DType::kF32, {3, 4}, {}}), 48);
  EXPECT_EQ(*SpanBytes({DType::kF16, {3, 4}, {10, 1}}), (20 + 3 + 1) * 2);
  EXPECT_EQ(*SpanBytes({DType::kF32, {0, 4}, {}}), 0);
  EXPECT_EQ(*SpanBytes({DType::kF32, {}, {}}), 4);
}

TEST(OpRequest, OverflowIsRefused) {
  int64_t huge = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(ElementCount({huge, huge}).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(ElementCount({-1}).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(ElementCount({huge, 0}).ok(), false);
  EXPECT_EQ(SpanBytes({DType::kF32, {2, 2}, {huge, huge}}).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(SpanBytes({DType::kF32, {2}, {-1}}).status().code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace tandem
