#include "drivers/nccl/nccl_library.h"

#include <cstdlib>

#include "drivers/dynamic_library.h"

namespace tandem::cuda {
namespace {

// clang-format off
#define TANDEM_NCCL_FUNCTIONS(X) \
  X(ncclGetErrorString) \
  X(ncclGetUniqueId) \
  X(ncclCommInitRankConfig) \
  X(ncclCommSplit) \
  X(ncclCommGetAsyncError) \
  X(ncclCommAbort) \
  X(ncclAllReduce) \
  X(ncclAllGather) \
  X(ncclReduceScatter) \
  X(ncclBroadcast) \
  X(ncclReduce) \
  X(ncclGroupStart) \
  X(ncclGroupEnd) \
  X(ncclSend) \
  X(ncclRecv)
// clang-format on

struct NcclFunctions {
#define TANDEM_MEMBER(name) decltype(&::name) name##_ = nullptr;
  TANDEM_NCCL_FUNCTIONS(TANDEM_MEMBER)
#undef TANDEM_MEMBER

  Status Load(const DynamicLibrary& library) {
#define TANDEM_FIND(name) TANDEM_RETURN_IF_ERROR(library.Find(#name, &name##_));
    TANDEM_NCCL_FUNCTIONS(TANDEM_FIND)
#undef TANDEM_FIND
    return Status::Ok();
  }
};

class LoadedNccl : public NcclLibrary {
 public:
  explicit LoadedNccl(const NcclFunctions& functions) : f_(functions) {}

  Result<ncclUniqueId> GetUniqueId() override {
    ncclUniqueId id;
    TANDEM_RETURN_IF_ERROR(Check("ncclGetUniqueId", f_.ncclGetUniqueId_(&id)));
    return id;
  }
  Result<ncclComm_t> CommInitRankConfig(int world_size, const ncclUniqueId& id, int rank,
                                        ncclConfig_t config) override {
    ncclComm_t communicator = nullptr;
    TANDEM_RETURN_IF_ERROR(Check("ncclCommInitRankConfig",
                                 f_.ncclCommInitRankConfig_(&communicator, world_size, id, rank, &config)));
    return communicator;
  }
  Status CommSplit(ncclComm_t parent, int rank, ncclConfig_t config, ncclComm_t* child) override {
    return Check("ncclCommSplit", f_.ncclCommSplit_(parent, 0, rank, child, &config));
  }
  Result<bool> CommReady(ncclComm_t communicator) override {
    ncclResult_t state = ncclSuccess;
    TANDEM_RETURN_IF_ERROR(Check("ncclCommGetAsyncError", f_.ncclCommGetAsyncError_(communicator, &state)));
    TANDEM_RETURN_IF_ERROR(Check("asynchronous NCCL work", state));
    return state == ncclSuccess;
  }
  Status CommAbort(ncclComm_t communicator) override {
    return Check("ncclCommAbort", f_.ncclCommAbort_(communicator));
  }
  Status AllReduce(const void* in, void* out, size_t count, ncclDataType_t type, ncclRedOp_t op,
                   ncclComm_t communicator, cudaStream_t stream) override {
    return Check("ncclAllReduce", f_.ncclAllReduce_(in, out, count, type, op, communicator, stream));
  }
  Status AllGather(const void* in, void* out, size_t count, ncclDataType_t type, ncclComm_t communicator,
                   cudaStream_t stream) override {
    return Check("ncclAllGather", f_.ncclAllGather_(in, out, count, type, communicator, stream));
  }
  Status ReduceScatter(const void* in, void* out, size_t count, ncclDataType_t type, ncclRedOp_t op,
                       ncclComm_t communicator, cudaStream_t stream) override {
    return Check("ncclReduceScatter", f_.ncclReduceScatter_(in, out, count, type, op, communicator, stream));
  }
  Status Broadcast(const void* in, void* out, size_t count, ncclDataType_t type, int root,
                   ncclComm_t communicator, cudaStream_t stream) override {
    return Check("ncclBroadcast", f_.ncclBroadcast_(in, out, count, type, root, communicator, stream));
  }
  Status Reduce(const void* in, void* out, size_t count, ncclDataType_t type, ncclRedOp_t op, int root,
                ncclComm_t communicator, cudaStream_t stream) override {
    return Check("ncclReduce", f_.ncclReduce_(in, out, count, type, op, root, communicator, stream));
  }
  Status GroupStart() override { return Check("ncclGroupStart", f_.ncclGroupStart_()); }
  Status GroupEnd() override { return Check("ncclGroupEnd", f_.ncclGroupEnd_()); }
  Status Send(const void* in, size_t count, ncclDataType_t type, int peer, ncclComm_t communicator,
              cudaStream_t stream) override {
    return Check("ncclSend", f_.ncclSend_(in, count, type, peer, communicator, stream));
  }
  Status Recv(void* out, size_t count, ncclDataType_t type, int peer, ncclComm_t communicator,
              cudaStream_t stream) override {
    return Check("ncclRecv", f_.ncclRecv_(out, count, type, peer, communicator, stream));
  }

 private:
  Status Check(const char* call, ncclResult_t result) const {
    return NcclStatus(call, result, f_.ncclGetErrorString_(result));
  }
  const NcclFunctions f_;
};

}  // namespace

Status NcclStatus(const char* call, ncclResult_t result, const char* text) {
  if (result == ncclSuccess || result == ncclInProgress) return Status::Ok();
  std::string message = std::string(call) + ": NCCL error " + std::to_string(static_cast<int>(result)) +
                        (text != nullptr ? std::string(": ") + text : "");
  switch (result) {
    case ncclInvalidArgument:
    case ncclInvalidUsage: return InvalidArgument(message);
    case ncclRemoteError: return Unavailable(message);
    default: return Internal(message);
  }
}

Result<NcclLibrary*> LoadNccl() {
  static const Result<NcclLibrary*> nccl = []() -> Result<NcclLibrary*> {
    ::setenv("NCCL_NVLS_ENABLE", "0", 0);
    TANDEM_ASSIGN_OR_RETURN(DynamicLibrary library, DynamicLibrary::Open({"libnccl.so.2"}));
    NcclFunctions functions;
    TANDEM_RETURN_IF_ERROR(functions.Load(library));
    return static_cast<NcclLibrary*>(new LoadedNccl(functions));
  }();
  return nccl;
}

}  // namespace tandem::cuda
