#include "kernels/cuda/nccl_communicator.h"

#include <chrono>
#include <cstring>
#include <string>
#include <thread>

#include "daemon/planner/program.h"
#include "kernels/host/strided.h"

namespace tandem::cuda {
namespace {

constexpr auto kMostWait = std::chrono::minutes(2);

Result<ncclDataType_t> NcclType(DType type) {
  switch (type) {
    case DType::kF32: return ncclFloat32;
    case DType::kF16: return ncclFloat16;
    case DType::kBf16: return ncclBfloat16;
    case DType::kF8E4M3: return ncclFloat8e4m3;
    case DType::kF8E5M2: return ncclFloat8e5m2;
    case DType::kI32: return ncclInt32;
    case DType::kI64: return ncclInt64;
    case DType::kU8: return ncclUint8;
  }
  return InvalidArgument("unknown dtype");
}

}  // namespace

Result<std::unique_ptr<NcclCommunicator>> NcclCommunicator::Create(std::shared_ptr<CudaDevice> device,
                                                                   NcclLibrary* nccl,
                                                                   const CommunicatorOptions& options) {
  ncclUniqueId id;
  if (options.unique_id.size() != sizeof(id.internal)) {
    return InvalidArgument("NCCL's id has " + std::to_string(options.unique_id.size()) + " bytes, not " +
                           std::to_string(sizeof(id.internal)));
  }
  if (options.world_size < 1 || options.rank < 0 || options.rank >= options.world_size) {
    return InvalidArgument("rank " + std::to_string(options.rank) + " of " + std::to_string(options.world_size));
  }
  std::memcpy(id.internal, options.unique_id.data(), sizeof(id.internal));
  TANDEM_RETURN_IF_ERROR(device->Enter());
  std::unique_ptr<NcclCommunicator> communicator(new NcclCommunicator(std::move(device), nccl, options));
  TANDEM_ASSIGN_OR_RETURN(communicator->barrier_, VmmAllocation::Create(communicator->device_, sizeof(int32_t)));
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  TANDEM_ASSIGN_OR_RETURN(communicator->communicator_,
                          nccl->CommInitRankConfig(options.world_size, id, options.rank, config));
  return communicator;
}

NcclCommunicator::~NcclCommunicator() {
  (void)device_->Enter();
  Abort();
}

void NcclCommunicator::Abort() {
  aborted_ = true;
  std::lock_guard lock(mutex_);
  if (communicator_ != nullptr) (void)nccl_->CommAbort(communicator_);
  communicator_ = nullptr;
}

Status NcclCommunicator::AwaitReady() {
  auto deadline = std::chrono::steady_clock::now() + kMostWait;
  while (true) {
    if (aborted_) return Aborted("the communicator was aborted");
    TANDEM_ASSIGN_OR_RETURN(bool ready, nccl_->CommReady(communicator_));
    if (ready) return Status::Ok();
    if (std::chrono::steady_clock::now() > deadline) return DeadlineExceeded("NCCL does not come to an end");
    std::this_thread::yield();
  }
}

Status NcclCommunicator::Enqueue(const NcclArgs& args, CUstream stream) {
  std::lock_guard lock(mutex_);
  if (communicator_ == nullptr) return Aborted("the communicator was aborted");
  TANDEM_RETURN_IF_ERROR(AwaitReady());
  TANDEM_RETURN_IF_ERROR(Issue(args, stream));
  return AwaitReady();
}

Status NcclCommunicator::Issue(const NcclArgs& args, CUstream stream) {
  auto kind = static_cast<plan::NcclKind>(args.kind);
  if (kind == plan::NcclKind::kBarrier) {
    // A sum of one word of nobody's interest: no rank has it before all have given theirs.
    return nccl_->AllReduce(barrier_.data(), barrier_.data(), 1, ncclInt32, ncclSum, communicator_, stream);
  }
  if (!host::IsContiguous(args.in) || !host::IsContiguous(args.out)) {
    return InvalidArgument("NCCL's tensors must be contiguous");
  }
  bool takes_in = kind != plan::NcclKind::kBroadcast || rank_ == args.root;
  const DeviceView& typed = takes_in ? args.in : args.out;
  TANDEM_ASSIGN_OR_RETURN(ncclDataType_t type, NcclType(typed.dtype));
  ncclRedOp_t op = args.reduce_op == ReduceOp::kAvg ? ncclAvg : ncclSum;
  auto in_count = static_cast<size_t>(host::CountOf(args.in)), out_count = static_cast<size_t>(host::CountOf(args.out));
  switch (kind) {
    case plan::NcclKind::kAllReduce:
      return nccl_->AllReduce(args.in.data, args.out.data, in_count, type, op, communicator_, stream);
    case plan::NcclKind::kAllGather:
      return nccl_->AllGather(args.in.data, args.out.data, in_count, type, communicator_, stream);
    case plan::NcclKind::kReduceScatter:
      return nccl_->ReduceScatter(args.in.data, args.out.data, out_count, type, op, communicator_, stream);
    case plan::NcclKind::kBroadcast:
      return nccl_->Broadcast(takes_in ? args.in.data : args.out.data, args.out.data, out_count, type, args.root,
                              communicator_, stream);
    case plan::NcclKind::kReduce:
      return nccl_->Reduce(args.in.data, rank_ == args.root ? args.out.data : nullptr, in_count, type, op, args.root,
                           communicator_, stream);
    case plan::NcclKind::kAllToAll:
      return AllToAll(args, in_count / static_cast<size_t>(world_size_), type, stream);
    case plan::NcclKind::kBarrier: break;
  }
  return InvalidArgument("no collective " + std::to_string(args.kind));
}

Status NcclCommunicator::AllToAll(const NcclArgs& args, size_t count, ncclDataType_t type, CUstream stream) {
  size_t bytes = count * DTypeBytes(args.in.dtype);
  TANDEM_RETURN_IF_ERROR(nccl_->GroupStart());
  Status status;
  for (int peer = 0; peer < world_size_ && status.ok(); ++peer) {
    size_t offset = static_cast<size_t>(peer) * bytes;
    status = nccl_->Send(args.in.data + offset, count, type, peer, communicator_, stream);
    if (status.ok()) status = nccl_->Recv(args.out.data + offset, count, type, peer, communicator_, stream);
  }
  // The group must end even after an error: it is the thread's.
  Status end = nccl_->GroupEnd();
  return status.ok() ? end : status;
}

}  // namespace tandem::cuda
