// The constants of the C interface are those of the C++ one: this file does not compile otherwise.
#include <gtest/gtest.h>

#include "tandem/client.h"
#include "tandem/tandem.h"

namespace tandem {
namespace {

// The constants of each enumeration that is not generated from common/ops.def: X(constant of C, constant of
// C++). Those of ops.def are compared by tests/source/test_tables.py.
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
#define EVENT_KINDS(X)                                                    \
  X(TANDEM_EVENT_RANK_LOST, ClientEvent::Kind::kRankLost)                 \
  X(TANDEM_EVENT_GROUP_BROKEN, ClientEvent::Kind::kGroupBroken)           \
  X(TANDEM_EVENT_RANK_LEFT, ClientEvent::Kind::kRankLeft)                 \
  X(TANDEM_EVENT_ENGINE_RESTARTED, ClientEvent::Kind::kEngineRestarted)   \
  X(TANDEM_EVENT_DRAINING, ClientEvent::Kind::kDraining)                  \
  X(TANDEM_EVENT_LATE, ClientEvent::Kind::kLate)                          \
  X(TANDEM_EVENT_DAEMON_LOST, ClientEvent::Kind::kDaemonLost)             \
  X(TANDEM_EVENT_PLAN_WARNING, ClientEvent::Kind::kPlanWarning)           \
  X(TANDEM_EVENT_GROUP_STALLED, ClientEvent::Kind::kGroupStalled)         \
  X(TANDEM_EVENT_SUSPEND_REQUESTED, ClientEvent::Kind::kSuspendRequested) \
  X(TANDEM_EVENT_RESUME_REQUESTED, ClientEvent::Kind::kResumeRequested)

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
  EXPECT_EQ(c_request.determinism, static_cast<int>(request.determinism));
  EXPECT_EQ(c_request.rounding, static_cast<int>(request.rounding));
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
