// A GPU, by the CUDA driver.
#include <array>
#include <vector>

#include "client/nccl/nccl_device.h"
#include "drivers/cuda/cuda_driver.h"

namespace tandem::nccl {
namespace {

using cuda::CudaDriver;

// Makes a context the thread's current one while it lives.
class CurrentContext {
 public:
  CurrentContext(CudaDriver& driver, CUcontext context) : driver_(driver) {
    const Result<CUcontext> before = driver.CtxGetCurrent();
    if (before.ok() && *before == context) return;
    before_ = before.ok() ? *before : nullptr;
    changed_ = driver.CtxSetCurrent(context).ok();
  }
  ~CurrentContext() {
    if (changed_) (void)driver_.CtxSetCurrent(before_);
  }
  CurrentContext(const CurrentContext&) = delete;
  CurrentContext& operator=(const CurrentContext&) = delete;

 private:
  CudaDriver& driver_;
  CUcontext before_ = nullptr;
  bool changed_ = false;
};

// A stream and memory for one exchange.
class Scratch {
 public:
  explicit Scratch(CudaDriver& driver) : driver_(driver) {}
  ~Scratch() {
    if (stream_ != nullptr) (void)driver_.StreamDestroy(stream_);
    if (memory_ != 0) (void)driver_.MemFree(memory_);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  Status Make(size_t bytes) {
    TANDEM_ASSIGN_OR_RETURN(stream_, driver_.StreamCreateWithPriority(CU_STREAM_NON_BLOCKING, 0));
    TANDEM_ASSIGN_OR_RETURN(memory_, driver_.MemAlloc(bytes));
    return Status::Ok();
  }
  CUstream stream() const { return stream_; }
  CUdeviceptr memory() const { return memory_; }

 private:
  CudaDriver& driver_;
  CUstream stream_ = nullptr;
  CUdeviceptr memory_ = 0;
};

CUdeviceptr Address(const void* pointer) { return reinterpret_cast<CUdeviceptr>(pointer); }

class CudaNcclDevice final : public NcclDevice {
 public:
  CudaNcclDevice(CudaDriver& driver, int device, CUcontext context)
      : driver_(driver), device_(device), context_(context) {}

  std::string backend() const override { return "cuda"; }

  Status Gather(const AllGather& all_gather, std::span<const std::byte> own,
                std::span<std::byte> all) override {
    const CurrentContext current(driver_, context_);
    Scratch scratch(driver_);
    TANDEM_RETURN_IF_ERROR(scratch.Make(own.size() + all.size()));
    const CUdeviceptr send = scratch.memory() + all.size();
    TANDEM_RETURN_IF_ERROR(driver_.MemcpyAsync(send, Address(own.data()), own.size(), scratch.stream()));
    TANDEM_RETURN_IF_ERROR(all_gather(reinterpret_cast<void*>(send),
                                      reinterpret_cast<void*>(scratch.memory()), scratch.stream()));
    TANDEM_RETURN_IF_ERROR(
        driver_.MemcpyAsync(Address(all.data()), scratch.memory(), all.size(), scratch.stream()));
    return driver_.StreamSynchronize(scratch.stream());
  }

  Result<std::string> Gpu(const TandemLibrary& library, tandem_client*) override {
    std::array<char, 128> uuid{};
    TANDEM_RETURN_IF_ERROR(library.Take(library.tandem_cuda_device_uuid(device_, uuid.data(), uuid.size())));
    return std::string(uuid.data());
  }

  Result<bool> IsCapturing(cudaStream_t stream) override {
    const CurrentContext current(driver_, context_);
    TANDEM_ASSIGN_OR_RETURN(const CUstreamCaptureStatus capture, driver_.StreamIsCapturing(stream));
    return capture != CU_STREAM_CAPTURE_STATUS_NONE;
  }

  Status Launch(const TandemLibrary& library, tandem_group* group, cudaStream_t stream,
                const tandem_collective& collective) override {
    const CurrentContext current(driver_, context_);
    return library.Take(library.tandem_collective_launch(group, &collective, stream));
  }

  OwnedHold Hold(const TandemLibrary& library, cudaStream_t stream) override {
    tandem_capture_hold* hold = nullptr;
    // The capture has a hold from its second launch on, or from its program.
    (void)library.Take(library.tandem_capture_hold_begin(stream, &hold));
    return OwnedHold(hold);
  }

 private:
  CudaDriver& driver_;
  const int device_;
  const CUcontext context_;
};

}  // namespace

Result<std::unique_ptr<NcclDevice>> MakeCudaNcclDevice(int device) {
  TANDEM_ASSIGN_OR_RETURN(CudaDriver* const driver, cuda::LoadCudaDriver());
  TANDEM_RETURN_IF_ERROR(driver->Init());
  TANDEM_ASSIGN_OR_RETURN(const CUdevice handle, driver->DeviceGet(device));
  // NCCL's communicator lives in the same context, and keeps it.
  TANDEM_ASSIGN_OR_RETURN(const CUcontext context, driver->DevicePrimaryCtxRetain(handle));
  return std::unique_ptr<NcclDevice>(std::make_unique<CudaNcclDevice>(*driver, device, context));
}

}  // namespace tandem::nccl
