#include "client/nccl/call.h"

namespace tandem::nccl {
namespace {

// As many as one call of Tandem has at most.
constexpr size_t kMaxElements = size_t{1} << 28;

// Integers of one size have the same sums and products modulo that size, signed or not.
int ReducedType(ncclDataType_t type, ncclRedOp_t reduction) {
  const bool wraps = reduction == ncclSum || reduction == ncclProd;
  switch (type) {
    case ncclFloat32: return TANDEM_DTYPE_F32;
    case ncclFloat16: return TANDEM_DTYPE_F16;
    case ncclBfloat16: return TANDEM_DTYPE_BF16;
    case ncclInt32: return reduction == ncclAvg ? -1 : TANDEM_DTYPE_I32;
    case ncclInt64: return reduction == ncclAvg ? -1 : TANDEM_DTYPE_I64;
    case ncclUint8: return reduction == ncclAvg ? -1 : TANDEM_DTYPE_U8;
    case ncclInt8: return wraps ? TANDEM_DTYPE_U8 : -1;
    case ncclUint32: return wraps ? TANDEM_DTYPE_I32 : -1;
    case ncclUint64: return wraps ? TANDEM_DTYPE_I64 : -1;
    default: return -1;
  }
}

int MovedType(ncclDataType_t type) {
  switch (BytesOf(type)) {
    case 1: return TANDEM_DTYPE_U8;
    case 2: return TANDEM_DTYPE_BF16;
    case 4: return TANDEM_DTYPE_I32;
    default: return TANDEM_DTYPE_I64;
  }
}

int OperationOf(NcclCollective op) {
  switch (op) {
    case NcclCollective::kAllReduce: return TANDEM_OP_ALL_REDUCE;
    case NcclCollective::kAllGather: return TANDEM_OP_ALL_GATHER;
    case NcclCollective::kReduceScatter: return TANDEM_OP_REDUCE_SCATTER;
    case NcclCollective::kAllToAll: return TANDEM_OP_ALL_TO_ALL;
    case NcclCollective::kBroadcast: return TANDEM_OP_BROADCAST;
    case NcclCollective::kReduce: return TANDEM_OP_REDUCE;
  }
  return 0;
}

int ReductionOf(ncclRedOp_t reduction) {
  switch (reduction) {
    case ncclProd: return TANDEM_REDUCE_PRODUCT;
    case ncclMax: return TANDEM_REDUCE_MAX;
    case ncclMin: return TANDEM_REDUCE_MIN;
    case ncclAvg: return TANDEM_REDUCE_AVG;
    default: return TANDEM_REDUCE_SUM;
  }
}

}  // namespace

const char* NameOf(NcclCollective op) {
  switch (op) {
    case NcclCollective::kAllReduce: return "all_reduce";
    case NcclCollective::kAllGather: return "all_gather";
    case NcclCollective::kReduceScatter: return "reduce_scatter";
    case NcclCollective::kAllToAll: return "all_to_all";
    case NcclCollective::kBroadcast: return "broadcast";
    case NcclCollective::kReduce: return "reduce";
  }
  return "";
}

bool Reduces(NcclCollective op) {
  return op == NcclCollective::kAllReduce || op == NcclCollective::kReduceScatter ||
         op == NcclCollective::kReduce;
}

size_t BytesOf(ncclDataType_t type) {
  switch (type) {
    case ncclInt8:
    case ncclUint8:
    case ncclFloat8e4m3:
    case ncclFloat8e5m2: return 1;
    case ncclFloat16:
    case ncclBfloat16: return 2;
    case ncclInt32:
    case ncclUint32:
    case ncclFloat32: return 4;
    case ncclInt64:
    case ncclUint64:
    case ncclFloat64: return 8;
    default: return 0;
  }
}

const char* WhyNot(const NcclCall& call) {
  if (call.count == 0) return "it has no elements";
  if (call.count > kMaxElements) return "it has more elements than one of Tandem's calls";
  if (BytesOf(call.type) == 0) return "Tandem does not know its type";
  if (call.op == NcclCollective::kAllToAll && call.send == call.receive) return "it exchanges in place";
  if (!Reduces(call.op)) return nullptr;
  if (call.reduction < ncclSum || call.reduction > ncclAvg) return "the reduction is the program's own";
  if (ReducedType(call.type, call.reduction) < 0) return "Tandem does not reduce its type so";
  return nullptr;
}

void Describe(const NcclCall& call, tandem_collective* collective) {
  collective->op = OperationOf(call.op);
  collective->dtype = Reduces(call.op) ? ReducedType(call.type, call.reduction) : MovedType(call.type);
  collective->input = call.send;
  collective->output = call.receive;
  collective->count = call.count;
  collective->reduce_op = Reduces(call.op) ? ReductionOf(call.reduction) : TANDEM_REDUCE_SUM;
  collective->root =
      call.op == NcclCollective::kBroadcast || call.op == NcclCollective::kReduce ? call.root : 0;
}

uint64_t BytesOf(const NcclCall& call, int ranks) {
  const uint64_t part = call.count * BytesOf(call.type);
  const bool whole = call.op == NcclCollective::kAllGather || call.op == NcclCollective::kReduceScatter ||
                     call.op == NcclCollective::kAllToAll;
  return whole ? part * static_cast<uint64_t>(ranks) : part;
}

}  // namespace tandem::nccl
