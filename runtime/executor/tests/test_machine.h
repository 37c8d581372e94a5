// File: test_machine.h
//
// The machine of the executor's tests: backends, memory that all ranks map, words of the host, communicators.
// One on emulated GPUs (MakeHostMachine), one on real ones (tests/gpu).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "kernels/backend.h"
#include "program/program.h"

namespace tandem::runtime {

// Memory of one rank: its address as each rank maps it.
struct SharedMemory {
  std::array<std::byte*, plan::kMaxWorldSize> at{};
};

class TestMachine {
 public:
  virtual ~TestMachine() = default;
  virtual Backend& backend(int rank) = 0;
  // Zeroed memory of `rank`, aligned to 256 bytes, until Reset or the machine's end.
  virtual SharedMemory Allocate(int rank, size_t bytes) = 0;
  // A zeroed word of the host that lanes of all ranks can write.
  virtual Word* AllocateWord() = 0;
  // The communicator of `rank` in the group of ranks [0, world_size).
  virtual Communicator* GetCommunicator(int rank, int world_size) = 0;
  // Copies between the test's own memory and a rank's; no lane may be using it.
  virtual void Upload(const SharedMemory& to, int rank, const void* from, size_t bytes) = 0;
  virtual void Download(void* to, const SharedMemory& from, int rank, size_t bytes) = 0;
  // True where launches of the ranks must be made by a thread each, as engines make them: NCCL waits for the
  // peers'.
  virtual bool launches_in_parallel() const { return false; }
  // Takes all memory back; lanes have ended.
  virtual void Reset() {}
};

struct HostMachineOptions {
  int world_size = 1;
  int hardware_queues = 2;
  int visibility_delay_us = 0;
  uint64_t seed = 1;
};
std::unique_ptr<TestMachine> MakeHostMachine(const HostMachineOptions& options);

// The machine that all groups of this test program share, or null where each group makes a separate host
// machine. A test program defines both functions.
TestMachine* SharedMachine();
// The most ranks that SharedMachine has.
int MostRanks();

}  // namespace tandem::runtime
