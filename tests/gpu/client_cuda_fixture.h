// File: client_cuda_fixture.h
//
// A client of the library on a real GPU, without a daemon: a fake gRPC plugin makes real channels, and the
// test plays the engine on their other ends. Streams, graphs and memory are the CUDA runtime's, as a training
// process has them.
#pragma once

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <thread>

#include "client/tests/fake_daemon_test.h"
#include "kernels/cuda/device/cuda_device.h"

namespace tandem::client {

#define ASSERT_CUDA(call) ASSERT_EQ(call, cudaSuccess) << cudaGetErrorString(cudaGetLastError())
#define ASSERT_OK(call)                                            \
  do {                                                             \
    Status status_of_call = (call);                                \
    ASSERT_TRUE(status_of_call.ok()) << status_of_call.ToString(); \
  } while (0)

inline double MicrosecondsSince(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

// Waits for the stream without blocking for ever in a call.
inline bool Drained(cudaStream_t stream, Milliseconds deadline = kLong) {
  auto end = Clock::now() + deadline;
  while (Clock::now() < end) {
    cudaError_t state = cudaStreamQuery(stream);
    if (state == cudaSuccess) return true;
    if (state != cudaErrorNotReady) {
      ADD_FAILURE() << cudaGetErrorString(state);
      return false;
    }
    std::this_thread::yield();
  }
  return false;
}

class ClientCudaTest : public FakeDaemonTest {
 protected:
  void SetUp() override {
    ASSERT_CUDA(cudaSetDevice(0));
    ASSERT_CUDA(cudaFree(nullptr));
    driver_ = cuda::LoadCudaDriver().value();
    MakeDaemon("cuda", Client::CudaDeviceUuid(0).value());
    Connect();
    ASSERT_CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  }
  void TearDown() override {
    if (client_ == nullptr) return;
    cudaStreamCaptureStatus capturing = cudaStreamCaptureStatusNone;
    cudaGraph_t graph = nullptr;
    if (cudaStreamIsCapturing(stream_, &capturing) == cudaSuccess &&
        capturing != cudaStreamCaptureStatusNone) {
      (void)cudaStreamEndCapture(stream_, &graph);
    }
    Lose();
    EXPECT_TRUE(Drained(stream_));
    plan_.reset();
    group_.reset();
    client_.reset();
    cudaStreamDestroy(stream_);
  }

  Status Launch(cudaStream_t stream, std::span<const Binding> bindings = {}) {
    return plan_->Launch(StreamRef::Cuda(stream), bindings);
  }

  cuda::CudaDriver* driver_ = nullptr;
  cudaStream_t stream_ = nullptr;
};

}  // namespace tandem::client
