// One rank of a program of NCCL on the host backend, for test_nccl.py: libtandem-nccl.so is preloaded, and
// the fake NCCL is behind it. `tandem-test-nccl SCENARIO`, with RANK, WORLD and NCCL_ID in the environment.
// A scenario prints its findings to standard output. It fails with status 1 and a line on standard error.
#include <dlfcn.h>
#include <nccl.h>
#include <signal.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tandem/tandem.h"
#include "tests/integration/nccl/values.h"

using namespace tandem::nccl_test;  // NOLINT: this file is all glue

extern "C" ncclResult_t ncclPutSignal(long, double, long, long, long, long, long, long);

// NCCL 2.29.7 has them, and earlier headers do not.
extern "C" ncclResult_t ncclCommSuspend(ncclComm_t comm, int flags);
extern "C" ncclResult_t ncclCommResume(ncclComm_t comm);

namespace {

constexpr int64_t kWaitBudgetMs = 60'000;

[[noreturn]] void Stop(const std::string& why) {
  std::cerr << "rank " << std::getenv("RANK") << ": " << why << std::endl;
  std::exit(1);
}
void Check(ncclResult_t result, const char* what) {
  if (result != ncclSuccess)
    Stop(std::string(what) + ": " + ncclGetErrorString(result) + ": " + ncclGetLastError(nullptr));
}
void Check(tandem_status* status, const char* what) {
  if (status != nullptr) Stop(std::string(what) + ": " + tandem_status_message(status));
}
void Expect(bool holds, const std::string& what) {
  if (!holds) Stop("not so: " + what);
}
#define CHECK_CALL(call) Check(call, #call)

// A stream of the host backend, as NCCL's argument.
class Stream {
 public:
  Stream() { CHECK_CALL(tandem_stream_create(&stream_)); }
  cudaStream_t get() const { return reinterpret_cast<cudaStream_t>(stream_); }
  tandem_stream* raw() const { return stream_; }
  void Synchronize() const { CHECK_CALL(tandem_stream_synchronize(stream_, kWaitBudgetMs)); }

 private:
  tandem_stream* stream_ = nullptr;
};

struct World {
  int rank = std::atoi(std::getenv("RANK"));
  int ranks = std::atoi(std::getenv("WORLD"));
  ncclComm_t comm = Make("");

