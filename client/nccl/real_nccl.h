// File: real_nccl.h
//
// `RealNccl`: the NCCL that this library stands in front of, loaded on first use and never unloaded. Thread-safe.
#pragma once

#include <nccl.h>

#include <type_traits>

// NCCL 2.29.7 has them, and earlier headers do not.
extern "C" ncclResult_t ncclCommSuspend(ncclComm_t comm, int flags);
extern "C" ncclResult_t ncclCommResume(ncclComm_t comm);

namespace tandem::nccl {

// The flag of ncclCommSuspend that releases memory.
inline constexpr int kSuspendMemory = 1;

// Keeps a text for ncclGetLastError, and returns ncclInvalidUsage: NCCL has no function of this name.
ncclResult_t Missing(const char* name);

// The address of NCCL's function with this name; null where NCCL, or the function, is not there.
void* FindInNccl(const char* name);

// A function of NCCL, or the error that it is missing.
template <typename Pointer>
class NcclFunction;
template <typename R, typename... Arguments>
class NcclFunction<R (*)(Arguments...)> {
 public:
  explicit NcclFunction(const char* name)
      : name_(name), address_(reinterpret_cast<R (*)(Arguments...)>(FindInNccl(name))) {}
  R operator()(Arguments... arguments) const {
    if (address_ != nullptr) return address_(arguments...);
    if constexpr (std::is_same_v<R, ncclResult_t>)
      return Missing(name_);
    else
      return R{};
  }

 private:
  const char* const name_;
  R (*const address_)(Arguments...);
};

// clang-format off
#define TANDEM_NCCL_CALLED(X) \
  X(AllReduce) X(AllGather) X(ReduceScatter) X(AlltoAll) X(Broadcast) X(Reduce) \
  X(GroupStart) X(GroupEnd) X(GroupSimulateEnd) \
  X(CommFinalize) X(CommDestroy) X(CommAbort) X(CommRevoke) X(CommShrink) X(CommGetAsyncError) X(CommSuspend) X(CommResume) \
  X(CommCount) X(CommUserRank) X(CommCuDevice) X(GetLastError) X(GetErrorString)
// clang-format on

// The functions that this library calls itself.
struct RealNccl {
#define TANDEM_MEMBER(name) const NcclFunction<decltype(&::nccl##name)> name{"nccl" #name};
  TANDEM_NCCL_CALLED(TANDEM_MEMBER)
#undef TANDEM_MEMBER
};
const RealNccl& Real();

}  // namespace tandem::nccl
