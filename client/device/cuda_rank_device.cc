#include "client/device/cuda_rank_device.h"

#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <thread>
#include <utility>
#include <vector>

#include "common/gpu_name.h"

namespace tandem {
namespace {

using cuda::CudaDriver;

// Below a millisecond a stream is polled without pause: cuStreamSynchronize knows no deadline.
constexpr std::chrono::microseconds kSpin{1000}, kPause{50};

// The device that everything here belongs to: the driver and the primary context, retained for the process's
// life.
struct Device {
  CudaDriver* driver = nullptr;
  CUcontext context = nullptr;
  Status Enter() const {
    TANDEM_ASSIGN_OR_RETURN(CUcontext current, driver->CtxGetCurrent());
    return current == context ? Status::Ok() : driver->CtxSetCurrent(context);
  }
};

class CudaRankEvent : public RankEvent {
 public:
  CudaRankEvent(Device device, CUevent event) : device_(device), event_(event) {}
  ~CudaRankEvent() override { (void)device_.driver->EventDestroy(event_); }
  Result<double> MicrosecondsSince(const RankEvent& start) const override {
    TANDEM_ASSIGN_OR_RETURN(float milliseconds, device_.driver->EventElapsedTime(
                                                    static_cast<const CudaRankEvent&>(start).event_, event_));
    return static_cast<double>(milliseconds) * 1e3;
  }
  CUevent event() const { return event_; }

 private:
  Device device_;
  CUevent event_;
};

using Functions = std::vector<std::unique_ptr<std::function<void()>>>;

class CudaRankGraph : public RankGraph {
 public:
  CudaRankGraph(Device device, CUgraphExec graph, Functions functions)
      : device_(device), graph_(graph), functions_(std::move(functions)) {}
  ~CudaRankGraph() override { (void)device_.driver->GraphExecDestroy(graph_); }
  CUgraphExec graph() const { return graph_; }

 private:
  Device device_;
  CUgraphExec graph_;
  Functions functions_;  // which the graph's host nodes call
};

void CallOnce(void* argument) {
  std::unique_ptr<std::function<void()>> function(static_cast<std::function<void()>*>(argument));
  (*function)();
}
void Call(void* argument) { (*static_cast<std::function<void()>*>(argument))(); }

class CudaRankStream : public RankStream {
 public:
  CudaRankStream(Device device, CUstream stream) : device_(device), stream_(stream) {}
  ~CudaRankStream() override { (void)device_.driver->StreamDestroy(stream_); }
  StreamRef ref() override { return StreamRef::Cuda(stream_); }
  CUstream stream() const { return stream_; }

  Status Enqueue(std::function<void()> function) override {
    auto owned = std::make_unique<std::function<void()>>(std::move(function));
    if (capturing_) {
      captured_.push_back(std::move(owned));
      return device_.driver->LaunchHostFunc(stream_, &Call, captured_.back().get());
    }
    TANDEM_RETURN_IF_ERROR(device_.driver->LaunchHostFunc(stream_, &CallOnce, owned.get()));
    (void)owned.release();  // CallOnce's from here on
    return Status::Ok();
  }
  Status Record(RankEvent& event) override {
    return device_.driver->EventRecord(static_cast<CudaRankEvent&>(event).event(), stream_);
  }
  Status Wait(RankEvent& event) override {
    return device_.driver->StreamWaitEvent(stream_, static_cast<CudaRankEvent&>(event).event());
  }
  Result<bool> Query() override { return device_.driver->StreamQuery(stream_); }
  Status Synchronize(Milliseconds deadline) override {
    const auto start = std::chrono::steady_clock::now();
    for (;;) {
      TANDEM_ASSIGN_OR_RETURN(bool done, device_.driver->StreamQuery(stream_));
      if (done) return Status::Ok();
      const auto waited = std::chrono::steady_clock::now() - start;
      if (waited > deadline) {
        return DeadlineExceeded("the stream's work is not done after " + std::to_string(deadline.count()) +
                                " ms")
            .WithDetail({.reason = "NOT_ENDED"});
      }
      if (waited > kSpin) std::this_thread::sleep_for(kPause);
    }
  }
  Status BeginCapture() override {
    // Relaxed: the library may have to open a channel at a capture's first launch, which registers host
    // memory.
    TANDEM_RETURN_IF_ERROR(device_.driver->StreamBeginCapture(stream_, CU_STREAM_CAPTURE_MODE_RELAXED));
    capturing_ = true;
    return Status::Ok();
  }
  Result<std::unique_ptr<RankGraph>> EndCapture() override {
    capturing_ = false;
    Functions functions = std::exchange(captured_, {});
    TANDEM_ASSIGN_OR_RETURN(CUgraph graph, device_.driver->StreamEndCapture(stream_));
    Result<CUgraphExec> executable = device_.driver->GraphInstantiate(graph, 0);
    (void)device_.driver->GraphDestroy(graph);
    if (!executable.ok()) return executable.status();
    return std::unique_ptr<RankGraph>(
        std::make_unique<CudaRankGraph>(device_, *executable, std::move(functions)));
  }
  Status Replay(RankGraph& graph) override {
    return device_.driver->GraphLaunch(static_cast<CudaRankGraph&>(graph).graph(), stream_);
  }

