// The client library on a real GPU, without a daemon: a fake control half makes real channels, and the test plays the
// engine on their other ends. Streams, graphs and memory are the CUDA runtime's, as a training process has them.
#include <cuda_runtime.h>
#include <fcntl.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "client/lib/channel_graveyard.h"
#include "client/lib/handles.h"
#include "client/tests/fake_control.h"
#include "kernels/cuda/cuda_device.h"

namespace tandem::client {
namespace {

using Clock = std::chrono::steady_clock;
constexpr Milliseconds kLong(20000);

#define ASSERT_CUDA(call) ASSERT_EQ(call, cudaSuccess) << cudaGetErrorString(cudaGetLastError())
#define ASSERT_OK(call)                                  \
  do {                                                   \
    Status status_of_call = (call);                      \
    ASSERT_TRUE(status_of_call.ok()) << status_of_call.ToString(); \
  } while (0)

double MicrosecondsSince(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

// Waits for the stream without blocking for ever in a call.
bool Drained(cudaStream_t stream, Milliseconds deadline = kLong) {
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
  for (cudaStream_t stream : {stream_, blocking, cudaStream_t{nullptr}, cudaStreamLegacy, cudaStreamPerThread}) {
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
    EXPECT_EQ(nodes, 2u) << "a batch of doorbell and wait, and the write of 0";
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
                              replay == 2 ? Code::kDeadlineExceeded : Code::kOk, replay == 2 ? "late" : "", 1, 1);
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
    TANDEM_RETURN_IF_ERROR(driver_->MemsetD8Async(reinterpret_cast<CUdeviceptr>(allocation.data()), 0, bytes, nullptr));
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
  ASSERT_CUDA(cudaMemcpy(tensor->SignalPad(0).data() + tensor->channels(), &value, 4, cudaMemcpyHostToDevice));
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

uint64_t Attribute(cuda::CudaDriver& driver, CUpointer_attribute attribute, const void* pointer) {
  uint64_t value = 0;
  Status status = driver.PointerGetAttribute(&value, attribute, reinterpret_cast<CUdeviceptr>(pointer));
  return status.ok() ? value : ~uint64_t{0};
}

void Show(cuda::CudaDriver& driver, const char* what, const void* pointer) {
  CUdeviceptr base = 0;
  size_t bytes = 0;
  Status range = driver.MemGetAddressRange(reinterpret_cast<CUdeviceptr>(pointer), &base, &bytes);
  printf("%-14s %p type %ld buffer %ld block %ld ipc %ld handles %ld pool %lx range %lx+%lx mapping %lx+%lx address "
         "range %llx+%zx %s\n",
         what, pointer, static_cast<long>(Attribute(driver, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, pointer)),
         static_cast<long>(Attribute(driver, CU_POINTER_ATTRIBUTE_BUFFER_ID, pointer)),
         static_cast<long>(Attribute(driver, CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID, pointer)),
         static_cast<long>(Attribute(driver, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, pointer)),
         static_cast<long>(Attribute(driver, CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, pointer)),
         Attribute(driver, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, pointer),
         Attribute(driver, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, pointer),
         Attribute(driver, CU_POINTER_ATTRIBUTE_RANGE_SIZE, pointer),
         Attribute(driver, CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR, pointer),
         Attribute(driver, CU_POINTER_ATTRIBUTE_MAPPING_SIZE, pointer), base, bytes,
         range.ok() ? "" : range.message().c_str());
}

TEST_F(ClientCudaTest, MemoryIsRegisteredAsItsAllocation) {
  char *first = nullptr, *second = nullptr;
  ASSERT_CUDA(cudaMalloc(&first, 3000));
  ASSERT_CUDA(cudaMalloc(&second, 5 << 20));
  Show(*driver_, "cudaMalloc", first);
  Show(*driver_, "cudaMalloc +", second + 100);
  auto memory = client_->RegisterCuda(second + 512, 1 << 20);
  ASSERT_TRUE(memory.ok()) << memory.status().ToString();
  EXPECT_EQ((*memory)->registration_offset(), 512u);
  EXPECT_EQ(daemon_->registered.size(), 1u);
  EXPECT_EQ(daemon_->registered[0].ipc_handle.size(), 64u);
  EXPECT_EQ(daemon_->registered[0].bytes, size_t{5} << 20);
  // The same allocation again is no new registration, by whatever address.
  auto again = client_->RegisterCuda(second, 100).value();
  EXPECT_EQ(again->registration_id(), (*memory)->registration_id());
  EXPECT_EQ(daemon_->registered.size(), 1u);
  EXPECT_EQ(client_->RegisterCuda(second + 512, 5 << 20).status().code(), Code::kOutOfRange);
  EXPECT_TRUE((*memory)->Check().ok());
  // Freed, and other memory at the same address.
  ASSERT_CUDA(cudaFree(second));
  Status freed = (*memory)->Check();
  EXPECT_EQ(freed.detail().reason, "MEMORY_FREED") << freed.ToString();
  char* third = nullptr;
  ASSERT_CUDA(cudaMalloc(&third, 5 << 20));
  printf("allocated again %s\n", third == second ? "at the same address" : "elsewhere");
  EXPECT_EQ((*memory)->Check().detail().reason, "MEMORY_FREED");
  auto renewed = client_->RegisterCuda(third + 512, 1 << 20).value();
  EXPECT_NE(renewed->registration_id(), (*memory)->registration_id());
  EXPECT_EQ(daemon_->registered.size(), 2u);
  ASSERT_CUDA(cudaFree(first));
  ASSERT_CUDA(cudaFree(third));
}

TEST_F(ClientCudaTest, OtherKindsOfMemoryAreRefusedWithAReason) {
  void *host = nullptr, *managed = nullptr, *pooled = nullptr;
  ASSERT_CUDA(cudaHostAlloc(&host, 4096, cudaHostAllocDefault));
  ASSERT_CUDA(cudaMallocManaged(&managed, 4096));
  ASSERT_CUDA(cudaMallocAsync(&pooled, 4096, stream_));
  ASSERT_TRUE(Drained(stream_));
  int on_stack = 0;
  for (const auto& [what, pointer] : std::initializer_list<std::pair<const char*, void*>>{
           {"stack", &on_stack}, {"host", host}, {"managed", managed}, {"pooled", pooled}}) {
    Show(*driver_, what, pointer);
    Status refused = client_->RegisterCuda(pointer, 4).status();
    EXPECT_EQ(refused.detail().reason, "NOT_REGISTRABLE") << what << ": " << refused.ToString();
    printf("  %s\n", refused.message().c_str());
  }
  EXPECT_TRUE(daemon_->registered.empty());
  ASSERT_CUDA(cudaFreeHost(host));
  ASSERT_CUDA(cudaFree(managed));
  ASSERT_CUDA(cudaFreeAsync(pooled, stream_));
}

// An address range of chunks, as PyTorch's expandable segments have it.
class Range {
 public:
  Range(cuda::CudaDevice& device, size_t chunk, size_t chunks)
      : driver_(device.driver()), properties_(device.AllocationProperties()), chunk_(chunk), chunks_(chunks) {
    address_ = driver_.MemAddressReserve(chunk * chunks, 0).value();
  }
  ~Range() { (void)driver_.MemAddressFree(address_, chunk_ * chunks_); }
  void Map(size_t index) {
    auto handle = driver_.MemCreate(chunk_, properties_).value();
    ASSERT_OK(driver_.MemMap(address_ + index * chunk_, chunk_, handle));
    ASSERT_OK(driver_.MemRelease(handle));
    CUmemAccessDesc access = {};
    access.location = properties_.location;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    ASSERT_OK(driver_.MemSetAccess(address_ + index * chunk_, chunk_, access));
  }
  void Unmap(size_t index) { ASSERT_OK(driver_.MemUnmap(address_ + index * chunk_, chunk_)); }
  char* at(size_t offset) const { return reinterpret_cast<char*>(address_ + offset); }

 private:
  cuda::CudaDriver& driver_;
  const CUmemAllocationProp properties_;
  const size_t chunk_, chunks_;
  CUdeviceptr address_ = 0;
};

TEST_F(ClientCudaTest, RangesOfChunksAreRegisteredByTheChunksTouched) {
  auto device = cuda::CudaDevice::Create(driver_, 0).value();
  constexpr size_t kChunk = 2 << 20;
  Range range(*device, kChunk, 4);
  for (size_t i = 0; i < 3; ++i) range.Map(i);
  Show(*driver_, "chunk 0", range.at(0));
  Show(*driver_, "chunk 1 +", range.at(kChunk + 4096));
  Show(*driver_, "chunk 2", range.at(2 * kChunk));
  auto memory = client_->RegisterCuda(range.at(kChunk + 512), kChunk);
  ASSERT_TRUE(memory.ok()) << memory.status().ToString();
  EXPECT_EQ((*memory)->registration_offset(), 512u);
  ASSERT_EQ(daemon_->registered.size(), 1u);
  EXPECT_EQ(daemon_->registered[0].chunk_bytes, (std::vector<uint64_t>{kChunk, kChunk}));
  EXPECT_EQ(client_->RegisterCuda(range.at(2 * kChunk), 100).value()->registration_id(), (*memory)->registration_id());
  EXPECT_EQ(client_->RegisterCuda(range.at(0), 100).value()->registration_offset(), 0u);
  EXPECT_EQ(daemon_->registered.size(), 2u);
  EXPECT_EQ(client_->RegisterCuda(range.at(2 * kChunk), 2 * kChunk).status().code(), Code::kOutOfRange);
  // A chunk that is not touched may go; one that is and comes back is another.
  range.Unmap(0);
  EXPECT_TRUE((*memory)->Check().ok());
  range.Unmap(2);
  EXPECT_EQ((*memory)->Check().detail().reason, "MEMORY_FREED");
  range.Map(2);
  EXPECT_EQ((*memory)->Check().detail().reason, "MEMORY_FREED");
  Show(*driver_, "chunk 2 again", range.at(2 * kChunk));
  EXPECT_TRUE(client_->RegisterCuda(range.at(2 * kChunk), 100).ok());
  range.Unmap(1);
  range.Unmap(2);
}

TEST_F(ClientCudaTest, WhatALaunchCosts) {
  OpRequest request{.op = Op::kAllReduce, .operands = {}, .transfers = {}};
  for (Role role : {Role::kInput, Role::kOutput}) request.operands.push_back({role, {DType::kF32, {256}, {}}});
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
    printf("launch, %-12s: median %.2f us, 90%% %.2f us\n", c.what, us[us.size() / 2], us[us.size() * 9 / 10]);
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
  time("buffer id", [&] { (void)driver_->PointerGetAttribute(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, pointer); });
  time("block id", [&] { (void)driver_->PointerGetAttribute(&id, CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID, pointer); });
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
  ChannelGraveyard& graveyard = ChannelGraveyard::Get();
  graveyard.SetGrace(Milliseconds(0));
  for (uint64_t round = 0; round < 3; ++round) {
    ASSERT_OK(Launch(stream_));
    Arrive(Engine(round));
    Engine(round)->words().Release(Code::kAborted, "engine of GPU 0 has ended");
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
  while (graveyard.kept() < 3 && Clock::now() < deadline) std::this_thread::sleep_for(Milliseconds(50));
  EXPECT_GE(graveyard.kept(), 3u);
  Finish(Engine(3), entry);
  ASSERT_TRUE(Drained(stream_));
  while (graveyard.kept() > 0 && Clock::now() < deadline) std::this_thread::sleep_for(Milliseconds(50));
  EXPECT_EQ(graveyard.kept(), 0u);
}

}  // namespace
}  // namespace tandem::client
