// Families: the table of algorithms by rows, its members, and their proofs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "common/row_requests.h"
#include "daemon/planner/choice/placement.h"
#include "daemon/planner/members/member.h"
#include "daemon/planner/planner.h"
#include "daemon/planner/row_family.h"
#include "daemon/planner/tests/planner_fixtures.h"
#include "program/text.h"
#include "program/verifier/verifier.h"

namespace tandem::plan {
namespace {

using testing::HasSubstr;

constexpr int64_t kColumns = 1024, kK = 512;

// The client's kernels on CUDA, all of them.
GroupContext CudaClients(int world) {
  GroupContext group = HopperGroup(world);
  group.packet_kernels = true;
  group.fused_by_choice = true;
  group.client_kernels = ClientKernels::kFused;
  group.placement = PlanPlacement::kClient;
  group.kernel_sms = 132;
  return group;
}

GroupContext HostClients(int world) {
  GroupContext group = SwitchGroup(world);
  group.placement = PlanPlacement::kClient;
  return group;
}

OpRequest NormedAllReduce(int64_t rows, int64_t columns) {
  OpRequest request = Request(Op::kAllReduce, {Tensor(Role::kInput, DType::kBf16, {rows, columns}),
                                               Tensor(Role::kOutput, DType::kBf16, {rows, columns}),
                                               Tensor(Role::kNormWeight, DType::kBf16, {columns}),
                                               Tensor(Role::kResidual, DType::kBf16, {rows, columns}),
                                               Tensor(Role::kResidualOutput, DType::kBf16, {rows, columns})});
  request.norm_epsilon = 1e-5f;
  return request;
}

// Requests with some rows, for `world` ranks.
std::vector<OpRequest> Families(int world) {
  const int64_t rows = 4 * world;
  return {
      AllReduce(rows, DType::kBf16),
      NormedAllReduce(rows, kColumns),
      Request(Op::kAllReduce, {Tensor(Role::kInput, DType::kF16, {rows, 100}),
                               Tensor(Role::kOutput, DType::kF16, {rows, 100})}),
      Request(Op::kAllGather, {Tensor(Role::kInput, DType::kBf16, {rows, kColumns}),
                               Tensor(Role::kOutput, DType::kBf16, {world * rows, kColumns})}),
      Request(Op::kReduceScatter, {Tensor(Role::kInput, DType::kF32, {rows, kColumns}),
                                   Tensor(Role::kOutput, DType::kF32, {rows / world, kColumns})}),
      Request(Op::kAllToAll, {Tensor(Role::kInput, DType::kI32, {rows, 96}),
                              Tensor(Role::kOutput, DType::kI32, {rows, 96})}),
      Request(Op::kBroadcast, {Tensor(Role::kInput, DType::kF32, {rows, 33}),
                               Tensor(Role::kOutput, DType::kF32, {rows, 33})}),
      GatherMatmul(world, rows, kColumns, kK, 0, DType::kBf16),
      MatmulScatter(world, rows, kColumns, kK, 0, DType::kBf16),
      MatmulAllReduce(rows, kColumns, kK, DType::kBf16),
  };
}

// All ranks' programs.
std::string Listing(const OperationPlan& plan) {
  std::string text;
  for (const RankProgram& program : plan.programs) text += ListProgram(program);
  return text;
}

// The member of `rows` rows, as a rank makes it.
Result<OperationPlan> MemberOf(const RowTable& table, const RowRequests& requests, const GroupContext& group,
                               int64_t rows) {
  TANDEM_ASSIGN_OR_RETURN(const std::vector<OpRequest> own, requests.At(rows));
  return MakeMember(table, own, group, rows);
}

class Rows : public testing::TestWithParam<int> {};

TEST_P(Rows, MembersArePlansOfTheirShape) {
  std::mt19937_64 random(static_cast<uint64_t>(GetParam()));
  int members = 0, others = 0;
  for (const GroupContext& group : {HostClients(GetParam()), CudaClients(GetParam())}) {
    for (const OpRequest& request : Families(GetParam())) {
      auto requests = RowRequests::Make(OnAllRanks(request, GetParam()), GetParam());
      ASSERT_TRUE(requests.ok()) << requests.status().ToString();
      const int64_t bound = (request.operands[0].spec.shape.size() == 1 ? 40 << 20 : 8192) /
                            requests->unit() * requests->unit();
      const auto table = PlanRows(*requests, bound, group);
      ASSERT_TRUE(table.ok()) << OpName(request.op) << ": " << table.status().ToString();
      const std::string where = Text(OpName(request.op), "\n", ListRows(*table));
      std::uniform_real_distribution<double> exponent(0, std::log2(static_cast<double>(bound)));
      for (int i = 0; i < 250; ++i) {
        const auto drawn = static_cast<int64_t>(std::exp2(exponent(random)));
        const int64_t rows = drawn / requests->unit() * requests->unit();
        const auto own = requests->At(rows);
        ASSERT_TRUE(own.ok());
        ++members;
        const auto member = MakeMember(*table, *own, group, rows);
        ASSERT_TRUE(member.ok()) << rows << " rows of " << where << member.status().ToString();
        auto alone = MakePlan(*own, group);
        ASSERT_TRUE(alone.ok()) << rows << " rows of " << where << alone.status().ToString();
        if (member->algorithm != alone->algorithm || member->collective != alone->collective) {
          // Within a range single numbers of rows may be predicted a little faster otherwise.
          ++others;
          std::vector<OpRequest> asked = *own;
          for (OpRequest& each : asked) each.algorithm = member->algorithm;
          alone = MakePlan(asked, group);
          ASSERT_TRUE(alone.ok()) << rows << " rows of " << where << alone.status().ToString();
        }
        ASSERT_EQ(Listing(*member), Listing(*alone)) << rows << " rows of " << where;
        EXPECT_LE(member->workspace_bytes, table->workspace_bytes) << rows << " rows of " << where;
        EXPECT_LE(member->bulk_bytes, table->bulk_bytes) << rows << " rows of " << where;
      }
    }
  }
  EXPECT_LT(others * 50, members) << "members that are not their shape's own choice";
}

// Launches of a family with changing numbers of rows follow one another in one workspace.
TEST_P(Rows, MembersTakeTurns) {
  const GroupContext group = CudaClients(GetParam());
  for (const OpRequest& request : Families(GetParam())) {
    auto requests = RowRequests::Make(OnAllRanks(request, GetParam()), GetParam());
    ASSERT_TRUE(requests.ok());
    const int64_t bound = 2048 / requests->unit() * requests->unit();
    const auto table = PlanRows(*requests, bound, group);
    ASSERT_TRUE(table.ok()) << table.status().ToString();
    const std::vector<int64_t> rows = RowsToProve(*table);
    for (size_t i = 0; i + 1 < rows.size(); i += 3) {
      const int64_t other = rows[rows.size() - 1 - i];
      const auto p = MemberOf(*table, *requests, group, rows[i]);
      const auto q = MemberOf(*table, *requests, group, other);
      ASSERT_TRUE(p.ok() && q.ok());
      const auto p_sizes = ContextOf(*requests->At(rows[i])), q_sizes = ContextOf(*requests->At(other));
      const Status proven = VerifyPair(p->programs, *p_sizes, q->programs, *q_sizes, {.in_client = true});
      EXPECT_TRUE(proven.ok()) << OpName(request.op) << " " << rows[i] << " and " << other
                               << " rows: " << proven.ToString();
    }
  }
}

// A rank with one row less than its peers touches other bytes: the proof of the members together finds it.
TEST_P(Rows, ARankWithOneRowLessIsFound) {
  const GroupContext group = CudaClients(GetParam());
  int found = 0, all = 0;
  for (const OpRequest& request : Families(GetParam())) {
    auto requests = RowRequests::Make(OnAllRanks(request, GetParam()), GetParam());
    ASSERT_TRUE(requests.ok());
    const auto table = PlanRows(*requests, 64 * requests->unit(), group);
    ASSERT_TRUE(table.ok()) << table.status().ToString();
    const int64_t rows = 48 * requests->unit();
    auto whole = MemberOf(*table, *requests, group, rows);
    const auto less = MemberOf(*table, *requests, group, rows - requests->unit());
    ASSERT_TRUE(whole.ok() && less.ok());
    EXPECT_NE(Listing(*whole), Listing(*less)) << OpName(request.op);
    // The launch binds this rank's smaller operands.
    auto sizes = ContextOf(*requests->At(rows));
    const auto smaller = ContextOf(*requests->At(rows - requests->unit()));
    ASSERT_TRUE(sizes.ok() && smaller.ok());
    sizes->operand_bytes[1] = smaller->operand_bytes[1];
    ++all;
    found += VerifyPrograms(whole->programs, *sizes, {.in_client = true}).ok() ? 0 : 1;
  }
  EXPECT_EQ(found, all);
}

TEST(RowTable, RefusesRowsThatItHasNot) {
  const auto requests = RowRequests::Make(OnAllRanks(Families(4)[4], 4), 4);
  ASSERT_TRUE(requests.ok());
  EXPECT_EQ(requests->unit(), 4);
  const auto table = PlanRows(*requests, 64, HostClients(4));
  ASSERT_TRUE(table.ok()) << table.status().ToString();
  const auto find = [&](int64_t rows) { return table->Find(rows).status(); };
  EXPECT_TRUE(find(0).ok());
  EXPECT_TRUE(find(64).ok());
  EXPECT_EQ(find(68).code(), Code::kOutOfRange);
  EXPECT_EQ(find(68).detail().limit, 64);
  for (const int64_t wrong : {-4, 3, 62}) EXPECT_EQ(find(wrong).code(), Code::kInvalidArgument) << wrong;
  for (const int64_t wrong : {-4, 3, 62, 68}) EXPECT_EQ(find(wrong).detail().field, "rows") << wrong;
  EXPECT_EQ(PlanRows(*requests, 66, HostClients(4)).status().detail().field, "max_rows");
  EXPECT_EQ(PlanRows(*requests, 0, HostClients(4)).status().detail().field, "max_rows");
}

TEST(RowTable, RefusesRequestsWithoutRows) {
  const auto field = [](OpRequest request) {
    return RowRequests::Make(OnAllRanks(request, 2), 2).status().detail().field;
  };
  EXPECT_EQ(field(Request(Op::kBarrier, {})), "op");
  EXPECT_EQ(field(GatherMatmul(2, 8, 64, 64, 1)), "dim");
  EXPECT_EQ(field(AllReduce(0)), "operands[0].shape");
  OpRequest uneven = MatmulAllReduce(6, 64, 64);
  uneven.operands.back().spec.shape[0] = 4;
  EXPECT_EQ(field(uneven), "operands[2].shape");
}

// The table's ranges join, and a range's end is where the next structure begins.
TEST(RowTable, RangesJoin) {
  const auto requests = RowRequests::Make(OnAllRanks(AllReduce(1, DType::kBf16), 2), 2);
  ASSERT_TRUE(requests.ok());
  const auto table = PlanRows(*requests, 8 << 20, CudaClients(2));
  ASSERT_TRUE(table.ok()) << table.status().ToString();
  ASSERT_EQ(table->ranges.size(), 3u) << ListRows(*table);
  EXPECT_EQ(table->ranges[0].last, 0);
  EXPECT_EQ(table->ranges[1].algorithm, Algorithm::kLowLatency);
  EXPECT_EQ(table->ranges[1].last, 4 << 20) << "8 MiB, the bound of dense packets";
  EXPECT_EQ(table->ranges[2].algorithm, Algorithm::kTwoShot);
  EXPECT_EQ(table->ranges[2].last, 8 << 20);
  // An end that is one row too far: the member takes what can run there.
  RowTable wrong = *table;
  wrong.ranges[1].last = wrong.max_rows - 1;
  const auto member = MemberOf(wrong, *requests, CudaClients(2), (4 << 20) + 4096);
  ASSERT_TRUE(member.ok()) << member.status().ToString();
  EXPECT_TRUE(CheckClientPlacement(*member, *requests->At((4 << 20) + 4096), ClientKernels::kFused).ok());
}

INSTANTIATE_TEST_SUITE_P(Worlds, Rows, testing::Values(2, 4));

TEST(RowFamilies, AlgorithmsThatAreNamedHoldForAllRowsButNone) {
  for (OpRequest request : {GatherMatmul(2, 64, kColumns, kK, 0, DType::kBf16),
                            MatmulScatter(2, 64, kColumns, kK, 0, DType::kBf16),
                            MatmulAllReduce(64, kColumns, kK, DType::kBf16)}) {
    request.max_rows = 4096;
    request.algorithm = Algorithm::kFused;
    request.on_unfused = OnUnfused::kError;
    const OperationPlan plan = MustPlan(request, CudaClients(2));
    for (const RowRange& range : plan.rows.ranges) {
      EXPECT_TRUE(range.last == 0 || range.algorithm == Algorithm::kFused) << range.last;
    }
    EXPECT_EQ(plan.rows.ranges.front().last, 0);
  }
}

}  // namespace
}  // namespace tandem::plan
