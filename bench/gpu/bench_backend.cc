// The CUDA backend's building blocks beside bare calls, in one process and alternating rounds; random data.
// Prints one JSON line a figure: medians of the rounds, and the median of the per-round ratios.
//   bench_backend [rounds]
#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "drivers/cuda/cuda_driver.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/lane/cuda_lane.h"

namespace tandem {
namespace {

template <typename Value>
Value Must(Result<Value> result, const char* what) {
  if (!result.ok()) {
    std::fprintf(stderr, "%s: %s\n", what, result.status().ToString().c_str());
    std::exit(1);
  }
  return std::move(result).value();
}
void Must(const Status& status, const char* what) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s: %s\n", what, status.ToString().c_str());
  std::exit(1);
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

cuda::CudaDriver* driver = nullptr;
int rounds = 30;

// A GPU with a lane, and events around what is measured.
struct Gpu {
  explicit Gpu(int device, int candidates = 8)
      : backend(Must(MakeCudaBackend({.device = device, .matmul_candidates = candidates}), "backend")),
        lane(Must(backend->MakeLane(0), "lane")),
        start(Must(driver->EventCreate(CU_EVENT_DEFAULT), "event")),
        end(Must(driver->EventCreate(CU_EVENT_DEFAULT), "event")) {}
  CUstream stream() const { return dynamic_cast<cuda::CudaLane&>(*lane).stream(); }
  // Any call of the backend makes its context current.
  void Enter() { (void)Must(backend->MakeEvent(), "event"); }
  // Microseconds of one of `count` calls of `work`.
  double Time(int count, const std::function<void()>& work) {
    Enter();
    Must(driver->EventRecord(start, stream()), "record");
    for (int i = 0; i < count; ++i) work();
    Must(driver->EventRecord(end, stream()), "record");
    Must(driver->StreamSynchronize(stream()), "work");
    return 1e3 * static_cast<double>(Must(driver->EventElapsedTime(start, end), "time")) / count;
  }
  std::byte* Random(size_t bytes, DType type) {
    size_t whole = (bytes + (2 << 20) - 1) / (2 << 20) * (2 << 20);
    UniqueFd fd = Must(backend->AllocateSegment(whole), "segment");
    segments.push_back(Must(backend->MapSegment(fd.get(), whole), "mapping"));
    fds.push_back(std::move(fd));
    std::byte* data = segments.back()->data();
    Must(cuda::LaunchRandom(data, type, static_cast<int64_t>(whole / DTypeBytes(type)),
                            static_cast<uint32_t>(segments.size()), stream()),
         "random");
    return data;
  }

