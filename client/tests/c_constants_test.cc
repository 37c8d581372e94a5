// The constants of the C interface are those of the C++ one: this file does not compile otherwise.
#include <gtest/gtest.h>

#include "tandem/client.h"
#include "tandem/tandem.h"

namespace tandem {
namespace {

// The constants of each enumeration: X(constant of C, constant of C++).
#define CODES(X)                                           \
  X(TANDEM_OK, Code::kOk)                                  \
  X(TANDEM_CANCELLED, Code::kCancelled)                    \
  X(TANDEM_UNKNOWN, Code::kUnknown)                        \
  X(TANDEM_INVALID_ARGUMENT, Code::kInvalidArgument)       \
  X(TANDEM_DEADLINE_EXCEEDED, Code::kDeadlineExceeded)     \
  X(TANDEM_NOT_FOUND, Code::kNotFound)                     \
  X(TANDEM_ALREADY_EXISTS, Code::kAlreadyExists)           \
  X(TANDEM_PERMISSION_DENIED, Code::kPermissionDenied)     \
  X(TANDEM_RESOURCE_EXHAUSTED, Code::kResourceExhausted)   \
  X(TANDEM_FAILED_PRECONDITION, Code::kFailedPrecondition) \
  X(TANDEM_ABORTED, Code::kAborted)                        \
  X(TANDEM_OUT_OF_RANGE, Code::kOutOfRange)                \
  X(TANDEM_UNIMPLEMENTED, Code::kUnimplemented)            \
  X(TANDEM_INTERNAL, Code::kInternal)                      \
  X(TANDEM_UNAVAILABLE, Code::kUnavailable)                \
  X(TANDEM_DATA_LOSS, Code::kDataLoss)                     \
  X(TANDEM_UNAUTHENTICATED, Code::kUnauthenticated)
#define DTYPES(X)                        \
  X(TANDEM_DTYPE_F32, DType::kF32)       \
  X(TANDEM_DTYPE_F16, DType::kF16)       \
  X(TANDEM_DTYPE_BF16, DType::kBf16)     \
  X(TANDEM_DTYPE_F8E4M3, DType::kF8E4M3) \
  X(TANDEM_DTYPE_F8E5M2, DType::kF8E5M2) \
  X(TANDEM_DTYPE_I32, DType::kI32)       \
  X(TANDEM_DTYPE_I64, DType::kI64)       \
  X(TANDEM_DTYPE_U8, DType::kU8)
#define OPS(X)                                                 \
  X(TANDEM_OP_ALL_REDUCE, Op::kAllReduce)                      \
  X(TANDEM_OP_ALL_GATHER, Op::kAllGather)                      \
  X(TANDEM_OP_REDUCE_SCATTER, Op::kReduceScatter)              \
  X(TANDEM_OP_ALL_GATHER_MATMUL, Op::kAllGatherMatmul)         \
  X(TANDEM_OP_MATMUL_REDUCE_SCATTER, Op::kMatmulReduceScatter) \
  X(TANDEM_OP_MATMUL_ALL_REDUCE, Op::kMatmulAllReduce)         \
  X(TANDEM_OP_BROADCAST, Op::kBroadcast)                       \
  X(TANDEM_OP_REDUCE, Op::kReduce)                             \
  X(TANDEM_OP_ALL_TO_ALL, Op::kAllToAll)                       \
  X(TANDEM_OP_SEND_RECEIVE, Op::kSendReceive)                  \
  X(TANDEM_OP_BARRIER, Op::kBarrier)                           \
  X(TANDEM_OP_ASYNC_INPUT_MATMUL, Op::kAsyncInputMatmul)       \
  X(TANDEM_OP_EMPTY, Op::kEmpty)
#define ROLES(X)                                    \
  X(TANDEM_ROLE_INPUT, Role::kInput)                \
  X(TANDEM_ROLE_OUTPUT, Role::kOutput)              \
  X(TANDEM_ROLE_A, Role::kA)                        \
  X(TANDEM_ROLE_B, Role::kB)                        \
  X(TANDEM_ROLE_C, Role::kC)                        \
  X(TANDEM_ROLE_GATHERED_A, Role::kGatheredA)       \
  X(TANDEM_ROLE_SCALE_A, Role::kScaleA)             \
  X(TANDEM_ROLE_SCALE_B, Role::kScaleB)             \
  X(TANDEM_ROLE_BIAS, Role::kBias)                  \
  X(TANDEM_ROLE_RESULT_SCALE, Role::kResultScale)   \
  X(TANDEM_ROLE_CHUNK_SIGNALS, Role::kChunkSignals) \
  X(TANDEM_ROLE_NORM_WEIGHT, Role::kNormWeight)     \
  X(TANDEM_ROLE_RESIDUAL, Role::kResidual) X(TANDEM_ROLE_RESIDUAL_OUTPUT, Role::kResidualOutput)
#define REDUCE_OPS(X)                  \
  X(TANDEM_REDUCE_SUM, ReduceOp::kSum) \
  X(TANDEM_REDUCE_AVG, ReduceOp::kAvg)
#define WIRE_TYPES(X)                      \
  X(TANDEM_WIRE_OUTPUT, WireType::kOutput) \
  X(TANDEM_WIRE_F32, WireType::kF32)
#define ALGORITHMS(X)                                              \
  X(TANDEM_ALGORITHM_AUTO, Algorithm::kAuto)                       \
  X(TANDEM_ALGORITHM_ONE_SHOT, Algorithm::kOneShot)                \
  X(TANDEM_ALGORITHM_TWO_SHOT, Algorithm::kTwoShot)                \
  X(TANDEM_ALGORITHM_HYBRID_CUBE_MESH, Algorithm::kHybridCubeMesh) \
  X(TANDEM_ALGORITHM_LOW_LATENCY, Algorithm::kLowLatency)          \
  X(TANDEM_ALGORITHM_NCCL, Algorithm::kNccl)                       \
  X(TANDEM_ALGORITHM_COPY_ENGINE, Algorithm::kCopyEngine)          \
  X(TANDEM_ALGORITHM_SM, Algorithm::kSm)                           \
  X(TANDEM_ALGORITHM_UNFUSED, Algorithm::kUnfused)                 \
  X(TANDEM_ALGORITHM_PIPELINE, Algorithm::kPipeline)               \
  X(TANDEM_ALGORITHM_RING, Algorithm::kRing)                       \
  X(TANDEM_ALGORITHM_TILED_TWO_SHOT, Algorithm::kTiledTwoShot)     \
  X(TANDEM_ALGORITHM_FUSED, Algorithm::kFused)                     \
  X(TANDEM_ALGORITHM_DIRECT, Algorithm::kDirect)
#define ON_UNFUSED(X)                           \
  X(TANDEM_ON_UNFUSED_ALLOW, OnUnfused::kAllow) \
  X(TANDEM_ON_UNFUSED_WARN, OnUnfused::kWarn)   \
  X(TANDEM_ON_UNFUSED_ERROR, OnUnfused::kError)
#define PLACEMENTS(X)                                \
  X(TANDEM_PLACEMENT_AUTO, PlanPlacement::kAuto)     \
  X(TANDEM_PLACEMENT_ENGINE, PlanPlacement::kEngine) \
  X(TANDEM_PLACEMENT_CLIENT, PlanPlacement::kClient)
#define ON_SLOW_PLACEMENT(X)                                 \
  X(TANDEM_ON_SLOW_PLACEMENT_ALLOW, OnSlowPlacement::kAllow) \
  X(TANDEM_ON_SLOW_PLACEMENT_WARN, OnSlowPlacement::kWarn)   \
  X(TANDEM_ON_SLOW_PLACEMENT_ERROR, OnSlowPlacement::kError)
#define EVENT_KINDS(X)                                                  \
  X(TANDEM_EVENT_RANK_LOST, ClientEvent::Kind::kRankLost)               \
  X(TANDEM_EVENT_GROUP_BROKEN, ClientEvent::Kind::kGroupBroken)         \
  X(TANDEM_EVENT_RANK_LEFT, ClientEvent::Kind::kRankLeft)               \
  X(TANDEM_EVENT_ENGINE_RESTARTED, ClientEvent::Kind::kEngineRestarted) \
  X(TANDEM_EVENT_DRAINING, ClientEvent::Kind::kDraining)                \
  X(TANDEM_EVENT_LATE, ClientEvent::Kind::kLate)                        \
  X(TANDEM_EVENT_DAEMON_LOST, ClientEvent::Kind::kDaemonLost)           \
  X(TANDEM_EVENT_PLAN_WARNING, ClientEvent::Kind::kPlanWarning)         \
  X(TANDEM_EVENT_GROUP_STALLED, ClientEvent::Kind::kGroupStalled)

// Each C constant has the value of the C++ constant.
#define SAME(c, cpp) static_assert(static_cast<int>(c) == static_cast<int>(cpp));
// Each C++ constant has a C constant: a list that lacks one does not compile.
#pragma GCC diagnostic error "-Wswitch"
#define CASE(c, cpp) \
  case cpp:          \
    return true;
#define COMPLETE(Enumeration, LIST)        \
  LIST(SAME)                               \
  constexpr bool IsListed(Enumeration e) { \
    switch (e) { LIST(CASE) }              \
    return false;                          \
  }                                        \
  static_assert(!IsListed(static_cast<Enumeration>(127)));

COMPLETE(Code, CODES)
COMPLETE(DType, DTYPES)
COMPLETE(Op, OPS)
COMPLETE(Role, ROLES)
COMPLETE(ReduceOp, REDUCE_OPS)
COMPLETE(WireType, WIRE_TYPES)
COMPLETE(Algorithm, ALGORITHMS)
COMPLETE(OnUnfused, ON_UNFUSED)
COMPLETE(PlanPlacement, PLACEMENTS)
COMPLETE(OnSlowPlacement, ON_SLOW_PLACEMENT)
COMPLETE(ClientEvent::Kind, EVENT_KINDS)

static_assert(kDefaultConnectDeadline.count() == TANDEM_DEFAULT_CONNECT_DEADLINE_MS);
static_assert(kDefaultDeadline.count() == TANDEM_DEFAULT_DEADLINE_MS);
static_assert(kDefaultWaitDeadline.count() == TANDEM_DEFAULT_WAIT_DEADLINE_MS);

TEST(CConstants, TheStructsDefaultsAreThoseOfCpp) {
  const OpRequest request;
  tandem_request c_request;
  tandem_request_init(&c_request, sizeof(c_request));
  EXPECT_EQ(c_request.struct_size, sizeof(c_request));
  EXPECT_EQ(c_request.op, static_cast<int>(request.op));
  EXPECT_EQ(c_request.fast_accumulation != 0, request.fast_accumulation);
  EXPECT_EQ(c_request.on_unfused, static_cast<int>(request.on_unfused));
  EXPECT_EQ(c_request.on_unfused, TANDEM_ON_UNFUSED_WARN);
  EXPECT_EQ(c_request.autotune != 0, request.autotune);
  EXPECT_EQ(c_request.placement, static_cast<int>(request.placement));
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
