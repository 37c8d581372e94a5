// A job whose ranks slip: at random a rank skips a call, makes another one, prepares a plan that nobody else
// does, or goes to the renewal alone. Each slip must end in a failure on all ranks within the limit, which
// names a rank that has slipped; a renewal must mend it, and no sum may be wrong. A rank that signals interrupt in its call makes no slip, and
// one that breaks a prepare off may make one.
//
//   tandem-test-slips CALLS PLACEMENT SEED
//
// The ranks are threads with clients of their own. Prints one line of JSON.
#include <poll.h>
#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "tandem/client.h"
#include "tandem/host_stream.h"
#include "tandem/pending.h"

namespace tandem {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr int kWorld = 3;
constexpr int kPlans = 3;
constexpr int64_t kCount = 16;
constexpr double kSlipRate = 0.01;
constexpr auto kWaitBudget = 120s;  // of launches: no slip may wait for so long
constexpr size_t kSlotBytes = 4096;
constexpr const char* kOwn = "OWN";  // the reason of a rank that raises

enum class Slip { kNone, kSkip, kOtherCall, kPrepare, kRenew, kInterrupted, kBrokenOff };

// Signals to the thread that made it, for as long as it lives: each ends a call of the system with EINTR.
class Interrupts {
 public:
  Interrupts()
      : sender_([this, target = ::pthread_self()] {
          while (!over_) {
            ::pthread_kill(target, SIGUSR1);
            std::this_thread::sleep_for(100us);
          }
        }) {}
  ~Interrupts() {
    over_ = true;
    sender_.join();
  }
  Interrupts(const Interrupts&) = delete;
  Interrupts& operator=(const Interrupts&) = delete;

 private:
  std::atomic<bool> over_{false};
  std::thread sender_;
};

struct Job {
  long calls = 0;
  std::string placement;
  uint64_t seed = 0;
  std::barrier<> meeting{kWorld};
  std::array<std::atomic<long>, kWorld> step{};  // of each rank, when all meet
  std::atomic<bool> failed{false};
  std::mutex mutex;
  std::set<int> slipped;  // ranks, since the last renewal
  std::map<std::string, int> reasons;
  std::map<std::string, int> misnamed;  // failures that name no rank that has slipped, by reason
  std::string example;                  // the text of such a failure
  std::string error;
  std::vector<double> seconds;  // from each call to its failure
};

class Rank {
 public:
  Rank(Job& job, int rank)
      : job_(job), rank_(rank), random_(job.seed * kWorld + static_cast<uint64_t>(rank)) {}

  void Run() {
    const Status status = Calls();
    if (status.ok()) return;
    std::lock_guard lock(job_.mutex);
    if (!job_.failed.exchange(true))
      job_.error =
          "rank " + std::to_string(rank_) + ", step " + std::to_string(step_) + ": " + status.ToString();
  }

 private:
  static OpRequest Sum(DType dtype, int64_t count) {
    OpRequest request;
    request.op = Op::kAllReduce;
    request.on_unfused = OnUnfused::kAllow;
    const TensorSpec vector{dtype, {count}, {}};
    request.operands = {{Role::kInput, vector, false, -1}, {Role::kOutput, vector, false, -1}};
    return request;
  }

  Status Begin() {
    TANDEM_ASSIGN_OR_RETURN(client_, Client::Connect());
    JoinOptions join;
    join.job_key = "0123456789abcdef-slips";
    join.name = "slips-" + job_.placement;
    join.world_size = kWorld;
    join.rank = rank_;
    join.options = {{"order", "same"}, {"placement", job_.placement}};
    join.launch_deadline = kWaitBudget;
    TANDEM_ASSIGN_OR_RETURN(group_, client_->JoinGroup(join));
    TANDEM_ASSIGN_OR_RETURN(memory_,
                            client_->AllocateRegistered(2 * kPlans * kSlotBytes, group_->gpu_uuid()));
    TANDEM_ASSIGN_OR_RETURN(stream_, HostStream::Create());
    for (int i = 0; i < kPlans; ++i) {
      TANDEM_ASSIGN_OR_RETURN(plans_[static_cast<size_t>(i)],
                              group_->Prepare("sum " + std::to_string(i), Sum(DType::kF32, kCount << i)));
    }
    return Status::Ok();
  }

