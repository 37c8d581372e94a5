#include "kernels/cuda/nccl_communicator.h"

#include <charconv>
#include <chrono>
#include <cstring>
#include <map>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

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

// The group's options over NCCL's defaults.
Status Configure(const std::map<std::string, std::string>& options, ncclConfig_t* config) {
  constexpr std::string_view kPrefix = "nccl.";
  const std::map<std::string_view, int*> known = {{"nccl.min_ctas", &config->minCTAs},
                                                  {"nccl.max_ctas", &config->maxCTAs},
                                                  {"nccl.cga_cluster_size", &config->cgaClusterSize}};
  for (const auto& [key, value] : options) {
    if (key.rfind(kPrefix, 0) != 0) continue;
    auto found = known.find(key);
    if (found == known.end()) {
      return InvalidArgument("there is no group option '" + key +
                             "'; known are nccl.min_ctas, nccl.max_ctas, nccl.cga_cluster_size");
    }
    const char* end = value.data() + value.size();
    if (auto parsed = std::from_chars(value.data(), end, *found->second);
        parsed.ec != std::errc() || parsed.ptr != end || *found->second < 0) {
      return InvalidArgument("group option '" + key + "' is no number: '" + value + "'");
    }
  }
  return Status::Ok();
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
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  TANDEM_RETURN_IF_ERROR(Configure(options.config, &config));
  TANDEM_RETURN_IF_ERROR(device->Enter());
  auto handle = std::make_shared<Handle>();
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
  std::thread([handle = handle_] {
    std::lock_guard lock(handle->mutex);
    (void)handle->device->Enter();
    if (handle->communicator != nullptr) (void)handle->nccl->CommAbort(handle->communicator);
    handle->communicator = nullptr;
  }).detach();
}

Result<bool> NcclCommunicator::Ready() {
  if (handle_->aborted) return Aborted("the communicator was aborted");
  std::unique_lock lock(handle_->mutex, std::try_to_lock);
  if (!lock.owns_lock()) return false;
  if (handle_->communicator == nullptr) return Aborted("the communicator was aborted");
  return handle_->nccl->CommReady(handle_->communicator);
}

Status NcclCommunicator::AwaitReady() {
  auto deadline = std::chrono::steady_clock::now() + kMostWait;
  while (true) {
    if (handle_->aborted) return Aborted("the communicator was aborted");
    TANDEM_ASSIGN_OR_RETURN(bool ready, handle_->nccl->CommReady(handle_->communicator));
    if (ready) return Status::Ok();
    if (std::chrono::steady_clock::now() > deadline) return DeadlineExceeded("NCCL does not come to an end");
    std::this_thread::yield();
  }
}

Status NcclCommunicator::Enqueue(const NcclArgs& args, CUstream stream) {
  std::lock_guard lock(handle_->mutex);
  if (handle_->communicator == nullptr) return Aborted("the communicator was aborted");
  TANDEM_RETURN_IF_ERROR(AwaitReady());
  TANDEM_RETURN_IF_ERROR(Issue(args, stream));
  return AwaitReady();
}

Status NcclCommunicator::Issue(const NcclArgs& args, CUstream stream) {
  auto kind = static_cast<plan::NcclKind>(args.kind);
  if (kind == plan::NcclKind::kBarrier) {
    // A sum of one word of nobody's interest: no rank has it before all have given theirs.
    void* word = handle_->barrier.data();
    return handle_->nccl->AllReduce(word, word, 1, ncclInt32, ncclSum, handle_->communicator, stream);
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
      return handle_->nccl->AllReduce(args.in.data, args.out.data, in_count, type, op, handle_->communicator, stream);
    case plan::NcclKind::kAllGather:
      return handle_->nccl->AllGather(args.in.data, args.out.data, in_count, type, handle_->communicator, stream);
    case plan::NcclKind::kReduceScatter:
      return handle_->nccl->ReduceScatter(args.in.data, args.out.data, out_count, type, op, handle_->communicator, stream);
    case plan::NcclKind::kBroadcast:
      return handle_->nccl->Broadcast(takes_in ? args.in.data : args.out.data, args.out.data, out_count, type, args.root,
                              handle_->communicator, stream);
    case plan::NcclKind::kReduce:
      return handle_->nccl->Reduce(args.in.data, rank_ == args.root ? args.out.data : nullptr, in_count, type, op, args.root,
                           handle_->communicator, stream);
    case plan::NcclKind::kAllToAll:
      return AllToAll(args, in_count / static_cast<size_t>(world_size_), type, stream);
    case plan::NcclKind::kBarrier: break;
  }
  return InvalidArgument("no collective " + std::to_string(args.kind));
}

Status NcclCommunicator::AllToAll(const NcclArgs& args, size_t count, ncclDataType_t type, CUstream stream) {
  size_t bytes = count * DTypeBytes(args.in.dtype);
  TANDEM_RETURN_IF_ERROR(handle_->nccl->GroupStart());
  Status status;
  for (int peer = 0; peer < world_size_ && status.ok(); ++peer) {
    size_t offset = static_cast<size_t>(peer) * bytes;
    status = handle_->nccl->Send(args.in.data + offset, count, type, peer, handle_->communicator, stream);
    if (status.ok()) status = handle_->nccl->Recv(args.out.data + offset, count, type, peer, handle_->communicator, stream);
  }
  // The group must end even after an error: it is the thread's.
  Status end = handle_->nccl->GroupEnd();
  return status.ok() ? end : status;
}

}  // namespace tandem::cuda
