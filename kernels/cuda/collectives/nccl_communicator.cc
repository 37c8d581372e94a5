#include "kernels/cuda/collectives/nccl_communicator.h"

#include <charconv>
#include <chrono>
#include <cstring>
#include <map>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "kernels/host/nccl_options.h"
#include "kernels/host/strided.h"
#include "program/program.h"

namespace tandem::cuda {
namespace {

constexpr auto kMaxWait = std::chrono::minutes(2);

std::atomic<int> aborts_under_way{0};

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

Result<ncclRedOp_t> NcclReduction(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum: return ncclSum;
    case ReduceOp::kAvg: return ncclAvg;
    case ReduceOp::kMin: return ncclMin;
    case ReduceOp::kMax: return ncclMax;
    case ReduceOp::kProduct: return ncclProd;
    default: return InvalidArgument("NCCL has no bitwise reductions");
  }
}

// The group's options over NCCL's defaults.
void Configure(const NcclOptions& options, ncclConfig_t* config) {
  config->minCTAs = options.min_ctas.value_or(config->minCTAs);
  config->maxCTAs = options.max_ctas.value_or(config->maxCTAs);
  config->cgaClusterSize = options.cga_cluster_size.value_or(config->cgaClusterSize);
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
    return InvalidArgument("rank " + std::to_string(options.rank) + " of " +
                           std::to_string(options.world_size));
  }
  std::memcpy(id.internal, options.unique_id.data(), sizeof(id.internal));
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  TANDEM_ASSIGN_OR_RETURN(const NcclOptions parsed, ParseNcclOptions(options.config));
  Configure(parsed, &config);
  TANDEM_RETURN_IF_ERROR(device->Enter());
  auto handle = std::make_shared<Handle>();
  handle->splits = parsed.blocking;
  handle->child_config = config;
  handle->child_config.blocking = 1;
  if (handle->splits) config.splitShare = 1;
  handle->device = std::move(device);
  handle->nccl = nccl;
  TANDEM_ASSIGN_OR_RETURN(handle->barrier, VmmAllocation::Create(handle->device, sizeof(int32_t)));
  TANDEM_ASSIGN_OR_RETURN(handle->communicator,
                          nccl->CommInitRankConfig(options.world_size, id, options.rank, config));
  return std::unique_ptr<NcclCommunicator>(new NcclCommunicator(std::move(handle), options));
}

NcclCommunicator::~NcclCommunicator() { Abort(); }

void NcclCommunicator::Abort() {
  if (handle_->aborted.exchange(true)) return;
  aborts_under_way.fetch_add(1);
  std::thread([handle = handle_]() mutable {
    (void)handle->device->Enter();
    {
      std::lock_guard lock(handle->mutex);
      if (handle->communicator != nullptr) (void)handle->nccl->CommAbort(handle->communicator);
      handle->communicator = nullptr;
    }
    {
      // The parent's abort has ended a call that blocked: it lets go.
      std::lock_guard lock(handle->calls);
      if (handle->child != nullptr) (void)handle->nccl->CommAbort(handle->child);
      handle->child = nullptr;
    }
    handle.reset();  // maybe the last to hold memory of the device
    aborts_under_way.fetch_sub(1);
  }).detach();
}

int NcclCommunicator::AbortsUnderWay() { return aborts_under_way.load(); }

Result<bool> NcclCommunicator::Ready() {
  if (handle_->aborted) return Aborted("the communicator was aborted");
  std::unique_lock lock(handle_->mutex, std::try_to_lock);
  if (!lock.owns_lock()) return false;
  return Advance();
}

Result<bool> NcclCommunicator::Advance() {
  Handle& handle = *handle_;
  if (handle.communicator == nullptr) return Aborted("the communicator was aborted");
  TANDEM_ASSIGN_OR_RETURN(bool ready, handle.nccl->CommReady(handle.communicator));
  if (!ready || !handle.splits) return ready;
  if (!handle.split) {
    handle.split = true;
    TANDEM_RETURN_IF_ERROR(
        handle.nccl->CommSplit(handle.communicator, rank_, handle.child_config, &handle.child));
    TANDEM_ASSIGN_OR_RETURN(ready, handle.nccl->CommReady(handle.communicator));
    if (!ready) return false;
  }
  if (handle.child == nullptr) return Internal("ncclCommSplit made no communicator");
  return true;
}

