// File: memory_records.h
//
// Records of memory: segments of a group, symmetric tensors in them, and the clients' own memory. Plain data
// under the registry's mutex.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/offset_allocator.h"
#include "common/unique_fd.h"
#include "daemon/control/base/barrier.h"
#include "daemon/control/base/ledger.h"
#include "daemon/control/base/registry_mutex.h"

namespace tandem::daemon {

// Segments of equal size, one per rank of the group that made them, with one allocator: a block lies at the
// same offset on every rank. Removed when its group has ended and no block is left.
struct SegmentSet : std::enable_shared_from_this<SegmentSet> {
  std::string purpose;  // "symmetric", "workspace", "bulk", "control"
  uint64_t group_id = 0;
  bool for_clients = false;           // mapped by members, and of the engines by the one that made it
  Payer payer;                        // charged to
  uint64_t bytes = 0;                 // of each segment
  std::vector<int> gpus;              // by rank
  std::vector<uint64_t> segment_ids;  // by rank
  std::vector<SharedFd> fds TANDEM_GUARDED_BY(registry_mutex);     // by rank: they outlive an engine
  std::vector<uint32_t> mapped TANDEM_GUARDED_BY(registry_mutex);  // by rank: bit g: GPU g's engine holds it
  bool owned TANDEM_GUARDED_BY(registry_mutex) = true;             // its group lives
  bool dropped TANDEM_GUARDED_BY(registry_mutex) = false;  // its group sleeps: no descriptors, no charge
  OffsetAllocator allocator TANDEM_GUARDED_BY(registry_mutex){0};
};

// One allocation of a set, shared by the tensors of the ranks that met first.
struct SymmetricBlock {
  std::shared_ptr<SegmentSet> set;
  uint64_t offset = 0;
  uint64_t pad_offset = 0;
  int tensors TANDEM_GUARDED_BY(registry_mutex) = 0;  // that use it
};

// A symmetric tensor of one session.
struct TensorRecord {
  uint64_t id = 0;
  uint64_t session_id = 0;
  int gpu = 0;
  uint64_t bytes = 0;
  std::string name;  // persistent if not empty
  // None before the first barrier.
  std::shared_ptr<SymmetricBlock> block TANDEM_GUARDED_BY(registry_mutex);
  int block_rank TANDEM_GUARDED_BY(registry_mutex) = 0;  // which of the set's segments is this tensor's
  bool freed TANDEM_GUARDED_BY(registry_mutex) = false;  // its session no longer has it; a barrier may still
  // Group id -> registration id.
  std::map<uint64_t, uint64_t> registrations TANDEM_GUARDED_BY(registry_mutex);
};

// A symmetric tensor as launches of one group name it.
struct GroupTensor {
  uint64_t bytes = 0;
  std::vector<std::shared_ptr<TensorRecord>> tensors;  // by rank
  std::vector<bool> freed;                             // by rank
  bool acknowledged = false;  // a rank may have the answer: the next tandemd must know it
};

struct TensorBarrier : Barrier {
  using Barrier::Barrier;
  std::vector<std::shared_ptr<TensorRecord>> tensors;  // by rank
  uint64_t registration_id = 0;
};

// A client's own memory on one GPU.
struct RegistrationRecord {
  int gpu = 0;
  uint64_t bytes = 0;
  std::vector<uint64_t> chunk_bytes;
  std::vector<SharedFd> fds;  // kept for the engine's next life
  std::string ipc_handle;     // instead of descriptors
  uint64_t offset = 0;        // where the memory begins in the first chunk or behind the handle
  bool acknowledged = false;  // the client may have the answer: the next tandemd must know it
};

}  // namespace tandem::daemon
