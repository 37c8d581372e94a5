#include "client/lib/cuda/cuda_launch_stream.h"

#include <sys/eventfd.h>

#include <array>
#include <cstdint>
#include <utility>

#include "client/lib/base/capture_holds.h"

namespace tandem::client {
namespace {

CUstreamBatchMemOpParams WriteOp(Word* word, uint64_t value) {
  CUstreamBatchMemOpParams operation = {};
  operation.writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_64;
  operation.writeValue.address = reinterpret_cast<CUdeviceptr>(word);
  operation.writeValue.value64 = value;
  operation.writeValue.flags =
      CU_STREAM_WRITE_VALUE_DEFAULT;  // behind all earlier work, and visible system-wide
  return operation;
}

CUstreamBatchMemOpParams WaitOp(Word* word, uint64_t value) {
  CUstreamBatchMemOpParams operation = {};
  operation.waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_64;
  operation.waitValue.address = reinterpret_cast<CUdeviceptr>(word);
  operation.waitValue.value64 = value;
  operation.waitValue.flags =
      CU_STREAM_WAIT_VALUE_GEQ;  // the driver's comparison is cyclic, as kReleaseValue needs
  return operation;
}

// The driver's, when the last graph is gone: no CUDA from here.
void CUDA_CB DropObject(void* object) { delete static_cast<std::shared_ptr<void>*>(object); }

void CUDA_CB AddToEvent(void* event_fd) {
  (void)::eventfd_write(static_cast<int>(reinterpret_cast<intptr_t>(event_fd)), 1);
}

}  // namespace

Result<uint64_t> CudaCaptureId(void* stream) {
  TANDEM_ASSIGN_OR_RETURN(cuda::CudaDriver * driver, cuda::LoadCudaDriver());
  TANDEM_ASSIGN_OR_RETURN(const cuda::CaptureInfo info,
                          driver->StreamGetCaptureInfo(static_cast<CUstream>(stream)));
  return info.id;
}

Status CudaLaunchStream::Enter(CUdevice device, const std::string& gpu_uuid) {
  if (!IsDefault()) {
    TANDEM_ASSIGN_OR_RETURN(CUcontext context, driver_.StreamGetCtx(stream_));
    if (context != scope_.before()) TANDEM_RETURN_IF_ERROR(driver_.CtxSetCurrent(context));
  }
  TANDEM_ASSIGN_OR_RETURN(CUdevice own, driver_.CtxGetDevice());
  if (own != device) {
    Result<std::string> uuid = driver_.DeviceGetUuid(own);
    return InvalidArgument("the stream is of CUDA device " + std::to_string(own) + " (" +
                           (uuid.ok() ? *uuid : "unknown") + "), the group's rank has " + gpu_uuid)
        .WithDetail({.reason = "WRONG_DEVICE", .who = {}, .field = "stream"});
  }
  return Status::Ok();
}

Result<uint64_t> CudaLaunchStream::Id() {
  TANDEM_ASSIGN_OR_RETURN(uint64_t id, driver_.StreamGetId(stream_));
  return id + 1;  // 0 is nobody's
}

Result<bool> CudaLaunchStream::IsCapturing() {
  TANDEM_ASSIGN_OR_RETURN(CUstreamCaptureStatus status, driver_.StreamIsCapturing(stream_));
  if (status == CU_STREAM_CAPTURE_STATUS_INVALIDATED) {
    return FailedPrecondition("the stream's capture has been invalidated by an earlier error: end it");
  }
  return status == CU_STREAM_CAPTURE_STATUS_ACTIVE;
}

Status CudaLaunchStream::Arrive(Word* request, Word* done, uint64_t value) {
  std::array operations = {WriteOp(request, value), WaitOp(done, value)};
  return driver_.StreamBatchMemOp(stream_, operations.data(), operations.size());
}

Status CudaLaunchStream::Await(Word* done, uint64_t value) {
  std::array operations = {WaitOp(done, value)};
  return driver_.StreamBatchMemOp(stream_, operations.data(), operations.size());
}

Status CudaLaunchStream::ArriveCaptured(Word* doorbell, Word* done) {
  // One node of the graph: a second one, behind the wait, would cost each replay some microseconds.
  std::array operations = {WriteOp(done, 0), WriteOp(doorbell, 1), WaitOp(done, 1)};
  return driver_.StreamBatchMemOp(stream_, operations.data(), operations.size());
}

Status CudaLaunchStream::RetainInCapture(std::shared_ptr<void> object) {
  TANDEM_ASSIGN_OR_RETURN(CUgraph graph, driver_.StreamGetCaptureGraph(stream_));
  if (graph == nullptr) return FailedPrecondition("the stream does not capture");
  auto owned = std::make_unique<std::shared_ptr<void>>(std::move(object));
  TANDEM_ASSIGN_OR_RETURN(CUuserObject user_object, driver_.UserObjectCreate(owned.get(), DropObject));
  (void)owned.release();
  Status retained = driver_.GraphRetainUserObject(graph, user_object);
  if (!retained.ok()) (void)driver_.UserObjectRelease(user_object);  // which drops the object
  return retained;
}

Status CudaLaunchStream::Memset32(std::shared_ptr<void>, uint32_t* words, uint32_t value, size_t count) {
  if (count == 0) return Status::Ok();
  return driver_.MemsetD32Async(reinterpret_cast<CUdeviceptr>(words), value, count, stream_);
}

Status CudaLaunchStream::Write32(std::shared_ptr<void>, uint32_t* word, uint32_t value) {
  return driver_.StreamWriteValue32(stream_, reinterpret_cast<CUdeviceptr>(word), value);
}

Status CudaLaunchStream::Copy(void* to, const void* from, size_t bytes) {
  return driver_.MemcpyAsync(reinterpret_cast<CUdeviceptr>(to), reinterpret_cast<CUdeviceptr>(from), bytes,
                             stream_);
}

Status CudaLaunchStream::Notify(int event_fd) {
  return driver_.LaunchHostFunc(stream_, AddToEvent, reinterpret_cast<void*>(intptr_t{event_fd}));
}

}  // namespace tandem::client
