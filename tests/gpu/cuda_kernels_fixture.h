// File: cuda_kernels_fixture.h
//
// One GPU beside the host backend's kernels on the same random data, for the tests of cuda_kernels_test.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <random>
#include <utility>
#include <vector>

#include "drivers/cublaslt/cublas_lt.h"
#include "drivers/cuda/cuda_driver.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/host/matmul.h"

namespace tandem {

inline constexpr size_t kBytes = size_t{64} << 20;
inline std::atomic<bool> never{false};
inline const host::TaskContext kContext{&never, nullptr};

// A GPU with one segment, and a copy of it in host memory: a view of the one is a view of the other.
class CudaKernelsTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    if (backend != nullptr) return;  // another suite's
    driver = *cuda::LoadCudaDriver();
    auto made = MakeCudaBackend({});
    ASSERT_TRUE(made.ok()) << made.status().ToString();
    backend = made->release();
    auto fd = backend->AllocateSegment(kBytes);
    ASSERT_TRUE(fd.ok()) << fd.status().ToString();
    segment = backend->MapSegment(fd->get(), kBytes)->release();
    lane = backend->MakeLane(0)->release();
    mirror = new std::vector<std::byte>(kBytes);
  }
  void SetUp() override { used = 0; }

  // A view of fresh random elements, in host memory.
  DeviceView Random(DType type, std::vector<int64_t> extent, std::vector<int64_t> stride = {},
                    int64_t shift = 0) {
    if (stride.empty()) stride = ContiguousStrides(extent);
    TensorSpec spec{type, extent, stride};
    auto bytes = static_cast<size_t>(*SpanBytes(spec));
    auto start = (used + 255) / 256 * 256 + static_cast<size_t>(shift) * DTypeBytes(type);
    used = start + bytes;
    EXPECT_LE(used, kBytes);
    std::byte* data = mirror->data() + start;
    std::uniform_real_distribution<float> values(-1, 1);
    for (size_t i = 0; i < bytes / DTypeBytes(type); ++i) StoreFromFloat(data, type, i, values(random));
    return {data, type, std::move(extent), std::move(stride)};
  }
  static DeviceView OnDevice(DeviceView view) {
    if (view.data != nullptr) view.data = segment->data() + (view.data - mirror->data());
    return view;
  }
  void Upload() { Move(segment->data(), mirror->data(), used); }
  // The segment's used bytes after the lane's work.
  std::vector<std::byte> Result() {
    auto event = std::move(*backend->MakeEvent());
    EXPECT_TRUE(lane->Record(event.get()).ok());
    auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (!event->Done()) {
      if (std::chrono::steady_clock::now() > deadline) {
        ADD_FAILURE() << "the lane does not end";
        break;
      }
    }
    std::vector<std::byte> bytes(used);
    Move(bytes.data(), segment->data(), used);
    return bytes;
  }
  static void Move(void* to, const void* from, size_t bytes) {
    ASSERT_TRUE(driver
                    ->MemcpyAsync(reinterpret_cast<CUdeviceptr>(to), reinterpret_cast<CUdeviceptr>(from),
                                  bytes, nullptr)
                    .ok());
    ASSERT_TRUE(driver->StreamSynchronize(nullptr).ok());
  }

  // Runs the product on both and compares C by relative norm.
  void CheckMatmul(MatmulArgs args, double tolerance, const char* what) {
    SCOPED_TRACE(what);
    Upload();
    MatmulArgs device = args;
    for (DeviceView* view : {&device.a, &device.b, &device.c, &device.scale_a, &device.scale_b, &device.bias,
                             &device.result_scale}) {
      *view = OnDevice(*view);
    }
    Status prepared = backend->PrepareMatmul(device);
    ASSERT_TRUE(prepared.ok()) << prepared.ToString();
    Status status = lane->Matmul(device);
    ASSERT_TRUE(status.ok()) << status.ToString();
    std::vector<std::byte> result = Result();
    host::RunMatmul(args, kContext);
    const std::byte* c = result.data() + (args.c.data - mirror->data());
    double error = 0, norm = 0;
    for (int64_t i = 0; i < args.c.extent[0]; ++i) {
      for (int64_t j = 0; j < args.c.extent[1]; ++j) {
        auto at = static_cast<size_t>(i * args.c.stride[0] + j * args.c.stride[1]);
        double expected = LoadAsFloat(args.c.data, args.c.dtype, at), got = LoadAsFloat(c, args.c.dtype, at);
        error += (got - expected) * (got - expected);
        norm += expected * expected;
      }
    }
    EXPECT_LT(std::sqrt(error / norm), tolerance);
  }

  static inline cuda::CudaDriver* driver = nullptr;
  static inline Backend* backend = nullptr;
  static inline Segment* segment = nullptr;
  static inline Lane* lane = nullptr;
  static inline std::vector<std::byte>* mirror = nullptr;
  std::mt19937 random{7};
  size_t used = 0;
};

// cuBLASLt, and how often it has run or refused a product.
class CountingLt : public cuda::CublasLt {
 public:
  explicit CountingLt(cuda::CublasLt* lt) : lt_(lt) {}
  uint64_t Version() const override { return lt_->Version(); }
  tandem::Result<std::vector<cublasLtMatmulAlgo_t>> Candidates(const cuda::LtProduct& product,
                                                               size_t workspace_bytes, int most) override {
    return lt_->Candidates(product, workspace_bytes, most);
  }
  tandem::Result<bool> Supports(const cuda::LtProduct& product, const cublasLtMatmulAlgo_t& algorithm,
                                size_t workspace_bytes) override {
    return lt_->Supports(product, algorithm, workspace_bytes);
  }
  Status Run(const cuda::LtProduct& product, const cuda::LtOperands& operands,
             const cublasLtMatmulAlgo_t& algorithm, void* workspace, size_t workspace_bytes,
             CUstream stream) override {
    Status status = lt_->Run(product, operands, algorithm, workspace, workspace_bytes, stream);
    ++(status.ok() ? ran : refused);
    return status;
  }
  int ran = 0, refused = 0;

 private:
  cuda::CublasLt* const lt_;
};

}  // namespace tandem
