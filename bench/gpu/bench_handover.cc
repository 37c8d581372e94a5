// The cost of a launch itself: plans through a running daemon, from a client's stream to the engine and back.
// First the empty plan, which the engine's CPU ends. Then, on several ranks, the least that lanes can do: an
// all-reduce of 1 KiB by the kernel of low_latency. bench_collective has the kernel's own time. Then an
// all-gather of 1 KiB by copy engines, in place and into a symmetric output. That launch has no kernel of the
// engine's, which would take turns with the client's without MPS. Other outputs need copies within a GPU, and
// the driver makes these by a kernel.
//   bench_handover RUNTIME_DIR WORLD LABEL [ENGINE_PID …]
// Ranks are threads with a client and a GPU each. Prints a JSON line a figure, LABEL before its name. With
// several ranks, launches that were pushed long before their streams come are measured too.

#include <time.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "bench/host/measure.h"
#include "client/device/rank_device.h"
#include "tandem/client.h"

namespace {

using namespace tandem;

constexpr Milliseconds kDeadline{60000};
constexpr int kRounds = 11;  // the first warms up
constexpr int kStreamLaunches = 2000;
constexpr int kBurst = 32;  // fits into a ring: no launch waits for room
constexpr int kBursts = 50;
constexpr int kCaptured = 20;
constexpr int kReplays = 50;
constexpr int kAhead = 200;
constexpr std::chrono::microseconds kPushedBefore{300};  // the engines have taken the launch by then

double ThreadCpuUs() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e6 + static_cast<double>(now.tv_nsec) / 1e3;
}

// CPU time of all threads of the processes, by the scheduler's account.
double CpuUs(const std::vector<std::string>& pids) {
  double total = 0;
  for (const std::string& pid : pids) {
    for (const auto& task : std::filesystem::directory_iterator("/proc/" + pid + "/task")) {
      double ns = 0;
      std::ifstream(task.path() / "schedstat") >> ns;
      total += ns / 1e3;
    }
  }
  return total;
}

// The samples of one rank, one a round.
struct Samples {
  std::vector<double> stream_us, cpu_us, engine_cpu_us, alone_us, captured_us, ahead_us;
};

struct Run {
  std::string runtime_dir;
  int world;
  std::vector<std::string> engines;
  std::barrier<> together;
  std::atomic<int> streams = 0;  // that have come to where all go on together
};

enum class Work { kEmpty, kSmallest, kCopies };
constexpr int64_t kSmallestCount = 256;  // f32, of the result

struct Rank {
  std::shared_ptr<Client> client;
  std::shared_ptr<Group> group;
  std::shared_ptr<Plan> plan;
  std::shared_ptr<RankDevice> device;
  std::unique_ptr<RankStream> stream;
  std::unique_ptr<RankEvent> start, end;
  std::shared_ptr<Memory> memory;
  std::vector<Binding> bindings;

  Status Launch() { return plan->Launch(stream->ref(), bindings); }
};

Status PreparePlan(Work work, int world, Rank* rank) {
  OpRequest request;
  request.op = Op::kEmpty;
  if (work != Work::kEmpty) {
    const bool gathers = work == Work::kCopies;
    request.op = gathers ? Op::kAllGather : Op::kAllReduce;
    request.algorithm = gathers ? Algorithm::kCopyEngine : Algorithm::kLowLatency;
    for (Role role : {Role::kInput, Role::kOutput}) {
      Operand& operand = request.operands.emplace_back();
      operand.role = role;
      operand.spec.shape = {gathers && role == Role::kInput ? kSmallestCount / world : kSmallestCount};
      operand.symmetric = gathers;
    }
    const uint64_t bytes = kSmallestCount * sizeof(float);
    if (gathers) {
      request.operands[1].alias_of = 0;
      TANDEM_ASSIGN_OR_RETURN(rank->memory, rank->group->Allocate({kSmallestCount}, DType::kF32));
    } else {
      TANDEM_ASSIGN_OR_RETURN(rank->memory,
                              rank->client->AllocateRegistered(2 * bytes, rank->group->gpu_uuid()));
    }
    rank->bindings = {{.memory = rank->memory.get(), .offset = 0},
                      {.memory = rank->memory.get(), .offset = gathers ? 0 : bytes}};
  }
  TANDEM_ASSIGN_OR_RETURN(rank->plan, rank->group->Prepare("handover", request));
  return Status::Ok();
}

