// Sums, copies and products on one GPU beside the host backend's kernels on the same random data: sums and
// copies bit by bit, products by relative norm; and the life of segments, words and events.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>
#include <thread>
#include <utility>

#include "drivers/cublaslt/cublas_lt.h"
#include "drivers/cuda/cuda_driver.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/lane/cuda_lane.h"
#include "kernels/cuda/matmul/matmul_plan.h"
#include "kernels/host/copy.h"
#include "kernels/host/matmul.h"
#include "kernels/host/norm.h"
#include "kernels/host/reduce.h"
#include "tests/gpu/cuda_kernels_fixture.h"

namespace tandem {
namespace {

TEST_F(CudaKernelsTest, SumsEqualTheHostBackendsBitByBit) {
  for (DType type : {DType::kF32, DType::kF16, DType::kBf16, DType::kF8E4M3, DType::kF8E5M2}) {
    for (int sources : {1, 2, 3, 4, 8, 9}) {
      for (bool strided : {false, true}) {
        used = 0;
        ReduceArgs args;
        std::vector<int64_t> extent = {37, 129}, stride;
        if (strided) stride = {1, 41};
        for (int s = 0; s < sources; ++s)
          args.sources.push_back(Random(type, extent, stride, strided ? 1 : 0));
        args.dst = Random(type, extent);
        args.scale = sources % 2 == 0 ? 0.3f : 1.0f;
        if (strided) {
          args.has_bias = args.has_result_scale = true;
          args.bias = Random(DType::kF32, {129});
          args.result_scale = Random(DType::kF32, {1});
        }
        Upload();
        ReduceArgs device = args;
        for (DeviceView& view : device.sources) view = OnDevice(view);
        device.dst = OnDevice(args.dst);
        device.bias = OnDevice(args.bias);
        device.result_scale = OnDevice(args.result_scale);
        ASSERT_TRUE(lane->Reduce(device).ok());
        std::vector<std::byte> result = Result();
        host::RunReduce(*host::PrepareReduce(args), kContext);
        EXPECT_EQ(std::memcmp(result.data(), mirror->data(), used), 0)
            << DTypeName(type) << " sources=" << sources << " strided=" << strided;
      }
    }
  }
}

// Rows in registers of one to eight words a thread, and rows that do not fit them. The host's square root is
// rounded, the GPU's is not quite: an element may be one step off.
TEST_F(CudaKernelsTest, NormsEqualTheHostBackends) {
  struct Shape {
    int64_t rows, columns, shift;
  };
  for (DType type : {DType::kF32, DType::kF16, DType::kBf16}) {
    for (const Shape& shape :
         {Shape{1, 8, 0}, Shape{5, 8192, 0}, Shape{3, 16384, 0}, Shape{2, 32768, 0}, Shape{400, 256, 0},
          Shape{300, 8192, 0}, Shape{2, 70000, 0}, Shape{7, 1000, 1}, Shape{9, 37, 0}}) {
      for (bool residual : {false, true}) {
        used = 0;
        const std::vector<int64_t> extent = {shape.rows, shape.columns};
        NormArgs args;
        args.sum = args.out = Random(type, extent, {}, shape.shift);
        args.weight = Random(type, {shape.columns});
        args.epsilon = 1e-5f;
        args.has_residual = residual;
        if (residual) args.residual = args.residual_out = Random(type, extent);
        Upload();
        NormArgs device = args;
        for (DeviceView* view :
             {&device.sum, &device.out, &device.weight, &device.residual, &device.residual_out})
          *view = OnDevice(*view);
        ASSERT_TRUE(lane->Norm(device).ok());
        const std::vector<std::byte> result = Result();
        host::RunNorm(args);
        const std::string what = std::string(DTypeName(type)) + " of " + std::to_string(shape.rows) + " x " +
                                 std::to_string(shape.columns);
        const double step = type == DType::kF32 ? 1e-6 : type == DType::kF16 ? 0x1p-10 : 0x1p-7;
        const auto count = static_cast<size_t>(shape.rows * shape.columns);
        const std::byte* normed = result.data() + (args.out.data - mirror->data());
        for (size_t i = 0; i < count; ++i) {
          const double want = static_cast<double>(LoadAsFloat(args.out.data, type, i));
          ASSERT_NEAR(static_cast<double>(LoadAsFloat(normed, type, i)), want, step * std::fabs(want) + 1e-7)
              << what << " at " << i;
        }
        if (!residual) continue;
        const std::byte* sums = result.data() + (args.residual_out.data - mirror->data());
        EXPECT_EQ(std::memcmp(sums, args.residual_out.data, count * DTypeBytes(type)), 0) << what;
      }
    }
  }
}

// Few rows and many have other threads without a fixed order.
TEST_F(CudaKernelsTest, ANormInAFixedOrderHasARowsBitsHoweverManyRowsThereAre) {
  for (DType type : {DType::kF32, DType::kF16, DType::kBf16}) {
    for (const int64_t columns : {int64_t{100}, int64_t{2880}, int64_t{8192}, int64_t{16384}}) {
      constexpr int64_t kRows = 300;
      used = 0;
      NormArgs all;
      all.sum = Random(type, {kRows, columns});
      all.out = Random(type, {kRows, columns});
      all.weight = Random(type, {columns});
      all.epsilon = 1e-5f;
      all.fixed_order = true;
      Upload();
      for (DeviceView* view : {&all.sum, &all.out, &all.weight}) *view = OnDevice(*view);
      ASSERT_TRUE(lane->Norm(all).ok());
      const std::vector<std::byte> whole = Result();
      const auto row_bytes = static_cast<size_t>(columns) * DTypeBytes(type);
      const auto out = static_cast<size_t>(all.out.data - segment->data());
      for (const auto& [first, rows] : {std::pair<int64_t, int64_t>{17, 1}, {100, 8}, {0, 264}, {30, 265}}) {
        NormArgs part = all;
        for (DeviceView* view : {&part.sum, &part.out}) {
          view->data += static_cast<size_t>(first) * row_bytes;
          view->extent[0] = rows;
        }
        Upload();
        ASSERT_TRUE(lane->Norm(part).ok());
        const std::vector<std::byte> result = Result();
        const size_t begin = out + static_cast<size_t>(first) * row_bytes;
        EXPECT_EQ(
            std::memcmp(result.data() + begin, whole.data() + begin, static_cast<size_t>(rows) * row_bytes),
            0)
            << DTypeName(type) << " of " << rows << " x " << columns;
      }
    }
  }
  used = 0;
  NormArgs shifted;
  shifted.sum = shifted.out = Random(DType::kBf16, {4, 64}, {}, 1);
  shifted.weight = Random(DType::kBf16, {64});
  for (DeviceView* view : {&shifted.sum, &shifted.out, &shifted.weight}) *view = OnDevice(*view);
  EXPECT_TRUE(lane->Norm(shifted).ok());
  shifted.fixed_order = true;
  EXPECT_EQ(lane->Norm(shifted).code(), Code::kInvalidArgument);
  (void)Result();
}

// Work that is cancelled by a word that the service stream writes, in the memory of the same GPU.
TEST_F(CudaKernelsTest, AGuardThatIsRaisedLeavesCopiesAndSumsOut) {
  DeviceView guard_word = Random(DType::kI64, {1});
  CopyArgs copy;
  copy.copy_engine = false;
  copy.src = Random(DType::kU8, {100003});
  copy.dst = Random(DType::kU8, {100003});
  CopyArgs strided;
  strided.copy_engine = false;
  strided.src = Random(DType::kF32, {7, 33}, {50, 1});
  strided.dst = Random(DType::kF32, {7, 33}, {33, 1});
  std::vector<ReduceArgs> sums;
  for (DType type : {DType::kBf16, DType::kI32}) {
    for (int64_t shift : {0, 1}) {
      ReduceArgs sum;
      for (int s = 0; s < 3; ++s) sum.sources.push_back(Random(type, {5000}, {}, shift));
      sum.dst = Random(type, {5000});
      sums.push_back(std::move(sum));
    }
  }
  Upload();
  Word* word = reinterpret_cast<Word*>(OnDevice(guard_word).data);
  ASSERT_TRUE(backend->StoreWord(word, 7).ok());
  ASSERT_EQ(*backend->LoadWord(word), 7u);
  for (uint64_t launch_number : {7, 8}) {
    const Guard guard{.word = word, .value = launch_number};
    for (const CopyArgs& args : {copy, strided}) {
      Status status = lane->Copy({OnDevice(args.src), OnDevice(args.dst), false, guard});
      ASSERT_TRUE(status.ok()) << status.ToString();
    }
    for (const ReduceArgs& args : sums) {
      ReduceArgs device = args;
      for (DeviceView& view : device.sources) view = OnDevice(view);
      device.dst = OnDevice(args.dst);
      device.guard = guard;
      ASSERT_TRUE(lane->Reduce(device).ok());
    }
    std::vector<std::byte> result = Result();
    if (launch_number == 8) {
      for (const CopyArgs& args : {copy, strided}) host::RunCopy(*host::PrepareCopy(args), kContext);
      for (const ReduceArgs& args : sums) host::RunReduce(*host::PrepareReduce(args), kContext);
    }
    const auto at = static_cast<size_t>(guard_word.data - mirror->data());
    std::memcpy(mirror->data() + at, result.data() + at, sizeof(Word));
    EXPECT_EQ(std::memcmp(result.data(), mirror->data(), used), 0) << "launch number " << launch_number;
  }
}

TEST_F(CudaKernelsTest, CopiesOfEveryShape) {
  struct Shape {
    std::vector<int64_t> extent, source, destination;
  };
  for (bool engine : {false, true}) {
    for (const Shape& shape :
         {Shape{{1003}, {1}, {1}}, Shape{{7, 33}, {50, 1}, {33, 1}}, Shape{{7, 33}, {1, 7}, {33, 1}},
          Shape{{3, 5, 9}, {100, 10, 1}, {45, 9, 1}}, Shape{{3, 5, 9}, {101, 10, 1}, {60, 12, 1}},
          Shape{{5, 9}, {0, 1}, {9, 1}}, Shape{{2, 3, 4, 5}, {200, 50, 11, 1}, {60, 20, 5, 1}}}) {
      for (DType type : {DType::kU8, DType::kBf16, DType::kF32, DType::kI64}) {
        for (int64_t shift : {0, 1}) {
          used = 0;
          CopyArgs args;
          args.copy_engine = engine;
          args.src = Random(type, shape.extent, shape.source, shift);
          args.dst = Random(type, shape.extent, shape.destination);
          Upload();
          CopyArgs device{{OnDevice(args.src), OnDevice(args.dst), engine}};
          ASSERT_TRUE(lane->Copy(device).ok());
          std::vector<std::byte> result = Result();
          host::RunCopy(*host::PrepareCopy(args), kContext);
          EXPECT_EQ(std::memcmp(result.data(), mirror->data(), used), 0)
              << DTypeName(type) << " engine=" << engine;
        }
      }
    }
  }
}

TEST_F(CudaKernelsTest, ProductsOfEveryLayout) {
  struct Size {
    int64_t m, n, k;
  };
  for (const Size& size : {Size{256, 192, 320}, Size{1, 64, 128}, Size{13, 5, 8}, Size{129, 67, 33}}) {
    for (DType type : {DType::kF32, DType::kF16, DType::kBf16}) {
      for (int layout = 0; layout < 8; ++layout) {
        used = 0;
        MatmulArgs args;
        auto make = [&](int64_t rows, int64_t columns, bool turned, int64_t shift) {
          return Random(type, {rows, columns},
                        turned ? std::vector<int64_t>{1, rows} : std::vector<int64_t>{columns, 1}, shift);
        };
        args.a = make(size.m, size.k, layout & 1, layout == 7 ? 1 : 0);
        args.b = make(size.k, size.n, layout & 2, 0);
        args.c = make(size.m, size.n, layout & 4, 0);
        args.alpha = 0.5f;
        args.accumulate = layout % 3 == 0;
        CheckMatmul(args, type == DType::kF32 ? 1e-5 : 4e-3, "plain");
      }
      used = 0;
      MatmulArgs args;
      args.a = Random(type, {size.m, size.k});
      args.b = Random(type, {size.k, size.n});
      args.c = Random(type, {size.m, size.n});
      args.has_bias = true;
      args.bias = Random(type, {size.n});
      CheckMatmul(args, type == DType::kF32 ? 1e-5 : 4e-3, "bias");
      args.has_result_scale = true;
      args.result_scale = Random(DType::kF32, {1});
      CheckMatmul(args, type == DType::kF32 ? 1e-5 : 4e-3, "result scale");
    }
  }
}

TEST_F(CudaKernelsTest, Float8ProductsWithTensorAndRowScales) {
  for (DType type : {DType::kF8E4M3, DType::kF8E5M2}) {
    for (DType out : {DType::kBf16, DType::kF32}) {
      for (bool rowwise : {false, true}) {
        for (bool dense_k : {true, false}) {
          used = 0;
          MatmulArgs args;
          args.a = Random(type, {128, 256});
          args.b =
              dense_k ? Random(DType::kF8E4M3, {256, 192}, {1, 256}) : Random(DType::kF8E4M3, {256, 192});
          args.c = Random(out, {128, 192});
          args.fast_accumulation = false;
          args.has_scale_a = args.has_scale_b = true;
          args.scale_a = rowwise ? Random(DType::kF32, {128, 1}) : Random(DType::kF32, {1});
          args.scale_b = rowwise ? Random(DType::kF32, {1, 192}) : Random(DType::kF32, {1});
          CheckMatmul(args, 4e-3, rowwise ? "row scales" : "tensor scales");
        }
      }
    }
  }
}

// Scales and biases between multiples of 16 bytes, as chunks have them: right, and not by way of the plain
// kernel.
TEST_F(CudaKernelsTest, Float8VectorsAnywhereGoToCublasLt) {
  auto device = *cuda::CudaDevice::Create(driver, 0);
  CountingLt lt(*cuda::LoadCublasLt());
  auto own = *cuda::CudaLane::Create(device, std::make_shared<cuda::MatmulChooser>(device, &lt, 8), 0);
  Lane* const usual = std::exchange(lane, static_cast<Lane*>(own.get()));
  for (int64_t rows : {33, 30, 50, 128}) {
    for (bool rowwise : {false, true}) {
      for (int64_t shift : {0, 1, 2, 3}) {
        used = 0;
        lt.ran = lt.refused = 0;
        MatmulArgs args;
        args.a = Random(DType::kF8E4M3, {rows, 256});
        args.b = Random(DType::kF8E4M3, {256, 192}, {1, 256});
        args.c = Random(DType::kBf16, {rows, 192});
        args.fast_accumulation = false;
        args.has_scale_a = args.has_scale_b = args.has_bias = true;
        args.scale_a =
            rowwise ? Random(DType::kF32, {rows, 1}, {}, shift) : Random(DType::kF32, {1}, {}, shift);
        args.scale_b =
            rowwise ? Random(DType::kF32, {1, 192}, {}, 3 - shift) : Random(DType::kF32, {1}, {}, 3 - shift);
        args.bias = Random(DType::kBf16, {192}, {}, shift);
        CheckMatmul(args, 4e-3, rowwise ? "row scales" : "tensor scales");
        EXPECT_EQ(lt.ran, 1) << rows << " rows, shift " << shift << (rowwise ? ", row scales" : "");
        EXPECT_EQ(lt.refused, 0) << rows << " rows, shift " << shift << (rowwise ? ", row scales" : "");
      }
    }
  }
  lane = usual;
}

// Every candidate, also one that splits K, rounds an element once. N = 1030 has those.
TEST_F(CudaKernelsTest, EveryCandidateRoundsOnce) {
  auto device = *cuda::CudaDevice::Create(driver, 0);
  cuda::CublasLt* lt = *cuda::LoadCublasLt();
  auto workspace = std::move(*cuda::VmmAllocation::Create(device, cuda::kMatmulWorkspaceBytes));
  for (DType type : {DType::kBf16, DType::kF16}) {
    for (int64_t rows : {64, 512, 1024}) {
      used = 0;
      MatmulArgs args;
      args.a = Random(type, {rows, 1024});
      args.b = Random(type, {1024, 1030}, {1, 1024});
      args.c = Random(type, {rows, 1030});
      Upload();
      host::RunMatmul(args, kContext);
      std::string reason;
      auto mapping = cuda::MapToLt(args, rows, 16, &reason);
      ASSERT_TRUE(mapping) << reason;
      cuda::LtOperands operands;
      operands.x = OnDevice(mapping->swapped ? args.b : args.a).data;
      operands.y = OnDevice(mapping->swapped ? args.a : args.b).data;
      operands.d = OnDevice(args.c).data;
      auto candidates = lt->Candidates(mapping->product, cuda::kMatmulWorkspaceBytes, 64);
      ASSERT_TRUE(candidates.ok()) << candidates.status().ToString();
      ASSERT_FALSE(candidates->empty());
      const double ulp = type == DType::kBf16 ? 0x1p-7 : 0x1p-10;
      for (size_t i = 0; i < candidates->size(); ++i) {
        Status status = lt->Run(mapping->product, operands, (*candidates)[i], workspace.data(),
                                cuda::kMatmulWorkspaceBytes, nullptr);
        if (status.code() == Code::kUnimplemented) continue;
        ASSERT_TRUE(status.ok()) << status.ToString();
        std::vector<std::byte> result = Result();
        const std::byte* c = result.data() + (args.c.data - mirror->data());
        int wrong = 0;
        double worst = 0;
        for (size_t at = 0; at < static_cast<size_t>(rows * 1030); ++at) {
          const double want = LoadAsFloat(args.c.data, type, at), got = LoadAsFloat(c, type, at);
          // Both were rounded once: one unit in the last place apart, and what sums in another order differ
          // by.
          const double off = std::fabs(got - want) - (ulp * std::fabs(want) + 1e-4);
          worst = std::max(worst, off);
          wrong += off > 0 ? 1 : 0;
        }
        EXPECT_EQ(wrong, 0) << DTypeName(type) << ", " << rows << " rows, candidate " << i << " of "
                            << candidates->size() << ": up to " << worst << " too far";
      }
      std::printf("MEASURED %s, %d x 1030 x 1024: %zu candidates\n", std::string(DTypeName(type)).c_str(),
                  static_cast<int>(rows), candidates->size());
    }
  }
}

TEST_F(CudaKernelsTest, SegmentsRefuseWhatIsNoDeviceMemory) {
  EXPECT_EQ(backend->AllocateSegment(0).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(backend->AllocateSegment(4096).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(backend->AllocateSegment(size_t{1} << 46).status().code(), Code::kResourceExhausted);
  UniqueFd memory(::memfd_create("not-device-memory", 0));
  EXPECT_EQ(backend->MapSegment(memory.get(), backend->SegmentGranularity()).status().code(),
            Code::kInvalidArgument);
  EXPECT_EQ(backend->MapSegment(-1, backend->SegmentGranularity()).status().code(), Code::kInvalidArgument);
  auto fd = backend->AllocateSegment(backend->SegmentGranularity());
  ASSERT_TRUE(fd.ok());
  EXPECT_FALSE(backend->MapSegment(fd->get(), 4 * backend->SegmentGranularity()).ok());
}

TEST_F(CudaKernelsTest, NothingBlocksBesideAWaitingLane) {
  auto* words =
      static_cast<Word*>(::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  ASSERT_TRUE(backend->RegisterHostMemory(words, 4096).ok());
  auto waiting = std::move(*backend->MakeLane(0));
  ASSERT_TRUE(waiting->WaitWord(&words[0], 1).ok());
  // If one of these blocked, the test would end by its time limit: nobody else releases the lane.
  ReduceArgs sum;
  sum.sources = {OnDevice(Random(DType::kF32, {1000})), OnDevice(Random(DType::kF32, {1000}))};
  sum.dst = OnDevice(Random(DType::kF32, {1000}));
  ASSERT_TRUE(lane->Reduce(sum).ok());
  auto fd = backend->AllocateSegment(backend->SegmentGranularity());
  ASSERT_TRUE(fd.ok());
  {
    auto mapped = backend->MapSegment(fd->get(), backend->SegmentGranularity());
    ASSERT_TRUE(mapped.ok());
  }
  auto event = std::move(*backend->MakeEvent());
  ASSERT_TRUE(lane->Record(event.get()).ok());
  auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (!event->Done() && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
  EXPECT_TRUE(event->Done());
  auto late = std::move(*backend->MakeEvent());
  ASSERT_TRUE(waiting->Record(late.get()).ok());
  EXPECT_FALSE(late->Done());
  EXPECT_EQ(late->TimeNs(), 0);
  words[0].store(1);
  deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (!late->Done() && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
  ASSERT_TRUE(late->Done());
  EXPECT_GT(late->TimeNs(), event->TimeNs());
}

// cuBLASLt loads its kernels lazily, and a load waits for the whole context: a prepared product has them.
TEST_F(CudaKernelsTest, PreparedProductsDoNotBlockBesideAWaitingLane) {
  auto* words =
      static_cast<Word*>(::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  ASSERT_TRUE(backend->RegisterHostMemory(words, 4096).ok());
  MatmulArgs args;
  args.a = OnDevice(Random(DType::kBf16, {384, 640}));
  args.b = OnDevice(Random(DType::kBf16, {640, 448}));
  args.c = OnDevice(Random(DType::kBf16, {384, 448}));
  ASSERT_TRUE(backend->PrepareMatmul(args).ok());
  auto waiting = std::move(*backend->MakeLane(0));
  auto working = std::move(*backend->MakeLane(0));
  ASSERT_TRUE(waiting->WaitWord(&words[0], 1).ok());
  std::atomic<bool> ended{false};
  std::atomic<bool> released{false};
  std::thread watchdog([&] {
    auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(5);
    while (!ended && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
    if (!ended) released = true;
    words[0].store(1);
  });
  Status status = working->Matmul(args);
  auto event = std::move(*backend->MakeEvent());
  EXPECT_TRUE(working->Record(event.get()).ok());
  while (!event->Done() && !released) std::this_thread::yield();
  bool blocked = released;
  ended = true;
  watchdog.join();
  EXPECT_TRUE(status.ok()) << status.ToString();
  EXPECT_FALSE(blocked);
}

}  // namespace
}  // namespace tandem
