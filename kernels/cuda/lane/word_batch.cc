#include "kernels/cuda/lane/word_batch.h"

#include <utility>

namespace tandem::cuda {

void WordBatch::AddWrite(CUdeviceptr word, uint64_t value) {
  CUstreamBatchMemOpParams& operation = operations_[count_++];
  operation = {};
  operation.writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_64;
  operation.writeValue.address = word;
  operation.writeValue.value64 = value;
  operation.writeValue.flags = CU_STREAM_WRITE_VALUE_DEFAULT;
}

void WordBatch::AddWait(CUdeviceptr word, uint64_t value) {
  CUstreamBatchMemOpParams& operation = operations_[count_++];
  operation = {};
  operation.waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_64;
  operation.waitValue.address = word;
  operation.waitValue.value64 = value;
  operation.waitValue.flags = CU_STREAM_WAIT_VALUE_GEQ;
}

Status WordBatch::Enqueue(CudaDriver& driver, CUstream stream) {
  const unsigned count = std::exchange(count_, 0);
  if (count > 1 && supported_) {
    Status status = driver.StreamBatchMemOp(stream, operations_.data(), count);
    if (status.detail().reason != "CUDA_ERROR_NOT_SUPPORTED") return status;
    supported_ = false;
  }
  return EnqueueOneByOne(driver, stream, count);
}

Status WordBatch::EnqueueOneByOne(CudaDriver& driver, CUstream stream, unsigned count) {
  for (unsigned i = 0; i < count; ++i) {
    const CUstreamBatchMemOpParams& operation = operations_[i];
    if (operation.operation == CU_STREAM_MEM_OP_WRITE_VALUE_64) {
      TANDEM_RETURN_IF_ERROR(
          driver.StreamWriteValue64(stream, operation.writeValue.address, operation.writeValue.value64));
    } else {
      TANDEM_RETURN_IF_ERROR(driver.StreamWaitValue64(
          stream, operation.waitValue.address, operation.waitValue.value64, operation.waitValue.flags));
    }
  }
  return Status::Ok();
}

}  // namespace tandem::cuda
