// The functions of NCCL's C API that this library has itself. No exception leaves them. Programs find them by
// LD_PRELOAD, or load this library by a path, as with VLLM_NCCL_SO_PATH and SGLANG_NCCL_SO_PATH.
#include <exception>
#include <string>

#include "client/nccl/collectives.h"
#include "client/nccl/communicators.h"
#include "client/nccl/messages.h"
#include "client/nccl/real_nccl.h"
#include "client/nccl/thread_group.h"

namespace tandem::nccl {
namespace {

ncclResult_t Failed(const char* why) noexcept {
  try {
    SetLastError(std::string("libtandem-nccl.so: ") + why);
  } catch (...) {  // NOLINT(bugprone-empty-catch): the result alone, where memory is out
  }
  return ncclSystemError;
}

template <typename Body>
ncclResult_t Guarded(const Body& body) noexcept {
  try {
    return body();
  } catch (const std::exception& error) {
    return Failed(error.what());
  } catch (...) {
    return Failed("an exception");
  }
}

ncclResult_t Enter(const NcclCall& call) noexcept {
  return Guarded([&] { return ThisGroup().active() ? ThisGroup().Add(call) : RunCollective(call); });
}

// Ends what Tandem has for a communicator that is about to end.
void Close(ncclComm_t communicator) {
  ThisGroup().HandOver();
  if (const auto known = TakeCommunicator(communicator)) known->Close();
}

// The same at once, with NCCL's call `abort`.
template <typename NcclAbort>
ncclResult_t Abort(const std::shared_ptr<CommunicatorState>& known, const NcclAbort& abort) {
  ThisGroup().HandOver();
  return known == nullptr ? abort() : known->Abort(abort);
}

}  // namespace
}  // namespace tandem::nccl

using namespace tandem::nccl;  // NOLINT: this file is all glue

#define TANDEM_NCCL_EXPORT extern "C" __attribute__((visibility("default")))

TANDEM_NCCL_EXPORT ncclResult_t ncclAllReduce(const void* send, void* receive, size_t count,
                                              ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                                              cudaStream_t stream) {
  return Enter({NcclCollective::kAllReduce, send, receive, count, type, op, 0, comm, stream});
}

TANDEM_NCCL_EXPORT ncclResult_t ncclAllGather(const void* send, void* receive, size_t count,
                                              ncclDataType_t type, ncclComm_t comm, cudaStream_t stream) {
  return Enter({NcclCollective::kAllGather, send, receive, count, type, ncclSum, 0, comm, stream});
}

TANDEM_NCCL_EXPORT ncclResult_t ncclReduceScatter(const void* send, void* receive, size_t count,
                                                  ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                                                  cudaStream_t stream) {
  return Enter({NcclCollective::kReduceScatter, send, receive, count, type, op, 0, comm, stream});
}

TANDEM_NCCL_EXPORT ncclResult_t ncclAlltoAll(const void* send, void* receive, size_t count,
                                             ncclDataType_t type, ncclComm_t comm, cudaStream_t stream) {
  return Enter({NcclCollective::kAllToAll, send, receive, count, type, ncclSum, 0, comm, stream});
}

TANDEM_NCCL_EXPORT ncclResult_t ncclBroadcast(const void* send, void* receive, size_t count,
                                              ncclDataType_t type, int root, ncclComm_t comm,
                                              cudaStream_t stream) {
  return Enter({NcclCollective::kBroadcast, send, receive, count, type, ncclSum, root, comm, stream});
}

TANDEM_NCCL_EXPORT ncclResult_t ncclBcast(void* buffer, size_t count, ncclDataType_t type, int root,
                                          ncclComm_t comm, cudaStream_t stream) {
  return Enter({NcclCollective::kBroadcast, buffer, buffer, count, type, ncclSum, root, comm, stream});
}

TANDEM_NCCL_EXPORT ncclResult_t ncclReduce(const void* send, void* receive, size_t count, ncclDataType_t type,
                                           ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream) {
  return Enter({NcclCollective::kReduce, send, receive, count, type, op, root, comm, stream});
}

TANDEM_NCCL_EXPORT ncclResult_t ncclGroupStart() {
  return Guarded([] {
    ThisGroup().Start();
    return ncclSuccess;
  });
}

