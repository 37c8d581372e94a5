#include "kernels/cuda/lane/cuda_lane.h"

#include <algorithm>
#include <string>
#include <utility>

#include "kernels/cuda/collectives/collective_plan.h"
#include "kernels/cuda/collectives/nccl_communicator.h"
#include "kernels/cuda/device/guarded.h"
#include "kernels/cuda/fused/fused_plan.h"
#include "kernels/cuda/lane/copy_plan.h"
#include "kernels/cuda/lane/norm_plan.h"
#include "kernels/cuda/lane/reduce_plan.h"
#include "kernels/cuda/matmul/dense_operands.h"
#include "kernels/cuda/skinny/skinny_plan.h"

namespace tandem::cuda {
namespace {

constexpr size_t kFusedStatesBytes = 2 * kFusedStateBytes;  // of the fused kernel, and of that for few rows

}  // namespace

Result<std::unique_ptr<CudaEvent>> CudaEvent::Create(std::shared_ptr<CudaDevice> device) {
  TANDEM_RETURN_IF_ERROR(device->Enter());
  std::unique_ptr<CudaEvent> event(new CudaEvent(std::move(device)));
  TANDEM_ASSIGN_OR_RETURN(event->event_, event->device_->driver().EventCreate(CU_EVENT_DEFAULT));
  return event;
}

CudaEvent::~CudaEvent() {
  if (event_ == nullptr) return;
  (void)device_->Enter();
  (void)device_->driver().EventDestroy(event_);
}

bool CudaEvent::Done() const {
  if (!device_->Enter().ok()) return false;
  auto done = device_->driver().EventQuery(event_);
  return done.ok() && *done;
}

int64_t CudaEvent::TimeNs() const {
  if (!recorded_.load(std::memory_order_acquire) || !Done()) return 0;
  auto time = device_->EventTimeNs(event_);
  return time.ok() ? *time : 0;
}

Result<std::unique_ptr<CudaLane>> CudaLane::Create(std::shared_ptr<CudaDevice> device,
                                                   std::shared_ptr<MatmulChooser> chooser, int priority,
                                                   int streams) {
  TANDEM_RETURN_IF_ERROR(device->Enter());
  std::unique_ptr<CudaLane> lane(new CudaLane(std::move(device), std::move(chooser)));
  for (int i = 0; i < streams; ++i) {
    TANDEM_ASSIGN_OR_RETURN(CUstream stream,
                            lane->device_->driver().StreamCreateWithPriority(
                                CU_STREAM_NON_BLOCKING, lane->device_->StreamPriority(priority)));
    lane->streams_.push_back(stream);
  }
  lane->stream_ = lane->streams_.at(0);
  return lane;
}

CudaLane::~CudaLane() {
  if (streams_.empty()) return;
  (void)device_->Enter();
  for (CUstream stream : streams_) (void)device_->driver().StreamDestroy(stream);
}

Status CudaLane::UseStream(int index) {
  if (index < 0 || index >= stream_count()) {
    return OutOfRange("stream " + std::to_string(index) + " of a lane that has " +
                      std::to_string(stream_count()));
  }
  if (!words_.empty()) return FailedPrecondition("the lane keeps words back for the stream that it is on");
  stream_ = streams_[static_cast<size_t>(index)];
  return Status::Ok();
}

Status CudaLane::Enter() {
  TANDEM_RETURN_IF_ERROR(device_->Enter());
  return words_.empty() ? Status::Ok() : words_.Enqueue(device_->driver(), stream_);
}

Status CudaLane::WriteWord(Word* word, uint64_t value) {
  if (word == nullptr) return InvalidArgument("a write to no word");
  if (words_.full()) TANDEM_RETURN_IF_ERROR(Enter());
  words_.AddWrite(reinterpret_cast<CUdeviceptr>(word), value);
  return holds_words_ ? Status::Ok() : Enter();
}

Status CudaLane::WaitWord(const Word* word, uint64_t value) {
  if (word == nullptr) return InvalidArgument("a wait for no word");
  if (words_.full()) TANDEM_RETURN_IF_ERROR(Enter());
  // The driver's comparison is the cyclic one that Lane promises.
  words_.AddWait(reinterpret_cast<CUdeviceptr>(word), value);
  return holds_words_ ? Status::Ok() : Enter();
}

Status CudaLane::FlushWords() { return words_.empty() ? Status::Ok() : Enter(); }

Status CudaLane::Copy(const CopyArgs& args) {
  TANDEM_RETURN_IF_ERROR(Enter());
  return EnqueueCopy(args, device_->driver(), stream_);
}

Status CudaLane::Matmul(const MatmulArgs& args) {
  TANDEM_RETURN_IF_ERROR(CheckUnguarded(args.guard, "a product"));
  TANDEM_RETURN_IF_ERROR(Enter());
  TANDEM_RETURN_IF_ERROR(MakeWorkspace());
  DenseProduct dense = MakeDense(args);
  if (dense.scratch_bytes == 0) return chooser_->Enqueue(args, workspace_.data(), stream_);
  if (transposed_.bytes() < dense.scratch_bytes) TANDEM_RETURN_IF_ERROR(GrowTransposed(dense.scratch_bytes));
  TANDEM_RETURN_IF_ERROR(EnqueueCopies(&dense, transposed_.data(), stream_));
  return chooser_->Enqueue(dense.args, workspace_.data(), stream_);
}

Status CudaLane::MakeWorkspace() {
  if (workspace_.data() != nullptr) return Status::Ok();
  TANDEM_ASSIGN_OR_RETURN(workspace_, VmmAllocation::Create(device_, kMatmulScratchBytes));
  return Status::Ok();
}

Status CudaLane::GrowTransposed(size_t bytes) {
  std::erase_if(outgrown_, [](const Outgrown& outgrown) { return outgrown.behind->Done(); });
  // By a half at least, so that products that grow little by little outgrow it seldom.
  const size_t wanted = std::max(bytes, transposed_.bytes() + transposed_.bytes() / 2);
  if (transposed_.data() != nullptr) {
    TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<CudaEvent> behind, CudaEvent::Create(device_));
    TANDEM_RETURN_IF_ERROR(Record(behind.get()));
    outgrown_.push_back({std::move(transposed_), std::move(behind)});
  }
  auto grown = VmmAllocation::Create(device_, wanted);
  if (grown.status().code() == Code::kResourceExhausted && bytes < wanted)
    grown = VmmAllocation::Create(device_, bytes);
  TANDEM_ASSIGN_OR_RETURN(transposed_, std::move(grown));
  return Status::Ok();
}

