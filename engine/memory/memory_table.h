// File: memory_table.h
//
// `MemoryTable`: the memory that an engine has mapped: segments (own and peers'), and registrations, which
// launches may be bound to. Resolves a launch's bindings to addresses after checking all that a client could
// have got wrong.
//
// Thread rule: the engine's main thread only.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "common/unique_fd.h"
#include "engine/memory/deferred_release.h"
#include "ipc/channel_layout.h"
#include "kernels/backend.h"
#include "runtime/executor/executor.h"
#include "tandem/status.h"

namespace tandem::engine {

// Memory that bindings may name. Immutable once made; launches in flight hold it by shared_ptr, so that
// removing a registration never unmaps what a lane still uses.
struct Registration {
  struct Chunk {
    std::byte* base = nullptr;
    uint64_t begin = 0;  // what the chunks before it hold
    uint64_t bytes = 0;
  };
  uint64_t id = 0;
  uint64_t owner_session = 0;
  uint64_t group_id = 0;  // symmetric only
  uint64_t bytes = 0;
  bool symmetric = false;
  std::vector<std::byte*> bases;  // symmetric: by rank
  std::vector<Chunk> chunks;      // not symmetric
  uint64_t origin = 0;            // where in the first chunk the registered memory begins
  uint64_t identity = 0;          // symmetric: equal on all ranks, for digests
  std::vector<std::shared_ptr<Segment>> pins;
};

// A plan's demands on a slot's binding.
struct SlotRule {
  uint64_t span_bytes = 0;
  uint32_t alignment = 1;
  bool symmetric = false;
  int alias_of = -1;
};

// The session that binds, and the group and rank that it binds for.
struct BindingScope {
  uint64_t session_id = 0;
  uint64_t group_id = 0;
  int rank = 0;
  int world_size = 1;
};

class MemoryTable {
 public:
  // `dead` takes imports whose end may block.
  MemoryTable(Backend* backend, std::shared_ptr<DeferredRelease> dead)
      : backend_(backend), dead_(std::move(dead)) {}

  Status AddSegment(uint64_t id, int fd, uint64_t bytes);
  Status RemoveSegment(uint64_t id);
  // [offset, offset + bytes) of a segment; NOT_FOUND or OUT_OF_RANGE. `pin` keeps it mapped.
  Result<std::byte*> Locate(uint64_t segment_id, uint64_t offset, uint64_t bytes,
                            std::vector<std::shared_ptr<Segment>>* pins) const;

  // A symmetric registration: by rank, a segment and an offset in it.
  Status AddSymmetric(uint64_t id, uint64_t owner_session, uint64_t group_id, uint64_t bytes,
                      const std::vector<uint64_t>& segments, const std::vector<uint64_t>& offsets);
  // The next chunks' descriptors of the foreign registration that will be added by that id.
  Status AddChunks(uint64_t id, std::vector<UniqueFd> fds);
  // A client's own memory: the descriptors that AddChunks took, then these, and all the bytes of each; the
  // memory begins at `offset` of the first. None waits any longer after this call, also after an error.
  Status AddForeign(uint64_t id, uint64_t owner_session, uint64_t bytes, std::vector<UniqueFd> fds,
                    const std::vector<uint64_t>& chunk_bytes, uint64_t offset);
  // The same by CUDA IPC handle: [offset, offset + bytes) of the allocation. RESOURCE_EXHAUSTED while too
  // many closed imports cannot be let go of.
  Status AddIpc(uint64_t id, uint64_t owner_session, uint64_t bytes, const std::string& handle,
                uint64_t offset);
  Status RemoveRegistration(uint64_t id);

  // Resolves `bindings` by `rules` into `addresses`, with what keeps them mapped in `pins`, and folds what
  // must agree across ranks (symmetric slots' memory and offsets) into `digest`. INVALID_ARGUMENT, NOT_FOUND
  // or OUT_OF_RANGE names the slot.
  Status Resolve(std::span<const LaunchBinding> bindings, const std::vector<SlotRule>& rules,
                 const BindingScope& scope, std::vector<runtime::SlotAddress>* addresses,
                 std::vector<std::shared_ptr<Registration>>* pins, uint64_t* digest) const;

 private:
  Status AddRegistration(std::shared_ptr<Registration> registration);
  Status ResolveSlot(const LaunchBinding& binding, const SlotRule& rule, const BindingScope& scope,
                     const Registration& registration, runtime::SlotAddress* address) const;

  Backend* backend_;
  std::shared_ptr<DeferredRelease> dead_;
  std::unordered_map<uint64_t, std::shared_ptr<Segment>> segments_;
  std::unordered_map<uint64_t, std::shared_ptr<Registration>> registrations_;
  // Chunks of registrations that are still to be added.
  std::unordered_map<uint64_t, std::vector<UniqueFd>> arriving_;
};

}  // namespace tandem::engine
