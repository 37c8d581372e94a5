// File: bounds.h
//
// `Bounds`: up to which size of the message an algorithm is preferred, in bytes, inclusive.
#pragma once

#include <cstdint>

#include "daemon/planner/problem/problem.h"

namespace tandem::plan {

struct Bounds {
  uint64_t low_latency = 0;  // 0: never unasked
  uint64_t one_shot = 0, two_shot = 0;
  uint64_t sm = 0;
  bool measured = false;  // else the seeds' (choice.h)
};

// Those measured for the operation, or else the built-in ones. `packet_kernels`: of the CUDA backend.
// Measured are all-reduce, all-gather and reduce-scatter on CUDA behind NVSwitches, on 2 and 4 GPUs:
// bench/results/gpu-2xH200.jsonl, gpu-4xH200.jsonl.
// `dense`: its packets are dense.
Bounds BoundsOf(Op op, int world_size, TopologyClass topology, bool packet_kernels, bool dense);
Bounds BoundsOf(const Problem& problem);

// The algorithm that was faster than `collective`'s own choice where a product stands before or behind it.
// kAuto: none was faster on four GPUs (bench/results/gpu-4xH200.jsonl).
Algorithm FasterBesideProduct(const Problem& collective);

}  // namespace tandem::plan
