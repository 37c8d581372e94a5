// The library on CUDA without a GPU: a driver that keeps books, a fake gRPC plugin, and the test as the
// engine.
#include <gtest/gtest.h>
#include <sys/eventfd.h>

#include <thread>

#include "client/lib/base/deferred_reclaimer.h"
#include "client/lib/devices/cuda_client_device.h"
#include "client/tests/fake_daemon_test.h"
#include "client/tests/fake_gpus.h"
#include "tandem/collectives.h"
#include "tandem/host_stream.h"
#include "tandem/pending.h"

namespace tandem::client {
namespace {

using ::testing::_;
using ::testing::DoAll;
using ::testing::Return;
using ::testing::SaveArg;
constexpr uintptr_t kAddress = 0x7f0000000000;
constexpr size_t kChunk = size_t{2} << 20;

void* At(uintptr_t address) { return reinterpret_cast<void*>(address); }

class CudaClientTest : public FakeDaemonTest {
 protected:
  void SetUp() override {
    FakeGpus::current = gpus_.ContextOf(0);
    MakeDaemon("cuda");
    device_ = CudaClientDevice::Create(&gpus_).value();
    Connect(device_);
    stream_ = gpus_.MakeStream(0);
  }
  void TearDown() override {
    Drop();
    // Pages that are given back only now need the driver, which ends with the test.
    DeferredReclaimer::Get().SetGrace(Milliseconds(0));
    EXPECT_TRUE(Until([] { return DeferredReclaimer::Get().kept() == 0; }));
  }
  // A plan with two slots of 1 KiB.
  std::shared_ptr<Plan> BoundPlan() {
    OpRequest request{.op = Op::kAllReduce, .operands = {}, .transfers = {}};
    for (Role role : {Role::kInput, Role::kOutput})
      request.operands.push_back({role, {DType::kF32, {256}, {}}});
    return group_->Prepare("bound", request).value();
  }
  static bool Until(const std::function<bool()>& condition) {
    auto deadline = Clock::now() + kLong;
    while (!condition()) {
      if (Clock::now() > deadline) return false;
      std::this_thread::sleep_for(Milliseconds(1));
    }
    return true;
  }
  Status Launch(CUstream stream, std::span<const Binding> bindings = {}) {
    return plan_->Launch(StreamRef::Cuda(stream), bindings);
  }
  LaunchEntry Next(size_t index = 0) {
    LaunchEntry entry;
    EXPECT_TRUE(
        Until([&] { return daemon_->Engine(index) != nullptr && daemon_->Engine(index)->Poll(&entry); }));
    return entry;
  }
  // Registers what lies there, for which the daemon has no room at first.
  Status RegisterWhenFull(uintptr_t address) {
    daemon_->full_once = true;
    return client_->RegisterCuda(At(address), 4096).status();
  }
  std::vector<uint64_t> Deregistered() {
    std::lock_guard lock(daemon_->mutex);
    return daemon_->deregistered;
  }
  void Finish(const LaunchEntry& entry, size_t index = 0) {
    daemon_->Engine(index)->PublishOk(entry.sequence, 1);
    daemon_->Engine(index)->Complete(entry.sequence);
  }

