// File: nccl_standin.h
//
// The host backend's stand-in for NCCL: collectives of a whole group over scratch areas that all its members
// map. All are built on one exchange: each rank publishes up to half an area, signals to every peer, and
// reads the others' halves once they have signalled. Halves alternate, so one exchange orders the next but
// one, and no further barrier is needed.
//
// Scratch area of a rank: 4 KiB of words (one line a writer: how many exchanges it has published; and one
// abort word), then two equal halves of data.
#pragma once

#include <memory>

#include "kernels/backend.h"
#include "kernels/host/task.h"
#include "tandem/status.h"

namespace tandem::host {

// Bytes that a scratch area must have at least; 1 MiB and more is faster on large tensors.
inline constexpr size_t kMinScratchBytes = 4096 + 2 * 4096;

class HostCommunicator : public Communicator {
 public:
  // INVALID_ARGUMENT when rank, world size or the scratch areas do not fit, and as ParseNcclOptions.
  static Result<std::unique_ptr<HostCommunicator>> Create(const CommunicatorOptions& options);

  // INVALID_ARGUMENT unless the tensors have the sizes of plan::NcclStep and are contiguous.
  Status Check(const NcclArgs& args) const;

  // Runs one collective on a queue's thread. All ranks must run the same ones in the same order. Returns
  // early, outputs undefined, once the communicator is aborted here or by a peer, the abort word is set, or
  // the queue is abandoned.
  void Run(const NcclArgs& args, const TaskContext& context);

  void Abort() override;

 private:
  explicit HostCommunicator(const CommunicatorOptions& options) : options_(options) {}

  // One round of the exchange. `publish(half)` fills the own half, `consume(halves)` reads those of all
  // ranks, by rank. False when the collective ends early.
  template <typename Publish, typename Consume>
  bool Exchange(const TaskContext& context, Publish&& publish, Consume&& consume);
  bool Await(const Word& word, const TaskContext& context) const;
  bool Aborted() const;
  Word* PublishedWord(int area, int writer) const;
  Word* AbortWord(int area) const;
  std::byte* Half(int area) const;
  // The elements that fit into a half, or into each of the world size's parts of one; at least 1.
  int64_t ChunkElements(DType dtype, int parts) const;

  void AllReduce(const NcclArgs& args, const TaskContext& context, bool root_only);
  void ReduceScatter(const NcclArgs& args, const TaskContext& context);
  void AllGather(const NcclArgs& args, const TaskContext& context);
  void Broadcast(const NcclArgs& args, const TaskContext& context);
  void AllToAll(const NcclArgs& args, const TaskContext& context);

  CommunicatorOptions options_;
  size_t half_bytes_ = 0;
  uint64_t round_ = 0;  // exchanges begun; touched by collectives only
};

}  // namespace tandem::host
