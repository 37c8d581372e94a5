// The constants of the C interface are those of the C++ one: this file does not compile otherwise.
#include <gtest/gtest.h>

#include "tandem/client.h"
#include "tandem/tandem.h"

namespace tandem {
namespace {

#define SAME(c, cpp) static_assert(static_cast<int>(c) == static_cast<int>(cpp))

SAME(TANDEM_OK, Code::kOk);
SAME(TANDEM_CANCELLED, Code::kCancelled);
SAME(TANDEM_UNKNOWN, Code::kUnknown);
SAME(TANDEM_INVALID_ARGUMENT, Code::kInvalidArgument);
SAME(TANDEM_DEADLINE_EXCEEDED, Code::kDeadlineExceeded);
SAME(TANDEM_NOT_FOUND, Code::kNotFound);
SAME(TANDEM_ALREADY_EXISTS, Code::kAlreadyExists);
SAME(TANDEM_PERMISSION_DENIED, Code::kPermissionDenied);
SAME(TANDEM_RESOURCE_EXHAUSTED, Code::kResourceExhausted);
SAME(TANDEM_FAILED_PRECONDITION, Code::kFailedPrecondition);
SAME(TANDEM_ABORTED, Code::kAborted);
SAME(TANDEM_OUT_OF_RANGE, Code::kOutOfRange);
SAME(TANDEM_UNIMPLEMENTED, Code::kUnimplemented);
SAME(TANDEM_INTERNAL, Code::kInternal);
SAME(TANDEM_UNAVAILABLE, Code::kUnavailable);
SAME(TANDEM_DATA_LOSS, Code::kDataLoss);
SAME(TANDEM_UNAUTHENTICATED, Code::kUnauthenticated);

SAME(TANDEM_DTYPE_F32, DType::kF32);
SAME(TANDEM_DTYPE_F16, DType::kF16);
SAME(TANDEM_DTYPE_BF16, DType::kBf16);
SAME(TANDEM_DTYPE_F8E4M3, DType::kF8E4M3);
SAME(TANDEM_DTYPE_F8E5M2, DType::kF8E5M2);
SAME(TANDEM_DTYPE_I32, DType::kI32);
SAME(TANDEM_DTYPE_I64, DType::kI64);
SAME(TANDEM_DTYPE_U8, DType::kU8);

SAME(TANDEM_OP_ALL_REDUCE, Op::kAllReduce);
SAME(TANDEM_OP_ALL_GATHER, Op::kAllGather);
SAME(TANDEM_OP_REDUCE_SCATTER, Op::kReduceScatter);
SAME(TANDEM_OP_ALL_GATHER_MATMUL, Op::kAllGatherMatmul);
SAME(TANDEM_OP_MATMUL_REDUCE_SCATTER, Op::kMatmulReduceScatter);
SAME(TANDEM_OP_MATMUL_ALL_REDUCE, Op::kMatmulAllReduce);
SAME(TANDEM_OP_BROADCAST, Op::kBroadcast);
SAME(TANDEM_OP_REDUCE, Op::kReduce);
SAME(TANDEM_OP_ALL_TO_ALL, Op::kAllToAll);
SAME(TANDEM_OP_SEND_RECEIVE, Op::kSendReceive);
SAME(TANDEM_OP_BARRIER, Op::kBarrier);
SAME(TANDEM_OP_ASYNC_INPUT_MATMUL, Op::kAsyncInputMatmul);
SAME(TANDEM_OP_EMPTY, Op::kEmpty);

SAME(TANDEM_ROLE_INPUT, Role::kInput);
SAME(TANDEM_ROLE_OUTPUT, Role::kOutput);
SAME(TANDEM_ROLE_A, Role::kA);
SAME(TANDEM_ROLE_B, Role::kB);
SAME(TANDEM_ROLE_C, Role::kC);
SAME(TANDEM_ROLE_GATHERED_A, Role::kGatheredA);
SAME(TANDEM_ROLE_SCALE_A, Role::kScaleA);
SAME(TANDEM_ROLE_SCALE_B, Role::kScaleB);
SAME(TANDEM_ROLE_BIAS, Role::kBias);
SAME(TANDEM_ROLE_RESULT_SCALE, Role::kResultScale);
SAME(TANDEM_ROLE_CHUNK_SIGNALS, Role::kChunkSignals);

SAME(TANDEM_REDUCE_SUM, ReduceOp::kSum);
SAME(TANDEM_REDUCE_AVG, ReduceOp::kAvg);
SAME(TANDEM_WIRE_OUTPUT, WireType::kOutput);
SAME(TANDEM_WIRE_F32, WireType::kF32);

SAME(TANDEM_ALGORITHM_AUTO, Algorithm::kAuto);
SAME(TANDEM_ALGORITHM_ONE_SHOT, Algorithm::kOneShot);
SAME(TANDEM_ALGORITHM_TWO_SHOT, Algorithm::kTwoShot);
SAME(TANDEM_ALGORITHM_HYBRID_CUBE_MESH, Algorithm::kHybridCubeMesh);
SAME(TANDEM_ALGORITHM_LOW_LATENCY, Algorithm::kLowLatency);
SAME(TANDEM_ALGORITHM_NCCL, Algorithm::kNccl);
SAME(TANDEM_ALGORITHM_COPY_ENGINE, Algorithm::kCopyEngine);
SAME(TANDEM_ALGORITHM_SM, Algorithm::kSm);
SAME(TANDEM_ALGORITHM_UNFUSED, Algorithm::kUnfused);
SAME(TANDEM_ALGORITHM_PIPELINE, Algorithm::kPipeline);
SAME(TANDEM_ALGORITHM_RING, Algorithm::kRing);
SAME(TANDEM_ALGORITHM_TILED_TWO_SHOT, Algorithm::kTiledTwoShot);
SAME(TANDEM_ALGORITHM_FUSED, Algorithm::kFused);
SAME(TANDEM_ALGORITHM_DIRECT, Algorithm::kDirect);

SAME(TANDEM_ON_UNFUSED_ALLOW, OnUnfused::kAllow);
SAME(TANDEM_ON_UNFUSED_WARN, OnUnfused::kWarn);
SAME(TANDEM_ON_UNFUSED_ERROR, OnUnfused::kError);
SAME(TANDEM_ON_SLOW_PLACEMENT_ALLOW, OnSlowPlacement::kAllow);
SAME(TANDEM_ON_SLOW_PLACEMENT_WARN, OnSlowPlacement::kWarn);
SAME(TANDEM_ON_SLOW_PLACEMENT_ERROR, OnSlowPlacement::kError);

SAME(TANDEM_EVENT_RANK_LOST, ClientEvent::Kind::kRankLost);
SAME(TANDEM_EVENT_GROUP_BROKEN, ClientEvent::Kind::kGroupBroken);
SAME(TANDEM_EVENT_RANK_LEFT, ClientEvent::Kind::kRankLeft);
SAME(TANDEM_EVENT_ENGINE_RESTARTED, ClientEvent::Kind::kEngineRestarted);
SAME(TANDEM_EVENT_DRAINING, ClientEvent::Kind::kDraining);
SAME(TANDEM_EVENT_LATE, ClientEvent::Kind::kLate);
SAME(TANDEM_EVENT_DAEMON_LOST, ClientEvent::Kind::kDaemonLost);
SAME(TANDEM_EVENT_PLAN_WARNING, ClientEvent::Kind::kPlanWarning);

static_assert(kDefaultConnectDeadline.count() == TANDEM_DEFAULT_CONNECT_DEADLINE_MS);
static_assert(kDefaultDeadline.count() == TANDEM_DEFAULT_DEADLINE_MS);
static_assert(kDefaultWaitDeadline.count() == TANDEM_DEFAULT_WAIT_DEADLINE_MS);

// The names end with the last constant of each: a new C++ constant needs a C one, too.
TEST(CConstants, NoConstantOfCppIsMissing) {
  EXPECT_EQ(OpName(static_cast<Op>(TANDEM_OP_EMPTY + 1)), "unknown");
  EXPECT_EQ(RoleName(static_cast<Role>(TANDEM_ROLE_CHUNK_SIGNALS + 1)), "unknown");
  EXPECT_EQ(AlgorithmName(static_cast<Algorithm>(TANDEM_ALGORITHM_DIRECT + 1)), "unknown");
  EXPECT_FALSE(IsValid(static_cast<DType>(TANDEM_DTYPE_U8 + 1)));
}

TEST(CConstants, TheStructsDefaultsAreThoseOfCpp) {
  const OpRequest request;
  tandem_request c_request;
  tandem_request_init(&c_request, sizeof(c_request));
  EXPECT_EQ(c_request.struct_size, sizeof(c_request));
  EXPECT_EQ(c_request.op, static_cast<int>(request.op));
  EXPECT_EQ(c_request.fast_accumulation != 0, request.fast_accumulation);
  EXPECT_EQ(c_request.on_unfused, static_cast<int>(request.on_unfused));
  EXPECT_EQ(c_request.on_unfused, TANDEM_ON_UNFUSED_WARN);
  EXPECT_EQ(c_request.restartable != 0, request.restartable);
  EXPECT_EQ(c_request.algorithm, static_cast<int>(request.algorithm));
  EXPECT_EQ(c_request.dim, request.dim);
  const JoinOptions join;
  tandem_join_options c_join;
  tandem_join_options_init(&c_join, sizeof(c_join));
  EXPECT_EQ(c_join.world_size, join.world_size);
  EXPECT_EQ(c_join.on_slow_placement, static_cast<int>(join.on_slow_placement));
  tandem_operand operand;
  tandem_operand_init(&operand, sizeof(operand));
  EXPECT_EQ(operand.alias_of, Operand().alias_of);
}

}  // namespace
}  // namespace tandem
