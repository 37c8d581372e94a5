// File: operation.h
//
// `CompiledProgram::Operation`: one call on a lane, as Compile writes it and Enqueue runs it. Its address
// stays, since patches point into it. Internal to the executor.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <variant>
#include <vector>

#include "runtime/executor/executor.h"

namespace tandem::runtime {

struct CompiledProgram::Operation {
  // A word of a rank's signal area.
  struct SignalWord {
    uint8_t rank = 0;
    uint32_t word = 0;
  };
  struct Nop {};
  struct Signal : SignalWord {};      // writes the launch number
  struct WaitSignal : SignalWord {};  // waits for the launch number, in the own area
  struct WaitEvent {
    uint16_t lane = 0;
    int event = 0;
  };
  struct RecordEvent {  // of the own lane
    int event = 0;
  };
  // One kernel; the next `expansion` operations do the same step by step.
  struct Kernel {
    struct WordPatch : SignalWord {
      Word** target;  // inside `args`
    };
    // A product has sets of addresses that it was launched with lately, by the launch number's parity, and
    // what the backend keeps for each. A model's layers may share one plan, each with its own operands.
    struct PreparedSet {
      std::vector<const void*> bound;
      std::unique_ptr<PreparedWork> prepared;
      uint64_t used = 0;  // the launch number of the last launch with them
    };
    CollectiveArgs args;
    std::vector<WordPatch> words;
    std::array<std::vector<PreparedSet>, 2> kept;
    std::vector<const void*> bound;  // of the launch that is being enqueued
    size_t expansion = 0;
    bool runs = false;  // else the expansion does
  };
  using Work = std::variant<Nop, CopyArgs, MatmulArgs, ReduceArgs, NormArgs, NcclArgs, Kernel, Signal,
                            WaitSignal, WaitEvent, RecordEvent>;

  uint16_t lane = 0;
  uint32_t step = 0;  // of the plan::RankProgram
  bool starts_step = false;
  bool ends_step = false;
  // Views lie with null addresses until a launch sets them.
  Work work;
  std::vector<Patch> patches;  // into `work`

  template <class Kind>
  Kind* As() {
    return std::get_if<Kind>(&work);
  }
  template <class Kind>
  const Kind* As() const {
    return std::get_if<Kind>(&work);
  }
  // The kernel, if it runs in place of its expansion; else null.
  const Kernel* RunningKernel() const {
    const auto* kernel = As<Kernel>();
    return kernel != nullptr && kernel->runs ? kernel : nullptr;
  }
};

}  // namespace tandem::runtime