Status CudaLane::Reduce(const ReduceArgs& args) {
  TANDEM_RETURN_IF_ERROR(Enter());
  return EnqueueReduce(args, stream_);
}

Status CudaLane::Norm(const NormArgs& args) {
  TANDEM_RETURN_IF_ERROR(Enter());
  return EnqueueNorm(args, stream_);
}

Status CudaLane::Nccl(const NcclArgs& args) {
  auto* communicator = dynamic_cast<NcclCommunicator*>(args.communicator);
  if (communicator == nullptr)
    return InvalidArgument("a collective without a communicator of the CUDA backend");
  TANDEM_RETURN_IF_ERROR(Enter());
  return communicator->Enqueue(args, stream_);
}

Status CudaLane::Collective(const CollectiveArgs& args) {
  TANDEM_RETURN_IF_ERROR(Enter());
  if (!args.Multiplies()) return EnqueueCollective(args, stream_);
  if (fused_state_.data() == nullptr) {
    TANDEM_ASSIGN_OR_RETURN(fused_state_, VmmAllocation::Create(device_, kFusedStatesBytes));
    TANDEM_RETURN_IF_ERROR(device_->driver().MemsetD8Async(reinterpret_cast<CUdeviceptr>(fused_state_.data()),
                                                           0, kFusedStatesBytes, stream_));
  }
  if (args.As<SkinnyArgs>() != nullptr)
    return EnqueueSkinny(args, fused_state_.data() + kFusedStateBytes, stream_);
  static_assert(kPartialBytes <= kMatmulScratchBytes);
  TANDEM_RETURN_IF_ERROR(MakeWorkspace());
  return EnqueueFused(args, {.state = fused_state_.data(), .partials = workspace_.data()}, stream_);
}

Status CudaLane::Record(Event* event) {
  auto* cuda_event = dynamic_cast<CudaEvent*>(event);
  if (cuda_event == nullptr) return InvalidArgument("not an event of the CUDA backend");
  TANDEM_RETURN_IF_ERROR(Enter());
  TANDEM_RETURN_IF_ERROR(device_->driver().EventRecord(cuda_event->event_, stream_));
  cuda_event->recorded_.store(true, std::memory_order_release);
  return Status::Ok();
}

Status CudaLane::Wait(Event* event) {
  auto* cuda_event = dynamic_cast<CudaEvent*>(event);
  if (cuda_event == nullptr) return InvalidArgument("not an event of the CUDA backend");
  TANDEM_RETURN_IF_ERROR(Enter());
  return device_->driver().StreamWaitEvent(stream_, cuda_event->event_);
}

}  // namespace tandem::cuda