  FakeGpus gpus_;
  std::shared_ptr<ClientDevice> device_;
  CUstream stream_ = nullptr;
};

TEST_F(CudaClientTest, ALaunchIsOneBatchOfAWriteAndAWait) {
  EXPECT_CALL(gpus_, StreamBatchMemOp(stream_, _, 2)).Times(1);
  ASSERT_TRUE(Launch(stream_).ok());
  LaunchEntry entry = Next();
  ChannelConsumer* engine = daemon_->Engine(0);
  EXPECT_EQ(engine->Request(), entry.sequence);
  const auto& operations = FakeGpus::Of(stream_).operations;
  ASSERT_EQ(operations.size(), 2u);
  EXPECT_EQ(operations[0].operation, CU_STREAM_MEM_OP_WRITE_VALUE_64);
  EXPECT_EQ(operations[1].operation, CU_STREAM_MEM_OP_WAIT_VALUE_64);
  EXPECT_EQ(operations[1].waitValue.value64, entry.sequence);
  EXPECT_EQ(operations[1].waitValue.flags, unsigned{CU_STREAM_WAIT_VALUE_GEQ});
  // Both words lie in the pages that were registered, once.
  EXPECT_EQ(gpus_.registered.size(), 1u);
  Finish(entry);
  EXPECT_TRUE(plan_->Wait(kLong).ok());
}

TEST_F(CudaClientTest, ALaunchLeavesTheThreadsContextAlone) {
  for (CUcontext before : {CUcontext{nullptr}, gpus_.ContextOf(1), gpus_.ContextOf(0)}) {
    FakeGpus::current = before;
    EXPECT_CALL(gpus_, StreamBatchMemOp(stream_, _, 2))
        .WillOnce([&](CUstream stream, CUstreamBatchMemOpParams* operations, unsigned count) {
          EXPECT_EQ(FakeGpus::current, gpus_.ContextOf(0)) << "the operations are the stream's context's";
          return FakeGpus::Enqueue(stream, operations, count);
        });
    ASSERT_TRUE(Launch(stream_).ok());
    EXPECT_EQ(FakeGpus::current, before);
    Finish(Next());
  }
  EXPECT_TRUE(plan_->Wait(kLong).ok());
}

TEST_F(CudaClientTest, DefaultStreamsAreTheCurrentDevices) {
  FakeGpus::current = nullptr;  // as on a thread that has not called CUDA: the group's GPU's own context then
  ASSERT_TRUE(Launch(nullptr).ok());
  EXPECT_EQ(FakeGpus::current, nullptr);
  Finish(Next());
  FakeGpus::current = gpus_.ContextOf(0);
  ASSERT_TRUE(Launch(CU_STREAM_PER_THREAD).ok());
  Finish(Next());
  FakeGpus::current = gpus_.ContextOf(1);
  EXPECT_EQ(Launch(nullptr).detail().reason, "WRONG_DEVICE");
  EXPECT_TRUE(plan_->Wait(kLong).ok());
}

TEST_F(CudaClientTest, AStreamOfAnotherGpuIsRefusedBeforeAnythingIsPushed) {
  Status refused = Launch(gpus_.MakeStream(1));
  EXPECT_EQ(refused.code(), Code::kInvalidArgument);
  EXPECT_EQ(refused.detail().reason, "WRONG_DEVICE");
  EXPECT_NE(refused.message().find("GPU-1"), std::string::npos) << refused.message();
  EXPECT_EQ(daemon_->Engine(0), nullptr) << "a channel was opened";
  auto host = HostStream::Create().value();
  EXPECT_EQ(plan_->Launch(host.get(), {}).code(), Code::kInvalidArgument);
}

TEST_F(CudaClientTest, ALaunchThatTheDriverRefusesArrivesAllTheSame) {
  EXPECT_CALL(gpus_, StreamBatchMemOp(_, _, _)).WillOnce(Return(Aborted("context lost")));
  EXPECT_EQ(Launch(stream_).code(), Code::kAborted);
  LaunchEntry entry = Next();
  EXPECT_EQ(daemon_->Engine(0)->Request(), entry.sequence) << "the other ranks count on it";
  Finish(entry);
}

TEST_F(CudaClientTest, ACapturedLaunchLivesAsLongAsItsGraph) {
  FakeGpus::Of(stream_).capturing = reinterpret_cast<CUgraph>(0x99);
  EXPECT_CALL(gpus_, StreamBatchMemOp(stream_, _, 3)).Times(1);  // one node of the graph
  ASSERT_TRUE(Launch(stream_).ok());
  FakeGpus::Of(stream_).capturing = nullptr;
  LaunchEntry arm = Next();
  ASSERT_EQ(arm.kind, EntryKind::kArm);
  const auto& operations = FakeGpus::Of(stream_).operations;
  ASSERT_EQ(operations.size(), 3u);  // done = 0, doorbell = 1, wait for done >= 1
  EXPECT_EQ(operations[0].writeValue.value64, 0u);
  EXPECT_EQ(operations[1].writeValue.value64, 1u);
  EXPECT_EQ(operations[1].writeValue.flags, unsigned{CU_STREAM_WRITE_VALUE_DEFAULT})
      << "it is behind the other";
  EXPECT_EQ(operations[2].waitValue.value64, 1u);
  EXPECT_EQ(operations[0].writeValue.address, operations[2].waitValue.address);
  // Nothing else keeps the session: the graph does.
  Drop();
  EXPECT_EQ(daemon_->destroyed, 0);
  gpus_.DropGraph();
  // The session ends elsewhere than on the driver's thread, where no call of CUDA is allowed.
  EXPECT_TRUE(Until([&] { return daemon_->destroyed == 1; }));
}

TEST_F(CudaClientTest, AGraphThatCannotKeepTheLaunchFailsTheCapture) {
  FakeGpus::Of(stream_).capturing = reinterpret_cast<CUgraph>(0x99);
  EXPECT_CALL(gpus_, GraphRetainUserObject(_, _)).WillOnce(Return(Internal("no")));
  EXPECT_CALL(gpus_, UserObjectRelease(_)).WillOnce([&](CUuserObject) {
    gpus_.DropGraph();
    return Status::Ok();
  });
  EXPECT_EQ(Launch(stream_).code(), Code::kInternal);
  EXPECT_EQ(Next().kind, EntryKind::kArm);
  EXPECT_EQ(Next().kind, EntryKind::kDisarm);
}

TEST_F(CudaClientTest, PagesStayRegisteredWhileAnythingIsInFlight) {
  DeferredReclaimer::Get().SetGrace(Milliseconds(0));
  ASSERT_TRUE(Launch(stream_).ok());
  Next();
  daemon_->Engine(0)->words().Release(Aborted("engine of GPU 0 has ended"));
  ControlEvent event;
  event.event.kind = ClientEvent::Kind::kEngineRestarted;
  event.event.group_id = group_->id();
  event.generation = 2;
  daemon_->Tell(event);
  EXPECT_EQ(Launch(stream_).code(), Code::kAborted);
  ASSERT_TRUE(Launch(stream_).ok());  // opens another channel, whose stream waits
  LaunchEntry entry = Next(1);
  ASSERT_TRUE(Until([] { return DeferredReclaimer::Get().kept() == 1; }));
  std::this_thread::sleep_for(Milliseconds(1200));  // two looks of the reclaimer's thread
  EXPECT_EQ(gpus_.unregistered, 0);
  daemon_->Engine(1)->PublishOk(entry.sequence, 2);
  daemon_->Engine(1)->Complete(entry.sequence);
  EXPECT_TRUE(Until([&] { return gpus_.unregistered == 1; }));
}

TEST_F(CudaClientTest, AnAllocationIsRegisteredOnceAndKnownByItsId) {
  gpus_.Put(kAddress, {"malloc", 1 << 20, 1, 0, true});
  auto memory = client_->RegisterCuda(At(kAddress + 512), 4096).value();
  EXPECT_EQ(memory->registration_offset(), 512u);
  ASSERT_EQ(daemon_->registered.size(), 1u);
  EXPECT_EQ(daemon_->registered[0].ipc_handle.size(), 64u);
  EXPECT_EQ(daemon_->registered[0].bytes, 1u << 20);
  EXPECT_EQ(client_->RegisterCuda(At(kAddress), 1 << 20).value()->registration_id(),
            memory->registration_id());
  EXPECT_EQ(client_->RegisterCuda(At(kAddress + 1), 1 << 20).status().code(), Code::kOutOfRange);
  auto plan = BoundPlan();
  std::vector<Binding> bindings = {{memory.get(), 0}, {nullptr, 256, At(kAddress + 4096)}};
  ASSERT_TRUE(plan->Launch(StreamRef::Cuda(stream_), bindings).ok());
  LaunchEntry entry = Next();
  EXPECT_EQ(entry.bindings[0].offset, 512u);
  EXPECT_EQ(entry.bindings[1].offset, 4096u + 256);
  EXPECT_EQ(entry.bindings[1].registration_id, memory->registration_id());
  Finish(entry);
  // Other memory at the same address is not taken for it: the handle is dead, the address is registered anew.
  gpus_.Put(kAddress, {"malloc", 1 << 20, 2, 0, true});
  EXPECT_EQ(memory->Check().detail().reason, "MEMORY_FREED");
  Status reported = plan->Launch(StreamRef::Cuda(stream_), bindings);
  EXPECT_EQ(reported.detail().reason, "MEMORY_FREED") << reported.ToString();
  entry = Next();
  EXPECT_EQ(entry.bindings[0].registration_id, 0u) << "the engine must refuse it too";
  EXPECT_NE(entry.bindings[1].registration_id, memory->registration_id());
  EXPECT_EQ(daemon_->registered.size(), 2u);
  Finish(entry);
  EXPECT_TRUE(plan->Wait(kLong).ok());
}

TEST_F(CudaClientTest, MemoryThatIsGoneIsDeregisteredWithoutACall) {
  gpus_.Put(kAddress, {"malloc", 1 << 20, 1, 0, true});
  uint64_t id = client_->RegisterCuda(At(kAddress), 4096).value()->registration_id();
  EXPECT_EQ(client_->UsedMemory()->imported_bytes, 1u << 20);
  gpus_.Remove(kAddress);
  EXPECT_TRUE(Until([&] {
    std::lock_guard lock(daemon_->mutex);
    return daemon_->deregistered == std::vector<uint64_t>{id};
  }));
  EXPECT_EQ(client_->UsedMemory()->imported_bytes, 0u);
}

TEST_F(CudaClientTest, AQuotaTakesNoRegistrationFromALaunchUnderWay) {
  gpus_.Put(kAddress, {"malloc", 4096, 1, 0, true});
  gpus_.Put(kAddress + kChunk, {"malloc", 4096, 2, 0, true});
  gpus_.Put(kAddress + 2 * kChunk, {"malloc", 4096, 3, 0, true});
  auto plan = BoundPlan();
  auto named = client_->RegisterCuda(At(kAddress + kChunk), 4096).value();
  std::vector<Binding> bindings = {{nullptr, 0, At(kAddress)}, {named.get(), 0}};
  ASSERT_TRUE(plan->Launch(StreamRef::Cuda(stream_), bindings).ok());
  named.reset();  // it only names the memory
  LaunchEntry entry = Next();
  EXPECT_EQ(RegisterWhenFull(kAddress + 2 * kChunk).code(), Code::kResourceExhausted);
  EXPECT_EQ(Deregistered(), std::vector<uint64_t>());
  Finish(entry);
  EXPECT_TRUE(RegisterWhenFull(kAddress + 2 * kChunk).ok())
      << "the launch has ended, whether anybody has looked or not";
  EXPECT_EQ(Deregistered().size(), 2u);
  EXPECT_TRUE(plan->Wait(kLong).ok());
}

TEST_F(CudaClientTest, AQuotaTakesNoRegistrationFromACapturedLaunch) {
  gpus_.Put(kAddress, {"malloc", 4096, 1, 0, true});
  gpus_.Put(kAddress + kChunk, {"malloc", 4096, 2, 0, true});
  auto plan = BoundPlan();
  FakeGpus::Of(stream_).capturing = reinterpret_cast<CUgraph>(0x99);
  const std::vector<Binding> bindings = {{nullptr, 0, At(kAddress)}, {nullptr, 0, At(kAddress + 2048)}};
  ASSERT_TRUE(plan->Launch(StreamRef::Cuda(stream_), bindings).ok());
  FakeGpus::Of(stream_).capturing = nullptr;
  const uint64_t id = Next().bindings[0].registration_id;
  EXPECT_EQ(RegisterWhenFull(kAddress + kChunk).code(), Code::kResourceExhausted);
  EXPECT_EQ(Deregistered(), std::vector<uint64_t>());
  gpus_.DropGraph();
  // Another thread drops what the graph held: the driver's callback must not.
  const auto deadline = Clock::now() + kLong;
  while (!RegisterWhenFull(kAddress + kChunk).ok() && Clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_EQ(Deregistered(), std::vector<uint64_t>{id});
}

TEST_F(CudaClientTest, AQuotaTakesNoRegistrationFromALaunchByGrpc) {
  gpus_.Put(kAddress, {"malloc", 4096, 1, 0, true});
  gpus_.Put(kAddress + kChunk, {"malloc", 4096, 2, 0, true});
  auto plan = BoundPlan();
  std::vector<Binding> bindings(2, {nullptr, 0, At(kAddress)});
  uint64_t launch = plan->LaunchWithoutStream(bindings).value();
  EXPECT_EQ(RegisterWhenFull(kAddress + kChunk).code(), Code::kResourceExhausted);
  EXPECT_TRUE(plan->WaitLaunch(launch, kLong).ok());
  EXPECT_TRUE(RegisterWhenFull(kAddress + kChunk).ok());
  EXPECT_EQ(Deregistered().size(), 1u);
}

TEST_F(CudaClientTest, AQuotaTakesNoRegistrationFromTheLaunchThatMeetsIt) {
  gpus_.Put(kAddress, {"malloc", 4096, 1, 0, true});
  gpus_.Put(kAddress + kChunk, {"malloc", 4096, 2, 0, true});
  auto plan = BoundPlan();
  ASSERT_TRUE(client_->RegisterCuda(At(kAddress), 4096).ok());
  daemon_->full_once = true;
  std::vector<Binding> bindings = {{nullptr, 0, At(kAddress)}, {nullptr, 0, At(kAddress + kChunk)}};
  Status wrong = plan->Launch(StreamRef::Cuda(stream_), bindings);
  EXPECT_EQ(wrong.code(), Code::kResourceExhausted) << wrong.ToString();
  LaunchEntry entry = Next();
  EXPECT_NE(entry.bindings[0].registration_id, 0u);
  EXPECT_EQ(Deregistered(), std::vector<uint64_t>());
  Finish(entry);
}

TEST_F(CudaClientTest, OfARangeOnlyTheChunksTouchedAreRegistered) {
  for (uintptr_t i = 0; i < 3; ++i) gpus_.Put(kAddress + i * kChunk, {"chunk", kChunk, 10 + i, 0, true});
  auto memory = client_->RegisterCuda(At(kAddress + kChunk + 512), kChunk).value();
  ASSERT_EQ(daemon_->registered.size(), 1u);
  EXPECT_EQ(daemon_->registered[0].chunk_bytes, (std::vector<uint64_t>{kChunk, kChunk}));
  EXPECT_EQ(daemon_->registered[0].ipc_handle, "");
  EXPECT_EQ(memory->registration_offset(), 512u);
  EXPECT_EQ(client_->RegisterCuda(At(kAddress + 2 * kChunk), 100).value()->registration_offset(), kChunk);
  EXPECT_EQ(client_->RegisterCuda(At(kAddress), 100).value()->registration_offset(), 0u);
  EXPECT_EQ(daemon_->registered.size(), 2u);
  EXPECT_EQ(client_->UsedMemory()->imported_bytes, 3 * kChunk);
  // A range over both registrations has no memory of its own.
  EXPECT_TRUE(client_->RegisterCuda(At(kAddress), 3 * kChunk).ok());
  EXPECT_EQ(daemon_->registered.size(), 3u);
  EXPECT_EQ(client_->UsedMemory()->imported_bytes, 3 * kChunk);
  EXPECT_EQ(client_->RegisterCuda(At(kAddress + 2 * kChunk), kChunk + 1).status().code(), Code::kOutOfRange);
  // The first chunk of the range may change; the last may not.
  gpus_.Put(kAddress, {"chunk", kChunk, 20, 0, true});
  EXPECT_TRUE(memory->Check().ok());
  gpus_.Put(kAddress + 2 * kChunk, {"chunk", kChunk, 21, 0, true});
  EXPECT_EQ(memory->Check().detail().reason, "MEMORY_FREED");
}

TEST_F(CudaClientTest, MemoryThatCannotBeSharedIsRefusedWithWhatToUse) {
  for (const char* kind : {"host", "managed", "pool"}) {
    gpus_.Put(kAddress, {kind, 4096, 1, 0, true});
    Status refused = client_->RegisterCuda(At(kAddress), 4096).status();
    EXPECT_EQ(refused.detail().reason, "NOT_REGISTRABLE") << kind;
    EXPECT_NE(refused.message().find("use cudaMalloc"), std::string::npos) << refused.message();
  }
  gpus_.Put(kAddress, {"chunk", kChunk, 1, 0, false});
  EXPECT_EQ(client_->RegisterCuda(At(kAddress), 4096).status().detail().reason, "NOT_REGISTRABLE");
  EXPECT_EQ(client_->RegisterCuda(At(0x1000), 4096).status().detail().reason, "NOT_REGISTRABLE");
  EXPECT_TRUE(daemon_->registered.empty());
}

TEST_F(CudaClientTest, MemoryOfAnotherGpuIsNotBound) {
  gpus_.Put(kAddress, {"malloc", 1 << 20, 1, 1, true});
  auto memory = client_->RegisterCuda(At(kAddress), 4096).value();
  EXPECT_EQ(daemon_->registered[0].gpu_uuid, "GPU-1");
  auto plan = BoundPlan();
  for (const Binding& binding : {Binding{memory.get(), 0}, Binding{nullptr, 0, At(kAddress)}}) {
    std::vector<Binding> bindings = {binding, binding};
    Status wrong = plan->Launch(StreamRef::Cuda(stream_), bindings);
    EXPECT_EQ(wrong.detail().reason, "WRONG_DEVICE") << wrong.ToString();
    LaunchEntry entry = Next();
    EXPECT_EQ(entry.bindings[0].registration_id, 0u);
    Finish(entry);
  }
}

TEST_F(CudaClientTest, SignalsAreReadAndWrittenOnTheLibrarysOwnStream) {
  ON_CALL(gpus_, MemImportFromFd).WillByDefault(Return(Result<CUmemGenericAllocationHandle>(5)));
  ON_CALL(gpus_, MemAddressReserve).WillByDefault([](size_t, size_t) {
    static uintptr_t next = kAddress;
    next += size_t{1} << 30;
    return Result<CUdeviceptr>(next);
  });
  daemon_->segment_bytes = size_t{4} << 20;
  auto tensor = group_->Allocate({1024}, DType::kF32).value();
  EXPECT_NE(tensor->data(), tensor->GetBuffer(1, {1}, DType::kF32).value());
  uint32_t word = 0;
  auto target = reinterpret_cast<CUdeviceptr>(tensor->SignalPad(1).data());
  ON_CALL(gpus_, MemcpyAsync)
      .WillByDefault([&](CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
        EXPECT_EQ(from, target);
        EXPECT_EQ(bytes, sizeof(word));
        EXPECT_NE(stream, stream_);
        *reinterpret_cast<uint32_t*>(to) = word;
        return Status::Ok();
      });
  EXPECT_CALL(gpus_, StreamWriteValue32(_, target, 1)).Times(1);
  EXPECT_TRUE(tensor->PutSignal(1, 0, kLong).ok());
  word = 1;  // not taken yet
  EXPECT_EQ(tensor->PutSignal(1, 0, Milliseconds(20)).code(), Code::kDeadlineExceeded);
  // A signal that has come is taken though there is no time left when the GPU has read it.
  int looks = 0;
  ON_CALL(gpus_, StreamQuery).WillByDefault([&](CUstream) { return Result<bool>(++looks % 3 == 0); });
  target = reinterpret_cast<CUdeviceptr>(tensor->SignalPad(0).data() + tensor->channels());
  EXPECT_CALL(gpus_, StreamWriteValue32(_, target, 0)).Times(1);
  EXPECT_TRUE(tensor->WaitSignal(1, 0, Milliseconds(0)).ok());
  // A GPU that does not answer holds nobody much beyond the deadline.
  ON_CALL(gpus_, StreamQuery).WillByDefault(Return(Result<bool>(false)));
  EXPECT_EQ(tensor->PutSignal(1, 0, Milliseconds(20)).code(), Code::kDeadlineExceeded);
  ON_CALL(gpus_, StreamQuery).WillByDefault(Return(Result<bool>(true)));
  EXPECT_CALL(gpus_, MemsetD32Async(_, 42, 2, stream_));
  EXPECT_TRUE(tensor->Memset32(StreamRef::Cuda(stream_), 1, 8, 42, 2).ok());
  EXPECT_CALL(gpus_, StreamWriteValue32(stream_, reinterpret_cast<CUdeviceptr>(tensor->data()) + 4, 43));
  EXPECT_TRUE(tensor->StreamWriteValue32(StreamRef::Cuda(stream_), 0, 4, 43).ok());
  EXPECT_EQ(tensor->Memset32(StreamRef::Cuda(gpus_.MakeStream(1)), 1, 8, 42, 2).detail().reason,
            "WRONG_DEVICE");
}

TEST_F(CudaClientTest, AnEventDescriptorHearsOfTheStreamsEnd) {
  const UniqueFd event(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  CUhostFn function = nullptr;
  void* argument = nullptr;
  EXPECT_CALL(gpus_, LaunchHostFunc(stream_, _, _))
      .WillOnce(DoAll(SaveArg<1>(&function), SaveArg<2>(&argument), Return(Status::Ok())));
  ASSERT_TRUE(NotifyAfter(*group_, StreamRef::Cuda(stream_), event.get()).ok());
  eventfd_t times = 0;
  EXPECT_EQ(::eventfd_read(event.get(), &times), -1);
  function(argument);
  EXPECT_EQ(::eventfd_read(event.get(), &times), 0);
  EXPECT_EQ(times, 1u);
  EXPECT_EQ(NotifyAfter(*group_, StreamRef::Cuda(stream_), -1).detail().field, "event_fd");
}

TEST_F(CudaClientTest, ARootsInputIsCopiedOnItsStream) {
  auto collectives = Collectives::Make(group_).value();
  EXPECT_CALL(gpus_, MemcpyAsync(0x20000, 0x10000, 12, stream_)).WillOnce(Return(Status::Ok()));
  (void)collectives->Broadcast(StreamRef::Cuda(stream_), At(0x10000), At(0x20000), 3, DType::kF32, 0);
  // In place there is nothing to copy.
  (void)collectives->Broadcast(StreamRef::Cuda(stream_), At(0x20000), At(0x20000), 3, DType::kF32, 0);
}

TEST_F(CudaClientTest, ALaunchOnAnotherStreamWaitsForTheOneBefore) {
  CUstream second = gpus_.MakeStream(0);
  ASSERT_TRUE(Launch(stream_).ok());
  const CUstreamBatchMemOpParams before = FakeGpus::Of(stream_).operations.back();
  ASSERT_TRUE(Launch(second).ok());
  const auto& operations = FakeGpus::Of(second).operations;
  ASSERT_EQ(operations.size(), 3u);
  EXPECT_EQ(operations[0].operation, CU_STREAM_MEM_OP_WAIT_VALUE_64);
  EXPECT_EQ(operations[0].waitValue.address, before.waitValue.address);
  EXPECT_EQ(operations[0].waitValue.value64, before.waitValue.value64);
  EXPECT_EQ(operations[1].operation, CU_STREAM_MEM_OP_WRITE_VALUE_64);
  // The next launch on the same stream is behind it anyway.
  ASSERT_TRUE(Launch(second).ok());
  EXPECT_EQ(operations.size(), 5u);
}

TEST_F(CudaClientTest, ADeadDaemonReleasesTheWords) {
  ASSERT_TRUE(Launch(stream_).ok());
  Next();
  daemon_->gone = true;
  daemon_->TellLoss("the daemon is gone");
  auto* done =
      reinterpret_cast<std::atomic<uint64_t>*>(FakeGpus::Of(stream_).operations[1].waitValue.address);
  EXPECT_TRUE(Until([&] { return done->load() == kReleaseValue; }));
  EXPECT_EQ(plan_->Wait(kLong).code(), Code::kUnavailable);
  EXPECT_EQ(Launch(stream_).code(), Code::kUnavailable);
}

TEST_F(CudaClientTest, ALaunchThatTheDriverHoldsUpKeepsNoOtherStreamWaiting) {
  CUstream streams[] = {stream_, gpus_.MakeStream(0)};
  std::atomic<uint64_t>* done[2];
  for (size_t i = 0; i < 2; ++i) {
    ASSERT_TRUE(Launch(streams[i]).ok());
    Next(i);
    done[i] = reinterpret_cast<std::atomic<uint64_t>*>(
        FakeGpus::Of(streams[i]).operations.back().waitValue.address);
  }
  // Each stream's next launch stays in the driver until the other stream has passed.
  std::atomic<int> held{0}, passed{0};
  ON_CALL(gpus_, StreamBatchMemOp)
      .WillByDefault([&](CUstream stream, CUstreamBatchMemOpParams* operations, unsigned count) {
        ++held;
        passed += Until([&] { return done[stream == streams[0] ? 1 : 0]->load() == kReleaseValue; });
        return FakeGpus::Enqueue(stream, operations, count);
      });
  std::thread threads[] = {std::thread([&] { (void)Launch(streams[0]); }),
                           std::thread([&] { (void)Launch(streams[1]); })};
  ASSERT_TRUE(Until([&] { return held >= 2; }));
  daemon_->gone = true;
  daemon_->TellLoss("the daemon is gone");
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(passed, held);
  EXPECT_EQ(plan_->Wait(kLong).code(), Code::kUnavailable);
}

}  // namespace
}  // namespace tandem::client
