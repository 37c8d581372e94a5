#include "kernels/cuda/cuda_backend.h"

#include <future>
#include <string_view>
#include <utility>

#include "drivers/cublaslt/cublas_lt.h"
#include "drivers/nccl/nccl_library.h"
#include "kernels/cuda/collectives/collective_plan.h"
#include "kernels/cuda/collectives/nccl_communicator.h"
#include "kernels/cuda/device/cuda_device.h"
#include "kernels/cuda/device/guarded.h"
#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/fused/fused_launch.h"
#include "kernels/cuda/fused/fused_plan.h"
#include "kernels/cuda/lane/cuda_lane.h"
#include "kernels/cuda/lane/foreign_memory.h"
#include "kernels/cuda/lane/word_writer.h"
#include "kernels/cuda/matmul/dense_operands.h"
#include "kernels/cuda/matmul/matmul_plan.h"
#include "kernels/cuda/matmul/matmul_trial.h"
#include "kernels/cuda/skinny/skinny_plan.h"

namespace tandem {
namespace cuda {
namespace {

// A fault of a neighbour under MPS shows within this time, also to an engine that does nothing: no new
// process gets a context on the GPU before the last old one has ended, ours too.
constexpr int64_t kHealthPeriodNs = 50'000'000;

class CudaSegment : public Segment {
 public:
  CudaSegment(VmmAllocation allocation, std::shared_ptr<WordWriter> words)
      : allocation_(std::move(allocation)), words_(std::move(words)) {}
  // A write that released a lane may still be under way when the lane has ended.
  ~CudaSegment() override { (void)words_->Drain(); }
  std::byte* data() const override { return allocation_.data(); }
  size_t bytes() const override { return allocation_.bytes(); }

 private:
  VmmAllocation allocation_;
  std::shared_ptr<WordWriter> words_;
};

class CudaBackend : public Backend {
 public:
  CudaBackend(std::shared_ptr<CudaDevice> device, std::shared_ptr<MatmulChooser> chooser,
              std::shared_ptr<WordWriter> words, bool dual_stream_lanes)
      : device_(std::move(device)),
        chooser_(std::move(chooser)),
        words_(std::move(words)),
        foreign_(device_),
        dual_stream_lanes_(dual_stream_lanes) {}

  std::string Name() const override { return "cuda"; }
  size_t SegmentGranularity() const override { return device_->granularity(); }
  size_t MemoryBytes() const override { return device_->memory_bytes(); }
  size_t OwnMemoryBytes() const override { return own_memory_bytes_; }
  void SetOwnMemoryBytes(size_t bytes) { own_memory_bytes_ = bytes; }

  Result<UniqueFd> AllocateSegment(size_t bytes) override {
    if (bytes == 0 || bytes % SegmentGranularity() != 0) {
      return InvalidArgument("a segment of " + std::to_string(bytes) + " bytes is no multiple of " +
                             std::to_string(SegmentGranularity()));
    }
    // Mapped for as long as it takes to zero it; the descriptor keeps the memory.
    TANDEM_ASSIGN_OR_RETURN(VmmAllocation allocation, VmmAllocation::Create(device_, bytes));
    TANDEM_RETURN_IF_ERROR(ClearMemory(allocation.data(), bytes));
    return allocation.Export();
  }

  Result<std::unique_ptr<Segment>> MapSegment(int fd, size_t bytes) override {
    TANDEM_ASSIGN_OR_RETURN(VmmAllocation allocation, VmmAllocation::Import(device_, fd, bytes));
    return std::unique_ptr<Segment>(std::make_unique<CudaSegment>(std::move(allocation), words_));
  }
  Result<std::unique_ptr<Segment>> ImportMemory(int fd, size_t bytes) override {
    const uint64_t all = bytes;
    return ImportChunks({&fd, 1}, {&all, 1});
  }
  Result<std::unique_ptr<Segment>> ImportChunks(std::span<const int> fds,
                                                std::span<const uint64_t> bytes) override {
    TANDEM_ASSIGN_OR_RETURN(VmmAllocation allocation, VmmAllocation::ImportChunks(device_, fds, bytes));
    TANDEM_RETURN_IF_ERROR(allocation.CheckOwnDevice());
    return std::unique_ptr<Segment>(std::make_unique<CudaSegment>(std::move(allocation), words_));
  }
  Result<std::unique_ptr<Segment>> ImportIpc(std::string_view handle, uint64_t offset,
                                             size_t bytes) override {
    return foreign_.Open(handle, offset, bytes);
  }

