// Kernel times of collectives: Tandem's kernels beside NCCL's, plain and with symmetric windows, in one
// process and alternating rounds. Twenty launches stand behind a gate on every rank's stream, so that no host
// time is measured. Prints one JSON line a figure: medians of the rounds' slowest rank.
//   bench_collective [sweep | compare | copies] [ranks]
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "bench/gpu/nccl_peer.h"
#include "drivers/cuda/cuda_driver.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/device/launch.h"
#include "tests/gpu/cuda_machine.h"
#include "tests/gpu/kernel_group.h"

namespace tandem::bench {
namespace {

constexpr int kInGate = 20;
constexpr int kRounds = 9;

void Must(const Status& status, const char* what) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s: %s\n", what, status.ToString().c_str());
  std::exit(1);
}
template <typename Value>
Value Must(Result<Value> result, const char* what) {
  Must(result.status(), what);
  return std::move(result).value();
}

cuda::CudaDriver* driver = nullptr;
runtime::TestMachine* machine = nullptr;
int ranks = 0;

// Streams of all ranks with a gate before them and events around.
class Gate {
 public:
  explicit Gate(std::vector<cuda::CudaLane*> lanes)
      : lanes_(std::move(lanes)), word_(machine->AllocateWord()) {
    for (int rank = 0; rank < ranks; ++rank) {
      Enter(rank);
      start_.push_back(Must(driver->EventCreate(CU_EVENT_DEFAULT), "event"));
      end_.push_back(Must(driver->EventCreate(CU_EVENT_DEFAULT), "event"));
    }
  }
  static void Enter(int rank) { (void)*machine->backend(rank).MakeEvent(); }

  // Microseconds of one of kInGate calls on the slowest rank. `enqueue(i)` enqueues the i-th call on all
  // ranks.
  double Time(const std::function<void(int)>& enqueue) {
    ++opened_;
    for (size_t rank = 0; rank < lanes_.size(); ++rank) {
      Must(lanes_[rank]->WaitWord(word_, opened_), "gate");
      Enter(static_cast<int>(rank));
      Must(driver->EventRecord(start_[rank], lanes_[rank]->stream()), "record");
    }
    for (int i = 0; i < kInGate; ++i) enqueue(i);
    for (size_t rank = 0; rank < lanes_.size(); ++rank) {
      Enter(static_cast<int>(rank));
      Must(driver->EventRecord(end_[rank], lanes_[rank]->stream()), "record");
    }
    word_->store(opened_, std::memory_order_release);
    double slowest = 0;
    for (size_t rank = 0; rank < lanes_.size(); ++rank) {
      Enter(static_cast<int>(rank));
      Must(driver->StreamSynchronize(lanes_[rank]->stream()), "work");
      slowest = std::max(slowest, 1e3 * static_cast<double>(Must(
                                            driver->EventElapsedTime(start_[rank], end_[rank]), "time")));
    }
    return slowest / kInGate;
  }

