#include "tandem/op_request.h"

#include <gtest/gtest.h>

#include <limits>
#include <utility>

#include "common/op_tables.h"

namespace tandem {
namespace {

template <typename Enum>
class OpTables : public testing::Test {};
using Enumerations = testing::Types<DType, Op, ReduceOp, WireType, OnUnfused, OnSlowPlacement, PlanPlacement,
                                    Determinism, Rounding, Algorithm, Role>;
TYPED_TEST_SUITE(OpTables, Enumerations);

TYPED_TEST(OpTables, NamesParseBackAndNumbersBeyondTheEndsAreRefused) {
  ASSERT_GE(kNamedValues<TypeParam>.size(), 2u);
  for (const auto& [value, name] : kNamedValues<TypeParam>) {
    EXPECT_EQ(ValueOf<TypeParam>(name), value);
    EXPECT_EQ(NameOf(value), name);
    EXPECT_EQ(FindValue<TypeParam>(static_cast<int64_t>(value))->value, value);
  }
  const auto first = static_cast<int64_t>(kNamedValues<TypeParam>.front().value);
  const auto last = static_cast<int64_t>(kNamedValues<TypeParam>.back().value);
  EXPECT_EQ(FindValue<TypeParam>(first - 1), nullptr);
  EXPECT_EQ(FindValue<TypeParam>(last + 1), nullptr);
  EXPECT_EQ(FindValue<TypeParam>(last + 256), nullptr);
  EXPECT_FALSE(IsListed(static_cast<TypeParam>(last + 1)));
  EXPECT_EQ(NameOf(static_cast<TypeParam>(last + 1)), "unknown");
  EXPECT_EQ(ValueOf<TypeParam>("unknown"), std::nullopt);
}

TEST(OpRequest, UnknownNamesAreErrors) {
  EXPECT_EQ(ParseOp("all_reduce").value(), Op::kAllReduce);
  EXPECT_EQ(ParseOp("all_reduc").status().code(), Code::kInvalidArgument);
  EXPECT_EQ(ParseAlgorithm("two_shot").value(), Algorithm::kTwoShot);
  EXPECT_EQ(ParseAlgorithm("").status().code(), Code::kInvalidArgument);
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

OpRequest InPlace(Op op, Operand input, Operand output) {
  OpRequest request;
  request.op = op;
  output.alias_of = 0;
  request.operands = {std::move(input), std::move(output)};
  return request;
}

Operand Slot(Role role, std::vector<int64_t> shape, std::vector<int64_t> strides = {}) {
  return {role, {DType::kF32, std::move(shape), std::move(strides)}, false, -1};
}

TEST(OpRequest, AGatherInPlaceReadsAPartOfItsOutput) {
  OpRequest request =
      InPlace(Op::kAllGather, Slot(Role::kInput, {4, 3}), Slot(Role::kOutput, {4, 6}, {8, 1}));
  EXPECT_EQ(PartSlot(request), 0);
  EXPECT_EQ(StridesOf(request, 0), (std::vector<int64_t>{8, 1}));
  EXPECT_EQ(*BoundBytes(request, 0), (3 * 8 + 6) * 4);
  EXPECT_EQ(*BoundBytes(request, 1), (3 * 8 + 6) * 4);
  // Strides that are given are what they are.
  request.operands[0].spec.strides = {9, 1};
  EXPECT_EQ(StridesOf(request, 0), (std::vector<int64_t>{9, 1}));
  request.operands[1].alias_of = -1;
  request.operands[0].spec.strides.clear();
  EXPECT_EQ(PartSlot(request), -1);
  EXPECT_EQ(StridesOf(request, 0), (std::vector<int64_t>{3, 1}));
  EXPECT_EQ(*BoundBytes(request, 0), 4 * 3 * 4);
}

TEST(OpRequest, AReduceScatterInPlaceWritesAPartOfItsInput) {
  OpRequest request = InPlace(Op::kReduceScatter, Slot(Role::kInput, {4, 6}), Slot(Role::kOutput, {4, 3}));
  EXPECT_EQ(PartSlot(request), 1);
  EXPECT_EQ(StridesOf(request, 1), (std::vector<int64_t>{6, 1}));
  EXPECT_EQ(*BoundBytes(request, 0), 4 * 6 * 4);
  EXPECT_EQ(*BoundBytes(request, 1), 4 * 6 * 4);
  // Other operations' aliases are no parts, and what is no slot is none either.
  request.op = Op::kAllToAll;
  EXPECT_EQ(PartSlot(request), -1);
  request.op = Op::kReduceScatter;
  for (int slot : {1, 2, -2}) {
    request.operands[1].alias_of = slot;
    EXPECT_EQ(PartSlot(request), -1) << slot;
  }
}

TEST(OpRequest, WithoutItsNormItIsTheSumOfTheSameSlots) {
  OpRequest request;
  request.op = Op::kAllReduce;
  request.norm_epsilon = 1e-5f;
  request.operands = {Slot(Role::kNormWeight, {3}), Slot(Role::kInput, {4, 3}), Slot(Role::kResidual, {4, 3}),
                      Slot(Role::kOutput, {4, 3}), Slot(Role::kResidualOutput, {4, 3})};
  request.operands[3].alias_of = 1;
  request.operands[4].alias_of = 2;
  OpRequest sum;
  sum.op = Op::kAllReduce;
  sum.operands = {request.operands[1], request.operands[3]};
  sum.operands[1].alias_of = 0;
  EXPECT_EQ(WithoutNorm(request), sum);
  EXPECT_EQ(WithoutNorm(sum), sum);
}

}  // namespace
}  // namespace tandem
