// Client-placed launches on the host backend without a daemon: ranks are threads that share memory, as
// processes do. Right lanes give right data; each planted mistake is found.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "client/lib/client_launch/client_group.h"
#include "client/lib/client_launch/host/host_client_queue.h"
#include "client/lib/client_launch/mapped_plan.h"
#include "common/shared_memory.h"
#include "daemon/planner/planner.h"
#include "daemon/topology/topology.h"

namespace tandem::client {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

constexpr uint64_t kHalfBytes = uint64_t{2} << 20;
constexpr milliseconds kDeadline(60000);

OpRequest Request(Op op, Algorithm algorithm, int64_t in, int64_t out) {
  OpRequest request;
  request.op = op;
  request.algorithm = algorithm;
  if (in + out > 0) {
    request.operands = {{Role::kInput, {DType::kF32, {in}, {}}, false, -1},
                        {Role::kOutput, {DType::kF32, {out}, {}}, false, -1}};
  }
  return request;
}

float InputOf(uint64_t launch, int rank, size_t i) {
  return static_cast<float>((launch * 7 + static_cast<uint64_t>(rank) * 131 + i * 3) % 1009);
}

// A plan, and how its outputs follow from all ranks' inputs.
struct Recipe {
  OpRequest request;
  std::function<float(uint64_t launch, int rank, size_t i)> expected;
};

std::vector<Recipe> RecipesOf(int world) {
  const auto sum = [world](uint64_t launch, size_t i) {
    float total = 0;
    for (int rank = 0; rank < world; ++rank) total += InputOf(launch, rank, i);
    return total;
  };
  const auto all = [sum](uint64_t launch, int, size_t i) { return sum(launch, i); };
  const auto gathered = [](uint64_t launch, int, size_t i) {
    return InputOf(launch, static_cast<int>(i / 33), i % 33);
  };
  const auto scattered = [sum](uint64_t launch, int rank, size_t i) {
    return sum(launch, static_cast<size_t>(rank) * 65 + i);
  };
  return {{Request(Op::kAllReduce, Algorithm::kOneShot, 257, 257), all},
          {Request(Op::kAllReduce, Algorithm::kTwoShot, 1003, 1003), all},
          {Request(Op::kAllGather, Algorithm::kSm, 33, 33 * world), gathered},
          {Request(Op::kReduceScatter, Algorithm::kSm, 65 * world, 65), scattered},
          {Request(Op::kBarrier, Algorithm::kAuto, 0, 0), {}}};
}

using MakeLane = std::function<std::unique_ptr<ClientLane>(int rank)>;

// The shared memory of a group, and each rank's programs.
class Node {
 public:
  Node(int world, std::vector<Recipe> recipes, const MakeLane& make_lane = {})
      : world_(world), recipes_(std::move(recipes)) {
    ClientLaunchMemory memory;
    memory.half_bytes = kHalfBytes;
    for (int rank = 0; rank < world; ++rank) {
      const auto r = static_cast<size_t>(rank);
      memory.signals[r] = reinterpret_cast<Word*>(Area(plan::kSignalAreaBytes));
      memory.workspace[r] = Area(2 * kHalfBytes);
      auto fd = VerdictPage::Create();
      pages_.push_back(*VerdictPage::Map(fd->get()));
      groups_.push_back(std::make_unique<ClientGroup>(1, rank, *VerdictPage::Map(fd->get()),
                                                      [this](FailureReport report) { Take(report); }));
      groups_.back()->SetQueue(std::make_unique<HostClientQueue>(*groups_.back()));
    }
    signals_ = memory.signals;
    plan::GroupContext context;
    context.topology = EmulatedTopology(world);
    context.placement = plan::PlanPlacement::kClient;
    programs_.resize(static_cast<size_t>(world));
    for (const Recipe& recipe : recipes_) {
      const std::vector<OpRequest> requests(static_cast<size_t>(world), recipe.request);
      auto plan = plan::MakePlan(requests, context);
      EXPECT_TRUE(plan.ok()) << plan.status().ToString();
      for (int rank = 0; plan.ok() && rank < world; ++rank) {
        std::vector<runtime::SlotLimit> slots;
        for (size_t slot = 0; slot < recipe.request.operands.size(); ++slot) {
          slots.push_back(
              {static_cast<uint64_t>(*BoundBytes(recipe.request, static_cast<int>(slot))), false});
        }
        auto program = ClientProgram::Make(plan->programs[static_cast<size_t>(rank)], slots, memory,
                                           make_lane ? make_lane(rank) : nullptr);
        EXPECT_TRUE(program.ok()) << program.status().ToString();
        programs_[static_cast<size_t>(rank)].push_back(std::move(*program));
      }
    }
  }

