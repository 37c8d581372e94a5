// A collective of any count needs a plan that follows from its arguments alone.
#include "client/lib/row_families.h"

#include <gtest/gtest.h>

#include <vector>

namespace tandem::client {
namespace {

std::byte* At(uintptr_t address) { return reinterpret_cast<std::byte*>(address); }

CollectiveCall Call(Op op, size_t count, DType dtype = DType::kF32) {
  return {.op = op, .input = At(0x10000), .output = At(0x20000), .count = count, .dtype = dtype};
}

std::string FieldOf(const Status& status) { return status.detail().field; }

TEST(RowFamilies, ElementsThatMoveAreOfOneKindByTheirSize) {
  EXPECT_EQ(KindOf(Call(Op::kAllGather, 1, DType::kF32), 0), KindOf(Call(Op::kAllGather, 9, DType::kI32), 0));
  EXPECT_EQ(KindOf(Call(Op::kAllToAll, 1, DType::kF16), 0).dtype, DType::kBf16);
  EXPECT_NE(KindOf(Call(Op::kAllReduce, 1, DType::kF32), 0), KindOf(Call(Op::kAllReduce, 1, DType::kI32), 0));
}

TEST(RowFamilies, APartIsInPlaceWhereTheWholeHasIt) {
  CollectiveCall call = Call(Op::kAllGather, 4, DType::kI64);
  call.input = At(0x20000 + 2 * 4 * 8);
  EXPECT_TRUE(KindOf(call, 2).in_place);
  EXPECT_FALSE(KindOf(call, 1).in_place);
  call = Call(Op::kReduceScatter, 4, DType::kI64);
  call.output = At(0x10000 + 2 * 4 * 8);
  EXPECT_TRUE(KindOf(call, 2).in_place);
  EXPECT_FALSE(KindOf(call, 0).in_place);
  call = Call(Op::kAllReduce, 4);
  EXPECT_FALSE(KindOf(call, 0).in_place);
  call.output = At(0x10000);
  EXPECT_TRUE(KindOf(call, 0).in_place);
}

TEST(RowFamilies, RootsMakeKindsOfBroadcastAndReduceAlone) {
  CollectiveCall call = Call(Op::kBroadcast, 1);
  call.root = 3;
  EXPECT_EQ(KindOf(call, 0).root, 3);
  call.op = Op::kAllGather;
  EXPECT_EQ(KindOf(call, 0).root, 0);
}

TEST(RowFamilies, RowsAreTheInputsElements) {
  EXPECT_EQ(*CollectiveRows(Call(Op::kReduceScatter, 5), 4), 20);
  EXPECT_EQ(*CollectiveRows(Call(Op::kAllGather, 5), 4), 5);
  EXPECT_EQ(*CollectiveRows(Call(Op::kAllReduce, size_t{1} << 28), 4), int64_t{1} << 28);
  for (const auto& call : {Call(Op::kAllToAll, (size_t{1} << 26) + 1), Call(Op::kAllReduce, SIZE_MAX)}) {
    const Status status = CollectiveRows(call, 4).status();
    EXPECT_EQ(status.code(), Code::kOutOfRange);
    EXPECT_EQ(FieldOf(status), "count");
  }
}

TEST(RowFamilies, BoundsDoubleAndAreMultiplesOfTheRanks) {
  EXPECT_EQ(FamilyBound(1, 2), 1 << 16);
  EXPECT_EQ(FamilyBound(1 << 16, 2), 1 << 16);
  EXPECT_EQ(FamilyBound((1 << 16) + 1, 2), 1 << 17);
  EXPECT_EQ(FamilyBound(1, 3) % 3, 0);
  EXPECT_GE(FamilyBound(1 << 16, 3), 1 << 16);
}

TEST(RowFamilies, AWrongCallNamesItsField) {
  EXPECT_TRUE(CheckCollective(Call(Op::kAllReduce, 1), 0, 2).ok());
  EXPECT_EQ(FieldOf(CheckCollective(Call(Op::kBarrier, 1), 0, 2)), "op");
  EXPECT_EQ(FieldOf(CheckCollective(Call(Op::kAllReduce, 1, static_cast<DType>(77)), 0, 2)), "dtype");
  CollectiveCall call = Call(Op::kBroadcast, 1);
  call.root = 2;
  EXPECT_EQ(FieldOf(CheckCollective(call, 0, 2)), "root");
  call.root = 1;
  call.input = nullptr;
  EXPECT_TRUE(CheckCollective(call, 0, 2).ok());
  EXPECT_EQ(FieldOf(CheckCollective(call, 1, 2)), "input");
  call = Call(Op::kReduce, 1);
  call.root = 1;
  call.output = nullptr;
  EXPECT_TRUE(CheckCollective(call, 0, 2).ok());
  EXPECT_EQ(FieldOf(CheckCollective(call, 1, 2)), "output");
  call = Call(Op::kAllToAll, 1);
  call.output = At(0x10000);
  EXPECT_EQ(FieldOf(CheckCollective(call, 0, 2)), "output");
  call.count = 0;
  EXPECT_TRUE(CheckCollective(call, 0, 2).ok());
}

}  // namespace
}  // namespace tandem::client