  std::unique_ptr<Backend> backend;
  std::vector<std::unique_ptr<Segment>> segments;
  std::vector<UniqueFd> fds;
  std::unique_ptr<Lane> lane;
  CUevent start, end;
};

// Alternates the arms; `ratio` is Tandem's time over the bare one's.
void Report(const std::string& name, double bytes, const std::function<double()>& tandem,
            const std::function<double()>& bare) {
  tandem();
  bare();
  std::vector<double> own, other, ratio;
  for (int round = 0; round < rounds; ++round) {
    bool first = round % 2 == 0;
    double a = first ? tandem() : 0, b = bare();
    if (!first) a = tandem();
    own.push_back(a);
    other.push_back(b);
    ratio.push_back(a / b);
  }
  std::vector<double> sorted = ratio;
  std::sort(sorted.begin(), sorted.end());
  std::printf(
      "{\"name\":\"%s\",\"tandem_us\":%.3f,\"bare_us\":%.3f,\"ratio\":%.4f,\"ratio_p10\":%.4f,"
      "\"ratio_p90\":%.4f,\"rounds\":%d",
      name.c_str(), Median(own), Median(other), Median(ratio), sorted[sorted.size() / 10],
      sorted[sorted.size() * 9 / 10], rounds);
  if (bytes > 0) std::printf(",\"tandem_gb_s\":%.1f", bytes / Median(own) / 1e3);
  std::printf("}\n");
  std::fflush(stdout);
}

DeviceView Dense(std::byte* data, DType type, std::vector<int64_t> extent) {
  std::vector<int64_t> stride = ContiguousStrides(extent);
  return {data, type, std::move(extent), std::move(stride)};
}

// The sum of 4 sources beside a device-to-device copy that moves as many bytes.
void BenchReduce(Gpu& gpu) {
  constexpr int64_t kElements = int64_t{64} << 20;
  constexpr int kSources = 4;
  ReduceArgs args;
  for (int s = 0; s < kSources; ++s) {
    args.sources.push_back(Dense(gpu.Random(kElements * 2, DType::kBf16), DType::kBf16, {kElements}));
  }
  args.dst = Dense(gpu.Random(kElements * 2, DType::kBf16), DType::kBf16, {kElements});
  // A sum moves 5 tensors; the copy 2, so it is scaled.
  Report(
      "reduce 4 x 128 MiB bf16, bare = device copy of as many bytes", 5.0 * 2 * kElements,
      [&] { return gpu.Time(5, [&] { Must(gpu.lane->Reduce(args), "reduce"); }); },
      [&] {
        return 2.5 * gpu.Time(5, [&] {
          Must(driver->MemcpyAsync(reinterpret_cast<CUdeviceptr>(args.dst.data),
                                   reinterpret_cast<CUdeviceptr>(args.sources[0].data), 2 * kElements,
                                   gpu.stream()),
               "copy");
        });
      });
}

// Pushes into a peer's segment by copy engine, and by SMs, beside cuMemcpyAsync.
void BenchPush(Gpu& gpu, Gpu& peer) {
  for (int64_t mib : {1, 4, 16, 64}) {
    int64_t bytes = mib << 20;
    std::byte* from = gpu.Random(static_cast<size_t>(bytes), DType::kF32);
    peer.Random(static_cast<size_t>(bytes), DType::kF32);
    size_t whole = peer.segments.back()->bytes();
    auto mapped = Must(gpu.backend->MapSegment(peer.fds.back().get(), whole), "mapping");
    for (bool engine : {true, false}) {
      CopyArgs args{
          {Dense(from, DType::kF32, {bytes / 4}), Dense(mapped->data(), DType::kF32, {bytes / 4}), engine}};
      Report(
          std::string("push ") + std::to_string(mib) + " MiB by " + (engine ? "copy engine" : "SMs") +
              ", bare = cuMemcpyAsync",
          static_cast<double>(bytes),
          [&] { return gpu.Time(10, [&] { Must(gpu.lane->Copy(args), "copy"); }); },
          [&] {
            return gpu.Time(10, [&] {
              Must(driver->MemcpyAsync(reinterpret_cast<CUdeviceptr>(mapped->data()),
                                       reinterpret_cast<CUdeviceptr>(from), static_cast<size_t>(bytes),
                                       gpu.stream()),
                   "copy");
            });
          });
    }
  }
}

// A product beside pushes of half of A to a peer on another lane, with no dependency, as a pipeline has them;
// bare: the same product beside cuMemcpyAsync on a plain stream.
void BenchBeside(Gpu& gpu, Gpu& peer) {
  constexpr int64_t kM = 8192, kN = 7168, kK = 8192;
  constexpr int kPushes = 4;
  const DType type = DType::kBf16;
  MatmulArgs product;
  product.a = Dense(gpu.Random(kM * kK * 2, type), type, {kM, kK});
  product.b = Dense(gpu.Random(kK * kN * 2, type), type, {kK, kN});
  product.c = Dense(gpu.Random(kM * kN * 2, type), type, {kM, kN});
  Must(gpu.backend->PrepareMatmul(product), "prepare");
  constexpr int64_t kPushed = kM / 2 * kK / kPushes;
  peer.Random(kM / 2 * kK * 2, type);
  auto mapped =
      Must(gpu.backend->MapSegment(peer.fds.back().get(), peer.segments.back()->bytes()), "mapping");
  auto side = Must(gpu.backend->MakeLane(0), "lane");
  CUstream side_stream = dynamic_cast<cuda::CudaLane&>(*side).stream();
  auto begun = Must(gpu.backend->MakeEvent(), "event"), pushed = Must(gpu.backend->MakeEvent(), "event");
  auto beside = [&](const std::function<void(std::byte*, std::byte*)>& push) {
    return gpu.Time(2, [&] {
      Must(gpu.lane->Record(begun.get()), "record");
      Must(side->Wait(begun.get()), "wait");
      for (int64_t i = 0; i < kPushes; ++i) {
        push(product.a.data + i * kPushed * 2, mapped->data() + i * kPushed * 2);
      }
      Must(side->Record(pushed.get()), "record");
      Must(gpu.lane->Matmul(product), "matmul");
      Must(gpu.lane->Wait(pushed.get()), "wait");
    });
  };
  Report(
      "matmul bf16 8192x7168x8192 beside pushes of 64 MiB, bare = beside cuMemcpyAsync", 0,
      [&] {
        return beside([&](std::byte* from, std::byte* to) {
          Must(side->Copy({Dense(from, type, {kPushed}), Dense(to, type, {kPushed}), true}), "copy");
        });
      },
      [&] {
        return beside([&](std::byte* from, std::byte* to) {
          const auto target = reinterpret_cast<CUdeviceptr>(to), source = reinterpret_cast<CUdeviceptr>(from);
          Must(driver->MemcpyAsync(target, source, kPushed * 2, side_stream), "copy");
        });
      });
}

// The best of cuBLASLt's candidates beside its first, on shapes of a 70B model over 4 ranks; four operand
// sets in turn.
void BenchMatmul(Gpu& tried, Gpu& first) {
  struct Shape {
    int64_t m, n, k;
    DType type;
  };
  for (const Shape& shape : {Shape{2048, 7168, 8192, DType::kBf16}, Shape{4096, 7168, 8192, DType::kBf16},
                             Shape{1024, 7168, 8192, DType::kBf16}, Shape{2048, 8192, 7168, DType::kBf16},
                             Shape{4096, 8192, 7168, DType::kBf16}, Shape{2048, 3584, 8192, DType::kBf16},
                             Shape{4096, 7168, 8192, DType::kF8E4M3}}) {
    constexpr int kSets = 4;
    std::vector<MatmulArgs> sets;
    bool float8 = IsFloat8(shape.type);
    size_t element = DTypeBytes(shape.type);
    for (int set = 0; set < kSets; ++set) {
      MatmulArgs args;
      args.a = Dense(tried.Random(static_cast<size_t>(shape.m * shape.k) * element, shape.type), shape.type,
                     {shape.m, shape.k});
      args.b = Dense(tried.Random(static_cast<size_t>(shape.k * shape.n) * element, shape.type), shape.type,
                     {shape.k, shape.n});
      if (float8) args.b.stride = {1, shape.k};
      args.c = Dense(tried.Random(static_cast<size_t>(shape.m * shape.n) * 2, DType::kBf16), DType::kBf16,
                     {shape.m, shape.n});
      sets.push_back(args);
    }
    Must(tried.backend->PrepareMatmul(sets[0]), "prepare");
    Must(first.backend->PrepareMatmul(sets[0]), "prepare");
    auto time = [&](Gpu& gpu) {
      int next = 0;
      return gpu.Time(2 * kSets,
                      [&] { Must(gpu.lane->Matmul(sets[static_cast<size_t>(next++ % kSets)]), "matmul"); });
    };
    Report(
        "matmul " + std::string(DTypeName(shape.type)) + " " + std::to_string(shape.m) + "x" +
            std::to_string(shape.n) + "x" + std::to_string(shape.k) + ", bare = first heuristic",
        0, [&] { return time(tried); }, [&] { return time(first); });
    tried.segments.clear();
    tried.fds.clear();
  }
}

// Two lanes that hand over by words, 1000 round trips, beside two bare streams.
void BenchHandOver(Gpu& gpu) {
  constexpr uint64_t kTrips = 1000;
  auto other = Must(gpu.backend->MakeLane(0), "lane");
  CUstream one = gpu.stream(), two = dynamic_cast<cuda::CudaLane&>(*other).stream();
  auto* host =
      static_cast<Word*>(::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  Must(gpu.backend->RegisterHostMemory(host, 4096), "words");
  auto* device = reinterpret_cast<Word*>(gpu.Random(4096, DType::kF32));
  Must(driver->MemsetD8Async(reinterpret_cast<CUdeviceptr>(device), 0, 4096, one), "words");
  Must(driver->StreamSynchronize(one), "words");
  for (bool on_host : {false, true}) {
    Word* words = on_host ? host : device;
    Word *there = words, *back = words + 64;
    uint64_t launch_number = 0;
    auto trips = [&](const std::function<void()>& trip) {
      // The queue of a stream is finite: the second lane's work is enqueued trip by trip with the first's.
      return gpu.Time(1, [&] {
        for (uint64_t i = 0; i < kTrips; ++i) {
          ++launch_number;
          trip();
        }
      }) / static_cast<double>(kTrips);
    };
    auto address = [](Word* word) { return reinterpret_cast<CUdeviceptr>(word); };
    Report(
        std::string("hand-over there and back by words in ") + (on_host ? "host" : "device") +
            " memory, bare = stream memory operations",
        0,
        [&] {
          return trips([&] {
            Must(gpu.lane->WriteWord(there, launch_number), "write");
            Must(other->WaitWord(there, launch_number), "wait");
            Must(other->WriteWord(back, launch_number), "write");
            Must(gpu.lane->WaitWord(back, launch_number), "wait");
          });
        },
        [&] {
          return trips([&] {
            Must(driver->StreamWriteValue64(one, address(there), launch_number), "write");
            Must(driver->StreamWaitValue64(two, address(there), launch_number, CU_STREAM_WAIT_VALUE_GEQ),
                 "wait");
            Must(driver->StreamWriteValue64(two, address(back), launch_number), "write");
            Must(driver->StreamWaitValue64(one, address(back), launch_number, CU_STREAM_WAIT_VALUE_GEQ),
                 "wait");
          });
        });
  }
}

}  // namespace
}  // namespace tandem

int main(int argc, char** argv) {
  using namespace tandem;
  if (argc > 1) rounds = std::max(2, std::atoi(argv[1]));
  driver = Must(cuda::LoadCudaDriver(), "driver");
  int gpus = CudaDeviceCount();
  if (gpus == 0) {
    std::fprintf(stderr, "bench_backend: no GPU\n");
    return 1;
  }
  if (gpus > 1) {
    Gpu second(1), zero(0);
    BenchPush(zero, second);
    BenchBeside(zero, second);
  }
  Gpu tried(0), first(0, 1);
  BenchReduce(tried);
  tried.segments.clear();
  tried.fds.clear();
  BenchHandOver(tried);
  BenchMatmul(tried, first);
  return 0;
}
