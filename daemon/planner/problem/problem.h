// File: problem.h
//
// `Problem`: a validated request in the words of the planner: which slot plays which role, the dimension
// counted from the front, the matmul's extents, the scale mode, the type in which partial sums travel.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "daemon/planner/types/operation_plan.h"
#include "program/views.h"
#include "tandem/op_request.h"

namespace tandem::plan {

enum class ScaleMode : uint8_t {
  kNone,
  kTensorWise,
  kRowWiseSharded,
  kRowWiseReplicated,
  kRowWise,
  kBlockWiseSharded,
  kBlockWiseReplicated,
  kBlockWise
};
// "", "tensor_wise", "row_wise_sharded", "row_wise_replicated", "row_wise" (each rank has its own whole A);
// the same of "block_wise".
std::string_view ScaleModeName(ScaleMode mode);
// One factor for each row and kScaleBlock elements of K.
bool IsBlockWise(ScaleMode mode);
// Each rank has scales of rows or blocks only for its shard of A. See Problem::scales_travel, too.
bool ScalesTravel(ScaleMode mode);
// Each rank has the scales of the whole gathered A.
bool AreScalesReplicated(ScaleMode mode);

// Slots by role; -1 or empty where the request has none.
struct Slots {
  int input = -1, output = -1, a = -1, gathered_a = -1, scale_a = -1, chunk_signals = -1;
  int norm_weight = -1, residual = -1, residual_output = -1;
  int quantized_output = -1, static_scale = -1, scale_output = -1;
  std::vector<int> b, c, scale_b, bias, result_scale;
};

struct Problem {
  std::span<const OpRequest> requests;
  const OpRequest* request = nullptr;  // rank 0's, which stands for all where they must agree
  const GroupContext* group = nullptr;
  TopologyClass topology_class = TopologyClass::kSingle;
  int world_size = 1;
  int dim = 0;  // from the front
  Slots slots;
  ScaleMode scale_mode = ScaleMode::kNone;
  DType wire = DType::kF32;           // of travelling partial sums
  float mean = 1.0f;                  // factor of the sum: 1, or 1 / W for an average
  ReduceOp combine = ReduceOp::kSum;  // of the steps: an average is a sum with a factor

  // The whole product, rows × n × k over all of A (gathered) and B; n is the sum over all B. 0 without a
  // matmul.
  int64_t rows = 0, n = 0, k = 0;
  // The size that the thresholds apply to: the whole message, in bytes. All-reduce, broadcast, reduce: the
  // tensor. All-gather and its matmul: the gathered tensor. Reduce-scatter, all-to-all: the input. Matmul +
  // reduction: the whole product in its wire type.
  uint64_t message_bytes = 0;

  const Operand& operand(int slot) const { return request->operands[slot]; }
  // Its plan is to run on the ranks' own streams.
  bool in_client() const { return AskedPlacement(*request, *group) == PlanPlacement::kClient; }
  bool symmetric(int slot) const { return slot >= 0 && request->operands[slot].symmetric; }
  // The operand of slot `slot` in `rank`'s memory; of an alias, the slot that it lies on; of a PartSlot, this
  // rank's part.
  View Slot(int rank, int slot) const;
  // Each rank has scales only for its shard of A, one or several: they are gathered with it.
  bool scales_travel() const { return ScalesTravel(scale_mode) || one_scale_travels(); }
  // Each rank's shard of A has one separate scale.
  bool one_scale_travels() const;
  // The product's dimension `dim` is the last one of A (a gather along K) or of C (a scatter of B's columns).
  bool last_dim() const;
  // It cuts A into ranges of rows: no dimension before it has several elements, and it is not the last.
  bool first_dim() const;
};

// Checks every field of every request and fills a Problem. INVALID_ARGUMENT names the field in its message
// and detail.
Result<Problem> MakeProblem(std::span<const OpRequest> requests, const GroupContext& group);

// An INVALID_ARGUMENT about one field: "operands[2].shape: must have 2 dimensions".
Status FieldError(std::string field, std::string_view message);

}  // namespace tandem::plan
