// File: operation.h
//
// `CompiledProgram::Operation`: one call on a lane, as Compile writes it and Enqueue runs it. Internal to the
// executor.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/executor/executor.h"

namespace tandem::runtime {

struct CompiledProgram::Operation {
  enum class Kind : uint8_t {
    kNop,
    kCopy,
    kMatmul,
    kReduce,
    kNorm,
    kNccl,
    kCollective,  // one kernel; the next `expansion` operations do the same step by step
    kSignal,      // writes the epoch to word `word` of rank `rank`'s area
    kWaitSignal,  // waits for the epoch in word `word` of the own area
    kWaitEvent,   // waits for event `event` of lane `event_lane`
    kRecordEvent  // records event `event` of the own lane
  };

  Kind kind = Kind::kNop;
  uint8_t rank = 0;
  uint16_t lane = 0;
  uint16_t event_lane = 0;
  uint32_t word = 0;
  int event = 0;
  uint32_t step = 0;  // of the plan::RankProgram
  bool starts_step = false;
  bool ends_step = false;
  // One of these for the kinds that take arguments. On the heap, so that patches may point into them. Views
  // lie with null addresses until a launch sets them.
  std::unique_ptr<CopyArgs> copy;
  std::unique_ptr<MatmulArgs> matmul;
  std::unique_ptr<ReduceArgs> reduce;
  std::unique_ptr<NormArgs> norm;
  std::unique_ptr<NcclArgs> nccl;
  std::unique_ptr<CollectiveArgs> collective;
  struct WordPatch {
    uint8_t reader;
    uint32_t word;
    Word** target;  // inside `collective`
  };
  std::vector<WordPatch> words;
  // For a fused matmul, by the epoch's parity: sets of addresses of recent launches, and the backend's data
  // for each. A model's layers may share one plan, each with its own operands.
  struct KeptSet {
    std::vector<const void*> bound;
    std::unique_ptr<PreparedWork> prepared;
    uint64_t used = 0;  // the epoch of the last launch with them
  };
  std::array<std::vector<KeptSet>, 2> kept;
  std::vector<const void*> bound;  // of the launch that is being enqueued
  size_t expansion = 0;
  bool uses_kernel = false;                   // else the expansion runs
  std::unique_ptr<std::byte*> chunk_signals;  // patched, then handed to `matmul`
  std::vector<Patch> patches;
};

}  // namespace tandem::runtime