Status Open(const Run& run, int index, Rank* rank) {
  ConnectOptions connect;
  connect.runtime_dir = run.runtime_dir;
  connect.deadline = kDeadline;
  TANDEM_ASSIGN_OR_RETURN(rank->client, Client::Connect(connect));
  JoinOptions join;
  join.job_key = "benchmark-job-key";
  join.name = "handover";
  join.world_size = run.world;
  join.rank = index;
  TANDEM_ASSIGN_OR_RETURN(rank->group, rank->client->JoinGroup(join));
  TANDEM_ASSIGN_OR_RETURN(rank->device, RankDevice::Create(rank->client->backend(), rank->group->gpu_uuid()));
  TANDEM_ASSIGN_OR_RETURN(rank->stream, rank->device->MakeStream());
  TANDEM_ASSIGN_OR_RETURN(rank->start, rank->device->MakeEvent());
  TANDEM_ASSIGN_OR_RETURN(rank->end, rank->device->MakeEvent());
  return Status::Ok();
}

// Back to back: the client enqueues ahead, a round trip is what a launch takes on the stream.
Status InStream(Run& run, Rank& rank, bool leader, Samples* samples) {
  for (int round = 0; round < kRounds; ++round) {
    run.together.arrive_and_wait();
    double engines = leader ? CpuUs(run.engines) : 0;
    TANDEM_RETURN_IF_ERROR(rank.stream->Record(*rank.start));
    for (int i = 0; i < kStreamLaunches; ++i) TANDEM_RETURN_IF_ERROR(rank.Launch());
    TANDEM_RETURN_IF_ERROR(rank.stream->Record(*rank.end));
    TANDEM_RETURN_IF_ERROR(rank.stream->Synchronize(kDeadline));
    TANDEM_ASSIGN_OR_RETURN(double us, rank.end->MicrosecondsSince(*rank.start));
    run.together.arrive_and_wait();
    if (round == 0) continue;
    samples->stream_us.push_back(us / kStreamLaunches);
    if (leader)
      samples->engine_cpu_us.push_back((CpuUs(run.engines) - engines) / kStreamLaunches / run.world);
  }
  return rank.plan->Wait(kDeadline);
}

// The time that the client's thread spends on a launch: bursts that find room.
Status ClientCpu(Run& run, Rank& rank, Samples* samples) {
  for (int burst = 0; burst < kBursts; ++burst) {
    run.together.arrive_and_wait();
    double before = ThreadCpuUs();
    for (int i = 0; i < kBurst; ++i) TANDEM_RETURN_IF_ERROR(rank.Launch());
    double spent = ThreadCpuUs() - before;
    TANDEM_RETURN_IF_ERROR(rank.stream->Synchronize(kDeadline));
    if (burst > 0) samples->cpu_us.push_back(spent / kBurst);
  }
  return rank.plan->Wait(kDeadline);
}

// One launch at a time on an idle stream, by events: what a launch costs that nothing precedes.
Status Alone(Run& run, Rank& rank, Samples* samples) {
  for (int i = 0; i < kBursts; ++i) {
    run.together.arrive_and_wait();
    TANDEM_RETURN_IF_ERROR(rank.stream->Record(*rank.start));
    TANDEM_RETURN_IF_ERROR(rank.Launch());
    TANDEM_RETURN_IF_ERROR(rank.stream->Record(*rank.end));
    TANDEM_RETURN_IF_ERROR(rank.stream->Synchronize(kDeadline));
    TANDEM_ASSIGN_OR_RETURN(double us, rank.end->MicrosecondsSince(*rank.start));
    if (i > 0) samples->alone_us.push_back(us);
  }
  return rank.plan->Wait(kDeadline);
}

// Launches that were pushed before their streams come, which all go on at the same time: from there to the
// stream's next work.
Status Ahead(Run& run, Rank& rank, Samples* samples) {
  for (int i = 0; i < kAhead; ++i) {
    run.together.arrive_and_wait();
    const int all = (run.streams.load() / run.world + 1) * run.world;
    run.together.arrive_and_wait();
    TANDEM_RETURN_IF_ERROR(rank.stream->Enqueue([&run, all] {
      std::this_thread::sleep_for(kPushedBefore);
      run.streams.fetch_add(1);
      while (run.streams.load() < all) {
      }
    }));
    TANDEM_RETURN_IF_ERROR(rank.stream->Record(*rank.start));
    TANDEM_RETURN_IF_ERROR(rank.Launch());
    TANDEM_RETURN_IF_ERROR(rank.stream->Record(*rank.end));
    TANDEM_RETURN_IF_ERROR(rank.stream->Synchronize(kDeadline));
    TANDEM_ASSIGN_OR_RETURN(double us, rank.end->MicrosecondsSince(*rank.start));
    if (i >= kAhead / 10) samples->ahead_us.push_back(us);
  }
  return rank.plan->Wait(kDeadline);
}

