// The launch path through a running daemon: pipelined throughput, stream to stream, and by gRPC. Ranks are
// threads with a client each; engines and daemon are processes of their own, and ENGINE_PIDs are read for
// their CPU time.
//   bench_launch RUNTIME_DIR ENGINE_PID...

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "bench/host/measure.h"
#include "tandem/client.h"
#include "tandem/host_stream.h"

namespace {

using namespace tandem;

constexpr Milliseconds kDeadline{60000};

std::vector<std::string> engine_pids;

struct Rank {
  std::shared_ptr<Client> client;
  std::shared_ptr<Group> group;
  std::shared_ptr<Plan> plan;
  std::unique_ptr<HostStream> stream;
};

Status Check(const Status& status) {
  if (!status.ok()) std::fprintf(stderr, "bench_launch: %s\n", status.ToString().c_str());
  return status;
}

// `world` ranks with a plan of the empty operation, ready to launch.
Status Open(const std::string& runtime_dir, const std::string& name, int world, std::vector<Rank>* ranks) {
  ranks->resize(static_cast<size_t>(world));
  std::vector<Status> statuses(ranks->size());
  std::vector<std::thread> threads;
  for (int r = 0; r < world; ++r) {
    threads.emplace_back([&, r] {
      Rank& rank = (*ranks)[static_cast<size_t>(r)];
      statuses[static_cast<size_t>(r)] = [&]() -> Status {
        ConnectOptions connect;
        connect.runtime_dir = runtime_dir;
        TANDEM_ASSIGN_OR_RETURN(rank.client, Client::Connect(connect));
        JoinOptions join;
        join.job_key = "benchmark-job-key";
        join.name = name;
        join.world_size = world;
        join.rank = r;
        TANDEM_ASSIGN_OR_RETURN(rank.group, rank.client->JoinGroup(join));
        OpRequest request;
        request.op = Op::kEmpty;
        TANDEM_ASSIGN_OR_RETURN(rank.plan, rank.group->Prepare("empty", request));
        TANDEM_ASSIGN_OR_RETURN(rank.stream, HostStream::Create());
        return Status::Ok();
      }();
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Status& status : statuses) TANDEM_RETURN_IF_ERROR(status);
  return Status::Ok();
}

Status Close(std::vector<Rank>& ranks) {
  for (Rank& rank : ranks) TANDEM_RETURN_IF_ERROR(rank.client->Detach());
  return Status::Ok();
}

// CPU time of all threads of a process, by the scheduler's account.
double CpuUs(const std::string& pid) {
  double total = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/" + pid + "/task")) {
    double ns = 0;
    std::ifstream(task.path() / "schedstat") >> ns;
    total += ns / 1e3;
  }
  return total;
}

double EnginesCpuUs() {
  double total = 0;
  for (const std::string& pid : engine_pids) total += CpuUs(pid);
  return total;
}

Status Throughput(const std::string& runtime_dir) {
  std::vector<Rank> ranks;
  TANDEM_RETURN_IF_ERROR(Open(runtime_dir, "throughput", 1, &ranks));
  Rank& rank = ranks[0];
  std::vector<double> rates, client_cpu, engine_cpu;
  for (int round = 0; round < 11; ++round) {
    constexpr int kLaunches = 20000;
    double client_before = CpuUs("self"), engine_before = EnginesCpuUs(), start = bench::NowUs();
    // A launch waits for room by itself.
    for (int i = 0; i < kLaunches; ++i) TANDEM_RETURN_IF_ERROR(rank.plan->Launch(rank.stream.get(), {}));
    TANDEM_RETURN_IF_ERROR(rank.stream->Synchronize(kDeadline));
    double seconds = (bench::NowUs() - start) / 1e6;
    TANDEM_RETURN_IF_ERROR(rank.plan->Wait());
    if (round == 0) continue;
    rates.push_back(kLaunches / seconds);
    client_cpu.push_back((CpuUs("self") - client_before) / kLaunches);
    engine_cpu.push_back((EnginesCpuUs() - engine_before) / kLaunches);
  }
  bench::Report("launches_completed_per_s", rates, "1/s");
  // Both spin while they wait for each other: this is what the throughput costs, not the work in a launch.
  bench::Report("client_cpu_per_launch_us", client_cpu, "us");
  bench::Report("engine_cpu_per_empty_plan_us", engine_cpu, "us");
  return Close(ranks);
}

Status ClosedLoop(const std::string& runtime_dir) {
  std::vector<Rank> ranks;
  TANDEM_RETURN_IF_ERROR(Open(runtime_dir, "closed-loop", 2, &ranks));
  constexpr int kWarmUp = 200, kLaunches = 5000;
  std::vector<double> times;
  std::vector<Status> statuses(2);
  std::vector<std::thread> threads;
  for (size_t r = 0; r < ranks.size(); ++r) {
    threads.emplace_back([&, r] {
      Rank& rank = ranks[r];
      for (int i = 0; i < kWarmUp + kLaunches && statuses[r].ok(); ++i) {
        double start = bench::NowUs();
        statuses[r] = rank.plan->Launch(rank.stream.get(), {});
        if (statuses[r].ok()) statuses[r] = rank.stream->Synchronize(kDeadline);
        if (r == 0 && i >= kWarmUp) times.push_back(bench::NowUs() - start);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Status& status : statuses) TANDEM_RETURN_IF_ERROR(status);
  bench::Report("launch_to_done_w2_p50_us", times, "us");
  return Close(ranks);
}

Status ByGrpc(const std::string& runtime_dir) {
  std::vector<Rank> ranks;
  TANDEM_RETURN_IF_ERROR(Open(runtime_dir, "grpc", 1, &ranks));
  std::vector<double> times;
  for (int i = 0; i < 2200; ++i) {
    double start = bench::NowUs();
    Result<uint64_t> launch = ranks[0].plan->LaunchWithoutStream({});
    if (!launch.ok()) return launch.status();
    if (i >= 200) times.push_back(bench::NowUs() - start);
    TANDEM_RETURN_IF_ERROR(ranks[0].plan->WaitLaunch(*launch, kDeadline));
  }
  bench::Report("grpc_launch_p50_us", times, "us");
  return Close(ranks);
}

Status Prepares(const std::string& runtime_dir) {
  std::vector<double> seconds;
  for (int round = 0; round < 3; ++round) {
    std::vector<Rank> ranks;
    TANDEM_RETURN_IF_ERROR(Open(runtime_dir, "prepare" + std::to_string(round), 2, &ranks));
    std::vector<Status> statuses(2);
    std::vector<std::thread> threads;
    std::vector<std::vector<std::shared_ptr<Plan>>> plans(2);
    double start = bench::NowUs();
    for (size_t r = 0; r < ranks.size(); ++r) {
      threads.emplace_back([&, r] {
        for (int i = 0; i < 1000 && statuses[r].ok(); ++i) {
          OpRequest request;
          request.op = Op::kAllReduce;
          request.operands = {{Role::kInput, {DType::kF32, {1024 + i}, {}}, false, -1},
                              {Role::kOutput, {DType::kF32, {1024 + i}, {}}, false, -1}};
          auto plan = ranks[r].group->Prepare("plan" + std::to_string(i), request);
          statuses[r] = plan.status();
          if (plan.ok()) plans[r].push_back(std::move(*plan));
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    seconds.push_back((bench::NowUs() - start) / 1e6);
    for (const Status& status : statuses) TANDEM_RETURN_IF_ERROR(status);
    TANDEM_RETURN_IF_ERROR(Close(ranks));
  }
  bench::Report("prepare_w2_1000_plans_s", seconds, "s");
  return Status::Ok();
}

Status AttachJoin(const std::string& runtime_dir) {
  std::vector<double> times;
  for (int round = 0; round < 7; ++round) {
    std::vector<Rank> ranks(8);
    std::vector<Status> statuses(ranks.size());
    std::vector<std::thread> threads;
    double start = bench::NowUs();
    for (size_t r = 0; r < ranks.size(); ++r) {
      threads.emplace_back([&, r] {
        statuses[r] = [&]() -> Status {
          ConnectOptions connect;
          connect.runtime_dir = runtime_dir;
          TANDEM_ASSIGN_OR_RETURN(ranks[r].client, Client::Connect(connect));
          JoinOptions join;
          join.job_key = "benchmark-job-key";
          join.name = "attach" + std::to_string(round);
          join.world_size = 8;
          join.rank = static_cast<int>(r);
          TANDEM_ASSIGN_OR_RETURN(ranks[r].group, ranks[r].client->JoinGroup(join));
          return Status::Ok();
        }();
      });
    }
    for (std::thread& thread : threads) thread.join();
    times.push_back((bench::NowUs() - start) / 1e3);
    for (const Status& status : statuses) TANDEM_RETURN_IF_ERROR(status);
    TANDEM_RETURN_IF_ERROR(Close(ranks));
  }
  bench::Report("attach_join_w8_ms", times, "ms");
  return Status::Ok();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: bench_launch RUNTIME_DIR ENGINE_PID...\n");
    return 2;
  }
  engine_pids.assign(argv + 2, argv + argc);
  int failed = 0;
  for (const auto& benchmark : std::vector<std::function<Status(const std::string&)>>{
           Throughput, ClosedLoop, ByGrpc, Prepares, AttachJoin}) {
    if (!Check(benchmark(argv[1])).ok()) ++failed;
  }
  return failed == 0 ? 0 : 1;
}
