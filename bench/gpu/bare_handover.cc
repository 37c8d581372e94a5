// The cost of a hand-over between two processes without Tandem: the floor of bench_handover, from the same
// driver calls.
//   bare_handover LABEL
// A client's stream writes a request word and waits for a done word, both in shared host memory; another
// process answers:
//   stream     its stream waits for the word, runs a kernel, writes done
//   doorbell   its CPU polls the word, then launches a kernel and writes done behind it
//   empty      the same without a kernel, which is all that an empty plan needs
//   answer     its CPU writes done
// Then the same with answers that come late, by a CPU and by a stream: what a wait costs beyond its time, by
// its length.
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <string>
#include <vector>

#include "drivers/cuda/cuda_driver.h"

namespace {

using namespace tandem;

constexpr uint64_t kTrips = 2000;
constexpr int kRounds = 6;  // the first warms up
enum Variant { kStreamWaits, kDoorbell, kEmpty, kAnswer, kVariants };
// Answers so many microseconds after the request; each length twice, by CPU and by stream.
constexpr int kDelaysUs[] = {20, 100, 650, 2700};
constexpr int kDelays = 2 * static_cast<int>(std::size(kDelaysUs));
constexpr uint64_t kLateTrips = 100;
constexpr int kLateRounds = 4;
constexpr int kFirstLateTurn = kVariants * kRounds + 1;
constexpr const char* kNames[] = {"stream waits, kernel", "doorbell, kernel", "doorbell, no kernel",
                                  "doorbell, answered by the CPU"};

struct Shared {
  alignas(64) std::atomic<uint64_t> request;
  alignas(64) std::atomic<uint64_t> done;
  alignas(64) std::atomic<int> ready;  // processes that may start
  alignas(64) std::atomic<int> turn;   // the measurement that may run, counted from 1
};
constexpr size_t kSharedBytes = 4096;

void Must(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "bare_handover: %s\n", status.ToString().c_str());
  std::_Exit(1);
}
template <typename Value>
Value Must(Result<Value> result) {
  Must(result.status());
  return std::move(result).value();
}

// A process's stream, its scratch memory and the words as the device sees them (one address for all under
// UVA).
struct Side {
  explicit Side(Shared* shared, bool urgent) : words(shared), driver(Must(cuda::LoadCudaDriver())) {
    Must(driver->Init());
    CUcontext context = Must(driver->DevicePrimaryCtxRetain(Must(driver->DeviceGet(0))));
    Must(driver->CtxSetCurrent(context));
    Must(driver->MemHostRegister(shared, kSharedBytes,
                                 CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP));
    int least = 0, greatest = 0;
    Must(driver->CtxGetStreamPriorityRange(&least, &greatest));
    stream = Must(driver->StreamCreateWithPriority(CU_STREAM_NON_BLOCKING, urgent ? greatest : least));
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
    CUmemGenericAllocationHandle memory = Must(driver->MemCreate(kScratch, properties));
    scratch = Must(driver->MemAddressReserve(kScratch, 0));
    Must(driver->MemMap(scratch, kScratch, memory));
    Must(driver->MemSetAccess(scratch, kScratch, {properties.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE}));
    Kernel();  // loaded before anything waits
    Must(driver->StreamSynchronize(stream));
  }
  // The driver's fill is a kernel, and needs none of ours.
  void Kernel() { Must(driver->MemsetD32Async(scratch, 1, 32, stream)); }
  void Write(std::atomic<uint64_t>* word, uint64_t value) {
    Must(driver->StreamWriteValue64(stream, reinterpret_cast<CUdeviceptr>(word), value));
  }
  void Wait(std::atomic<uint64_t>* word, uint64_t value) {
    Must(driver->StreamWaitValue64(stream, reinterpret_cast<CUdeviceptr>(word), value,
                                   CU_STREAM_WAIT_VALUE_GEQ));
  }

  static constexpr size_t kScratch = size_t{2} << 20;
  Shared* words;
  cuda::CudaDriver* driver;
  CUstream stream;
  CUdeviceptr scratch;
};

void AwaitTurn(Shared* shared, int turn) {
  while (shared->turn.load() < turn) {
  }
}