  Result<std::unique_ptr<Lane>> MakeLane(int priority) override {
    TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<CudaLane> lane, CudaLane::Create(device_, chooser_, priority));
    return std::unique_ptr<Lane>(std::move(lane));
  }
  Result<std::unique_ptr<Lane>> MakeDualStreamLane(int priority) override {
    TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<CudaLane> lane,
                            CudaLane::Create(device_, chooser_, priority, dual_stream_lanes_ ? 2 : 1));
    return std::unique_ptr<Lane>(std::move(lane));
  }
  Result<std::unique_ptr<Event>> MakeEvent() override {
    TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<CudaEvent> event, CudaEvent::Create(device_));
    return std::unique_ptr<Event>(std::move(event));
  }
  Result<std::string> MakeUniqueId() override { return MakeNcclUniqueId(); }
  Result<std::unique_ptr<Communicator>> MakeCommunicator(const CommunicatorOptions& options) override {
    TANDEM_ASSIGN_OR_RETURN(NcclLibrary * nccl, LoadNccl());
    TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<NcclCommunicator> communicator,
                            NcclCommunicator::Create(device_, nccl, options));
    return std::unique_ptr<Communicator>(std::move(communicator));
  }

  Status Health() override { return device_->Health(); }
  int64_t HealthPeriodNs() const override { return kHealthPeriodNs; }
  bool HasCollective(const CollectiveArgs& args) const override {
    if (const auto* skinny = args.As<SkinnyArgs>()) return fused_kernels_.ok() && TakesSkinny(*skinny);
    return args.Multiplies() ? fused_kernels_.ok() && TakesFused(args) : TakesCollective(args);
  }
  bool HonoursGuard(Guarded what) const override { return cuda::HonoursGuard(what); }
  Status FusedKernels() const override { return fused_kernels_; }
  int KernelSms() const override { return SmCount(); }
  BackendCapabilities Capabilities() const override {
    return {.packet_kernels = true, .communicators = true, .ipc_memory = true, .on_gpu = true};
  }
  void SetFusedKernels(Status loaded) { fused_kernels_ = std::move(loaded); }
  Status PrepareMatmul(const MatmulArgs& args) override {
    return chooser_->Prepare(MakeDense(args).args, TrialEffort{});
  }
  Status RegisterHostMemory(void* address, size_t bytes) override { return words_->Register(address, bytes); }
  Status UnregisterHostMemory(void* address) override { return words_->Unregister(address); }
  Status StoreWord(Word* word, uint64_t value) override { return words_->Store(word, value); }
  Status StoreWordsInOrder(Word* first, uint64_t first_value, Word* second, uint64_t second_value) override {
    return words_->StoreInOrder(first, first_value, second, second_value);
  }
  Status FillWords(Word* words, uint64_t value, size_t count) override {
    return words_->Fill(words, value, count);
  }

  Result<uint64_t> LoadWord(const Word* word) override { return words_->Load(word); }
  Result<uint32_t> LoadWord32(const uint32_t* word) override {
    const auto address = reinterpret_cast<uintptr_t>(word);
    TANDEM_ASSIGN_OR_RETURN(const uint64_t both, words_->Load(reinterpret_cast<const Word*>(address & ~7ul)));
    return static_cast<uint32_t>((address & 4) != 0 ? both >> 32 : both);
  }

  Status ClearMemory(std::byte* data, size_t bytes) override {
    TANDEM_RETURN_IF_ERROR(device_->Enter());
    CUstream stream = device_->service_stream();
    TANDEM_RETURN_IF_ERROR(
        device_->driver().MemsetD8Async(reinterpret_cast<CUdeviceptr>(data), 0, bytes, stream));
    return device_->driver().StreamSynchronize(stream);
  }

 private:
  std::shared_ptr<CudaDevice> device_;
  std::shared_ptr<MatmulChooser> chooser_;
  std::shared_ptr<WordWriter> words_;
  ForeignMemory foreign_;
  bool dual_stream_lanes_;
  size_t own_memory_bytes_ = 0;
  Status fused_kernels_ = Unimplemented("they are not loaded");
};

}  // namespace
}  // namespace cuda

Result<std::unique_ptr<Backend>> MakeCudaBackend(const CudaBackendOptions& options) {
  const auto ended = [&options](std::string_view phase) {
    if (options.ended_phase) options.ended_phase(phase);
  };
  // The driver's start takes longer with each GPU that the process sees. Beside it goes what needs no
  // context: the question for memory in use, which must be answered before there is one, and loading a
  // library of several hundred megabytes.
  std::future<uint64_t> asked =
      std::async(std::launch::async, [&options] { return options.memory_used ? options.memory_used() : 0; });
  const std::future<void> preloaded = std::async(std::launch::async, [] { (void)cuda::PreloadCublasLt(); });
  TANDEM_ASSIGN_OR_RETURN(cuda::CudaDriver * driver, cuda::LoadCudaDriver());
  TANDEM_RETURN_IF_ERROR(driver->Init());
  ended("driver");
  const uint64_t before = asked.get();
  ended("NVML");
  TANDEM_ASSIGN_OR_RETURN(std::shared_ptr<cuda::CudaDevice> device,
                          cuda::CudaDevice::Create(driver, options.device));
  ended("context");
  cuda::ShareSms(options.engines);
  TANDEM_RETURN_IF_ERROR(cuda::LoadKernels().WithContext("loading the kernels"));
  ended("kernels");
  Status fused_kernels = cuda::LoadFusedKernels();
  if (fused_kernels.ok()) fused_kernels = cuda::LoadSkinnyKernels();
  if (!fused_kernels.ok() && fused_kernels.code() != Code::kUnimplemented) return fused_kernels;
  ended("fused kernels");
  TANDEM_ASSIGN_OR_RETURN(cuda::CublasLt * lt, cuda::LoadCublasLt());
  ended("cuBLASLt");
  auto chooser = std::make_shared<cuda::MatmulChooser>(device, lt, options.matmul_candidates);
  TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<cuda::WordWriter> words, cuda::WordWriter::Create(device));
  auto backend = std::make_unique<cuda::CudaBackend>(device, std::move(chooser), std::move(words),
                                                     options.dual_stream_lanes);
  backend->SetFusedKernels(std::move(fused_kernels));
  // The driver's own kernels are loaded by the first use too: fills of both small and large memory, before
  // any lane waits.
  TANDEM_ASSIGN_OR_RETURN(cuda::VmmAllocation scratch,
                          cuda::VmmAllocation::Create(device, device->granularity()));
  TANDEM_RETURN_IF_ERROR(backend->ClearMemory(scratch.data(), scratch.bytes()));
  TANDEM_RETURN_IF_ERROR(backend->ClearMemory(scratch.data() + 1, 3));
  const uint64_t after = options.memory_used ? options.memory_used() : 0;
  ended("memory");
  backend->SetOwnMemoryBytes(before == 0 || after < before ? 0 : after - before);
  return std::unique_ptr<Backend>(std::move(backend));
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
