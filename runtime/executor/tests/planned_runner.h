// File: planned_runner.h
//
// Runs one operation as the planner plans it on a group of ranks, several launches back to back, and compares
// the outputs with a plain reference bit by bit. Values are small integers, so that results are exact in any
// order of summation.
#pragma once

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "runtime/executor/tests/test_machine.h"
#include "tandem/op_request.h"

namespace tandem::runtime {

using Values = std::vector<double>;
// By rank, then by slot: the elements in row-major order.
using Tensors = std::vector<std::vector<Values>>;

struct Case {
  std::string name;
  // The request of `rank` in a group of `world_size`.
  std::function<OpRequest(int rank, int world_size)> request;
  // The expected outputs from the inputs: sets the slots that are outputs.
  std::function<void(int world_size, Tensors& tensors)> compute;
  std::vector<int> output_slots;
  std::vector<int> world_sizes = {1, 2, 3, 4, 8};
  bool cube_mesh = false;
  bool fused_kernels = false;   // the planner may use them; emulated GPUs run their steps
  bool packet_kernels = false;  // the same
  int shift = 0;                // elements that every operand lies off an aligned place
};

// The most ranks of a test. Eight have no step that four have not, and are most of a sanitized run's time.
inline int MostPlannedRanks() {
#ifdef TANDEM_SANITIZED
  return std::min(4, MostRanks());
#else
  return MostRanks();
#endif
}

// Plans, launches and compares `test`; failures are GoogleTest's. `queues` and `delay_us` are of emulated
// GPUs.
void RunPlanned(const Case& test, int world_size, int queues, int delay_us);

}  // namespace tandem::runtime