void AnswerLate(Side& side, uint64_t value, int delay_us, bool by_cpu) {
  while (side.words->request.load(std::memory_order_acquire) < value) {
  }
  const auto end = std::chrono::steady_clock::now() + std::chrono::microseconds(delay_us);
  while (std::chrono::steady_clock::now() < end) {
  }
  if (by_cpu) {
    side.words->done.store(value, std::memory_order_release);
  } else {
    side.Write(&side.words->done, value);
  }
}

[[noreturn]] void Engine(Shared* shared) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  Side side(shared, true);
  shared->ready.fetch_add(1);
  uint64_t value = 0;
  for (int turn = 1; turn <= kVariants * kRounds; ++turn) {
    auto variant = static_cast<Variant>((turn - 1) % kVariants);
    AwaitTurn(shared, turn);
    for (uint64_t i = 0; i < kTrips; ++i) {
      ++value;
      if (variant == kStreamWaits) {
        side.Wait(&shared->request, value);
      } else {
        while (shared->request.load(std::memory_order_acquire) < value) {
        }
      }
      if (variant == kAnswer) {
        shared->done.store(value, std::memory_order_release);
        continue;
      }
      if (variant != kEmpty) side.Kernel();
      side.Write(&shared->done, value);
    }
    Must(side.driver->StreamSynchronize(side.stream));
  }
  for (int turn = 0; turn < kDelays * kLateRounds; ++turn) {
    const int delay = turn % kDelays;
    AwaitTurn(shared, kFirstLateTurn + turn);
    for (uint64_t i = 0; i < kLateTrips; ++i) AnswerLate(side, ++value, kDelaysUs[delay / 2], delay % 2 == 0);
    Must(side.driver->StreamSynchronize(side.stream));
  }
  std::_Exit(0);
}

}  // namespace

int main(int argc, char** argv) {
  std::string label = argc > 1 ? argv[1] : "";
  void* memory = ::mmap(nullptr, kSharedBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  auto* shared = new (memory) Shared{};
  pid_t engine = ::fork();  // before CUDA: neither side inherits a context
  if (engine == 0) Engine(shared);
  Side side(shared, false);
  cuda::CudaDriver* driver = side.driver;
  CUevent start = Must(driver->EventCreate(CU_EVENT_DEFAULT)),
          end = Must(driver->EventCreate(CU_EVENT_DEFAULT));
  while (shared->ready.load() < 1) {
    if (::waitpid(engine, nullptr, WNOHANG) == engine) return 1;
  }
  uint64_t value = 0;
  // Lets the engine begin its turn; microseconds of a trip.
  const auto run_turn = [&](int turn, uint64_t trips) {
    shared->turn.store(turn);
    Must(driver->EventRecord(start, side.stream));
    for (uint64_t i = 0; i < trips; ++i) {
      ++value;
      side.Write(&shared->request, value);
      side.Wait(&shared->done, value);
    }
    Must(driver->EventRecord(end, side.stream));
    Must(driver->StreamSynchronize(side.stream));
    return 1e3 * static_cast<double>(Must(driver->EventElapsedTime(start, end))) / static_cast<double>(trips);
  };
  std::vector<double> times[kVariants], late[kDelays];
  for (int turn = 1; turn <= kVariants * kRounds; ++turn) {
    const double us = run_turn(turn, kTrips);
    if (turn > kVariants) times[(turn - 1) % kVariants].push_back(us);
  }
  for (int turn = 0; turn < kDelays * kLateRounds; ++turn) {
    const double us = run_turn(kFirstLateTurn + turn, kLateTrips);
    if (turn >= kDelays) late[turn % kDelays].push_back(us - kDelaysUs[turn % kDelays / 2]);
  }
  auto print = [&](const std::string& what, const std::vector<double>& samples) {
    double sum = 0;
    for (double us : samples) sum += us;
    std::printf("{\"name\":\"%s, bare hand-over: %s\",\"value\":%.3f,\"unit\":\"us\",\"samples\":%zu}\n",
                label.c_str(), what.c_str(), sum / static_cast<double>(samples.size()), samples.size());
  };
  for (int variant = 0; variant < kVariants; ++variant) print(kNames[variant], times[variant]);
  for (int delay = 0; delay < kDelays; ++delay) {
    print("beyond an answer " + std::to_string(kDelaysUs[delay / 2]) + " us late by " +
              (delay % 2 == 0 ? "the CPU" : "a stream"),
          late[delay]);
  }
  std::fflush(stdout);
  ::waitpid(engine, nullptr, 0);
  std::_Exit(0);
}