Status NcclCommunicator::AwaitReady() {
  auto deadline = std::chrono::steady_clock::now() + kMaxWait;
  while (true) {
    if (handle_->aborted) return Aborted("the communicator was aborted");
    {
      std::lock_guard lock(handle_->mutex);
      TANDEM_ASSIGN_OR_RETURN(bool ready, Advance());
      if (ready) return Status::Ok();
    }
    if (std::chrono::steady_clock::now() > deadline) return DeadlineExceeded("NCCL does not come to an end");
    std::this_thread::yield();
  }
}

Status NcclCommunicator::Enqueue(const NcclArgs& args, CUstream stream) {
  std::lock_guard calls(handle_->calls);
  if (!child_ready_) TANDEM_RETURN_IF_ERROR(AwaitReady());
  if (handle_->splits) {
    child_ready_ = true;
    Status status = handle_->aborted ? Status::Ok() : Issue(args, handle_->child, stream);
    return handle_->aborted ? Aborted("the communicator was aborted") : status;
  }
  {
    std::lock_guard lock(handle_->mutex);
    if (handle_->communicator == nullptr) return Aborted("the communicator was aborted");
    TANDEM_RETURN_IF_ERROR(Issue(args, handle_->communicator, stream));
  }
  return AwaitReady();
}

Status NcclCommunicator::Issue(const NcclArgs& args, ncclComm_t communicator, CUstream stream) {
  NcclLibrary& nccl = *handle_->nccl;
  const plan::NcclKind kind = args.kind;
  if (kind == plan::NcclKind::kBarrier) {
    // A sum of one word of nobody's interest: no rank has it before all have given theirs.
    void* word = handle_->barrier.data();
    return nccl.AllReduce(word, word, 1, ncclInt32, ncclSum, communicator, stream);
  }
  if (!plan::IsContiguous(args.in) || !plan::IsContiguous(args.out)) {
    return InvalidArgument("NCCL's tensors must be contiguous");
  }
  const bool takes_in = args.Reads(rank_);
  const DeviceView& typed = takes_in ? args.in : args.out;
  TANDEM_ASSIGN_OR_RETURN(ncclDataType_t type, NcclType(typed.dtype));
  TANDEM_ASSIGN_OR_RETURN(const ncclRedOp_t op, NcclReduction(args.reduce_op));
  auto in_count = static_cast<size_t>(plan::Elements(args.in)),
       out_count = static_cast<size_t>(plan::Elements(args.out));
  switch (kind) {
    case plan::NcclKind::kAllReduce:
      return nccl.AllReduce(args.in.data, args.out.data, in_count, type, op, communicator, stream);
    case plan::NcclKind::kAllGather:
      return nccl.AllGather(args.in.data, args.out.data, in_count, type, communicator, stream);
    case plan::NcclKind::kReduceScatter:
      return nccl.ReduceScatter(args.in.data, args.out.data, out_count, type, op, communicator, stream);
    case plan::NcclKind::kBroadcast:
      return nccl.Broadcast(takes_in ? args.in.data : args.out.data, args.out.data, out_count, type,
                            args.root, communicator, stream);
    case plan::NcclKind::kReduce:
      return nccl.Reduce(args.in.data, args.Writes(rank_) ? args.out.data : nullptr, in_count, type, op,
                         args.root, communicator, stream);
    case plan::NcclKind::kAllToAll:
      return AllToAll(args, in_count / static_cast<size_t>(world_size_), type, communicator, stream);
    case plan::NcclKind::kBarrier: break;
  }
  return InvalidArgument("no collective " + std::to_string(static_cast<int>(kind)));
}

Status NcclCommunicator::AllToAll(const NcclArgs& args, size_t count, ncclDataType_t type,
                                  ncclComm_t communicator, CUstream stream) {
  NcclLibrary& nccl = *handle_->nccl;
  size_t bytes = count * DTypeBytes(args.in.dtype);
  TANDEM_RETURN_IF_ERROR(nccl.GroupStart());
  Status status;
  for (int peer = 0; peer < world_size_ && status.ok(); ++peer) {
    size_t offset = static_cast<size_t>(peer) * bytes;
    status = nccl.Send(args.in.data + offset, count, type, peer, communicator, stream);
    if (status.ok()) status = nccl.Recv(args.out.data + offset, count, type, peer, communicator, stream);
  }
  // The group must end even after an error: it is the thread's.
  Status end = nccl.GroupEnd();
  return status.ok() ? end : status;
}

}  // namespace tandem::cuda
