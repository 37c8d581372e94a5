#include "daemon/planner/problem/problem.h"

#include <algorithm>
#include <array>
#include <utility>

#include "common/op_tables.h"
#include "daemon/planner/problem/matmul_checks.h"
#include "daemon/planner/problem/norm_checks.h"
#include "daemon/planner/problem/operand_checks.h"
#include "program/text.h"

namespace tandem::plan {
namespace {

const TensorSpec& RequestSpec(const OpRequest& request, int slot) { return request.operands[slot].spec; }

bool Reduces(Op op) {
  return op == Op::kAllReduce || op == Op::kReduceScatter || op == Op::kReduce ||
         op == Op::kMatmulReduceScatter || op == Op::kMatmulAllReduce;
}

bool HasNorm(const OpRequest& request) {
  return std::any_of(request.operands.begin(), request.operands.end(),
                     [](const Operand& operand) { return operand.role == Role::kNormWeight; });
}

// Refuses a reduction that the operation does not take for any type.
Status CheckReduction(const OpRequest& request) {
  const ReduceOp op = request.reduce_op;
  if (!IsListed(op)) return FieldError("reduce_op", Text("must be one of ", ListedNames<ReduceOp>()));
  if (op == ReduceOp::kSum || op == ReduceOp::kAvg) return Status::Ok();
  if (IsFusedOp(request.op) || HasNorm(request)) {
    return FieldError("reduce_op",
                      Text(NameOf(op), " of ", HasNorm(request) ? "what a norm follows" : "products",
                           " is not offered; use sum or avg"));
  }
  return Status::Ok();
}

Status CheckAttributes(const OpRequest& request, int world_size) {
  if (!IsListed(request.op)) return FieldError("op", "unknown operation");
  if (!IsListed(request.algorithm)) return FieldError("algorithm", "unknown algorithm");
  TANDEM_RETURN_IF_ERROR(CheckReduction(request));
  if (!IsListed(request.wire)) return FieldError("wire", "must be output or f32");
  if (!IsListed(request.on_unfused)) return FieldError("on_unfused", "must be allow, warn or error");
  if (!IsListed(request.determinism)) return FieldError("determinism", "must be off, run or batch");
  if (!IsListed(request.rounding)) return FieldError("rounding", "must be once or model");
  if (!IsListed(request.placement)) return FieldError("placement", "must be auto, engine or client");
  if (request.lanes < 0 || request.lanes > kMaxLanes) {
    return FieldError("lanes", Text(request.lanes, " is not within 0 to ", kMaxLanes));
  }
  if (request.steps < 0 || request.steps % world_size != 0) {
    return FieldError("steps", Text(request.steps, " is no multiple of the world size ", world_size));
  }
  if (request.steps > 0 && request.algorithm != Algorithm::kAuto && request.algorithm != Algorithm::kRing) {
    return FieldError("steps",
                      Text("only the ring has steps; ", AlgorithmName(request.algorithm), " was asked for"));
  }
  // A piece has its own signal word: on its owner in matmul_reduce_scatter; at each hop around the ring in
  // all_gather_matmul. A few words are kept for the entry exchange.
  constexpr int kMaxPieces = kSignalsPerWriter - 32;
  const int hops = request.op == Op::kAllGatherMatmul ? std::max(1, world_size - 1) : 1;
  if (request.steps / world_size > kMaxPieces / hops) {
    return FieldError("steps", Text(request.steps, " are more than the ", kMaxPieces / hops * world_size,
                                    " for which there are signal words"));
  }
  if (request.op == Op::kBroadcast || request.op == Op::kReduce) {
    if (request.root < 0 || request.root >= world_size) {
      return FieldError("root", Text("rank ", request.root, " is not in a world of ", world_size));
    }
  }
  if (request.op != Op::kSendReceive && !request.transfers.empty()) {
    return FieldError("transfers", Text(OpName(request.op), " has no transfers"));
  }
  if (request.low_contention && request.op != Op::kAllGather && request.op != Op::kReduceScatter &&
      request.op != Op::kAllGatherMatmul && request.op != Op::kMatmulReduceScatter) {
    return FieldError("low_contention", Text(OpName(request.op), " has no algorithm by copy engines only"));
  }
  return Status::Ok();
}

// A launch in place that is cut off leaves neither its input nor its output.
Status CheckRestartable(const OpRequest& request) {
  if (!request.restartable) return Status::Ok();
  for (int slot = 0; slot < static_cast<int>(request.operands.size()); ++slot) {
    const int input = request.operands[static_cast<size_t>(slot)].alias_of;
    if (input < 0) continue;
    return FailedPrecondition(
               Text("a restartable plan cannot be in place: operand ", slot, " is in place with operand ",
                    input, "; give operand ", slot,
                    " memory of its own (alias_of -1), or leave restartable out and restore the operand "
                    "before a retry"))
        .WithDetail({.reason = "NOT_RESTARTABLE", .field = OperandField(slot, "alias_of")});
  }
  return Status::Ok();
}

// Dimension `dim` of `shape` counted from the front, for the operations that have one.
Result<int> FrontDim(int dim, const std::vector<int64_t>& shape) {
  const int dims = static_cast<int>(shape.size());
  if (dim < -dims || dim >= dims) {
    return FieldError("dim", Text(dim, " is out of range for ", dims, " dimensions"));
  }
  return dim < 0 ? dim + dims : dim;
}

Status CheckDivisible(int slot, const std::vector<int64_t>& shape, int dim, int world_size) {
  if (shape[dim] % world_size == 0) return Status::Ok();
  return FieldError(OperandField(slot, "shape"),
                    Text("extent ", shape[dim], " along dimension ", dim, " of ", ShapeText(shape),
                         " is not divisible by the world size ", world_size));
}

// Output's shape and dtype against what they must be.
Status CheckOutput(const OpRequest& request, int slot, DType dtype, const std::vector<int64_t>& shape) {
  const TensorSpec& spec = RequestSpec(request, slot);
  if (spec.dtype != dtype) {
    return FieldError(OperandField(slot, "dtype"),
                      Text("must be ", DTypeName(dtype), " like the input, not ", DTypeName(spec.dtype)));
  }
  if (spec.shape != shape) {
    return FieldError(OperandField(slot, "shape"),
                      Text("must be ", ShapeText(shape), ", not ", ShapeText(spec.shape)));
  }
  return Status::Ok();
}

Status FillCollective(Problem* problem) {
  const OpRequest& request = *problem->request;
  const Slots& slots = problem->slots;
  const TensorSpec& input = RequestSpec(request, slots.input);
  std::vector<int64_t> shape = input.shape;
  const bool by_dim =
      request.op == Op::kAllGather || request.op == Op::kReduceScatter || request.op == Op::kAllToAll;
  if (by_dim) {
    TANDEM_ASSIGN_OR_RETURN(problem->dim, FrontDim(request.dim, shape));
    if (request.op == Op::kAllGather) {
      shape[problem->dim] *= problem->world_size;
      if (!ElementCount(shape).ok())
        return FieldError(OperandField(slots.input, "shape"), "gathered shape overflows");
    } else {
      TANDEM_RETURN_IF_ERROR(CheckDivisible(slots.input, shape, problem->dim, problem->world_size));
      if (request.op == Op::kReduceScatter) shape[problem->dim] /= problem->world_size;
    }
  }
  TANDEM_RETURN_IF_ERROR(CheckOutput(request, slots.output, input.dtype, shape));
  if (Reduces(request.op) && !IsFloating(input.dtype)) {
    if (request.reduce_op == ReduceOp::kAvg) {
      return FieldError("reduce_op", Text("avg of ", DTypeName(input.dtype), " is not defined; use sum"));
    }
    if (request.wire == WireType::kF32) {
      return FieldError("wire",
                        Text("sums of ", DTypeName(input.dtype), " are exact; they cannot travel as f32"));
    }
  }
  if (Reduces(request.op) && IsFloating(input.dtype) && IsBitwise(request.reduce_op)) {
    return FieldError("reduce_op", Text(NameOf(request.reduce_op), " of ", DTypeName(input.dtype),
                                        " is not defined; bitwise reductions take integers"));
  }
  problem->wire = request.wire == WireType::kF32 ? DType::kF32 : input.dtype;
  const auto& largest = request.op == Op::kAllGather ? shape : input.shape;
  problem->message_bytes = static_cast<uint64_t>(*ElementCount(largest)) * DTypeBytes(input.dtype);
  return Status::Ok();
}

Status CheckTransfers(std::span<const OpRequest> requests, const GroupContext& group) {
  const int world = group.topology.size();
  for (const OpRequest& request : requests) {
    for (size_t i = 0; i < request.transfers.size(); ++i) {
      const Transfer& transfer = request.transfers[i];
      const auto field = [i](std::string_view member) { return Text("transfers[", i, "].", member); };
      if (transfer.peer < 0 || transfer.peer >= world) {
        return FieldError(field("peer"), Text("rank ", transfer.peer, " is not in a world of ", world));
      }
      if (transfer.slot < 0 || transfer.slot >= static_cast<int>(request.operands.size())) {
        return FieldError(field("slot"), Text("there is no slot ", transfer.slot));
      }
      const Role role = request.operands[transfer.slot].role;
      if (!transfer.send && role != Role::kOutput) {
        return FieldError(field("slot"), Text("slot ", transfer.slot, " receives but is no output"));
      }
      for (size_t k = 0; !transfer.send && k < i; ++k) {
        if (request.transfers[k].slot == transfer.slot && !request.transfers[k].send) {
          return FieldError(field("slot"), Text("slot ", transfer.slot, " receives twice"));
        }
      }
      for (size_t k = 0; k < request.transfers.size(); ++k) {
        // A slot that is sent while it receives would be read and written at once.
        if (!transfer.send && request.transfers[k].slot == transfer.slot && request.transfers[k].send) {
          return FieldError(field("slot"),
                            Text("slot ", transfer.slot, " is sent and received in one group"));
        }
      }
    }
  }
  return Status::Ok();
}

}  // namespace

std::string_view ScaleModeName(ScaleMode mode) {
  static constexpr std::array<std::string_view, 8> kNames = {
      "",         "tensor_wise",        "row_wise_sharded",      "row_wise_replicated",
      "row_wise", "block_wise_sharded", "block_wise_replicated", "block_wise"};
  return kNames[static_cast<size_t>(mode)];
}

bool IsBlockWise(ScaleMode mode) {
  return mode == ScaleMode::kBlockWiseSharded || mode == ScaleMode::kBlockWiseReplicated ||
         mode == ScaleMode::kBlockWise;
}

bool ScalesTravel(ScaleMode mode) {
  return mode == ScaleMode::kRowWiseSharded || mode == ScaleMode::kBlockWiseSharded;
}

bool AreScalesReplicated(ScaleMode mode) {
  return mode == ScaleMode::kRowWiseReplicated || mode == ScaleMode::kBlockWiseReplicated;
}

Status FieldError(std::string field, std::string_view message) {
  std::string text = Text(field, ": ", message);
  StatusDetail detail;
  detail.reason = "INVALID_FIELD";
  detail.field = std::move(field);
  return Status(Code::kInvalidArgument, std::move(text), std::move(detail));
}

View Problem::Slot(int rank, int slot) const {
  if (slot == PartSlot(requests[rank])) {
    const View whole = Slot(rank, slot == slots.input ? slots.output : slots.input);
    const int64_t length = requests[rank].operands[slot].spec.shape[dim];
    return Slice(whole, dim, rank * length, length);
  }
  const Operand& bound = requests[rank].operands[slot];
  const TensorSpec& spec = bound.spec;
  if (bound.alias_of >= 0) slot = bound.alias_of;  // checked: an alias's target is no alias
  View view;
  view.ref.space = Space::kOperand;
  view.ref.rank = static_cast<uint8_t>(rank);
  view.ref.slot = static_cast<uint16_t>(slot);
  view.dtype = spec.dtype;
  view.extent = spec.shape;
  view.stride = spec.strides.empty() ? ContiguousStrides(spec.shape) : spec.strides;
  return view;
}

bool Problem::one_scale_travels() const {
  return scale_mode == ScaleMode::kTensorWise && slots.scale_a >= 0 && world_size > 1 &&
         request->op == Op::kAllGatherMatmul;
}

bool Problem::last_dim() const { return dim == static_cast<int>(operand(slots.a).spec.shape.size()) - 1; }

bool Problem::first_dim() const {
  const std::vector<int64_t>& shape = operand(slots.a).spec.shape;
  return !last_dim() &&
         std::all_of(shape.begin(), shape.begin() + dim, [](int64_t extent) { return extent == 1; });
}

Result<Problem> MakeProblem(std::span<const OpRequest> requests, const GroupContext& group) {
  const int world = group.topology.size();
  if (world < 1 || world > kMaxWorldSize) {
    return FieldError("world_size", Text(world, " is not within 1 to ", kMaxWorldSize));
  }
  if (static_cast<int>(requests.size()) != world) {
    return FieldError("world_size", Text(requests.size(), " requests for a group of ", world, " ranks"));
  }
  Problem problem;
  problem.requests = requests;
  problem.request = &requests[0];
  problem.group = &group;
  problem.topology_class = Classify(group.topology);
  problem.world_size = world;
  if (requests[0].reduce_op == ReduceOp::kAvg) {
    problem.mean = 1.0f / static_cast<float>(world);
  } else {
    problem.combine = requests[0].reduce_op;
  }
  const bool own_operands =
      requests[0].op == Op::kSendReceive;  // elsewhere operands agree: checking one checks all
  for (int rank = 0; rank < (own_operands ? world : 1); ++rank) {
    const auto for_rank = [&](const Status& status) {
      return own_operands && !status.ok() ? status.WithContext(Text("rank ", rank)) : status;
    };
    TANDEM_RETURN_IF_ERROR(for_rank(CheckAttributes(requests[rank], world)));
    TANDEM_RETURN_IF_ERROR(for_rank(CheckRestartable(requests[rank])));
    TANDEM_RETURN_IF_ERROR(for_rank(CheckOperands(requests[rank])));
    auto slots = FindSlots(requests[rank]);
    if (!slots.ok()) return for_rank(slots.status());
    if (rank == 0) problem.slots = *std::move(slots);
  }
  switch (problem.request->op) {
    case Op::kBarrier:
    case Op::kEmpty: break;
    case Op::kSendReceive: TANDEM_RETURN_IF_ERROR(CheckTransfers(requests, group)); break;
    case Op::kAllGatherMatmul:
    case Op::kMatmulReduceScatter:
    case Op::kMatmulAllReduce:
    case Op::kAsyncInputMatmul: TANDEM_RETURN_IF_ERROR(FillMatmul(&problem)); break;
    default: TANDEM_RETURN_IF_ERROR(FillCollective(&problem)); break;
  }
  TANDEM_RETURN_IF_ERROR(CheckNorm(problem));
  return problem;
}

}  // namespace tandem::plan
