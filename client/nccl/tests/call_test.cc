// Calls are served or declined by their arguments alone.
#include "client/nccl/call.h"

#include <gtest/gtest.h>

#include <vector>

#include "tandem/c_types.h"

namespace tandem::nccl {
namespace {

std::byte* At(uintptr_t address) { return reinterpret_cast<std::byte*>(address); }

NcclCall Reduction(ncclDataType_t type, ncclRedOp_t reduction) {
  return {.op = NcclCollective::kAllReduce,
          .send = At(0x1000),
          .receive = At(0x1000),
          .count = 3,
          .type = type,
          .reduction = reduction};
}

tandem_collective Described(const NcclCall& call) {
  tandem_collective collective{};
  Describe(call, &collective);
  return collective;
}

TEST(NcclCall, SumsOfIntegersDependOnTheirSizeAlone) {
  EXPECT_EQ(Described(Reduction(ncclUint32, ncclSum)).dtype, TANDEM_DTYPE_I32);
  EXPECT_EQ(Described(Reduction(ncclInt8, ncclProd)).dtype, TANDEM_DTYPE_U8);
  EXPECT_EQ(WhyNot(Reduction(ncclUint64, ncclSum)), nullptr);
  EXPECT_NE(WhyNot(Reduction(ncclUint32, ncclMax)), nullptr);
  EXPECT_NE(WhyNot(Reduction(ncclInt8, ncclMin)), nullptr);
  EXPECT_EQ(WhyNot(Reduction(ncclUint8, ncclMax)), nullptr);
}

TEST(NcclCall, AveragesAreOfFloatingPointAlone) {
  for (const ncclDataType_t type : {ncclFloat32, ncclFloat16, ncclBfloat16})
    EXPECT_EQ(WhyNot(Reduction(type, ncclAvg)), nullptr) << type;
  for (const ncclDataType_t type : {ncclInt32, ncclInt64, ncclUint8, ncclFloat64})
    EXPECT_NE(WhyNot(Reduction(type, ncclAvg)), nullptr) << type;
}

TEST(NcclCall, OperatorsTypesAndCountsThatTandemLacksAreNccls) {
  EXPECT_NE(WhyNot(Reduction(ncclFloat32, static_cast<ncclRedOp_t>(ncclNumOps))), nullptr);
  EXPECT_NE(WhyNot(Reduction(ncclFloat8e4m3, ncclSum)), nullptr);
  EXPECT_NE(WhyNot(Reduction(static_cast<ncclDataType_t>(99), ncclSum)), nullptr);
  NcclCall call = Reduction(ncclFloat32, ncclSum);
  call.count = 0;
  EXPECT_NE(WhyNot(call), nullptr);
  call.count = size_t{1} << 40;
  EXPECT_NE(WhyNot(call), nullptr);
}

TEST(NcclCall, ElementsThatMoveTravelAsBitsOfTheirSize) {
  NcclCall call = {.op = NcclCollective::kAllGather, .count = 1};
  const std::vector<std::pair<ncclDataType_t, int>> types = {{ncclFloat8e5m2, TANDEM_DTYPE_U8},
                                                             {ncclFloat16, TANDEM_DTYPE_BF16},
                                                             {ncclUint32, TANDEM_DTYPE_I32},
                                                             {ncclFloat64, TANDEM_DTYPE_I64}};
  for (const auto& [type, dtype] : types) {
    call.type = type;
    EXPECT_EQ(WhyNot(call), nullptr);
    EXPECT_EQ(Described(call).dtype, dtype);
  }
}

TEST(NcclCall, RootsAreOfBroadcastAndReduceAlone) {
  NcclCall call = {.op = NcclCollective::kBroadcast, .count = 1, .root = 3};
  EXPECT_EQ(Described(call).root, 3);
  call.op = NcclCollective::kAllGather;
  EXPECT_EQ(Described(call).root, 0);
}

}  // namespace
}  // namespace tandem::nccl
