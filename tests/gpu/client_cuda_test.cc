// The library's launches on real streams: order, captures, release, signals, and what a launch costs.
#include <algorithm>
#include <atomic>
#include <cstdlib>

#include "client/lib/base/deferred_reclaimer.h"
#include "tests/gpu/client_cuda_fixture.h"

namespace tandem::client {
namespace {

struct Marks {
  std::atomic<int> gate{0}, before{0}, after{0};
};
void CUDART_CB Gate(void* user) {
  auto* marks = static_cast<Marks*>(user);
  while (marks->gate == 0) std::this_thread::yield();
  marks->before = 1;
}
void CUDART_CB After(void* user) { static_cast<Marks*>(user)->after = 1; }

TEST_F(ClientCudaTest, LaunchesAreStreamOrdered) {
  Marks marks;
  ASSERT_CUDA(cudaLaunchHostFunc(stream_, Gate, &marks));
  ASSERT_OK(Launch(stream_));
  ASSERT_CUDA(cudaLaunchHostFunc(stream_, After, &marks));
  ChannelConsumer* engine = Engine();
  std::this_thread::sleep_for(Milliseconds(5));
  EXPECT_EQ(engine->Request(), 0u) << "the rank arrived before its stream";
  marks.gate = 1;
  LaunchEntry entry = Arrive(engine);
  EXPECT_EQ(marks.before, 1);
  std::this_thread::sleep_for(Milliseconds(5));
  EXPECT_EQ(marks.after, 0);
  Finish(engine, entry);
  EXPECT_TRUE(Drained(stream_));
  EXPECT_EQ(marks.after, 1);
  EXPECT_TRUE(plan_->Wait(kLong).ok());
}

TEST_F(ClientCudaTest, EveryKindOfStreamOfAnyThread) {
  cudaStream_t blocking = nullptr;
  ASSERT_CUDA(cudaStreamCreate(&blocking));
  size_t index = 0;
  for (cudaStream_t stream :
       {stream_, blocking, cudaStream_t{nullptr}, cudaStreamLegacy, cudaStreamPerThread}) {
    ASSERT_OK(Launch(stream));
    // The legacy stream has two handles and one id.
    ChannelConsumer* engine = Engine(stream == cudaStreamLegacy ? index - 1 : index++);
    Finish(engine, Arrive(engine));
    EXPECT_TRUE(Drained(stream));
  }
  // A thread that has never called CUDA.
  std::thread([&] {
    CUcontext context = nullptr;
    ASSERT_OK(Launch(stream_));
    EXPECT_EQ(driver_->CtxGetCurrent().value(), context) << "the launch left a context behind";
    ASSERT_OK(Launch(nullptr));
    EXPECT_EQ(driver_->CtxGetCurrent().value(), context);
  }).join();
  Finish(Engine(0), Arrive(Engine(0)));
  Finish(Engine(2), Arrive(Engine(2)));
  EXPECT_TRUE(Drained(stream_));
  EXPECT_TRUE(Drained(nullptr));
  EXPECT_TRUE(plan_->Wait(kLong).ok());
  ASSERT_CUDA(cudaStreamDestroy(blocking));
}

TEST_F(ClientCudaTest, AStreamOfAnotherGpuIsRefused) {
  int count = 0;
  ASSERT_CUDA(cudaGetDeviceCount(&count));
  if (count < 2) GTEST_SKIP() << "one GPU";
  cudaStream_t other = nullptr;
  ASSERT_CUDA(cudaSetDevice(1));
  ASSERT_CUDA(cudaStreamCreate(&other));
  Status refused = Launch(other);
  EXPECT_EQ(refused.code(), Code::kInvalidArgument) << refused.ToString();
  EXPECT_EQ(refused.detail().reason, "WRONG_DEVICE");
  EXPECT_EQ(Launch(nullptr).detail().reason, "WRONG_DEVICE") << "the default stream is the current device's";
  // A stream of the right GPU works from a thread whose current device is another, and leaves that current.
  ASSERT_OK(Launch(stream_));
  int current = -1;
  ASSERT_CUDA(cudaGetDevice(&current));
  EXPECT_EQ(current, 1);
  Finish(Engine(), Arrive(Engine()));
  ASSERT_CUDA(cudaStreamDestroy(other));
  ASSERT_CUDA(cudaSetDevice(0));
}

TEST_F(ClientCudaTest, ReplaysAreServedUntilTheGraphIsGone) {
  size_t streams = 0;
  for (cudaStreamCaptureMode mode : {cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal}) {
    ++streams;
    cudaStream_t stream = nullptr;
    ASSERT_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t executable = nullptr;
    // The session's first launch: a channel is opened, and pages are registered, while the stream captures.
    ASSERT_CUDA(cudaStreamBeginCapture(stream, mode));
    ASSERT_OK(Launch(stream));
    ASSERT_CUDA(cudaStreamEndCapture(stream, &graph));
    size_t nodes = 0;
    ASSERT_CUDA(cudaGraphGetNodes(graph, nullptr, &nodes));
    EXPECT_EQ(nodes, 1u) << "a batch: the write of 0, the doorbell, the wait";
    ASSERT_CUDA(cudaGraphInstantiate(&executable, graph, 0));
    ASSERT_CUDA(cudaGraphDestroy(graph));
    ChannelConsumer* engine = Engine(0);  // the captures' own; ordinary launches of each stream have another
    LaunchEntry arm = Arrive(engine);
    ASSERT_EQ(arm.kind, EntryKind::kArm);
    int slot = arm.captured_slot;
    engine->SetArmed(slot, true);
    for (int replay = 1; replay <= 5; ++replay) {
      ASSERT_CUDA(cudaGraphLaunch(executable, stream));
      auto deadline = Clock::now() + kLong;
      while (!engine->TakeDoorbell(slot) && Clock::now() < deadline) {
      }
      ASSERT_LT(Clock::now(), deadline) << "the doorbell of replay " << replay << " did not ring";
      EXPECT_EQ(cudaStreamQuery(stream), cudaErrorNotReady);
      engine->PublishCaptured(slot, static_cast<uint64_t>(replay),
                              replay == 2 ? DeadlineExceeded("late") : Status::Ok(), 1, 1);
      engine->CompleteCaptured(slot);
      ASSERT_TRUE(Drained(stream));
      EXPECT_EQ(plan_->Wait(kLong).code(), replay == 2 ? Code::kDeadlineExceeded : Code::kOk);
      // An ordinary launch between replays.
      ASSERT_OK(Launch(stream));
      Finish(Engine(streams), Arrive(Engine(streams)));
      ASSERT_TRUE(Drained(stream));
    }
    ASSERT_CUDA(cudaGraphExecDestroy(executable));
    LaunchEntry disarm = Arrive(engine);
    EXPECT_EQ(disarm.kind, EntryKind::kDisarm);
    EXPECT_TRUE(Drained(stream));
    ASSERT_CUDA(cudaStreamDestroy(stream));
  }
}

TEST_F(ClientCudaTest, ADeadDaemonReleasesStreamsAndReplays) {
  ASSERT_CUDA(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeGlobal));
  ASSERT_OK(Launch(stream_));
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  ASSERT_CUDA(cudaStreamEndCapture(stream_, &graph));
  ASSERT_CUDA(cudaGraphInstantiate(&executable, graph, 0));
  ASSERT_OK(Launch(stream_));
  ASSERT_CUDA(cudaGraphLaunch(executable, stream_));
  Marks marks;
  ASSERT_CUDA(cudaLaunchHostFunc(stream_, After, &marks));
  std::this_thread::sleep_for(Milliseconds(20));
  EXPECT_EQ(marks.after, 0);
  auto start = Clock::now();
  daemon_->gone = true;
  daemon_->callbacks.on_lost(Unavailable("the daemon is gone"));
  EXPECT_TRUE(Drained(stream_));
  double us = MicrosecondsSince(start);
  printf("released after %.0f us\n", us);
  EXPECT_LT(us, 1e6);
  EXPECT_EQ(plan_->Wait(kLong).code(), Code::kUnavailable);
  EXPECT_EQ(Launch(stream_).code(), Code::kUnavailable);
  for (int replay = 0; replay < 3; ++replay) {
    ASSERT_CUDA(cudaGraphLaunch(executable, stream_));
    EXPECT_TRUE(Drained(stream_));
  }
  ASSERT_CUDA(cudaGraphExecDestroy(executable));
  ASSERT_CUDA(cudaGraphDestroy(graph));
}

TEST_F(ClientCudaTest, SignalsAndWritesReachDeviceMemory) {
  auto device = cuda::CudaDevice::Create(driver_, 0).value();
  daemon_->segment_bytes = 4 << 20;
  daemon_->make_segment = [&](size_t bytes) -> Result<UniqueFd> {
    TANDEM_ASSIGN_OR_RETURN(cuda::VmmAllocation allocation, cuda::VmmAllocation::Create(device, bytes));
    TANDEM_RETURN_IF_ERROR(
        driver_->MemsetD8Async(reinterpret_cast<CUdeviceptr>(allocation.data()), 0, bytes, nullptr));
    TANDEM_RETURN_IF_ERROR(driver_->StreamSynchronize(nullptr));
    return allocation.Export();
  };
  auto made = group_->Allocate({1024}, DType::kF32);
  ASSERT_TRUE(made.ok()) << made.status().ToString();
  auto tensor = *made;
  auto start = Clock::now();
  ASSERT_OK(tensor->PutSignal(1, 0, kLong));
  printf("first signal %.0f us\n", MicrosecondsSince(start));
  uint32_t value = 0;
  ASSERT_CUDA(cudaMemcpy(&value, tensor->SignalPad(1).data(), 4, cudaMemcpyDeviceToHost));
  EXPECT_EQ(value, 1u);
  EXPECT_EQ(tensor->PutSignal(1, 0, Milliseconds(20)).code(), Code::kDeadlineExceeded);
  EXPECT_EQ(tensor->WaitSignal(1, 0, Milliseconds(20)).code(), Code::kDeadlineExceeded);
  // The peer's answer, by hand.
  value = 1;
  ASSERT_CUDA(
      cudaMemcpy(tensor->SignalPad(0).data() + tensor->channels(), &value, 4, cudaMemcpyHostToDevice));
  start = Clock::now();
  ASSERT_OK(tensor->WaitSignal(1, 0, kLong));
  printf("a signal taken %.0f us\n", MicrosecondsSince(start));
  ASSERT_OK(tensor->Memset32(StreamRef::Cuda(stream_), 1, 8, 42, 2));
  ASSERT_OK(tensor->StreamWriteValue32(StreamRef::Cuda(stream_), 0, 4, 43));
  ASSERT_TRUE(Drained(stream_));
  uint32_t words[4] = {};
  ASSERT_CUDA(cudaMemcpy(words, tensor->GetBuffer(1, {4}, DType::kI32).value(), 16, cudaMemcpyDeviceToHost));
  EXPECT_EQ(words[1], 0u);
  EXPECT_EQ(words[2], 42u);
  EXPECT_EQ(words[3], 42u);
  ASSERT_CUDA(cudaMemcpy(words, tensor->data(), 16, cudaMemcpyDeviceToHost));
  EXPECT_EQ(words[1], 43u);
  daemon_->make_segment = nullptr;
}

TEST_F(ClientCudaTest, WhatALaunchCosts) {
  OpRequest request{.op = Op::kAllReduce, .operands = {}, .transfers = {}};
  for (Role role : {Role::kInput, Role::kOutput})
    request.operands.push_back({role, {DType::kF32, {256}, {}}});
  auto bound = group_->Prepare("bound", request).value();
  char* memory = nullptr;
  ASSERT_CUDA(cudaMalloc(&memory, 1 << 20));
  auto handle = client_->RegisterCuda(memory, 1 << 20).value();
  ASSERT_OK(Launch(stream_));
  std::atomic<bool> stop{false};
  std::thread engine_thread([&, engine = Engine()] {
    LaunchEntry entry;
    while (!stop) {
      if (engine->Poll(&entry)) Finish(engine, entry);
    }
  });
  std::vector<Binding> none, handles = {{handle.get(), 0}, {handle.get(), 4096}};
  std::vector<Binding> pointers = {{nullptr, 0, memory}, {nullptr, 0, memory + 4096}};
  struct Case {
    const char* what;
    Plan* plan;
    std::vector<Binding>* bindings;
  };
  for (const Case& c : {Case{"no slots", plan_.get(), &none}, Case{"two handles", bound.get(), &handles},
                        Case{"two pointers", bound.get(), &pointers}}) {
    std::vector<double> us;
    for (int i = 0; i < 2000; ++i) {
      auto start = Clock::now();
      ASSERT_OK(c.plan->Launch(StreamRef::Cuda(stream_), *c.bindings));
      us.push_back(MicrosecondsSince(start));
      if (i % 100 == 99) {
        ASSERT_TRUE(Drained(stream_));
      }
    }
    std::sort(us.begin(), us.end());
    printf("launch, %-12s: median %.2f us, 90%% %.2f us\n", c.what, us[us.size() / 2],
           us[us.size() * 9 / 10]);
    EXPECT_LT(us[us.size() / 2], 50.0);
  }
  stop = true;
  engine_thread.join();
  // Its parts.
  auto time = [&](const char* what, auto&& function) {
    auto start = Clock::now();
    for (int i = 0; i < 1000; ++i) function();
    printf("  %-24s %.3f us\n", what, MicrosecondsSince(start) / 1000);
    EXPECT_TRUE(Drained(stream_));
  };
  void* page = std::aligned_alloc(4096, 4096);
  ASSERT_OK(driver_->MemHostRegister(page, 4096, CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP));
  auto word = reinterpret_cast<CUdeviceptr>(page);
  auto pointer = reinterpret_cast<CUdeviceptr>(memory);
  uint64_t id = 0;
  time("clock", [] { (void)Clock::now(); });
  time("CtxGetCurrent", [&] { (void)driver_->CtxGetCurrent(); });
  time("StreamGetCtx", [&] { (void)driver_->StreamGetCtx(stream_); });
  time("CtxGetDevice", [&] { (void)driver_->CtxGetDevice(); });
  time("StreamGetId", [&] { (void)driver_->StreamGetId(stream_); });
  time("StreamIsCapturing", [&] { (void)driver_->StreamIsCapturing(stream_); });
  time("buffer id",
       [&] { (void)driver_->PointerGetAttribute(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, pointer); });
  time("block id",
       [&] { (void)driver_->PointerGetAttribute(&id, CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID, pointer); });
  CUstreamBatchMemOpParams operations[2] = {};
  operations[0].writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_64;
  operations[0].writeValue.address = word;
  operations[0].writeValue.value64 = 7;
  operations[1].waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_64;
  operations[1].waitValue.address = word;
  operations[1].waitValue.value64 = 7;
  operations[1].waitValue.flags = CU_STREAM_WAIT_VALUE_GEQ;
  time("write + wait, one batch", [&] { (void)driver_->StreamBatchMemOp(stream_, operations, 2); });
  time("write + wait, two calls", [&] {
    (void)driver_->StreamWriteValue64(stream_, word, 7);
    (void)driver_->StreamWaitValue64(stream_, word, 7, CU_STREAM_WAIT_VALUE_GEQ);
  });
  ASSERT_OK(driver_->MemHostUnregister(page));
  std::free(page);
  ASSERT_CUDA(cudaFree(memory));
}

TEST_F(ClientCudaTest, PagesOfEndedChannelsAreUnregistered) {
  DeferredReclaimer& reclaimer = DeferredReclaimer::Get();
  reclaimer.SetGrace(Milliseconds(0));
  for (uint64_t round = 0; round < 3; ++round) {
    ASSERT_OK(Launch(stream_));
    Arrive(Engine(round));
    Engine(round)->words().Release(Aborted("engine of GPU 0 has ended"));
    ASSERT_TRUE(Drained(stream_));
    ControlEvent event;
    event.event.kind = ClientEvent::Kind::kEngineRestarted;
    event.event.group_id = group_->id();
    event.generation = round + 2;
    daemon_->callbacks.on_event(event);
    EXPECT_EQ(Launch(stream_).code(), Code::kAborted);
  }
  // While a launch is in flight no page is unregistered; afterwards all of the three are.
  ASSERT_OK(Launch(stream_));
  LaunchEntry entry = Arrive(Engine(3));
  auto deadline = Clock::now() + kLong;
  while (reclaimer.kept() < 3 && Clock::now() < deadline) std::this_thread::sleep_for(Milliseconds(50));
  EXPECT_GE(reclaimer.kept(), 3u);
  Finish(Engine(3), entry);
  ASSERT_TRUE(Drained(stream_));
  while (reclaimer.kept() > 0 && Clock::now() < deadline) std::this_thread::sleep_for(Milliseconds(50));
  EXPECT_EQ(reclaimer.kept(), 0u);
}

}  // namespace
}  // namespace tandem::client