 private:
  std::vector<cuda::CudaLane*> lanes_;
  Word* word_;
  uint64_t opened_ = 0;
  std::vector<CUevent> start_, end_;
};

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

std::vector<OpRequest> Requests(Op op, Algorithm algorithm, size_t bytes) {
  OpRequest request;
  request.op = op;
  request.algorithm = algorithm;
  const auto count = static_cast<int64_t>(bytes / 2), piece = count / ranks;
  auto operand = [&](Role role, int64_t elements) {
    Operand made;
    made.role = role;
    made.spec = {DType::kBf16, {elements}, {}};
    made.symmetric = true;
    return made;
  };
  request.operands = {operand(Role::kInput, op == Op::kAllGather ? piece : count),
                      operand(Role::kOutput, op == Op::kReduceScatter ? piece : count)};
  return std::vector<OpRequest>(static_cast<size_t>(ranks), request);
}

plan::GroupContext Context() {
  plan::GroupContext context;
  context.topology = EmulatedTopology(ranks);
  context.packet_kernels = true;
  return context;
}

// One of Tandem's kernels, ready to be timed; absent when it is refused.
struct Arm {
  Arm(Op op, Algorithm algorithm, size_t bytes, int blocks)
      : group(machine, Requests(op, algorithm, bytes), {.blocks = blocks, .separate = false}, Context()) {
    if (!group.status().ok()) return;
    std::vector<cuda::CudaLane*> lanes;
    for (int rank = 0; rank < ranks; ++rank) {
      lanes.push_back(&group.lane(rank));
      Gate::Enter(rank);
      Must(cuda::LaunchRandom(group.Data(rank, 0, 0), DType::kBf16,
                              static_cast<int64_t>(group.Bytes(rank, 0) / 2), static_cast<uint32_t>(rank + 1),
                              group.stream(rank)),
           "random");
    }
    gate = std::make_unique<Gate>(lanes);
  }
  double Time() {
    return gate->Time([&](int) {
      ++launch_number;
      for (int rank = 0; rank < ranks; ++rank) Must(group.Launch(rank, launch_number, 0), "launch");
    });
  }
  runtime::KernelGroup group;
  std::unique_ptr<Gate> gate;
  uint64_t launch_number = 0;
};

void Print(Op op, const char* arm, size_t bytes, int blocks, const std::vector<double>& times) {
  std::printf(
      "{\"op\": \"%s\", \"arm\": \"%s\", \"gpus\": %d, \"bytes\": %zu, \"blocks\": %d, \"us\": %.2f, "
      "\"min\": %.2f}\n",
      std::string(OpName(op)).c_str(), arm, ranks, bytes, blocks, Median(times),
      *std::min_element(times.begin(), times.end()));
  std::fflush(stdout);
}

void Run(Op op, Algorithm algorithm, size_t bytes, int blocks) {
  Arm arm(op, algorithm, bytes, blocks);
  if (!arm.group.status().ok()) return;
  std::vector<double> times;
  (void)arm.Time();
  for (int round = 0; round < kRounds; ++round) times.push_back(arm.Time());
  Print(op, std::string(AlgorithmName(algorithm)).c_str(), bytes, arm.group.blocks(), times);
}

// Two ranks send as much by one shot as by two.
size_t MostOneShot() { return ranks == 2 ? size_t{16} << 20 : size_t{1} << 20; }

// Every algorithm by the number of blocks.
void Sweep() {
  struct Range {
    Op op;
    Algorithm algorithm;
    size_t from, to;
  };
  for (const Range& range : {Range{Op::kAllReduce, Algorithm::kLowLatency, 1 << 10, 256 << 10},
                             Range{Op::kAllReduce, Algorithm::kOneShot, 1 << 10, MostOneShot()},
                             Range{Op::kAllReduce, Algorithm::kTwoShot, 64 << 10, 16 << 20},
                             Range{Op::kAllGather, Algorithm::kLowLatency, 4 << 10, 256 << 10},
                             Range{Op::kAllGather, Algorithm::kSm, 16 << 10, 16 << 20},
                             Range{Op::kReduceScatter, Algorithm::kLowLatency, 4 << 10, 256 << 10},
                             Range{Op::kReduceScatter, Algorithm::kSm, 16 << 10, 16 << 20}}) {
    for (size_t bytes = range.from; bytes <= range.to; bytes *= 4) {
      std::vector<int> candidates = {0};
      for (int blocks : {2, 8, 16, 32, 64}) {
        if (bytes >= (1 << 20) && blocks < 16) continue;
        if (bytes / 4096 * 2 < static_cast<size_t>(blocks)) continue;
        candidates.push_back(blocks);
      }
      for (int blocks : candidates) Run(range.op, range.algorithm, bytes, blocks);
    }
  }
}

// The planned kernels beside NCCL's.
void Compare() {
  std::string why;
  constexpr size_t kMax = size_t{16} << 20;
  auto nccl = NcclPeer::Create(ranks, kMax, &why);
  if (nccl == nullptr) std::printf("{\"nccl\": \"%s\"}\n", why.c_str());
  for (const auto& [op, nccl_kind] : {std::pair{Op::kAllReduce, NcclPeer::Kind::kAllReduce},
                                      std::pair{Op::kAllGather, NcclPeer::Kind::kAllGather},
                                      std::pair{Op::kReduceScatter, NcclPeer::Kind::kReduceScatter}}) {
    const NcclPeer::Kind kind = nccl_kind;  // lambdas cannot capture parts of a binding
    for (size_t bytes = 1 << 10; bytes <= kMax; bytes *= 4) {
      const std::vector<Algorithm> algorithms =
          op == Op::kAllReduce ? std::vector{Algorithm::kLowLatency, Algorithm::kOneShot, Algorithm::kTwoShot}
                               : std::vector{Algorithm::kLowLatency, Algorithm::kSm};
      for (Algorithm algorithm : algorithms) {
        if (algorithm == Algorithm::kOneShot && bytes > MostOneShot()) continue;
        Arm arm(op, algorithm, bytes, 0);
        if (!arm.group.status().ok()) continue;
        std::vector<cudaStream_t> streams;
        for (int rank = 0; rank < ranks; ++rank) streams.push_back(arm.group.stream(rank));
        auto rival = [&](bool windows) {
          return arm.gate->Time([&](int) {
            if (!nccl->Enqueue(kind, bytes, windows, streams)) std::exit(1);
          });
        };
        std::vector<double> own, plain, windows;
        (void)arm.Time();
        if (nccl != nullptr) {
          // Connections are made by the first call, which must not stand behind a gate.
          for (bool with : {false, true}) {
            if (!nccl->Enqueue(kind, bytes, with, streams)) std::exit(1);
            for (int rank = 0; rank < ranks; ++rank) {
              Gate::Enter(rank);
              Must(driver->StreamSynchronize(streams[static_cast<size_t>(rank)]), "nccl");
            }
            (void)rival(with);
          }
        }
        for (int round = 0; round < kRounds; ++round) {
          own.push_back(arm.Time());
          if (nccl == nullptr) continue;
          plain.push_back(rival(false));
          windows.push_back(rival(true));
        }
        Print(op, std::string(AlgorithmName(algorithm)).c_str(), bytes, arm.group.blocks(), own);
        if (nccl == nullptr) continue;
        Print(op, "nccl", bytes, 0, plain);
        Print(op, "nccl_windows", bytes, 0, windows);
      }
    }
  }
}

// Pushes of one piece to each peer, both ways at once: by copy engines and by SM copies, with a word behind
// each.
void Copies() {
  machine->Reset();
  constexpr size_t kMax = size_t{16} << 20;
  std::vector<runtime::SharedMemory> source, target, words;
  std::vector<std::unique_ptr<Lane>> owned;
  std::vector<cuda::CudaLane*> lanes;
  for (int rank = 0; rank < ranks; ++rank) {
    source.push_back(machine->Allocate(rank, kMax));
    target.push_back(machine->Allocate(rank, kMax * static_cast<size_t>(ranks)));
    words.push_back(machine->Allocate(rank, 4096));
    owned.push_back(Must(machine->backend(rank).MakeLane(0), "lane"));
    lanes.push_back(dynamic_cast<cuda::CudaLane*>(owned.back().get()));
  }
  Gate gate(lanes);
  uint64_t launch_number = 0;
  auto time = [&](size_t bytes, bool engine) {
    return gate.Time([&](int) {
      ++launch_number;
      for (int rank = 0; rank < ranks; ++rank) {
        const auto own = static_cast<size_t>(rank);
        for (int j = 1; j < ranks; ++j) {
          const auto peer = static_cast<size_t>((rank + j) % ranks);
          const std::vector<int64_t> extent = {static_cast<int64_t>(bytes)}, stride = {1};
          CopyArgs copy{{{source[own].at[own], DType::kU8, extent, stride},
                         {target[peer].at[own] + own * kMax, DType::kU8, extent, stride},
                         engine}};
          Must(lanes[own]->Copy(copy), "copy");
          Must(lanes[own]->WriteWord(reinterpret_cast<Word*>(words[peer].at[own]) + own * 8, launch_number),
               "signal");
        }
        for (int j = 1; j < ranks; ++j) {
          const auto peer = static_cast<size_t>((rank + j) % ranks);
          Must(lanes[own]->WaitWord(reinterpret_cast<Word*>(words[own].at[own]) + peer * 8, launch_number),
               "wait");
        }
      }
    });
  };
  for (size_t bytes = 4 << 10; bytes <= kMax; bytes *= 4) {
    std::vector<double> engine, sm;
    (void)time(bytes, true);
    (void)time(bytes, false);
    for (int round = 0; round < kRounds; ++round) {
      engine.push_back(time(bytes, true));
      sm.push_back(time(bytes, false));
    }
    Print(Op::kAllGather, "push_by_copy_engine", bytes, 0, engine);
    Print(Op::kAllGather, "push_by_sm_copy", bytes, 0, sm);
  }
}

int Main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "compare";
  driver = Must(cuda::LoadCudaDriver(), "driver");
  ranks = argc > 2 ? std::atoi(argv[2]) : CudaDeviceCount();
  machine = runtime::MakeCudaMachine(ranks, size_t{256} << 20).release();
  if (mode == "sweep") Sweep();
  if (mode == "compare") Compare();
  if (mode == "copies") Copies();
  return 0;
}

}  // namespace
}  // namespace tandem::bench

int main(int argc, char** argv) { return tandem::bench::Main(argc, argv); }
