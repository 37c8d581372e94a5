// Handles that are made, used and dropped in any order: clients, groups, plans, families, tensors, memory,
// graphs, calls in the background, forked children. Both ranks of each group are in this process, and a random
// program makes all their calls. ASan and TSan watch; sums are compared.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "client/lib/handles.h"
#include "client/tests/fake_control.h"
#include "client/tests/group_plans.h"
#include "tandem/host_stream.h"
#include "tandem/pending.h"

namespace tandem::client {
namespace {

constexpr int kWorld = 2;
constexpr int kStreams = 2;  // of a rank; their queues are separate, so that no launch waits for its peer's
constexpr Milliseconds kLong(120'000);
constexpr int64_t kBound = 256;  // rows of a family

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

template <typename T>
using ByRank = std::array<T, kWorld>;

struct PlanPair {
  ByRank<std::shared_ptr<Plan>> plans;
  int64_t elements = 0;  // at most, of a family
  bool is_family = false;
  // Some handle of it ends: launches under way may be cut off with the session, and their outputs are undefined.
  std::shared_ptr<std::atomic<bool>> dropped = std::make_shared<std::atomic<bool>>(false);

  void Drop() { *dropped = true; }
};

struct GroupPair {
  uint64_t id = 0;
  ByRank<std::shared_ptr<Group>> groups;
  std::vector<PlanPair> plans;
  std::vector<std::shared_ptr<Memory>> memory;
  int prepared = 0;

  void Drop() {
    for (PlanPair& plan : plans) plan.Drop();
  }
};

// Two clients, and what the daemon would know of their groups.
struct ClientPair {
  ByRank<std::shared_ptr<FakeDaemon>> daemons;
  ByRank<std::shared_ptr<Client>> clients;
  std::vector<GroupPair> groups;

  void Drop() {
    for (GroupPair& group : groups) group.Drop();
  }
};

// A launch of both ranks in graphs.
struct GraphPair {
  ByRank<std::optional<HostGraphExec>> execs;
  ByRank<std::shared_ptr<std::vector<float>>> inputs, outputs;
};

OpRequest SumOf(int64_t elements, bool is_family) {
  OpRequest request;
  request.op = Op::kAllReduce;
  request.operands = {{Role::kInput, {DType::kF32, {elements}, {}}},
                      {Role::kOutput, {DType::kF32, {elements}, {}}}};
  if (is_family) request.max_rows = elements;
  return request;
}

class Lifetimes {
 public:
  explicit Lifetimes(uint64_t seed) : random_(seed) {
    for (auto& own : streams_) {
      for (auto& stream : own) stream = HostStream::Create().value();
    }
  }
  ~Lifetimes() { Synchronize(); }

  // One step of the program.
  void Step() {
    switch (Below(14)) {
      case 0: return Connect();
      case 1: return Join();
      case 2: return Prepare();
      case 3:
      case 4:
      case 5: return LaunchSome();
      case 6: return Capture();
      case 7: return Replay();
      case 8: return DropOne();
      case 9: return Allocate();
      case 10: return InTheBackground();
      case 11: return RefuseAndRenew();
      case 12: return Sleep();
      default: return Below(20) == 0 ? Fork() : LaunchSome();
    }
  }
  void Connect() {
    if (clients_.size() >= 3) return;
    ClientPair made;
    for (size_t rank = 0; rank < kWorld; ++rank) {
      auto daemon = std::make_shared<FakeDaemon>();
      daemon->lease = UniqueFd(::open("/dev/null", O_RDONLY | O_CLOEXEC));
      daemon->number_plan = [this](const std::string& key) {
        const std::lock_guard lock(numbers_mutex_);
        return numbers_.try_emplace(key, 1 + numbers_.size()).first->second;
      };
      made.clients[rank] = ConnectThrough(std::make_unique<FakeControl>(daemon), {}).value();
      made.daemons[rank] = std::move(daemon);
    }
    clients_.push_back(std::move(made));
  }
  void Join() {
    ClientPair* pair = Any(clients_);
    if (pair == nullptr || pair->groups.size() >= 4) return;
    pair->groups.push_back(MakeGroup(*pair));
  }
  void Prepare() {
    if (auto* group = AnyGroup(); group != nullptr && group->plans.size() < 6) MakePlan(*group);
  }
  void LaunchSome() {
    PlanPair* plan = AnyPlan();
    for (uint64_t left = plan == nullptr ? 0 : 1 + Below(5); left > 0; --left) Launch(*plan);
    if (plan == nullptr || Below(4) != 0) return;
    for (auto& each : plan->plans) {
      const Status ended = each->Wait(kLong);
      EXPECT_TRUE(ended.ok()) << ended.ToString();
    }
  }
  void Synchronize() {
    for (auto& own : streams_) {
      for (auto& stream : own) EXPECT_TRUE(stream->Synchronize(kLong).ok());
    }
    EXPECT_EQ(wrong_, 0) << "elements";
  }
  // Drops all that is left, the oldest first.
  void DropAll() {
    graphs_.clear();
    for (ClientPair& pair : clients_) pair.Drop();
    clients_.clear();
  }

 private:
  uint64_t Below(uint64_t bound) { return std::uniform_int_distribution<uint64_t>(0, bound - 1)(random_); }
  template <typename T>
  T* Any(std::vector<T>& all) {
    return all.empty() ? nullptr : &all[Below(all.size())];
  }
  GroupPair* AnyGroup() {
    ClientPair* pair = Any(clients_);
    return pair == nullptr ? nullptr : Any(pair->groups);
  }
  PlanPair* AnyPlan() {
    GroupPair* group = AnyGroup();
    return group == nullptr ? nullptr : Any(group->plans);
  }
  HostStream* AnyStream(size_t rank) { return streams_[rank][Below(kStreams)].get(); }
  template <typename T>
  void DropAny(std::vector<T>& all) {
    if (all.empty()) return;
    const auto one = all.begin() + static_cast<ptrdiff_t>(Below(all.size()));
    if constexpr (requires { one->Drop(); }) one->Drop();
    all.erase(one);
  }

  GroupPair MakeGroup(ClientPair& pair) {
    GroupPair made;
    made.id = ++last_group_;
    const auto plans = std::make_shared<GroupPlans>(GroupPlans::Make(kWorld).value());
    for (size_t rank = 0; rank < kWorld; ++rank) {
      pair.daemons[rank]->group_id = made.id;
      auto& place = pair.daemons[rank]->place;
      std::unique_lock lock(pair.daemons[rank]->mutex);  // a prepare in the background may ask it
      place = [plans, id = made.id, rank, before = place](uint64_t group_id, const OpRequest& request) {
        if (group_id == id) return plans->Place(static_cast<int>(rank), request);
        return before ? before(group_id, request) : Result<ClientPlacementInfo>(NotFound("no such group"));
      };
      lock.unlock();
      JoinOptions join;
      join.job_key = "0123456789abcdef";
      join.name = "group " + std::to_string(made.id);
      join.world_size = kWorld;
      join.rank = static_cast<int>(rank);
      join.gpu_uuid = "GPU-0";
      made.groups[rank] = pair.clients[rank]->JoinGroup(join).value();
    }
    return made;
  }
  void MakePlan(GroupPair& group) {
    PlanPair made;
    made.is_family = Below(3) == 0;
    made.elements = made.is_family ? kBound : 1 + static_cast<int64_t>(Below(2000));
    const std::string key = std::to_string(group.id) + " plan " + std::to_string(++group.prepared);
    for (size_t rank = 0; rank < kWorld; ++rank) {
      auto plan = group.groups[rank]->Prepare(key, SumOf(made.elements, made.is_family));
      ASSERT_TRUE(plan.ok()) << plan.status().ToString();
      made.plans[rank] = *std::move(plan);
    }
    group.plans.push_back(std::move(made));
  }

  // Both ranks' launch of `rows` elements; their operands live until it has ended. False: it was not made.
  void Launch(PlanPair& plan) {
    LaunchOptions options;
    int64_t elements = plan.elements;
    if (plan.is_family) options.rows = elements = static_cast<int64_t>(Below(kBound + 1));
    const auto value = static_cast<float>(Below(1000));
    for (size_t rank = 0; rank < kWorld; ++rank) {
      auto input = std::make_shared<std::vector<float>>(elements, value + static_cast<float>(rank));
      auto output = std::make_shared<std::vector<float>>(elements, -1.0f);
      const Binding bindings[] = {{.pointer = input->data()}, {.pointer = output->data()}};
      HostStream* stream = AnyStream(rank);
      const Status launched = plan.plans[rank]->Launch(stream, bindings, options);
      EXPECT_TRUE(launched.ok()) << launched.ToString();
      const auto check = [this, input, output, value, dropped = plan.dropped] {
        if (!*dropped) Check(*output, value);
      };
      EXPECT_TRUE(stream->Enqueue(check).ok());
    }
  }
  void Check(const std::vector<float>& output, float value) {
    wrong_ += std::count_if(output.begin(), output.end(), [&](float each) { return each != 2 * value + 1; });
  }

  void Capture() {
    PlanPair* plan = AnyPlan();
    if (plan == nullptr || plan->is_family || graphs_.size() >= 4) return;
    auto made = std::make_shared<GraphPair>();
    const auto value = static_cast<float>(Below(1000));
    for (size_t rank = 0; rank < kWorld; ++rank) {
      auto& input = made->inputs[rank];
      auto& output = made->outputs[rank];
      input = std::make_shared<std::vector<float>>(plan->elements, value + static_cast<float>(rank));
      output = std::make_shared<std::vector<float>>(plan->elements, -1.0f);
      const Binding bindings[] = {{.pointer = input->data()}, {.pointer = output->data()}};
      auto stream = HostStream::Create().value();  // no work is on it but this
      ASSERT_TRUE(stream->BeginCapture().ok());
      const Status launched = plan->plans[rank]->Launch(stream.get(), bindings);
      EXPECT_TRUE(launched.ok()) << launched.ToString();
      // The graph keeps the plan, whatever the program drops.
      const auto check = [this, input, output, value] { Check(*output, value); };
      EXPECT_TRUE(stream->Enqueue(check).ok());
      auto graph = stream->EndCapture();
      ASSERT_TRUE(graph.ok()) << graph.status().ToString();
      made->execs[rank] = graph->Instantiate().value();
    }
    graphs_.push_back(std::move(made));
  }
  void Replay() {
    auto* graph = Any(graphs_);
    if (graph == nullptr) return;
    for (size_t rank = 0; rank < kWorld; ++rank) {
      HostStream* stream = AnyStream(rank);
      EXPECT_TRUE((*graph)->execs[rank]->Launch(*stream).ok());
      EXPECT_TRUE(stream->Enqueue([keep = *graph] {}).ok());
    }
  }

  // Launches of it may be under way, and graphs may hold it.
  void DropOne() {
    const uint64_t what = Below(10);
    GroupPair* group = AnyGroup();
    if (what == 0) return DropAny(clients_);
    if (what <= 2) return DropAny(graphs_);
    if (group == nullptr) return;
    if (what == 3) {
      ClientPair* pair = Any(clients_);
      return DropAny(pair->groups);
    }
    if (what <= 5) return DropAny(group->memory);
    DropAny(group->plans);
  }
  void Allocate() {
    ClientPair* pair = Any(clients_);
    GroupPair* group = pair == nullptr ? nullptr : Any(pair->groups);
    if (group == nullptr || group->memory.size() >= 6) return;
    const size_t rank = Below(kWorld);
    if (Below(2) == 0) {
      group->memory.push_back(pair->clients[rank]->AllocateRegistered(4096, "GPU-0").value());
    } else {
      group->memory.push_back(group->groups[0]->Allocate({16}, DType::kF32).value());  // as the fake answers
    }
  }
  // A prepare and a join on threads of their own, which may be broken off, or whose results nobody takes.
  void InTheBackground() {
    ClientPair* pair = Any(clients_);
    GroupPair* group = pair == nullptr ? nullptr : Any(pair->groups);
    if (group == nullptr) return;
    const size_t rank = Below(kWorld);
    const std::string key = std::to_string(group->id) + " alone " + std::to_string(++group->prepared);
    auto preparing = StartPrepare(group->groups[rank], key, SumOf(16, false));
    ASSERT_TRUE(preparing.ok()) << preparing.status().ToString();
    JoinOptions join;
    join.job_key = "0123456789abcdef";
    join.name = "a group of one call";
    join.gpu_uuid = "GPU-0";
    pair->daemons[rank]->group_id = ++last_group_;
    auto joining = StartJoin(pair->clients[rank], join);
    ASSERT_TRUE(joining.ok()) << joining.status().ToString();
    if (Below(2) == 0) preparing->Cancel();
    if (Below(2) == 0) joining->Cancel();
    if (Below(3) == 0) (void)preparing->Take();  // NOT_ENDED, CANCELLED or a plan
  }

  void RefuseAndRenew() {
    GroupPair* group = AnyGroup();
    PlanPair* plan = group == nullptr ? nullptr : Any(group->plans);
    if (plan == nullptr) return;
    Synchronize();
    EXPECT_FALSE(plan->plans[0]->Launch(AnyStream(0), {}).ok());
    for (auto& each : group->groups) {
      const Status renewed = each->Renew(kLong);
      EXPECT_TRUE(renewed.ok()) << renewed.ToString();
    }
  }
  void Sleep() {
    GroupPair* group = AnyGroup();
    if (group == nullptr) return;
    Synchronize();
    for (auto& each : group->groups) EXPECT_TRUE(each->Suspend(/*keep=*/Below(2) == 0, kLong).ok());
    for (auto& each : group->groups) EXPECT_TRUE(each->Resume(kLong).ok());
  }
  // The child can use nothing, and drops all. The sanitizers' allocators keep the locks that other threads held
  // at the fork, and hang such a child.
  void Fork() {
    if (kSanitized) return;
    Synchronize();
    const pid_t pid = ::fork();
    if (pid != 0) {
      int status = -1;
      EXPECT_EQ(::waitpid(pid, &status, 0), pid);
      EXPECT_EQ(status, 0);
      return;
    }
    ::alarm(60);
    bool all_refuse = true;
    const auto refuses = [&](const Status& status) {
      all_refuse =
          all_refuse && status.code() == Code::kFailedPrecondition && status.detail().reason == "FORKED";
    };
    for (ClientPair& pair : clients_) {
      for (auto& client : pair.clients) refuses(client->Check());
      for (GroupPair& group : pair.groups) {
        for (auto& each : group.groups) refuses(each->Renew(kLong));
        for (PlanPair& plan : group.plans) refuses(plan.plans[0]->Launch(streams_[0][0].get(), {}));
      }
    }
    DropAll();
    ::_exit(all_refuse ? 0 : 1);
  }

  std::mt19937_64 random_;
  std::mutex numbers_mutex_;
  std::map<std::string, uint64_t> numbers_;  // of plans, by key
  ByRank<std::array<std::unique_ptr<HostStream>, kStreams>> streams_;
  std::vector<ClientPair> clients_;
  std::vector<std::shared_ptr<GraphPair>> graphs_;
  uint64_t last_group_ = 100;
  std::atomic<int64_t> wrong_{0};
};

// Descriptors of this process, mappings of memfds and resident bytes.
struct Held {
  size_t descriptors = 0, mappings = 0, resident = 0;
};
Held HeldNow() {
  Held held;
  for ([[maybe_unused]] const auto& each : std::filesystem::directory_iterator("/proc/self/fd"))
    ++held.descriptors;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) held.mappings += line.find("memfd:") != std::string::npos;
  std::ifstream statm("/proc/self/statm");
  size_t pages = 0;
  statm >> pages >> pages;
  held.resident = pages * static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  return held;
}

uint64_t FromEnvironment(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

// TANDEM_TEST_LIFETIME_STEPS: how many; TANDEM_TEST_SEED: instead of a random one.
TEST(LifetimesTest, HandlesEndInAnyOrder) {
  const uint64_t steps = FromEnvironment("TANDEM_TEST_LIFETIME_STEPS", 1500);
  const uint64_t seed = FromEnvironment("TANDEM_TEST_SEED", std::random_device()());
  SCOPED_TRACE("TANDEM_TEST_SEED=" + std::to_string(seed));
  Lifetimes lifetimes(seed);
  for (uint64_t step = 0; step < steps && !::testing::Test::HasFailure(); ++step) lifetimes.Step();
  lifetimes.DropAll();
}

TEST(LifetimesTest, AThousandGroupsLeaveNothing) {
  constexpr int kWarm = 100, kRounds = 1000;
  // A sanitizer keeps freed memory for a while.
  constexpr size_t kSlack = size_t{kSanitized ? 1024 : 16} << 20;
  Held warm;
  for (int round = 0; round < kWarm + kRounds && !::testing::Test::HasFailure(); ++round) {
    if (round == kWarm) warm = HeldNow();
    Lifetimes lifetimes(static_cast<uint64_t>(round));
    lifetimes.Connect();
    lifetimes.Join();
    lifetimes.Prepare();
    lifetimes.LaunchSome();
    if (round % 2 == 0) lifetimes.Synchronize();
    lifetimes.DropAll();
    lifetimes.Synchronize();
  }
  const Held now = HeldNow();
  EXPECT_EQ(now.descriptors, warm.descriptors);
  EXPECT_EQ(now.mappings, warm.mappings);
  EXPECT_LT(now.resident, warm.resident + kSlack);
}

}  // namespace
}  // namespace tandem::client