TANDEM_NCCL_EXPORT ncclResult_t ncclGroupEnd() {
  return Guarded([] { return ThisGroup().End(); });
}

TANDEM_NCCL_EXPORT ncclResult_t ncclGroupSimulateEnd(ncclSimInfo_t* info) {
  return Guarded([=] { return ThisGroup().SimulateEnd(info); });
}

TANDEM_NCCL_EXPORT ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  return Guarded([=] {
    ThisGroup().HandOver();
    if (const auto known = KnownCommunicator(comm)) known->Close();
    return Real().CommFinalize(comm);
  });
}

TANDEM_NCCL_EXPORT ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  return Guarded([=] {
    Close(comm);
    return Real().CommDestroy(comm);
  });
}

TANDEM_NCCL_EXPORT ncclResult_t ncclCommAbort(ncclComm_t comm) {
  return Guarded([=] { return Abort(TakeCommunicator(comm), [=] { return Real().CommAbort(comm); }); });
}

TANDEM_NCCL_EXPORT ncclResult_t ncclCommRevoke(ncclComm_t comm, int flags) {
  return Guarded(
      [=] { return Abort(KnownCommunicator(comm), [=] { return Real().CommRevoke(comm, flags); }); });
}

TANDEM_NCCL_EXPORT ncclResult_t ncclCommShrink(ncclComm_t comm, int* excluded, int excluded_count,
                                               ncclComm_t* made, ncclConfig_t* config, int flags) {
  return Guarded([=] {
    const auto shrink = [=] {
      return Real().CommShrink(comm, excluded, excluded_count, made, config, flags);
    };
    // Else the parent goes on.
    if ((flags & NCCL_SHRINK_ABORT) != 0) return Abort(KnownCommunicator(comm), shrink);
    ThisGroup().HandOver();
    return shrink();
  });
}

TANDEM_NCCL_EXPORT ncclResult_t ncclCommSuspend(ncclComm_t comm, int flags) {
  return Guarded([=] {
    ThisGroup().HandOver();
    const auto suspend = [=] { return Real().CommSuspend(comm, flags); };
    // An NCCL without it says so, and nothing sleeps.
    const bool sleeps = (flags & kSuspendMemory) != 0 && FindInNccl("ncclCommSuspend") != nullptr;
    const auto known = sleeps ? KnownCommunicator(comm) : nullptr;
    return known == nullptr ? suspend() : known->Suspend(suspend);
  });
}

TANDEM_NCCL_EXPORT ncclResult_t ncclCommResume(ncclComm_t comm) {
  return Guarded([=] {
    ThisGroup().HandOver();
    const auto resume = [=] { return Real().CommResume(comm); };
    const auto known = KnownCommunicator(comm);
    return known == nullptr ? resume() : known->Resume(resume);
  });
}

TANDEM_NCCL_EXPORT ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* async_error) {
  return Guarded([=] {
    const auto known = KnownCommunicator(comm);
    const ncclResult_t failed = known == nullptr ? ncclSuccess : known->PollFailure();
    if (failed == ncclSuccess || async_error == nullptr) return Real().CommGetAsyncError(comm, async_error);
    *async_error = failed;
    return ncclSuccess;
  });
}

TANDEM_NCCL_EXPORT const char* ncclGetLastError(ncclComm_t comm) {
  try {
    const auto known = KnownCommunicator(comm);
    const char* text = known == nullptr ? "" : known->FailureText();
    if (*text == '\0') text = LastError();
    if (*text == '\0') text = Real().GetLastError(comm);
    return text == nullptr ? "" : text;
  } catch (...) {
    return "";
  }
}

TANDEM_NCCL_EXPORT const char* ncclGetErrorString(ncclResult_t result) {
  try {
    const char* text = Real().GetErrorString(result);
    return text == nullptr ? "the NCCL of this process is missing" : text;
  } catch (...) {
    return "no memory";
  }
}

// The names with a p in front.
#define TANDEM_NCCL_OWN(name) \
  asm(".globl pnccl" #name "\n.type pnccl" #name ", @function\n.set pnccl" #name ", nccl" #name);
#define TANDEM_NCCL_PASSED(name)
#define TANDEM_NCCL_ASKED(name)
#include "client/nccl/nccl_functions.def"