  float* At(int plan, int slot) {
    return reinterpret_cast<float*>(memory_->data() + static_cast<size_t>(2 * plan + slot) * kSlotBytes);
  }

  Status Call(int index) {
    const int64_t count = kCount << index;
    std::fill_n(At(index, 0), count, static_cast<float>(step_ % 1000 * kWorld + rank_));
    std::fill_n(At(index, 1), count, -1.0f);
    const size_t in = static_cast<size_t>(2 * index) * kSlotBytes;
    const Binding bindings[] = {{.memory = memory_.get(), .offset = in},
                                {.memory = memory_.get(), .offset = in + kSlotBytes}};
    Plan& plan = *plans_[static_cast<size_t>(index)];
    TANDEM_RETURN_IF_ERROR(plan.Launch(stream_.get(), bindings, {.tag = std::to_string(step_)}));
    TANDEM_RETURN_IF_ERROR(stream_->Synchronize(2 * kWaitBudget));
    return plan.Wait();
  }

  // A prepare that nobody else makes, broken off as by a signal's handler. OK: the other ranks have not
  // heard.
  Status BreakOff() {
    TANDEM_ASSIGN_OR_RETURN(auto prepare,
                            StartPrepare(group_, "broken off", Sum(DType::kF16, kCount), 2 * kWaitBudget));
    std::this_thread::sleep_for(std::chrono::microseconds(random_() % 3000));
    prepare.Cancel();
    pollfd ended{prepare.fd(), POLLIN, 0};
    if (::poll(&ended, 1, 1000 * static_cast<int>(kWaitBudget.count())) != 1)
      return Internal("a prepare that was broken off does not end");
    const Status status = prepare.Take().status();
    return status.code() == Code::kCancelled ? Status::Ok() : status;
  }

  // The call of this step, or what the rank does instead; OK for a call that was skipped.
  Status Act(Slip slip) {
    const int index = static_cast<int>(step_ % kPlans);
    std::optional<Interrupts> interrupts;
    if (slip != Slip::kNone && slip != Slip::kInterrupted) {
      std::lock_guard lock(job_.mutex);
      job_.slipped.insert(rank_);
    }
    switch (slip) {
      case Slip::kSkip: return Status::Ok();
      case Slip::kOtherCall: return Call((index + 1) % kPlans);
      case Slip::kRenew: return Unavailable("an exception of the rank's own").WithDetail({.reason = kOwn});
      case Slip::kPrepare: {
        const auto prepared = group_->Prepare("alone", Sum(DType::kF16, kCount), 2 * kWaitBudget);
        return prepared.ok() ? Internal("a plan that one rank alone prepares was made") : prepared.status();
      }
      case Slip::kInterrupted: interrupts.emplace(); break;
      case Slip::kBrokenOff: TANDEM_RETURN_IF_ERROR(BreakOff()); break;
      case Slip::kNone: break;
    }
    TANDEM_RETURN_IF_ERROR(Call(index));
    const auto expected = static_cast<float>(step_ % 1000 * kWorld * kWorld + kWorld * (kWorld - 1) / 2);
    for (int64_t i = 0; i < kCount << index; ++i) {
      if (At(index, 1)[i] == expected) continue;
      wrong_ = true;
      return Internal("the sum is " + std::to_string(At(index, 1)[i]) + ", not " + std::to_string(expected));
    }
    return Status::Ok();
  }

