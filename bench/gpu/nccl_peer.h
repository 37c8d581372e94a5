// File: nccl_peer.h
//
// NCCL as a rival in benchmarks: all ranks in one process, plain buffers and symmetric windows. Bare calls by
// dlsym, so that nothing of Tandem's own wrapper is measured.
#pragma once

#include <nccl.h>

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

namespace tandem::bench {

class NcclPeer {
 public:
  // Null, with the reason in *why, where NCCL is missing or refuses.
  static std::unique_ptr<NcclPeer> Create(int ranks, size_t bytes, std::string* why);

  enum class Kind { kAllReduce, kAllGather, kReduceScatter };
  // Enqueues one collective of `bytes` (the whole tensor) of bf16 on all ranks' streams.
  bool Enqueue(Kind kind, size_t bytes, bool windows, const std::vector<cudaStream_t>& streams);
  int version() const { return version_; }

 private:
  NcclPeer() = default;
  struct Functions;
  std::shared_ptr<Functions> f_;
  int version_ = 0;
  std::vector<ncclComm_t> comms_;
  std::vector<void*> in_, out_, window_in_, window_out_;
};

}  // namespace tandem::bench
