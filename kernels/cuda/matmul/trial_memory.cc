#include "kernels/cuda/matmul/trial_memory.h"

namespace tandem::cuda {

Result<std::vector<std::byte*>> TrialMemory::Take(std::span<const size_t> bytes) {
  std::vector<size_t> begin;
  size_t end = 0;
  for (size_t part : bytes) {
    begin.push_back(end);
    end += (part + kAlignment - 1) / kAlignment * kAlignment;
  }
  if (memory_.bytes() < end) {
    memory_ = VmmAllocation();  // before the larger one: both might not fit
    TANDEM_ASSIGN_OR_RETURN(memory_, VmmAllocation::Create(device_, end));
  }
  std::vector<std::byte*> parts;
  parts.reserve(begin.size());
  for (size_t offset : begin) parts.push_back(memory_.data() + offset);
  return parts;
}

Status TrialMemory::Release(CUstream stream) {
  TANDEM_RETURN_IF_ERROR(device_->driver().StreamSynchronize(stream));
  if (memory_.bytes() > kMaxBytes) memory_ = VmmAllocation();
  return Status::Ok();
}

}  // namespace tandem::cuda
