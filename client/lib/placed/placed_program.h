// File: placed_program.h
//
// `PlacedProgram`: a rank program that runs in the client, checked against the memory that it may touch.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "client/lib/placed/placed_lane.h"
#include "engine/executor/executor.h"
#include "program/program.h"
#include "tandem/status.h"

namespace tandem::client {

// The shared memory of a group's client-placed plans, by rank, as mapped in this process. Bytes.
struct PlacedMemory {
  std::array<Word*, plan::kMaxWorldSize> signals{};
  std::array<std::byte*, plan::kMaxWorldSize> workspace{};  // half 0; half 1 lies `half_bytes` behind it
  std::array<std::byte*, plan::kMaxWorldSize> bulk{};
  uint64_t half_bytes = 0;
  uint64_t bulk_bytes = 0;
  uint64_t signal_bytes = 0;          // of each rank's signals
  std::shared_ptr<void> own_signals;  // keeps this rank's signals mapped
};

// Thread rule: one thread at a time.
class PlacedProgram {
 public:
  // INVALID_ARGUMENT or OUT_OF_RANGE: the program touches what it may not. UNIMPLEMENTED: it needs an engine.
  // `lane`: null for a PlacedLane; tests plant mistakes with another.
  static Result<std::unique_ptr<PlacedProgram>> Make(const plan::RankProgram& program,
                                                     std::vector<engine::SlotLimit> slots,
                                                     const PlacedMemory& memory,
                                                     std::unique_ptr<PlacedLane> lane = nullptr);

  // Runs launch `launch`; sets its `own_words`. Half number & 1 of the workspace is the launch's.
  // The errors of PlacedLane. After an error nothing more of the launch is published.
  Status Run(PlacedLaunch launch, std::span<const engine::SlotAddress> slots);

 private:
  PlacedProgram(const PlacedMemory& memory, int rank, std::unique_ptr<PlacedLane> lane)
      : memory_(memory), rank_(rank), lane_(std::move(lane)), executor_(nullptr, {lane_.get()}) {}

  const PlacedMemory memory_;
  const int rank_;
  const std::unique_ptr<PlacedLane> lane_;
  engine::Executor executor_;
  std::unique_ptr<engine::CompiledProgram> program_;
};

}  // namespace tandem::client