Status InGraph(Run& run, Rank& rank, Samples* samples) {
  TANDEM_RETURN_IF_ERROR(rank.stream->BeginCapture());
  for (int i = 0; i < kCaptured; ++i) TANDEM_RETURN_IF_ERROR(rank.Launch());
  TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<RankGraph> graph, rank.stream->EndCapture());
  for (int i = 0; i < kReplays; ++i) {
    run.together.arrive_and_wait();
    TANDEM_RETURN_IF_ERROR(rank.stream->Record(*rank.start));
    TANDEM_RETURN_IF_ERROR(rank.stream->Replay(*graph));
    TANDEM_RETURN_IF_ERROR(rank.stream->Record(*rank.end));
    TANDEM_RETURN_IF_ERROR(rank.stream->Synchronize(kDeadline));
    TANDEM_ASSIGN_OR_RETURN(double us, rank.end->MicrosecondsSince(*rank.start));
    if (i > 0) samples->captured_us.push_back(us / kCaptured);
  }
  return rank.plan->Wait(kDeadline);
}

Status Measure(Run& run, Work work, int index, Samples* samples) {
  Rank rank;
  TANDEM_RETURN_IF_ERROR(Open(run, index, &rank));
  TANDEM_RETURN_IF_ERROR(PreparePlan(work, run.world, &rank));
  if (run.world > 1) TANDEM_RETURN_IF_ERROR(Ahead(run, rank, samples));
  TANDEM_RETURN_IF_ERROR(InStream(run, rank, index == 0, samples));
  TANDEM_RETURN_IF_ERROR(ClientCpu(run, rank, samples));
  TANDEM_RETURN_IF_ERROR(Alone(run, rank, samples));
  TANDEM_RETURN_IF_ERROR(InGraph(run, rank, samples));
  return rank.client->Detach();
}

// The slowest rank's time of each round.
void Report(const std::string& name, const std::vector<Samples>& all, std::vector<double> Samples::*member) {
  std::vector<double> slowest;
  for (const Samples& rank : all) {
    const std::vector<double>& own = rank.*member;
    if (slowest.size() < own.size()) slowest.resize(own.size());
    for (size_t i = 0; i < own.size(); ++i) slowest[i] = std::max(slowest[i], own[i]);
  }
  if (!slowest.empty()) bench::Report(name, slowest, "us");
}

void MeasureAll(const std::string& runtime_dir, int world, const std::vector<std::string>& engines, Work work,
                const std::string& label) {
  Run run{runtime_dir, world, engines, std::barrier<>(world)};
  std::vector<Samples> samples(static_cast<size_t>(world));
  std::vector<std::thread> threads;
  for (int r = 0; r < world; ++r) {
    threads.emplace_back([&, r] {
      Status status = Measure(run, work, r, &samples[static_cast<size_t>(r)]);
      if (status.ok()) return;
      std::fprintf(stderr, "bench_handover: rank %d: %s\n", r, status.ToString().c_str());
      std::_Exit(1);  // the other ranks would wait at the barrier
    });
  }
  for (std::thread& thread : threads) thread.join();
  Report(label + "pushed ahead", samples, &Samples::ahead_us);
  Report(label + "stream to stream, back to back", samples, &Samples::stream_us);
  Report(label + "stream to stream, alone", samples, &Samples::alone_us);
  Report(label + "in a graph of 20", samples, &Samples::captured_us);
  Report(label + "client CPU a launch", samples, &Samples::cpu_us);
  if (!engines.empty())
    Report(label + "engine CPU a launch, polling included", samples, &Samples::engine_cpu_us);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4 || std::atoi(argv[2]) < 1) {
    std::fprintf(stderr, "usage: bench_handover RUNTIME_DIR WORLD LABEL [ENGINE_PID ...]\n");
    return 2;
  }
  const int world = std::atoi(argv[2]);
  const std::vector<std::string> engines(argv + 4, argv + argc);
  const std::string label = std::string(argv[3]) + ", W=" + std::to_string(world);
  MeasureAll(argv[1], world, engines, Work::kEmpty, label + ": empty plan, ");
  if (world == 1) return 0;
  MeasureAll(argv[1], world, engines, Work::kSmallest, label + ": all-reduce of 1 KiB, ");
  MeasureAll(argv[1], world, engines, Work::kCopies,
             label + ": all-gather of 1 KiB in place by copy engines, ");
}