  // Launch `launch` of a rank by recipe `k`: right data, or why not.
  Status Run(int rank, uint64_t launch, size_t k, milliseconds deadline = kDeadline, uint16_t tag = 0) {
    const auto r = static_cast<size_t>(rank);
    const Recipe& recipe = recipes_[k];
    std::vector<std::vector<float>> operands;
    std::vector<runtime::SlotAddress> slots;
    for (const Operand& operand : recipe.request.operands) {
      operands.emplace_back(static_cast<size_t>(operand.spec.shape[0]), -1.0f);
      runtime::SlotAddress address;
      address.own = reinterpret_cast<std::byte*>(operands.back().data());
      slots.push_back(address);
    }
    if (!operands.empty()) {
      for (size_t i = 0; i < operands[0].size(); ++i) operands[0][i] = InputOf(launch, rank, i);
    }
    const uint16_t own = static_cast<uint16_t>(k + 1 + 16 * tag);
    TANDEM_RETURN_IF_ERROR(groups_[r]->Run(*programs_[r][k], k, own, deadline, slots));
    if (operands.empty()) return Status::Ok();
    for (size_t i = 0; i < operands[1].size(); ++i) {
      const float right = recipe.expected(launch, rank, i);
      if (operands[1][i] == right) continue;
      return Internal("WRONG DATA: launch " + std::to_string(launch) + " element " + std::to_string(i));
    }
    return Status::Ok();
  }

