// File: cost_model.h
//
// Predicted times of algorithms: latency plus bytes over bandwidth, and the matmul's time by its flops and
// its bytes. The built-in figures are medians measured on 8 GPUs with NVSwitch and rough figures for other
// classes; the group's own figures replace them. Predictions rank algorithms and are shown in plans;
// thresholds, where they exist, decide.
#pragma once

#include <string>

#include "daemon/planner/problem/problem.h"

namespace tandem::plan {

// The machine's figures for one problem.
struct MachineModel {
  double link_gbps = 0;  // one GPU to all its peers together
  double memory_gbps = 0;
  double tflops = 0;  // of A's dtype
  // The same of products that are no fused kernel's: less where cuBLASLt refuses them.
  double product_tflops = 0;
  double step_latency_us = 0;  // signal → wait
  double nccl_latency_us = 0;  // of one small collective
  double launch_us = 0;        // of one kernel or copy
};

// The GPUs that predicted times are of, for people: "model of H100 and H200 GPUs", and that the group's GPUs
// are others where they are: emulated ones, or of another model.
std::string PredictionModel(const Topology& topology, bool emulated);

// The hand-over of a launch to an engine and back (bench/figures/launches.md). Measured times contain it.
inline constexpr double kHandOverUs = 12;
// The same with the engine's call for a second kernel, of a product and a collective one after the other.
// From one shape: 154x5120x4096 in bf16 on two H100s, where the product took 22 us and the model says 15.
inline constexpr double kHandOverOfTwoUs = 17;
// A launch's wait for the client's time slice where both processes run kernels and share no MPS server
// (bench/figures/launches.md).
inline constexpr double kTurnUs = 290;
// Whether predicted times of `op` contain the hand-over: those of products whose figures were measured with
// it. Never in plans for the client (Problem::in_client).
bool PredictsHandOver(Op op, const GroupContext& group);

MachineModel ModelOf(const Problem& problem);

// Predicted microseconds of `algorithm` for `problem`, for one that can run. `collective`: beside a product
// that it does not overlap with (matmul_collective.h).
double PredictUs(const Problem& problem, Algorithm algorithm, Algorithm collective = Algorithm::kAuto);

}  // namespace tandem::plan