  ncclComm_t Make(const std::string& suffix) const {
    ncclUniqueId id{};
    (std::getenv("NCCL_ID") + suffix).copy(id.internal, sizeof(id.internal) - 1);
    ncclComm_t made = nullptr;
    CHECK_CALL(ncclCommInitRank(&made, ranks, id, rank));
    return made;
  }
};

std::string FakeLog() {
  static const auto log = reinterpret_cast<const char* (*)()>(
      ::dlsym(::dlopen(std::getenv("TANDEM_NCCL_LIBRARY"), RTLD_NOW | RTLD_NOLOAD), "fake_nccl_log"));
  return log();
}

// The value of element `index` in the input of rank `rank`.
double InputOf(int call, int rank, size_t index) {
  return 1 + static_cast<double>((static_cast<size_t>(call) * 7 + static_cast<size_t>(rank) * 3 + index) % 3);
}

struct Members {
  ncclComm_t comm = nullptr;
  int rank = 0, ranks = 0;
};

struct RandomCall {
  int op, root;
  ncclDataType_t type;
  ncclRedOp_t reduction;
  size_t count;
  bool in_place;
};

enum Op { kAllReduce, kAllGather, kReduceScatter, kAllToAll, kBroadcast, kReduce, kOps };

RandomCall Draw(std::mt19937& random, int ranks) {
  const auto below = [&](int bound) { return static_cast<int>(random() % static_cast<unsigned>(bound)); };
  RandomCall call{};
  call.op = below(kOps);
  call.root = below(ranks);
  call.type = static_cast<ncclDataType_t>(below(10));
  call.reduction = static_cast<ncclRedOp_t>(below(5));
  const double size = std::uniform_real_distribution<double>(0, 6)(random);
  call.count = static_cast<size_t>(std::pow(10, size));
  call.in_place = below(2) == 1;
  return call;
}

ncclResult_t Issue(const RandomCall& call, const Members& in, const void* send, void* receive,
                   cudaStream_t stream) {
  switch (call.op) {
    case kAllReduce:
      return ncclAllReduce(send, receive, call.count, call.type, call.reduction, in.comm, stream);
    case kAllGather: return ncclAllGather(send, receive, call.count, call.type, in.comm, stream);
    case kReduceScatter:
      return ncclReduceScatter(send, receive, call.count, call.type, call.reduction, in.comm, stream);
    case kAllToAll: return ncclAlltoAll(send, receive, call.count, call.type, in.comm, stream);
    case kBroadcast: return ncclBroadcast(send, receive, call.count, call.type, call.root, in.comm, stream);
    default:
      return ncclReduce(send, receive, call.count, call.type, call.reduction, call.root, in.comm, stream);
  }
}

// What element `index` of this rank's output must be.
double Expected(const RandomCall& call, int number, const Members& in, size_t index) {
  if (call.op == kAllGather) return InputOf(number, static_cast<int>(index / call.count), index % call.count);
  if (call.op == kAllToAll)
    return InputOf(number, static_cast<int>(index / call.count),
                   static_cast<size_t>(in.rank) * call.count + index % call.count);
  if (call.op == kBroadcast) return InputOf(number, call.root, index);
  const size_t first = call.op == kReduceScatter ? static_cast<size_t>(in.rank) * call.count : 0;
  std::vector<double> values;
  for (int rank = 0; rank < in.ranks; ++rank) values.push_back(InputOf(number, rank, first + index));
  return Reduced(values, call.reduction);
}

void RunRandomCall(const RandomCall& call, int number, const Members& in, const Stream& stream) {
  const auto ranks = static_cast<size_t>(in.ranks);
  const bool wide_in = call.op == kReduceScatter || call.op == kAllToAll;
  const bool wide_out = call.op == kAllGather || call.op == kAllToAll;
  const size_t inputs = wide_in ? call.count * ranks : call.count;
  const size_t outputs = wide_out ? call.count * ranks : call.count;
  const size_t part = static_cast<size_t>(in.rank) * call.count * SizeOf(call.type);
  std::vector<std::byte> one(std::max(inputs, outputs) * SizeOf(call.type), std::byte{0x5a}), other(one);
  // The larger buffer holds both where the call is in place.
  const bool in_place = call.in_place && call.op != kAllToAll;
  std::byte* send = one.data();
  std::byte* receive = in_place ? one.data() : other.data();
  if (in_place && call.op == kAllGather) send += part;
  if (in_place && call.op == kReduceScatter) receive += part;
  for (size_t i = 0; i < inputs; ++i) Store(send, call.type, i, InputOf(number, in.rank, i));
  CHECK_CALL(Issue(call, in, send, receive, stream.get()));
  stream.Synchronize();
  const bool only_sends = call.op == kReduce && in.rank != call.root;
  const bool only_receives = call.op == kBroadcast && in.rank != call.root;
  for (size_t i = 0; (only_sends || !in_place) && !only_receives && i < inputs; ++i) {
    if (Load(send, call.type, i) != InputOf(number, in.rank, i))
      Stop("call " + std::to_string(number) + ", op " + std::to_string(call.op) + " has changed its input");
  }
  if (only_sends) return;
  const bool rounds = call.reduction == ncclAvg && call.op != kAllGather;
  for (size_t i = 0; i < outputs; ++i) {
    const double expected = Expected(call, number, in, i), found = Load(receive, call.type, i);
    std::vector<std::byte> stored(8);
    Store(stored.data(), call.type, 0, expected);
    const double exact = Load(stored.data(), call.type, 0);
    if (found == exact || (rounds && std::abs(found - exact) <= 0.01 * exact)) continue;
    Stop("call " + std::to_string(number) + ", op " + std::to_string(call.op) + ", type " +
         std::to_string(call.type) + ", reduction " + std::to_string(call.reduction) + ", count " +
         std::to_string(call.count) + (in_place ? ", in place" : "") + ", element " + std::to_string(i) +
         ": " + std::to_string(found) + ", not " + std::to_string(exact));
  }
}

// Calls of all kinds over three communicators and three streams, with checked results.
void RunRandom(const World& world, int calls) {
  ncclComm_t halves = nullptr, reversed = nullptr;
  CHECK_CALL(ncclCommSplit(world.comm, world.rank % 2, world.rank, &halves, nullptr));
  CHECK_CALL(ncclCommSplit(world.comm, 0, -world.rank, &reversed, nullptr));
  std::vector<Members> all;
  for (const ncclComm_t comm : {world.comm, halves, reversed}) {
    Members members{.comm = comm};
    CHECK_CALL(ncclCommUserRank(comm, &members.rank));
    CHECK_CALL(ncclCommCount(comm, &members.ranks));
    all.push_back(members);
  }
  const std::vector<Stream> streams(3);
  std::mt19937 random(static_cast<unsigned>(std::atoi(std::getenv("SEED"))));
  for (int number = 0; number < calls; ++number) {
    const unsigned comm = random() % 3, stream = random() % 3;
    // Both halves draw alike, and the smaller half has each root.
    const RandomCall call = Draw(random, comm == 1 ? world.ranks / 2 : world.ranks);
    RunRandomCall(call, number, all[comm], streams[stream]);
  }
  for (const ncclComm_t comm : {halves, reversed, world.comm}) CHECK_CALL(ncclCommDestroy(comm));
}

// An all-reduce of ones, which must be right.
void SumOnes(const World& world, ncclComm_t comm, const Stream& stream, size_t count = 1000) {
  std::vector<float> values(count, 1.0F);
  CHECK_CALL(ncclAllReduce(values.data(), values.data(), count, ncclFloat32, ncclSum, comm, stream.get()));
  stream.Synchronize();
  for (const float value : values) Expect(value == static_cast<float>(world.ranks), "the sum of ones");
}

void RunGroups(const World& world) {
  const Stream stream;
  SumOnes(world, world.comm, stream);
  (void)FakeLog();
  std::vector<float> a(10, 1.0F), b(20, 2.0F);
  const auto reduce = [&](std::vector<float>& of) {
    CHECK_CALL(
        ncclAllReduce(of.data(), of.data(), of.size(), ncclFloat32, ncclSum, world.comm, stream.get()));
  };
  const auto show = [](const char* what) {
    std::string log = FakeLog();
    for (char& letter : log) letter = letter == '\n' ? ';' : letter;
    std::cout << what << ": " << log << std::endl;
  };
  CHECK_CALL(ncclGroupStart());
  CHECK_CALL(ncclGroupStart());
  reduce(a);
  CHECK_CALL(ncclGroupEnd());
  CHECK_CALL(ncclGroupEnd());
  stream.Synchronize();
  Expect(a[0] == static_cast<float>(world.ranks), "a group of one");
  show("one");
  CHECK_CALL(ncclGroupStart());
  reduce(a);
  reduce(b);
  CHECK_CALL(ncclGroupEnd());
  show("two");
  CHECK_CALL(ncclGroupStart());
  reduce(a);
  CHECK_CALL(ncclSend(a.data(), 3, ncclInt8, 1, world.comm, stream.get()));
  CHECK_CALL(ncclRecv(a.data(), 4, ncclInt8, 0, world.comm, stream.get()));
  CHECK_CALL(ncclGroupEnd());
  show("p2p");
  ncclRedOp_t own{};
  CHECK_CALL(ncclRedOpCreatePreMulSum(&own, a.data(), ncclFloat32, ncclScalarHostImmediate, world.comm));
  CHECK_CALL(ncclAllReduce(a.data(), a.data(), 5, ncclFloat32, own, world.comm, stream.get()));
  show("own operator");
  std::vector<double> d(6, 1.0);
  CHECK_CALL(ncclAllReduce(d.data(), d.data(), 6, ncclFloat64, ncclSum, world.comm, stream.get()));
  CHECK_CALL(ncclAllReduce(d.data(), d.data(), 0, ncclFloat32, ncclSum, world.comm, stream.get()));
  show("f64 and nothing");
  CHECK_CALL(ncclPutSignal(1, 2.0, 3, 4, 5, 6, 7, 8));
  show("newer");
  CHECK_CALL(ncclGroupStart());
  CHECK_CALL(ncclGroupEnd());
  show("empty");
  Expect(ncclMemFree(nullptr) == ncclInvalidUsage, "a function that the fake lacks");
  std::cout << "lacking: " << ncclGetLastError(nullptr) << std::endl;
}

void RunOnce(const World& world) {
  SumOnes(world, world.comm, Stream());
  CHECK_CALL(ncclCommDestroy(world.comm));
  std::cout << FakeLog();
}

// The last rank is killed between two calls; the others' failure names it.
void RunKilled(const World& world) {
  const Stream stream;
  SumOnes(world, world.comm, stream);
  if (world.rank == world.ranks - 1) ::kill(::getpid(), SIGKILL);
  std::vector<float> values(1000, 1.0F);
  ncclResult_t called = ncclAllReduce(values.data(), values.data(), values.size(), ncclFloat32, ncclSum,
                                      world.comm, stream.get());
  stream.Synchronize();
  ncclResult_t state = ncclSuccess;
  CHECK_CALL(ncclCommGetAsyncError(world.comm, &state));
  std::cout << "called " << called << " state " << state << " text " << ncclGetLastError(world.comm)
            << std::endl;
  called = ncclAllReduce(values.data(), values.data(), values.size(), ncclFloat32, ncclSum, world.comm,
                         stream.get());
  Expect(called == state, "later calls fail alike");
  CHECK_CALL(ncclCommAbort(world.comm));
}

// Rank 0 alone calls, and gives up.
void RunAborted(const World& world) {
  const Stream stream;
  SumOnes(world, world.comm, stream);
  if (world.rank == 0) {
    std::vector<float> values(1000, 1.0F);
    CHECK_CALL(ncclAllReduce(values.data(), values.data(), values.size(), ncclFloat32, ncclSum, world.comm,
                             stream.get()));
    CHECK_CALL(ncclCommAbort(world.comm));
    stream.Synchronize();
    std::cout << "aborted" << std::endl;
  }
  std::string line;
  std::getline(std::cin, line);
}

// Communicators come and go.
void RunManyLives(const World& world) {
  const Stream stream;
  for (int life = 0; life < 50; ++life) {
    const ncclComm_t comm = world.Make("-life" + std::to_string(life));
    SumOnes(world, comm, stream, 100);
    CHECK_CALL(ncclCommFinalize(comm));
    CHECK_CALL(ncclCommDestroy(comm));
  }
  std::cout << "done" << std::endl;
  std::string line;
  std::getline(std::cin, line);
}

// A capture passes what no earlier call has prepared, and takes the rest.
void RunCaptured(const World& world) {
  const Stream stream;
  SumOnes(world, world.comm, stream);
  (void)FakeLog();
  std::vector<float> values(77, 1.0F), out(77);
  std::vector<int32_t> whole(6, 1);
  const ncclComm_t fresh = world.Make("-fresh");
  (void)FakeLog();
  CHECK_CALL(tandem_stream_begin_capture(stream.raw()));
  CHECK_CALL(ncclAllReduce(values.data(), values.data(), values.size(), ncclFloat32, ncclSum, world.comm,
                           stream.get()));
  CHECK_CALL(ncclAllReduce(whole.data(), whole.data(), 5, ncclInt32, ncclSum, world.comm, stream.get()));
  CHECK_CALL(ncclAllReduce(whole.data(), whole.data(), 6, ncclInt32, ncclSum, fresh, stream.get()));
  tandem_graph* graph = nullptr;
  CHECK_CALL(tandem_stream_end_capture(stream.raw(), &graph));
  std::cout << FakeLog();
  Expect(values[0] == 1.0F, "nothing ran in the capture");
  for (int replay = 0; replay < 3; ++replay) CHECK_CALL(tandem_graph_launch(graph, stream.raw()));
  stream.Synchronize();
  const auto ranks = static_cast<float>(world.ranks);
  Expect(values[76] == ranks * ranks * ranks, "three replays");
  tandem_graph_free(graph);
  CHECK_CALL(ncclCommDestroy(fresh));
  CHECK_CALL(ncclCommDestroy(world.comm));
}

// The last rank does not call within the deadline; the others' failure names it.
void RunLate(const World& world) {
  const Stream stream;
  SumOnes(world, world.comm, stream);
  std::string line;
  if (world.rank < world.ranks - 1) {
    std::vector<float> values(9, 1.0F);
    CHECK_CALL(
        ncclAllReduce(values.data(), values.data(), 9, ncclFloat32, ncclSum, world.comm, stream.get()));
    stream.Synchronize();
    ncclResult_t state = ncclSuccess;
    CHECK_CALL(ncclCommGetAsyncError(world.comm, &state));
    std::cout << "state " << state << " text " << ncclGetLastError(world.comm) << std::endl;
  }
  std::getline(std::cin, line);
}

// A revoked communicator is left to NCCL. Tandem still serves the parent of a shrunk communicator.
void RunRevoked(const World& world) {
  const Stream stream;
  SumOnes(world, world.comm, stream);
  ncclComm_t made = nullptr;
  CHECK_CALL(ncclCommShrink(world.comm, nullptr, 0, &made, nullptr, NCCL_SHRINK_DEFAULT));
  SumOnes(world, world.comm, stream);
  (void)FakeLog();
  CHECK_CALL(ncclCommRevoke(world.comm, 0));
  SumOnes(world, world.comm, stream, 8);
  CHECK_CALL(ncclCommDestroy(world.comm));
  std::cout << FakeLog();
}

// Tandem's group sleeps and wakes up with the communicator, and its graphs are valid afterwards.
void RunSuspended(const World& world) {
  const Stream stream;
  SumOnes(world, world.comm, stream);
  (void)FakeLog();
  std::string line;
  for (int cycle = 0; cycle < 3; ++cycle) {
    CHECK_CALL(ncclCommSuspend(world.comm, 1));
    std::cout << "asleep" << std::endl;
    std::getline(std::cin, line);
    CHECK_CALL(ncclCommResume(world.comm));
    SumOnes(world, world.comm, stream);
  }
  CHECK_CALL(ncclCommDestroy(world.comm));
  std::cout << FakeLog();
}

// Both ranks are threads of this process.
void RunThreads() {
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([rank] {
      World world{.rank = rank, .ranks = 2, .comm = nullptr};
      world.comm = world.Make("");
      SumOnes(world, world.comm, Stream());
      CHECK_CALL(ncclCommDestroy(world.comm));
    });
  }
  for (std::thread& rank : ranks) rank.join();
}

}  // namespace

int main(int count, char** arguments) {
  const std::string scenario = count > 1 ? arguments[1] : "";
  if (scenario == "threads") return RunThreads(), 0;
  const World world;
  const std::map<std::string, void (*)(const World&)> scenarios = {
      {"groups", RunGroups},        {"once", RunOnce},         {"killed", RunKilled}, {"aborted", RunAborted},
      {"many_lives", RunManyLives}, {"captured", RunCaptured}, {"late", RunLate},     {"revoked", RunRevoked},
      {"suspended", RunSuspended}};
  if (scenario == "random") {
    RunRandom(world, std::atoi(std::getenv("CALLS")));
  } else if (const auto found = scenarios.find(scenario); found != scenarios.end()) {
    found->second(world);
  } else {
    Stop("no scenario " + scenario);
  }
  return 0;
}