  // All ranks agree on the first step that some rank has yet to make, behind a renewal.
  Status Recover(const Status& failure, double seconds) {
    const std::string& reason = failure.detail().reason;
    {
      std::lock_guard lock(job_.mutex);
      ++job_.reasons[reason];
      job_.seconds.push_back(seconds);
    }
    TANDEM_RETURN_IF_ERROR(group_->Renew(2 * kWaitBudget).WithContext("renewal"));
    job_.step[static_cast<size_t>(rank_)] = step_;
    job_.meeting.arrive_and_wait();
    step_ = *std::min_element(job_.step.begin(), job_.step.end());
    const auto& named = failure.detail().ranks;
    if (reason != kOwn && std::none_of(named.begin(), named.end(), [&](uint32_t rank) {
          return job_.slipped.contains(static_cast<int>(rank));  // nobody slips before the meeting below
        })) {
      std::lock_guard lock(job_.mutex);
      ++job_.misnamed[reason];
      job_.example = failure.message();
    }
    job_.meeting.arrive_and_wait();
    if (rank_ == 0) job_.slipped.clear();
    job_.meeting.arrive_and_wait();
    return Status::Ok();
  }

  Slip Draw() {
    if (std::uniform_real_distribution<>(0, 1)(random_) >= kSlipRate) return Slip::kNone;
    return static_cast<Slip>(std::uniform_int_distribution<>(1, 6)(random_));
  }

  Status Calls() {
    Status begun = Begin();
    if (!begun.ok()) return begun;
    // The last calls are made by all: who has skipped one of them would not be there to hear of it.
    while (step_ < job_.calls && !job_.failed) {
      const auto begin = Clock::now();
      const Status status = Act(step_ < job_.calls - kPlans ? Draw() : Slip::kNone);
      if (wrong_) return status;
      if (status.ok()) {
        ++step_;
        continue;
      }
      TANDEM_RETURN_IF_ERROR(Recover(status, std::chrono::duration<double>(Clock::now() - begin).count()));
    }
    return Status::Ok();
  }

  Job& job_;
  const int rank_;
  std::mt19937_64 random_;
  std::shared_ptr<Client> client_;
  std::shared_ptr<Group> group_;
  std::shared_ptr<Memory> memory_;
  std::unique_ptr<HostStream> stream_;
  std::array<std::shared_ptr<Plan>, kPlans> plans_;
  long step_ = 0;
  bool wrong_ = false;
};

// A text of JSON.
std::string Quoted(const std::string& text) {
  std::string quoted = "\"";
  for (const char each : text) {
    if (each == '"' || each == '\\') quoted += '\\';
    quoted += each;
  }
  return quoted + "\"";
}

void Print(const char* name, const std::map<std::string, int>& counts) {
  std::printf(", \"%s\": {", name);
  const char* comma = "";
  for (const auto& [reason, times] : counts) {
    std::printf("%s\"%s\": %d", comma, reason.c_str(), times);
    comma = ", ";
  }
  std::printf("}");
}

int Main(char** arguments) {
  Job job;
  job.calls = std::atol(arguments[1]);
  job.placement = arguments[2];
  job.seed = std::strtoull(arguments[3], nullptr, 10);
  struct sigaction nothing {};
  nothing.sa_handler = [](int) {};  // without SA_RESTART: calls of the system end
  if (::sigaction(SIGUSR1, &nothing, nullptr) != 0) return 2;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kWorld; ++rank) threads.emplace_back([&job, rank] { Rank(job, rank).Run(); });
  for (std::thread& thread : threads) thread.join();
  std::sort(job.seconds.begin(), job.seconds.end());
  const auto at = [&](double part) {
    const auto last = static_cast<double>(job.seconds.size()) - 1;
    return last < 0 ? 0 : job.seconds[static_cast<size_t>(part * last)];
  };
  std::printf("{\"slowest\": %.3f, \"median\": %.4f, \"p99\": %.4f, \"error\": %s, \"example\": %s", at(1),
              at(0.5), at(0.99), Quoted(job.error).c_str(), Quoted(job.example).c_str());
  Print("reasons", job.reasons);
  Print("misnamed", job.misnamed);
  std::printf("}\n");
  std::fflush(stdout);
  return job.failed ? 1 : 0;
}

}  // namespace
}  // namespace tandem

int main(int count, char** arguments) {
  if (count != 4) return 2;
  return tandem::Main(arguments);
}
