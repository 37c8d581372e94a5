// File: client_cuda_fixture.h
//
// A client of the library on a real GPU, without a daemon: a fake control half makes real channels, and the test plays the
// engine on their other ends. Streams, graphs and memory are the CUDA runtime's, as a training process has them.
#pragma once

#include <cuda_runtime.h>
#include <fcntl.h>
#include <gtest/gtest.h>

#include <thread>

#include "client/lib/handles.h"
#include "client/tests/fake_control.h"
#include "kernels/cuda/cuda_device.h"

namespace tandem::client {

using Clock = std::chrono::steady_clock;
inline constexpr Milliseconds kLong(20000);

#define ASSERT_CUDA(call) ASSERT_EQ(call, cudaSuccess) << cudaGetErrorString(cudaGetLastError())
#define ASSERT_OK(call)                                  \
  do {                                                   \
    Status status_of_call = (call);                      \
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

class ClientCudaTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_CUDA(cudaSetDevice(0));
    ASSERT_CUDA(cudaFree(nullptr));
    driver_ = cuda::LoadCudaDriver().value();
    daemon_ = std::make_shared<FakeDaemon>();
    daemon_->lease = UniqueFd(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    daemon_->backend = "cuda";
    daemon_->gpu_uuid = Client::CudaDeviceUuid(0).value();
    client_ = ConnectThrough(std::make_unique<FakeControl>(daemon_), {}).value();
    JoinOptions join;
    join.job_key = "0123456789abcdef";
    join.name = "tp";
    join.world_size = 2;
    group_ = client_->JoinGroup(join).value();
    plan_ = group_->Prepare("empty", OpRequest{.op = Op::kEmpty, .operands = {}, .transfers = {}}).value();
    ASSERT_CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  }
  void TearDown() override {
    if (client_ == nullptr) return;
    cudaStreamCaptureStatus capturing = cudaStreamCaptureStatusNone;
    cudaGraph_t graph = nullptr;
    if (cudaStreamIsCapturing(stream_, &capturing) == cudaSuccess && capturing != cudaStreamCaptureStatusNone) {
      (void)cudaStreamEndCapture(stream_, &graph);
    }
    // A failed test must not leave a stream waiting on words that nobody writes.
    if (daemon_->callbacks.on_lost) daemon_->callbacks.on_lost(Unavailable("the test ends"));
    EXPECT_TRUE(Drained(stream_));
    plan_.reset();
    group_.reset();
    client_.reset();
    cudaStreamDestroy(stream_);
  }

  Status Launch(cudaStream_t stream, std::span<const Binding> bindings = {}) {
    return plan_->Launch(StreamRef::Cuda(stream), bindings);
  }
  ChannelConsumer* Engine(size_t index = 0) {
    auto deadline = Clock::now() + kLong;
    while (daemon_->Engine(index) == nullptr && Clock::now() < deadline) std::this_thread::yield();
    return daemon_->Engine(index);
  }
  LaunchEntry Arrive(ChannelConsumer* engine) {
    LaunchEntry entry;
    auto deadline = Clock::now() + kLong;
    while (!engine->Poll(&entry)) {
      if (Clock::now() > deadline) {
        ADD_FAILURE() << "no entry came";
        return entry;
      }
    }
    while (entry.kind == EntryKind::kLaunch && engine->Request() < entry.sequence) {
      if (Clock::now() > deadline) {
        ADD_FAILURE() << "the stream did not arrive";
        break;
      }
    }
    return entry;
  }
  void Finish(ChannelConsumer* engine, const LaunchEntry& entry) {
    engine->PublishOk(entry.sequence, 1);
    engine->Complete(entry.sequence);
  }

  cuda::CudaDriver* driver_ = nullptr;
  std::shared_ptr<FakeDaemon> daemon_;
  std::shared_ptr<Client> client_;
  std::shared_ptr<Group> group_;
  std::shared_ptr<Plan> plan_;
  cudaStream_t stream_ = nullptr;
};

}  // namespace tandem::client
