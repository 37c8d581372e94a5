#include "bench/gpu/nccl_peer.h"

#include <cuda_runtime.h>
#include <dlfcn.h>

#include <cstdlib>

namespace tandem::bench {

// clang-format off
#define TANDEM_NCCL_FUNCTIONS(X) \
  X(ncclGetVersion) \
  X(ncclCommInitAll) \
  X(ncclMemAlloc) \
  X(ncclCommWindowRegister) \
  X(ncclGroupStart) \
  X(ncclGroupEnd) \
  X(ncclAllReduce) \
  X(ncclAllGather) \
  X(ncclReduceScatter) \
  X(ncclGetErrorString)
// clang-format on

struct NcclPeer::Functions {
#define TANDEM_MEMBER(name) decltype(&::name) name##_ = nullptr;
  TANDEM_NCCL_FUNCTIONS(TANDEM_MEMBER)
#undef TANDEM_MEMBER
};

std::unique_ptr<NcclPeer> NcclPeer::Create(int ranks, size_t bytes, std::string* why) {
  ::setenv("NCCL_NVLS_ENABLE", "0", 0);
  void* library = ::dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    *why = ::dlerror();
    return nullptr;
  }
  auto functions = std::make_shared<Functions>();
  bool complete = true;
#define TANDEM_FIND(name)                                                            \
  functions->name##_ = reinterpret_cast<decltype(&::name)>(::dlsym(library, #name)); \
  complete = complete && functions->name##_ != nullptr;
  TANDEM_NCCL_FUNCTIONS(TANDEM_FIND)
#undef TANDEM_FIND
  if (!complete) {
    *why = "an NCCL without windows";
    return nullptr;
  }
  std::unique_ptr<NcclPeer> peer(new NcclPeer());
  peer->f_ = functions;
  auto ok = [&](ncclResult_t result) {
    if (result == ncclSuccess) return true;
    *why = functions->ncclGetErrorString_(result);
    return false;
  };
  (void)functions->ncclGetVersion_(&peer->version_);
  peer->comms_.resize(static_cast<size_t>(ranks));
  std::vector<int> devices;
  for (int rank = 0; rank < ranks; ++rank) devices.push_back(rank);
  if (!ok(functions->ncclCommInitAll_(peer->comms_.data(), ranks, devices.data()))) return nullptr;
  std::vector<ncclWindow_t> windows(static_cast<size_t>(2 * ranks));
  for (auto* buffers : {&peer->in_, &peer->out_, &peer->window_in_, &peer->window_out_}) {
    buffers->resize(static_cast<size_t>(ranks));
    for (int rank = 0; rank < ranks; ++rank) {
      (void)cudaSetDevice(rank);
      void** buffer = &(*buffers)[static_cast<size_t>(rank)];
      const bool plain = buffers == &peer->in_ || buffers == &peer->out_;
      if (plain) {
        if (cudaMalloc(buffer, bytes) != cudaSuccess) return nullptr;
      } else if (!ok(functions->ncclMemAlloc_(buffer, bytes))) {
        return nullptr;
      }
      (void)cudaMemset(*buffer, 1, bytes);
    }
  }
  for (auto* buffers : {&peer->window_in_, &peer->window_out_}) {
    if (!ok(functions->ncclGroupStart_())) return nullptr;
    for (int rank = 0; rank < ranks; ++rank) {
      auto r = static_cast<size_t>(rank);
      if (!ok(functions->ncclCommWindowRegister_(
              peer->comms_[r], (*buffers)[r], bytes,
              &windows[r + (buffers == &peer->window_in_ ? 0 : windows.size() / 2)],
              NCCL_WIN_COLL_SYMMETRIC))) {
        return nullptr;
      }
    }
    if (!ok(functions->ncclGroupEnd_())) return nullptr;
  }
  return peer;
}

bool NcclPeer::Enqueue(Kind kind, size_t bytes, bool windows, const std::vector<cudaStream_t>& streams) {
  const size_t count = bytes / 2;
  bool good = f_->ncclGroupStart_() == ncclSuccess;
  for (size_t r = 0; r < comms_.size(); ++r) {
    const void* in = windows ? window_in_[r] : in_[r];
    void* out = windows ? window_out_[r] : out_[r];
    const size_t piece = count / comms_.size();
    switch (kind) {
      case Kind::kAllReduce:
        good = good && f_->ncclAllReduce_(in, out, count, ncclBfloat16, ncclSum, comms_[r], streams[r]) ==
                           ncclSuccess;
        break;
      case Kind::kAllGather:
        good = good && f_->ncclAllGather_(in, out, piece, ncclBfloat16, comms_[r], streams[r]) == ncclSuccess;
        break;
      case Kind::kReduceScatter:
        good = good && f_->ncclReduceScatter_(in, out, piece, ncclBfloat16, ncclSum, comms_[r], streams[r]) ==
                           ncclSuccess;
        break;
    }
  }
  return f_->ncclGroupEnd_() == ncclSuccess && good;
}

}  // namespace tandem::bench
