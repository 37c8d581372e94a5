// File: memory_usage.h
//
// `MemoryUsage`: what Client::UsedMemory and Group::UsedMemory return.
#pragma once

#include <cstdint>

namespace tandem {

// Bytes of Tandem's memory that a client's process holds, by use. Memory counts until the last handle, launch and
// graph that uses it is gone; memory with several handles counts once. A segment is the memory of one rank that
// tensors, scratch memory or signals lie in. Memory of engines, and scratch memory of the GPU's libraries, does not
// count.
struct MemoryUsage {
  uint64_t symmetric_bytes = 0;  // this rank's parts of symmetric tensors, as they were asked for
  uint64_t workspace_bytes = 0;  // this rank's scratch memory for client-placed plans
  uint64_t signal_bytes = 0;     // this rank's signals and packets of client-placed plans
  uint64_t segment_bytes = 0;    // this rank's whole segments, in which the three above lie
  uint64_t peer_bytes = 0;  // peers' segments that are mapped here: addresses, no memory of this rank's GPU
  uint64_t registered_bytes = 0;  // of RegisterFd and AllocateRegistered, as asked for; 0 for a group
  uint64_t imported_bytes = 0;    // the user's own GPU memory, registered by its address; 0 for a group
  uint64_t host_bytes = 0;  // shared with tandemd and engines: verdict pages, and of a client its channels
};

}  // namespace tandem
