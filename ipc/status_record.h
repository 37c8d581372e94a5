// File: status_record.h
//
// How a status crosses in a StatusRecord (channel_layout.h): under a sequence lock, in atomics, so that a
// reader that overlaps a write sees the version change and reads again.
//
// Thread rule: one writer at a time; readers are any number of threads and processes.
#pragma once

#include <cstdint>

#include "ipc/channel_layout.h"
#include "tandem/status.h"

namespace tandem {

struct StatusRecordContents {
  uint64_t sequence = 0;
  uint64_t generation = 0;
  int who_rank = -1;  // the first rank that caused a failure; -1: none in particular
  Status status;
};

// The reason, field, ranks, GPU, process and `started` of the detail cross. A reason that is too long
// is left out, and so is a field that has no room behind the reason. A message that is too long is cut.
// `who_rank` -1: none beside the detail's.
void WriteStatusRecord(StatusRecord* record, uint64_t sequence, const Status& status, uint64_t generation,
                       int who_rank = -1);

// Gives up after some overlapping writes, with whatever was seen: the text is for people only.
StatusRecordContents ReadStatusRecord(const StatusRecord* record);

}  // namespace tandem