  // `launches` of each rank, by turns of all recipes or of the first alone, with ranks late at random. The
  // first failure of each rank.
  std::vector<Status> RunAll(uint64_t launches, bool mixed, milliseconds deadline = kDeadline) {
    std::vector<Status> ends(static_cast<size_t>(world_));
    std::vector<std::thread> threads;
    for (int rank = 0; rank < world_; ++rank) {
      threads.emplace_back([&, rank] {
        std::minstd_rand random(static_cast<unsigned>(rank + 1));
        std::minstd_rand order(99);
        for (uint64_t launch = 1; launch <= launches; ++launch) {
          if (random() % 8 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 60));
          const size_t k = mixed ? order() % recipes_.size() : 0;
          Status status = Run(rank, launch, k, deadline);
          if (status.ok()) continue;
          ends[static_cast<size_t>(rank)] = status;
          return;
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    return ends;
  }

  ClientGroup& group(int rank) { return *groups_[static_cast<size_t>(rank)]; }
  VerdictPage& page(int rank) { return pages_[static_cast<size_t>(rank)]; }
  // The launch numbers of the words that `writer` has on `reader`.
  std::vector<uint64_t> WordsOf(int writer, int reader, int count) {
    std::vector<uint64_t> numbers;
    const Word* words = signals_[static_cast<size_t>(reader)] + writer * plan::kSignalsPerWriter;
    for (int i = 0; i < count; ++i) numbers.push_back(words[i].load() >> kLaunchTagBits);
    return numbers;
  }
  // Ends all ranks' launches at the first report, as tandemd does.
  std::atomic<bool> breaks_at_report{true};
  Status verdict;  // takes the place of the report's, unless OK
  std::atomic<int> reports{0};
  std::atomic<int> blamed{-1};

 private:
  void Take(const FailureReport& report) {
    ++reports;
    blamed = report.awaited_rank;
    if (!breaks_at_report) return;
    for (VerdictPage& page : pages_) page.Abort(1, verdict.ok() ? report.status : verdict);
  }
  std::byte* Area(uint64_t bytes) {
    auto fd = CreateSealedMemfd("client-launch-test", bytes);
    mappings_.push_back(*Mapping::Map(fd->get(), 0, bytes, true));
    return mappings_.back().data();
  }

  const int world_;
  const std::vector<Recipe> recipes_;
  std::vector<Mapping> mappings_;
  std::vector<VerdictPage> pages_;
  std::array<Word*, plan::kMaxWorldSize> signals_{};
  std::vector<std::unique_ptr<ClientGroup>> groups_;
  std::vector<std::vector<std::unique_ptr<ClientProgram>>> programs_;
};

// --- right lanes

TEST(ClientLaunches, MixedPlansGiveRightDataOnAllRanks) {
  for (int world : {2, 3, 4}) {
    Node node(world, RecipesOf(world));
    for (const Status& end : node.RunAll(2000, true)) EXPECT_TRUE(end.ok()) << end.ToString();
    for (int rank = 0; rank < world; ++rank) EXPECT_EQ(node.group(rank).finished(), 2000u);
    EXPECT_EQ(node.reports, 0);
  }
}

// --- planted mistakes

// Announces data before peers can see them.
class FlagBeforeData : public ClientLane {
 public:
  Status Copy(const CopyArgs& args) override {
    kept_.push_back(args);
    return Status::Ok();
  }
  Status WriteWord(Word* word, uint64_t number) override {
    TANDEM_RETURN_IF_ERROR(ClientLane::WriteWord(word, number));
    std::this_thread::sleep_for(std::chrono::microseconds(200));
    return Flush();
  }
  Status WaitWord(const Word* word, uint64_t number) override {
    TANDEM_RETURN_IF_ERROR(Flush());
    return ClientLane::WaitWord(word, number);
  }
  Status Reduce(const ReduceArgs& args) override {
    TANDEM_RETURN_IF_ERROR(Flush());
    return ClientLane::Reduce(args);
  }

 private:
  Status Flush() {
    for (const CopyArgs& args : kept_) TANDEM_RETURN_IF_ERROR(ClientLane::Copy(args));
    kept_.clear();
    return Status::Ok();
  }
  std::vector<CopyArgs> kept_;
};

class SkippedWait : public ClientLane {
 public:
  Status WaitWord(const Word* word, uint64_t number) override {
    return ++waits_ % 3 == 0 ? Status::Ok() : ClientLane::WaitWord(word, number);
  }

 private:
  int waits_ = 0;
};

// Waits for the launch before.
class StaleNumber : public ClientLane {
 public:
  Status WaitWord(const Word* word, uint64_t number) override {
    return ClientLane::WaitWord(word, number - 1);
  }
};

// Goes on after it has given up, and so publishes, and counts the launch.
class DeafLane : public ClientLane {
 public:
  Status WaitWord(const Word* word, uint64_t number) override {
    (void)ClientLane::WaitWord(word, number);
    return Status::Ok();
  }
};

template <typename Lane>
std::unique_ptr<ClientLane> LaneOfAll(int) {
  return std::make_unique<Lane>();
}

#ifndef __SANITIZE_THREAD__  // the mistakes are races
bool SomeFailed(const std::vector<Status>& ends) {
  for (const Status& end : ends) {
    if (!end.ok()) return true;
  }
  return false;
}

TEST(PlantedMistakes, AFlagBeforeItsDataIsFound) {
  Node node(2, RecipesOf(2), LaneOfAll<FlagBeforeData>);
  EXPECT_TRUE(SomeFailed(node.RunAll(300, false, milliseconds(3000))));
}

TEST(PlantedMistakes, ASkippedWaitIsFound) {
  Node node(4, RecipesOf(4), LaneOfAll<SkippedWait>);
  EXPECT_TRUE(SomeFailed(node.RunAll(2000, false, milliseconds(3000))));
}

TEST(PlantedMistakes, AStaleNumberIsFound) {
  Node node(2, RecipesOf(2), LaneOfAll<StaleNumber>);
  EXPECT_TRUE(SomeFailed(node.RunAll(2000, false, milliseconds(3000))));
}
#endif

// A two-shot has a second exchange. A rank that has given up before it must not announce it.
std::vector<uint64_t> AnnouncedAfterGivingUp(const MakeLane& lane, uint64_t* finished) {
  Node node(2, {RecipesOf(2)[1]}, lane);
  (void)node.Run(0, 1, 0, milliseconds(30));
  *finished = node.group(0).finished();
  std::vector<uint64_t> words = node.WordsOf(0, 1, plan::kSignalsPerWriter);
  std::erase(words, 0u);
  return words;
}

TEST(PlantedMistakes, PublishingAndCountingAfterGivingUpAreFound) {
  uint64_t finished = 0;
  const size_t right = AnnouncedAfterGivingUp({}, &finished).size();
  EXPECT_EQ(finished, 0u);
  const size_t wrong = AnnouncedAfterGivingUp(LaneOfAll<DeafLane>, &finished).size();
  EXPECT_GT(wrong, right);
  EXPECT_EQ(finished, 1u);
}

// --- giving up

TEST(GivingUp, ADeadlineNamesTheAwaitedRankAndEndsTheGroup) {
  Node node(2, RecipesOf(2));
  const Status late = node.Run(0, 1, 0, milliseconds(30));
  EXPECT_EQ(late.code(), Code::kDeadlineExceeded);
  EXPECT_EQ(late.detail().reason, "RANK_LATE");
  EXPECT_EQ(late.detail().who, "rank 1");
  EXPECT_EQ(node.blamed, 1);
  EXPECT_EQ(node.group(0).finished(), 0u);
  // Later launches return the same at once, and report nothing.
  EXPECT_EQ(node.Run(0, 2, 0).detail().reason, "RANK_LATE");
  EXPECT_EQ(node.reports, 1);
}

TEST(GivingUp, AVerdictThatNamesTheCauseTakesThePlaceOfWhatThisRankSaw) {
  Node node(2, RecipesOf(2));
  // It is there within the time that a rank waits for it, however long a thread is stopped.
  node.verdict = DeadlineExceeded("rank 3 had not arrived");
  EXPECT_THAT(node.Run(0, 1, 0, milliseconds(30)).message(), HasSubstr("rank 3 had not arrived"));
}

TEST(GivingUp, AVerdictEndsAWaitWithinMilliseconds) {
  // The shortest of several: the system may stop either thread for longer.
  auto shortest = std::chrono::nanoseconds::max();
  for (int i = 0; i < 10; ++i) {
    Node node(2, RecipesOf(2));
    std::atomic<std::chrono::steady_clock::time_point> written{};
    std::thread daemon([&] {
      std::this_thread::sleep_for(milliseconds(100));
      written = std::chrono::steady_clock::now();
      node.page(0).Abort(1, Unavailable("rank 1 was lost").WithDetail({.reason = "RANK_LOST"}));
    });
    EXPECT_EQ(node.Run(0, 1, 0).detail().reason, "RANK_LOST");
    shortest =
        std::min<std::chrono::nanoseconds>(shortest, std::chrono::steady_clock::now() - written.load());
    daemon.join();
    EXPECT_EQ(node.reports, 0);
  }
  EXPECT_LT(shortest, milliseconds(50));
}

// A leaver's peers may finish what the leaver has finished.
TEST(GivingUp, ALeaversLastLaunchIsFinishedByItsPeers) {
  Node node(2, RecipesOf(2));
  std::thread leaver([&] { EXPECT_TRUE(node.Run(1, 1, 0).ok()); });
  node.page(0).Abort(2, Unavailable("rank 1 has left").WithDetail({.reason = "RANK_LEFT"}));
  EXPECT_TRUE(node.Run(0, 1, 0).ok());
  leaver.join();
  EXPECT_EQ(node.Run(0, 2, 0).detail().reason, "RANK_LEFT");
  EXPECT_EQ(node.group(0).finished(), 1u);
}

TEST(GivingUp, AnotherPlanUnderTheSameNumberIsAMismatch) {
  Node node(2, RecipesOf(2));
  Status ends[2];
  std::thread other([&] { ends[1] = node.Run(1, 1, 1); });
  ends[0] = node.Run(0, 1, 0);
  other.join();
  for (const Status& end : ends) {
    EXPECT_EQ(end.code(), Code::kInvalidArgument) << end.ToString();
    EXPECT_EQ(end.detail().reason, "LAUNCH_MISMATCH");
  }
}

TEST(GivingUp, AnotherTagIsAMismatch) {
  Node node(2, RecipesOf(2));
  Status ends[2];
  std::thread other([&] { ends[1] = node.Run(1, 1, 0, kDeadline, 7); });
  ends[0] = node.Run(0, 1, 0);
  other.join();
  for (const Status& end : ends) EXPECT_EQ(end.detail().reason, "LAUNCH_MISMATCH") << end.ToString();
}

TEST(GivingUp, ARefusedLaunchEndsTheGroup) {
  Node node(2, RecipesOf(2));
  node.group(0).Refuse(1, OutOfRange("slot 0 is too small"));
  EXPECT_EQ(node.reports, 1);
  const Status after = node.Run(0, 1, 0);
  EXPECT_EQ(after.detail().reason, "LAUNCH_REFUSED");
  EXPECT_THAT(after.message(), HasSubstr("slot 0 is too small"));
}

TEST(GivingUp, TheEndOfTheSessionEndsAWait) {
  Node node(2, RecipesOf(2));
  std::thread watchdog([&] {
    std::this_thread::sleep_for(milliseconds(30));
    node.group(0).CutOff(Unavailable("the daemon is gone").WithDetail({.reason = "DAEMON_LOST"}));
  });
  EXPECT_EQ(node.Run(0, 1, 0).detail().reason, "DAEMON_LOST");
  watchdog.join();
}

// As tandemd and the library do it: the ranks agree on a number behind all that a word may hold.
void Renew(Node& node, int world, uint64_t skips) {
  uint64_t highest = 0;
  for (int rank = 0; rank < world; ++rank) {
    auto finished = node.group(rank).queue().Stop(std::chrono::steady_clock::now() + kDeadline);
    ASSERT_TRUE(finished.ok()) << finished.status().ToString();
    ASSERT_TRUE(node.group(rank).BeginRenewal());
    highest = std::max(highest, *finished);
  }
  for (int rank = 0; rank < world; ++rank)
    ASSERT_TRUE(node.group(rank).queue().Restart(highest + skips).ok());
  for (int rank = 0; rank < world; ++rank) node.page(rank).Clear();
  for (int rank = 0; rank < world; ++rank) node.group(rank).EndRenewal(1);
}

// Two ranks give up in a launch that the third never makes; one of them has ended the launch before it.
// The verdict comes once both have reported, so that both have written their words.
void FailOneOfThree(Node& node) {
  node.breaks_at_report = false;
  const int reports = node.reports;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&node, rank] {
      EXPECT_FALSE(node.Run(rank, 100, 0, milliseconds(100)).ok());
      EXPECT_FALSE(node.Run(rank, 101, 0).ok()) << "the group has failed";
    });
  }
  while (node.reports < reports + 2) std::this_thread::yield();
  for (int rank = 0; rank < 3; ++rank) node.page(rank).Abort(1, DeadlineExceeded("rank 2 had not arrived"));
  for (std::thread& thread : threads) thread.join();
}

TEST(Renewals, LaunchesGoOnWithRightData) {
  Node node(3, RecipesOf(3));
  for (int round = 0; round < 5; ++round) {
    for (const Status& end : node.RunAll(50, true)) EXPECT_TRUE(end.ok()) << end.ToString();
    FailOneOfThree(node);
    ASSERT_NO_FATAL_FAILURE(Renew(node, 3, 2));
  }
  for (const Status& end : node.RunAll(50, true)) EXPECT_TRUE(end.ok()) << end.ToString();
}

// The words of the launch that failed are still there.
TEST(Renewals, UsingItsNumberAgainIsFound) {
  Node node(3, RecipesOf(3));
  for (const Status& end : node.RunAll(1, false)) EXPECT_TRUE(end.ok()) << end.ToString();
  FailOneOfThree(node);
  ASSERT_NO_FATAL_FAILURE(Renew(node, 3, 0));
  // Rank 2 alone: it must wait for its peers, and finds their words of the launch that failed.
  const Status alone = node.Run(2, 7, 0, milliseconds(100));
  EXPECT_THAT(alone.message(), HasSubstr("WRONG DATA"));
}

TEST(ClientTags, DifferInEveryPart) {
  const auto fold = [](std::initializer_list<uint64_t> parts) {
    ClientTag tag;
    for (uint64_t part : parts) tag.Add(part);
    return tag.Fold();
  };
  EXPECT_EQ(fold({1, 2, 3}), fold({1, 2, 3}));
  EXPECT_NE(fold({1, 2, 3}), fold({2, 2, 3}));
  EXPECT_NE(fold({1, 2, 3}), fold({1, 2, 4}));
  EXPECT_NE(fold({1, 0}), fold({0, 1}));
}

}  // namespace
}  // namespace tandem::client
