// File: client_staging.h
//
// `ClientStaging`: fused matmuls on operands that their kernels cannot address. TMA reads and writes memory
// that is aligned to 16 bytes. An operand that lies elsewhere is copied to memory that is aligned, before the
// kernels, and an output back, behind them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "program/program.h"
#include "runtime/executor/executor.h"
#include "tandem/status.h"

namespace tandem::client {

struct StagingCopy {
  std::byte* to = nullptr;
  const std::byte* from = nullptr;
  size_t bytes = 0;
};

// Thread rule: one thread at a time. Launches that use it must follow one another on the GPU.
class ClientStaging {
 public:
  // `program`: of a fused matmul. Only the slots count that hold tensors of the kernel.
  ClientStaging(const plan::RankProgram& program, std::span<const runtime::SlotLimit> slots);

  struct Staged {
    std::vector<runtime::SlotAddress> slots;  // to bind the kernels to
    std::vector<StagingCopy> before, after;
  };
  using Allocate = std::function<Result<std::shared_ptr<std::byte>>(size_t bytes)>;
  // Copies for a launch with operands at `slots`. Memory is allocated when a slot needs it first, and kept.
  // UNIMPLEMENTED: peers write to a symmetric output, so no copy can stand for it.
  Result<Staged> PreparedFor(std::span<const runtime::SlotAddress> slots, const Allocate& allocate);

 private:
  struct Slot {
    uint64_t bytes = 0;
    bool symmetric = false;
    bool in_kernel = false, is_written = false;
    std::shared_ptr<std::byte> copy;  // null until it is needed
  };
  std::vector<Slot> slots_;
};

}  // namespace tandem::client
