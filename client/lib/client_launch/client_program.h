// File: client_program.h
//
// `ClientProgram`: a rank program that runs in the client, checked against the memory that it may touch.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "client/lib/client_launch/client_lane.h"
#include "program/program.h"
#include "runtime/executor/executor.h"
#include "tandem/status.h"

namespace tandem::client {

// The shared memory of a group's client-placed plans, by rank, as mapped in this process. Bytes.
struct ClientLaunchMemory {
  std::array<Word*, plan::kMaxWorldSize> signals{};
  std::array<std::byte*, plan::kMaxWorldSize> workspace{};  // half 0; half 1 lies `half_bytes` behind it
  std::array<std::byte*, plan::kMaxWorldSize> bulk{};
  uint64_t half_bytes = 0;
  uint64_t bulk_bytes = 0;
  uint64_t signal_bytes = 0;          // of each rank's signals
  std::shared_ptr<void> own_signals;  // keeps this rank's signals mapped
};

// Thread rule: one thread at a time.
class ClientProgram {
 public:
  // INVALID_ARGUMENT or OUT_OF_RANGE: the program touches what it may not. UNIMPLEMENTED: it needs an engine.
  // `lane`: null for a ClientLane; tests plant mistakes with another.
  static Result<std::unique_ptr<ClientProgram>> Make(const plan::RankProgram& program,
                                                     std::vector<runtime::SlotLimit> slots,
                                                     const ClientLaunchMemory& memory,
                                                     std::unique_ptr<ClientLane> lane = nullptr);

  // Runs launch `launch`; sets its `own_words`. Half number & 1 of the workspace is the launch's.
  // The errors of ClientLane. After an error nothing more of the launch is published.
  Status Run(ClientLaunch launch, std::span<const runtime::SlotAddress> slots);

 private:
  ClientProgram(const ClientLaunchMemory& memory, int rank, std::unique_ptr<ClientLane> lane)
      : memory_(memory), rank_(rank), lane_(std::move(lane)), executor_(nullptr, {lane_.get()}) {}

  const ClientLaunchMemory memory_;
  const int rank_;
  const std::unique_ptr<ClientLane> lane_;
  runtime::Executor executor_;
  std::unique_ptr<runtime::CompiledProgram> program_;
};

}  // namespace tandem::client
