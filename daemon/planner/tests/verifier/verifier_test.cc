// The verifier on small programs written by hand: one for each thing that it refuses.
#include "program/verifier/verifier.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <set>

#include "daemon/planner/tests/reference/reference_cases.h"
#include "program/byte_box.h"

namespace tandem::plan {
namespace {

View Bytes(Space space, int rank, uint64_t offset, int64_t bytes, int slot = 0) {
  return {{space, static_cast<uint8_t>(rank), static_cast<uint16_t>(slot), offset}, DType::kU8, {bytes}, {1}};
}
template <typename Work>
Step On(int lane, Work work, std::vector<uint32_t> deps = {}) {
  return {static_cast<uint16_t>(lane), std::move(deps), std::move(work), ""};
}
SignalStep Signal(int to, int index) { return {static_cast<uint8_t>(to), static_cast<uint16_t>(index)}; }
WaitStep Wait(int from, int index) { return {static_cast<uint8_t>(from), static_cast<uint16_t>(index)}; }

// Two ranks that push 16 bytes into each other's workspace and copy them out.
std::vector<RankProgram> Exchange() {
  std::vector<RankProgram> programs(2);
  for (int r = 0; r < 2; ++r) {
    RankProgram& p = programs[r];
    p.rank = r;
    p.world_size = 2;
    p.lanes = 2;
    p.workspace_bytes = 16;
    p.signal_count = 2;
    p.steps = {On(0, CopyStep{Bytes(Space::kOperand, r, 0, 16, 0), Bytes(Space::kWorkspace, 1 - r, 0, 16)}),
               On(0, Signal(1 - r, 0)), On(0, Wait(1 - r, 0)),
               On(0, CopyStep{Bytes(Space::kWorkspace, r, 0, 16), Bytes(Space::kOperand, r, 0, 16, 1)})};
  }
  return programs;
}

VerifyContext Context() { return {{{16, 16}, {16, 16}}, {false, false}, {-1, -1}}; }

std::string ReasonOf(const std::vector<RankProgram>& programs, const VerifyOptions& options = {},
                     const VerifyContext& context = Context()) {
  Status status = VerifyPrograms(programs, context, options);
  return status.ok() ? "" : status.detail().reason;
}

TEST(Verifier, AcceptsAnExchange) {
  EXPECT_EQ(ReasonOf(Exchange()), "");
  EXPECT_TRUE(VerifyPair(Exchange(), Context(), Exchange(), Context()).ok());
}

TEST(Verifier, OneHalfOfWorkspaceIsNotEnough) {
  VerifyOptions options;
  options.alternate_parity = false;
  EXPECT_EQ(ReasonOf(Exchange(), options), "RACE");
}

TEST(Verifier, BulkProgramsFollowOneAnother) {
  auto programs = Exchange();
  for (RankProgram& p : programs) {
    p.bulk_bytes = 16;
    p.workspace_bytes = 0;
    std::get<CopyStep>(p.steps[0].work).dst.ref.space = Space::kBulk;
    std::get<CopyStep>(p.steps[3].work).src.ref.space = Space::kBulk;
  }
  EXPECT_EQ(ReasonOf(programs), "");
}

TEST(Verifier, NamesBothStepsOfARace) {
  auto programs = Exchange();
  std::swap(programs[0].steps[0], programs[0].steps[1]);
  Status status = VerifyPrograms(programs, Context());
  EXPECT_EQ(status.detail().reason, "RACE");
  EXPECT_NE(status.message().find("rank 0 launch 0 step 1"), std::string::npos) << status.message();
  EXPECT_NE(status.message().find("rank 1 launch 0 step 3"), std::string::npos) << status.message();
}

TEST(Verifier, FindsDeadlocks) {
  auto programs = Exchange();
  for (RankProgram& p : programs) std::rotate(p.steps.begin(), p.steps.begin() + 2, p.steps.end());
  EXPECT_EQ(ReasonOf(programs), "DEADLOCK");
}

TEST(Verifier, FindsDeadlocksOfSharedQueues) {
  auto programs = Exchange();
  for (RankProgram& p : programs) {
    // The wait is issued first, on another lane: fine until both lanes share a queue.
    Step wait = p.steps[2];
    wait.lane = 1;
    p.steps.erase(p.steps.begin() + 2);
    p.steps.insert(p.steps.begin(), wait);
    p.steps[3].deps = {0};
  }
  EXPECT_EQ(ReasonOf(programs), "");
  VerifyOptions options;
  options.hardware_queues = 2;
  EXPECT_EQ(ReasonOf(programs, options), "");
  options.hardware_queues = 1;
  EXPECT_EQ(ReasonOf(programs, options), "DEADLOCK");
}

TEST(Verifier, CollectivesInOppositeOrdersDeadlock) {
  auto programs = Exchange();
  for (int r = 0; r < 2; ++r) programs[r].steps.push_back(On(0, NcclStep{}));
  EXPECT_EQ(ReasonOf(programs), "");
  programs[0].steps.pop_back();
  EXPECT_EQ(ReasonOf(programs), "MALFORMED");
  programs[0].steps.insert(programs[0].steps.begin(), On(0, NcclStep{}));
  EXPECT_EQ(ReasonOf(programs), "DEADLOCK");
}

TEST(Verifier, ChecksSignals) {
  auto twice = Exchange();
  twice[0].steps.push_back(On(1, Signal(1, 0)));
  EXPECT_EQ(ReasonOf(twice), "SIGNAL");
  auto never = Exchange();
  never[0].steps.push_back(On(1, Wait(1, 1)));
  EXPECT_EQ(ReasonOf(never), "SIGNAL");
  auto range = Exchange();
  range[0].steps.push_back(On(1, Signal(1, 2)));
  EXPECT_EQ(ReasonOf(range), "SIGNAL");
  auto count = Exchange();
  count[1].signal_count = 3;
  EXPECT_EQ(ReasonOf(count), "SIGNAL");
}

TEST(Verifier, ChecksBoundsAndOwners) {
  auto programs = Exchange();
  for (RankProgram& p : programs) p.workspace_bytes = 15;
  EXPECT_EQ(ReasonOf(programs), "BOUNDS");
  programs = Exchange();
  std::get<CopyStep>(programs[0].steps[0].work).dst = Bytes(Space::kOperand, 1, 0, 16, 1);
  EXPECT_EQ(ReasonOf(programs), "BOUNDS");  // a peer's slot that is not symmetric
}

TEST(Verifier, EveryProgramCloses) {
  auto programs = Exchange();
  for (RankProgram& p : programs) p.steps.resize(1);
  for (int r = 0; r < 2; ++r)
    std::get<CopyStep>(programs[r].steps[0].work).dst.ref.rank = static_cast<uint8_t>(r);
  EXPECT_EQ(ReasonOf(programs), "NOT_CLOSED");
  // Without any step the start is all there is, and that is a meeting.
  for (RankProgram& p : programs) p.steps.clear();
  EXPECT_EQ(ReasonOf(programs), "");
  EXPECT_TRUE(VerifyPair(programs, Context(), Exchange(), Context()).ok());
  EXPECT_TRUE(VerifyPair(Exchange(), Context(), programs, Context()).ok());
  // A peer still reads an operand when its owner is done.
  programs = Exchange();
  VerifyContext context = Context();
  context.symmetric = {true, true};
  programs[0].steps.push_back(
      On(1, CopyStep{Bytes(Space::kOperand, 1, 0, 8, 0), Bytes(Space::kWorkspace, 0, 0, 8)}, {3}));
  EXPECT_EQ(ReasonOf(programs, {}, context), "NOT_CLOSED");
}

TEST(Verifier, ChecksForm) {
  auto programs = Exchange();
  programs[0].steps[0].lane = 2;
  EXPECT_EQ(ReasonOf(programs), "MALFORMED");
  programs = Exchange();
  programs[0].steps[1].deps = {1};
  EXPECT_EQ(ReasonOf(programs), "MALFORMED");
  programs = Exchange();
  std::get<CopyStep>(programs[0].steps[0].work).dst.extent = {8};
  EXPECT_EQ(ReasonOf(programs), "MALFORMED");
  programs = Exchange();
  programs[1].rank = 0;
  EXPECT_EQ(ReasonOf(programs), "MALFORMED");
}

TEST(Verifier, CrosswiseTransfersMustBeOneGroup) {
  auto programs = Exchange();
  for (int r = 0; r < 2; ++r) {
    TransferPart send{true, static_cast<uint8_t>(1 - r), 0, Bytes(Space::kOperand, r, 0, 16, 0),
                      Bytes(Space::kWorkspace, 1 - r, 0, 16)};
    TransferPart receive{false, static_cast<uint8_t>(1 - r), 0, {}, {}};
    programs[r].steps = {On(0, TransferGroupStep{{send}}), On(0, TransferGroupStep{{receive}}),
                         programs[r].steps[3]};
  }
  EXPECT_EQ(ReasonOf(programs), "UNCOALESCED");
  for (RankProgram& p : programs) {
    auto& parts = std::get<TransferGroupStep>(p.steps[0].work).parts;
    parts.push_back(std::get<TransferGroupStep>(p.steps[1].work).parts[0]);
    p.steps.erase(p.steps.begin() + 1);
  }
  EXPECT_EQ(ReasonOf(programs), "");
}

TEST(Verifier, PairsShareSymmetricMemory) {
  // P reads the peer's symmetric operand at once; Q's last step writes such an operand: Q then P is a race.
  auto reader = Exchange(), writer = Exchange();
  VerifyContext context = Context();
  context.symmetric = {true, true};
  for (int r = 0; r < 2; ++r)
    std::get<CopyStep>(reader[r].steps[0].work).src.ref.rank = static_cast<uint8_t>(r);
  for (int r = 0; r < 2; ++r) {
    reader[r].steps.insert(reader[r].steps.begin(), On(0, CopyStep{Bytes(Space::kOperand, 1 - r, 0, 16, 0),
                                                                   Bytes(Space::kWorkspace, r, 16, 16)}));
    reader[r].workspace_bytes = 32;
  }
  ASSERT_TRUE(VerifyPrograms(reader, context).ok()) << VerifyPrograms(reader, context).ToString();
  ASSERT_TRUE(VerifyPrograms(writer, context).ok());
  EXPECT_EQ(VerifyPair(writer, context, reader, context).detail().reason, "RACE");
}

TEST(ByteBox, AgreesWithBruteForce) {
  std::mt19937 random(7);
  auto draw = [&random](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
  auto view = [&] {
    View v;
    v.dtype = draw(0, 1) == 0 ? DType::kU8 : DType::kBf16;
    v.ref.offset = static_cast<uint64_t>(draw(0, 12)) * DTypeBytes(v.dtype);
    for (int d = draw(0, 3); d > 0; --d) {
      v.extent.push_back(draw(0, 9) == 0 ? 0 : draw(1, 4));
      v.stride.push_back(draw(0, 9));
    }
    return v;
  };
  auto bytes = [](const View& v) {
    std::vector<int64_t> offsets = {0};
    for (size_t d = 0; d < v.extent.size(); ++d) {
      std::vector<int64_t> next;
      for (int64_t offset : offsets) {
        for (int64_t i = 0; i < v.extent[d]; ++i) next.push_back(offset + i * v.stride[d]);
      }
      offsets.swap(next);
    }
    std::set<uint64_t> all;
    for (int64_t offset : offsets) {
      for (size_t b = 0; b < DTypeBytes(v.dtype); ++b)
        all.insert(v.ref.offset + offset * DTypeBytes(v.dtype) + b);
    }
    return all;
  };
  int met = 0;
  for (int i = 0; i < 20000; ++i) {
    View a = view(), b = view();
    auto x = BoxOf(a), y = BoxOf(b);
    ASSERT_TRUE(x.ok() && y.ok());
    auto p = bytes(a), q = bytes(b);
    bool meet = std::any_of(p.begin(), p.end(), [&q](uint64_t byte) { return q.count(byte) != 0; });
    ASSERT_EQ(Intersect(*x, *y), meet) << "pair " << i;
    met += meet;
  }
  EXPECT_GT(met, 2000);
}

TEST(ByteBox, ColumnsOfHugeMatricesAreCheap) {
  View left{{}, DType::kBf16, {1 << 20, 1024}, {8192, 1}}, right = left;
  right.ref.offset = 2048;
  EXPECT_FALSE(Intersect(*BoxOf(left), *BoxOf(right)));
  right.ref.offset = 2046;
  EXPECT_TRUE(Intersect(*BoxOf(left), *BoxOf(right)));
}

TEST(Verifier, PlansOfEightRanksTakeMilliseconds) {
#ifdef TANDEM_SANITIZED
  GTEST_SKIP() << "a figure, which sanitizers spoil";
#endif
  std::vector<double> times;
  for (const Case& c : CasesOf(8)) {
    auto plan = MakePlan(c.requests, c.group);
    auto context = ContextOf(c.requests);
    if (!plan.ok() || !context.ok()) continue;
    auto start = std::chrono::steady_clock::now();
    (void)VerifyPrograms(plan->programs, *context);
    times.push_back(
        std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count());
  }
  std::sort(times.begin(), times.end());
  std::printf("verify W=8: p50 %.2f ms, p99 %.2f ms, max %.2f ms of %zu plans\n", times[times.size() / 2],
              times[times.size() * 99 / 100], times.back(), times.size());
  // The goal is 20 ms; loaded machines get more room.
  EXPECT_LT(times[times.size() / 2], 200);
}

}  // namespace
}  // namespace tandem::plan