 private:
  Device device_;
  CUstream stream_;
  bool capturing_ = false;
  Functions captured_;
};

CUdeviceptr Address(const std::byte* data) { return reinterpret_cast<CUdeviceptr>(data); }

class CudaRankMirror : public RankMirror {
 public:
  // Whole pages that are registered while the mirror lives.
  static Result<std::unique_ptr<RankMirror>> Make(Device device, const Memory& memory) {
    const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
    const size_t bytes = (memory.bytes() / page + 1) * page;
    void* pages = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED) return SystemError("mmap", errno);
    Status registered = device.driver->MemHostRegister(pages, bytes, CU_MEMHOSTREGISTER_PORTABLE);
    if (!registered.ok()) {
      ::munmap(pages, bytes);
      return registered.WithContext("pinning " + std::to_string(bytes) + " bytes");
    }
    return std::unique_ptr<RankMirror>(
        new CudaRankMirror(device, static_cast<std::byte*>(pages), bytes, memory.data()));
  }
  ~CudaRankMirror() override {
    (void)device_.driver->MemHostUnregister(data_);
    ::munmap(data_, bytes_);
  }
  std::byte* data() const override { return data_; }
  Status ToDevice(RankStream& stream, size_t offset, size_t bytes) override {
    return Copy(stream, on_device_ + offset, data_ + offset, bytes);
  }
  Status ToHost(RankStream& stream, size_t offset, size_t bytes) override {
    return Copy(stream, data_ + offset, on_device_ + offset, bytes);
  }

 private:
  CudaRankMirror(Device device, std::byte* data, size_t bytes, std::byte* on_device)
      : device_(device), data_(data), bytes_(bytes), on_device_(on_device) {}

  Status Copy(RankStream& stream, std::byte* to, const std::byte* from, size_t bytes) {
    if (bytes == 0) return Status::Ok();
    return device_.driver->MemcpyAsync(Address(to), Address(from), bytes,
                                       static_cast<CudaRankStream&>(stream).stream());
  }

  Device device_;
  std::byte* data_;
  size_t bytes_;
  std::byte* on_device_;
};

class CudaRankDevice : public RankDevice {
 public:
  explicit CudaRankDevice(Device device) : device_(device) {}
  Status Enter() override { return device_.Enter(); }
  Result<std::unique_ptr<RankStream>> MakeStream() override {
    TANDEM_RETURN_IF_ERROR(Enter());
    TANDEM_ASSIGN_OR_RETURN(CUstream stream,
                            device_.driver->StreamCreateWithPriority(CU_STREAM_NON_BLOCKING, 0));
    return std::unique_ptr<RankStream>(std::make_unique<CudaRankStream>(device_, stream));
  }
  Result<std::unique_ptr<RankEvent>> MakeEvent() override {
    TANDEM_RETURN_IF_ERROR(Enter());
    TANDEM_ASSIGN_OR_RETURN(CUevent event, device_.driver->EventCreate(CU_EVENT_DEFAULT));
    return std::unique_ptr<RankEvent>(std::make_unique<CudaRankEvent>(device_, event));
  }
  Result<std::unique_ptr<RankMirror>> MakeMirror(const Memory& memory) override {
    TANDEM_RETURN_IF_ERROR(Enter());
    return CudaRankMirror::Make(device_, memory);
  }

 private:
  Device device_;
};

}  // namespace

Result<std::shared_ptr<RankDevice>> MakeCudaRankDevice(CudaDriver* driver, const std::string& gpu_uuid) {
  TANDEM_RETURN_IF_ERROR(driver->Init());
  TANDEM_ASSIGN_OR_RETURN(int count, driver->DeviceGetCount());
  std::string seen;
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    TANDEM_ASSIGN_OR_RETURN(CUdevice device, driver->DeviceGet(ordinal));
    TANDEM_ASSIGN_OR_RETURN(std::string uuid, driver->DeviceGetUuid(device));
    seen += (seen.empty() ? "" : ", ") + uuid;
    if (uuid != DeviceUuid(gpu_uuid)) continue;
    TANDEM_ASSIGN_OR_RETURN(CUcontext context, driver->DevicePrimaryCtxRetain(device));
    Device own{driver, context};
    TANDEM_RETURN_IF_ERROR(own.Enter());
    return std::shared_ptr<RankDevice>(std::make_shared<CudaRankDevice>(own));
  }
  return NotFound("this process sees no GPU " + gpu_uuid + "; it sees " + (seen.empty() ? "none" : seen));
}

Result<std::shared_ptr<RankDevice>> internal::MakeCudaRankDevice(const std::string& gpu_uuid) {
  TANDEM_ASSIGN_OR_RETURN(CudaDriver * driver, cuda::LoadCudaDriver());
  return tandem::MakeCudaRankDevice(driver, gpu_uuid);
}

}  // namespace tandem
