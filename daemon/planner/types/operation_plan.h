// File: operation_plan.h
//
// The planner's types: facts about a group, the plan of an operation, and facts about operations and
// algorithms that hold for every problem.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/planner/types/row_table.h"
#include "daemon/topology/topology.h"
#include "program/program.h"
#include "tandem/op_request.h"
#include "tandem/status.h"

namespace tandem::plan {

// Programs that need more workspace than this use the group's bulk area.
inline constexpr uint64_t kMaxWorkspaceBytes = uint64_t{32} << 20;

class TuningTable;

using tandem::PlanPlacement;

// The kernels that a client launches on its own stream.
enum class ClientKernels : uint8_t {
  kAll = 0,          // of the host backend: a function that runs any program of one kernel
  kCollectives = 1,  // CUDA: collectives and products of few rows, each alone; engines number the others
  kProducts = 2,     // CUDA: also products by cuBLASLt, copies and sums before and behind the collective
  kFused = 3,        // CUDA: also fused matmuls of many rows
};

// "auto", "engine" or "client", and back: INVALID_ARGUMENT for other names.
std::string_view PlacementName(PlanPlacement placement);
Result<PlanPlacement> ParsePlacement(std::string_view name);

// The planner's assumptions about the engines of a group.
struct GroupContext {
  Topology topology;           // of the group's GPUs in rank order; its size is the world size
  bool fused_kernels = false;  // every engine can run kFused
  std::string no_fused_kernels =
      "needs the CUDA backend's fused kernels (Hopper)";  // why not, where fused_kernels is false
  bool fused_by_choice = false;  // kAuto may become kFused; else kFused runs when a request names it
  bool packet_kernels = false;   // CUDA: kLowLatency can run
  bool dense_packets = true;     // every client can run CollectiveStep::dense; read with packet_kernels
  bool nccl = true;              // NCCL or its stand-in can be used
  std::string no_nccl = "NCCL is not available";  // why not, where nccl is false
  // Each GPU bounds the SMs of a kernel that waits for peers: the smallest of these bounds; 0: no bound.
  int kernel_sms = 0;
  // Bandwidths and latencies of the cost model; defaults are the built-in table for the topology's class.
  double link_gbps = 0;  // GB/s a GPU sends to its peers; 0: built in
  double memory_gbps = 0;
  double tflops = 0;           // of the request's dtype
  double step_latency_us = 0;  // of one signal → wait
  // Measured times, which go before thresholds and predictions; null: none. It outlives the planner's calls.
  const TuningTable* tuning = nullptr;
  std::string gpu_model;  // the table's name for these GPUs; empty: no table holds for them
  // kClient: the client must be able to run the plan. With algorithm kAuto the planner takes the fastest such
  // algorithm. MakePlan refuses any other algorithm that the client cannot run. A request's own placement
  // goes before this one.
  PlanPlacement placement = PlanPlacement::kAuto;
  ClientKernels client_kernels = ClientKernels::kAll;
  Determinism determinism = Determinism::kOff;  // what all plans of the group keep at least
  std::string no_client_plans;                  // why no plan may run in the clients; empty: plans may
  // The kernels of some rank's client and engine take turns, since both share no MPS server.
  bool kernels_take_turns = false;
};

// The placement that `request` asks for in this group.
inline PlanPlacement AskedPlacement(const OpRequest& request, const GroupContext& group) {
  return request.placement == PlanPlacement::kAuto ? group.placement : request.placement;
}

struct RefusedAlgorithm {
  Algorithm algorithm = Algorithm::kAuto;
  // "2.5 MiB is above its bound of 256 KiB", "needs a hybrid cube mesh; this group is nvswitch".
  std::string reason;
  double predicted_us = 0;  // 0 when it cannot run at all
  double measured_us = 0;   // 0 when the tuning table has no time of it
};

// The answer to a request: the same on all ranks but for `programs`.
struct OperationPlan {
  Op op = Op::kBarrier;
  Algorithm algorithm = Algorithm::kAuto;
  Algorithm collective = Algorithm::kAuto;  // beside a product that it does not overlap with
  std::string reason;                       // why this algorithm
  std::vector<RefusedAlgorithm> refused;    // the operation's other algorithms, and why not
  bool fused = true;                        // false: the unfused composition of a fused operation
  int steps = 0;                            // ring's S, pipeline's chunks; 0 where it means nothing
  int lanes = 1;
  std::string summary;          // op, shapes and dtype in one line
  std::string scale_mode;       // ScaleModeName
  std::string wire_type;        // dtype in which partial sums travel; "" if none do
  std::string reduction_order;  // "rank order, fp32", "rank order, i64" …; "" if nothing is reduced
  int roundings = 0;            // of one output element, the last included; 0 of integers
  bool deterministic = true;
  Determinism determinism = Determinism::kOff;  // what the plan keeps
  std::string rounding;                         // of a norm behind a sum with a residual; "": none
  std::string norm;                             // which kernel norms, and why; "": no norm
  uint64_t workspace_bytes = 0;                 // one half, one rank
  uint64_t bulk_bytes = 0;
  uint64_t bytes_moved = 0;       // over links, sent by one rank
  uint64_t gathered_a_bytes = 0;  // copied out or gathered in workspace, not in place
  double predicted_us = 0;
  double measured_us = 0;                            // what the tuning table has; 0: not chosen by it
  PlanPlacement placement = PlanPlacement::kEngine;  // kEngine or kClient
  std::string placement_reason;       // of an engine's plan also whether the client could run it
  std::vector<std::string> warnings;  // on_unfused = warn, slow placement, …
  RowTable rows;  // of a family, whose bound the other fields describe; max_rows 0: a plan of one shape
  std::vector<RankProgram> programs;  // index is the rank
};

// The algorithms that an operation has, in the order in which they are explained.
std::vector<Algorithm> AlgorithmsOf(Op op);

// True for algorithms that are measured on request only: they win so few measurements that trying them
// everywhere costs more than it gains. A request or `tandemctl tune --candidates` may name them.
bool MeasuredOnRequestOnly(Algorithm algorithm);

// True for matmul with communication, for which kUnfused exists.
bool IsFusedOp(Op op);

// False for algorithms of a matmul with communication whose product and communication come one after the
// other.
bool Overlaps(Algorithm algorithm);

}  // namespace tandem::plan
