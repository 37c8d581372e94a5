#include "client/torch/schema_kinds.h"

#include <gtest/gtest.h>

#include <vector>

namespace tandem::torch_ops {
namespace {

template <size_t N>
std::vector<ArgumentKind> Listed(const std::array<ArgumentKind, N>& kinds) {
  return {kinds.begin(), kinds.end()};
}
#define KINDS(schema) Listed(SchemaKinds<CountArguments(schema)>(schema))

using enum ArgumentKind;

TEST(SchemaKinds, EveryTypeHasItsKind) {
  EXPECT_EQ(KINDS("Tensor a, Tensor? b=None, Tensor[] c, Tensor[]? d=None, Tensor?[] e"),
            (std::vector{kTensor, kOptionalTensor, kTensors, kOptionalTensors, kTensorsOrNone}));
  EXPECT_EQ(KINDS("int a, int[] b, SymInt[]? c, bool d=False, bool[] e, float f, ScalarType g"),
            (std::vector{kInt, kInts, kOptionalInts, kBool, kBools, kFloat, kType}));
  EXPECT_EQ(KINDS("ScalarType? a=None, ScalarType?[] b, str reduce_op, str group_name"),
            (std::vector{kOptionalType, kTypesOrNone, kText, kGroupName}));
}

TEST(SchemaKinds, WrittenTensorsAreTensors) {
  EXPECT_EQ(KINDS("Tensor(a!) out, Tensor(b!)[] outs"), (std::vector{kTensor, kTensors}));
}

TEST(SchemaKinds, TheStarIsNoArgument) {
  EXPECT_EQ(KINDS("str group_name, *, bool return_A=True, str graph"),
            (std::vector{kGroupName, kBool, kText}));
}

}  // namespace
}  // namespace tandem::torch_ops
