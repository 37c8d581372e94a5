#include "kernels/cuda/cuda_backend.h"

#include <utility>

#include "kernels/cuda/collective_plan.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/cuda_lane.h"
#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/driver/cublas_lt.h"
#include "kernels/cuda/driver/nccl_library.h"
#include "kernels/cuda/matmul_plan.h"
#include "kernels/cuda/nccl_communicator.h"

namespace tandem {
namespace cuda {
namespace {

class CudaSegment : public Segment {
 public:
  explicit CudaSegment(VmmAllocation allocation) : allocation_(std::move(allocation)) {}
  std::byte* data() const override { return allocation_.data(); }
  size_t bytes() const override { return allocation_.bytes(); }

 private:
  VmmAllocation allocation_;
};

class CudaBackend : public Backend {
 public:
  CudaBackend(std::shared_ptr<CudaDevice> device, std::shared_ptr<MatmulChooser> chooser)
      : device_(std::move(device)), chooser_(std::move(chooser)) {}

  std::string Name() const override { return "cuda"; }
  size_t SegmentGranularity() const override { return device_->granularity(); }
  size_t MemoryBytes() const override { return device_->memory_bytes(); }

  Result<UniqueFd> AllocateSegment(size_t bytes) override {
    if (bytes == 0 || bytes % SegmentGranularity() != 0) {
      return InvalidArgument("a segment of " + std::to_string(bytes) + " bytes is no multiple of " +
                             std::to_string(SegmentGranularity()));
    }
    // Mapped for as long as it takes to zero it; the descriptor keeps the memory.
    TANDEM_ASSIGN_OR_RETURN(VmmAllocation allocation, VmmAllocation::Create(device_, bytes));
    CudaDriver& driver = device_->driver();
    CUstream stream = device_->service_stream();
    auto address = reinterpret_cast<CUdeviceptr>(allocation.data());
    TANDEM_RETURN_IF_ERROR(driver.MemsetD8Async(address, 0, bytes, stream));
    TANDEM_RETURN_IF_ERROR(driver.StreamSynchronize(stream));
    return allocation.Export();
  }

  Result<std::unique_ptr<Segment>> MapSegment(int fd, size_t bytes) override {
    TANDEM_ASSIGN_OR_RETURN(VmmAllocation allocation, VmmAllocation::Import(device_, fd, bytes));
    return std::unique_ptr<Segment>(std::make_unique<CudaSegment>(std::move(allocation)));
  }
  Result<std::unique_ptr<Segment>> ImportMemory(int fd, size_t bytes) override { return MapSegment(fd, bytes); }

  Result<std::unique_ptr<Lane>> MakeLane(int priority) override {
    TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<CudaLane> lane, CudaLane::Create(device_, chooser_, priority));
    return std::unique_ptr<Lane>(std::move(lane));
  }
  Result<std::unique_ptr<Event>> MakeEvent() override {
    TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<CudaEvent> event, CudaEvent::Create(device_));
    return std::unique_ptr<Event>(std::move(event));
  }
  Result<std::unique_ptr<Communicator>> MakeCommunicator(const CommunicatorOptions& options) override {
    TANDEM_ASSIGN_OR_RETURN(NcclLibrary * nccl, LoadNccl());
    TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<NcclCommunicator> communicator,
                            NcclCommunicator::Create(device_, nccl, options));
    return std::unique_ptr<Communicator>(std::move(communicator));
  }

  bool HasCollective(const CollectiveArgs& args) const override { return TakesCollective(args); }
  Status PrepareMatmul(const MatmulArgs& args) override { return chooser_->Prepare(args); }
  Status RegisterHostMemory(void* address, size_t bytes) override {
    TANDEM_RETURN_IF_ERROR(device_->Enter());
    return device_->driver().MemHostRegister(address, bytes,
                                             CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP);
  }

 private:
  std::shared_ptr<CudaDevice> device_;
  std::shared_ptr<MatmulChooser> chooser_;
};

}  // namespace
}  // namespace cuda

Result<std::unique_ptr<Backend>> MakeCudaBackend(const CudaBackendOptions& options) {
  TANDEM_ASSIGN_OR_RETURN(cuda::CudaDriver * driver, cuda::LoadCudaDriver());
  TANDEM_ASSIGN_OR_RETURN(std::shared_ptr<cuda::CudaDevice> device, cuda::CudaDevice::Create(driver, options.device));
  TANDEM_RETURN_IF_ERROR(cuda::LoadKernels().WithContext("loading the kernels"));
  TANDEM_ASSIGN_OR_RETURN(cuda::CublasLt * lt, cuda::LoadCublasLt());
  auto chooser = std::make_shared<cuda::MatmulChooser>(device, lt, options.matmul_candidates);
  return std::unique_ptr<Backend>(std::make_unique<cuda::CudaBackend>(std::move(device), std::move(chooser)));
}

int CudaDeviceCount() {
  auto driver = cuda::LoadCudaDriver();
  if (!driver.ok() || !(*driver)->Init().ok()) return 0;
  auto count = (*driver)->DeviceGetCount();
  return count.ok() ? *count : 0;
}

Result<std::string> MakeNcclUniqueId() {
  TANDEM_ASSIGN_OR_RETURN(cuda::NcclLibrary * nccl, cuda::LoadNccl());
  TANDEM_ASSIGN_OR_RETURN(ncclUniqueId id, nccl->GetUniqueId());
  return std::string(id.internal, sizeof(id.internal));
}

}  // namespace tandem
