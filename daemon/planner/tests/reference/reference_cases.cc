#include "daemon/planner/tests/reference/reference_cases.h"

#include "common/op_tables.h"

namespace tandem::plan {
namespace {

using Shape = std::vector<int64_t>;

// Strides of a tensor whose last two dimensions are stored the other way round.
Shape Transposed(const Shape& shape) {
  Shape swapped = shape;
  std::swap(swapped[shape.size() - 1], swapped[shape.size() - 2]);
  Shape strides = ContiguousStrides(swapped);
  std::swap(strides[shape.size() - 1], strides[shape.size() - 2]);
  return strides;
}

// Strides with a gap after every dimension: no two of them join, and none is dense.
Shape Gapped(const Shape& shape) {
  Shape strides(shape.size());
  int64_t next = 2;
  for (size_t d = shape.size(); d-- > 0;) {
    strides[d] = next;
    next *= shape[d] + 1;
  }
  return strides;
}

class Cases {
 public:
  explicit Cases(int world) : world_(world), group_(ReferenceSwitchGroup(world)) {}

  std::vector<Case> Run() {
    Reductions();
    for (const auto& [name, request] : ReductionRequests(world_)) Add(name, request);
    for (const auto& [name, request] : NormRequests()) Add(name, request);
    Exchanges();
    Rooted();
    GatherMatmuls();
    ReducedMatmuls();
    // Long sums, and views of many rows: a few worlds show as much as all.
    if (world_ < 4) {
      EightDims();
      BlockScaledGathers();
      BlockScaledReductions();
      UnevenRows();
    }
    Rest();
    return std::move(cases_);
  }

 private:
  void Add(const std::string& name, const OpRequest& request) {
    for (Algorithm algorithm : AlgorithmsOf(request.op)) {
      if (algorithm == Algorithm::kLowLatency || algorithm == Algorithm::kFused) continue;
      if (algorithm == Algorithm::kNccl && IsBitwise(request.reduce_op)) continue;
      if (request.steps != 0 && algorithm != Algorithm::kRing) continue;
      if (request.lanes > 0 && algorithm != Algorithm::kRing && algorithm != Algorithm::kPipeline) continue;
      const bool mesh = algorithm == Algorithm::kHybridCubeMesh;
      if (mesh && world_ != 8) continue;
      OpRequest asked = request;
      asked.algorithm = algorithm;
      AddExact(name + " " + std::string(AlgorithmName(algorithm)), std::vector<OpRequest>(world_, asked),
               mesh ? ReferenceMeshGroup() : group_);
    }
  }
  void AddExact(const std::string& name, std::vector<OpRequest> requests, const GroupContext& group) {
    cases_.push_back({std::string(OpName(requests[0].op)) + " W" + std::to_string(world_) + " " + name,
                      std::move(requests), group});
  }

  void Reductions() {
    for (int64_t count : {0, 1, 7, 37}) {
      for (bool symmetric : {false, true}) {
        OpRequest r;
        r.op = Op::kAllReduce;
        r.operands = {MakeOperand(Role::kInput, DType::kF32, {count}, symmetric),
                      MakeOperand(Role::kOutput, DType::kF32, {count}, symmetric)};
        Add("n" + std::to_string(count) + (symmetric ? " sym" : ""), r);
        r.operands[1].alias_of = 0;
        r.reduce_op = ReduceOp::kAvg;
        Add("in place avg n" + std::to_string(count) + (symmetric ? " sym" : ""), r);
      }
    }
    for (DType dtype : {DType::kBf16, DType::kF16, DType::kI32, DType::kU8, DType::kF8E5M2}) {
      for (WireType wire : {WireType::kOutput, WireType::kF32}) {
        if (!IsFloating(dtype) && wire == WireType::kF32) continue;
        OpRequest r;
        r.op = Op::kAllReduce;
        r.wire = wire;
        r.operands = {MakeOperand(Role::kInput, dtype, {5, 7}), MakeOperand(Role::kOutput, dtype, {5, 7})};
        Add(std::string(DTypeName(dtype)) + (wire == WireType::kF32 ? " exact" : ""), r);
      }
    }
    OpRequest strided;
    strided.op = Op::kAllReduce;
    strided.operands = {MakeOperand(Role::kInput, DType::kF32, {5, 3}, false, Transposed({5, 3})),
                        MakeOperand(Role::kOutput, DType::kF32, {5, 3}, false, {4, 1})};
    Add("strided", strided);
  }

  void Exchanges() {
    for (int dim = 0; dim < 3; ++dim) {
      for (bool symmetric : {false, true}) {
        for (bool low : {false, true}) {
          Shape shard = {2, 3, 5}, whole = shard;
          whole[dim] *= world_;
          std::string name = "dim" + std::to_string(dim) + (symmetric ? " sym" : "") + (low ? " low" : "");
          OpRequest r;
          r.dim = dim;
          r.low_contention = low;
          r.op = Op::kAllGather;
          r.operands = {MakeOperand(Role::kInput, DType::kF32, shard, symmetric),
                        MakeOperand(Role::kOutput, DType::kF32, whole, symmetric)};
          Add(name, r);
          AddInPlace(name, r);
          r.op = Op::kReduceScatter;
          r.operands = {MakeOperand(Role::kInput, DType::kBf16, whole, symmetric),
                        MakeOperand(Role::kOutput, DType::kBf16, shard, symmetric)};
          r.wire = low ? WireType::kF32 : WireType::kOutput;
          r.reduce_op = low ? ReduceOp::kAvg : ReduceOp::kSum;
          Add(name, r);
          AddInPlace(name, r);
          r.wire = WireType::kOutput;
          r.reduce_op = ReduceOp::kSum;
          r.low_contention = false;
          if (low) continue;
          r.op = Op::kAllToAll;
          r.operands = {MakeOperand(Role::kInput, DType::kU8, whole, symmetric),
                        MakeOperand(Role::kOutput, DType::kU8, whole, symmetric)};
          Add(name, r);
          r.operands[1].alias_of = 0;
          Add(name + " in place", r);
        }
      }
    }
  }

  // The smaller operand as this rank's part of the larger one: in dense memory, and with a gap behind each
  // dimension.
  void AddInPlace(const std::string& name, OpRequest r) {
    r.operands[1].alias_of = 0;
    Add(name + " in place", r);
    const int whole = r.op == Op::kAllGather ? 1 : 0;
    TensorSpec& spec = r.operands[whole].spec;
    spec.strides = Gapped(spec.shape);
    Add(name + " in place gapped", r);
  }

  // Those of a dimension for each rank are of nine.
  void EightDims() {
    Shape shard(8, 2), whole = shard;
    whole[1] *= world_;
    OpRequest r;
    r.dim = 1;
    r.op = Op::kAllGather;
    r.operands = {MakeOperand(Role::kInput, DType::kBf16, shard, false, Gapped(shard)),
                  MakeOperand(Role::kOutput, DType::kBf16, whole, false, Gapped(whole))};
    Add("eight dims", r);
    r.op = Op::kReduceScatter;
    std::swap(r.operands[0].spec, r.operands[1].spec);
    r.wire = WireType::kF32;
    Add("eight dims", r);
    r.op = Op::kAllToAll;
    r.wire = WireType::kOutput;
    r.operands[1].spec = r.operands[0].spec;
    Add("eight dims", r);
  }

  void Rooted() {
    for (int root : {0, world_ - 1}) {
      for (bool symmetric : {false, true}) {
        OpRequest r;
        r.root = root;
        r.op = Op::kBroadcast;
        r.operands = {MakeOperand(Role::kInput, DType::kF16, {3, 5}, symmetric),
                      MakeOperand(Role::kOutput, DType::kF16, {3, 5}, symmetric)};
        Add("root" + std::to_string(root) + (symmetric ? " sym" : ""), r);
        r.op = Op::kReduce;
        Add("root" + std::to_string(root) + (symmetric ? " sym" : ""), r);
        r.operands[1].alias_of = 0;
        Add("in place root" + std::to_string(root) + (symmetric ? " sym" : ""), r);
        r.op = Op::kBroadcast;
        Add("in place root" + std::to_string(root) + (symmetric ? " sym" : ""), r);
      }
    }
  }

  void AddWithSchedules(const std::string& name, OpRequest r) {
    Add(name, r);
    for (auto [steps, lanes] : {std::pair{1, 1}, {2, 3}, {3, 2}, {2, 8}}) {
      r.steps = steps * world_;
      r.lanes = lanes;
      Add(name + " S" + std::to_string(r.steps) + " n" + std::to_string(lanes), r);
    }
  }

  void GatherMatmuls() {
    for (const Shape& shard : {Shape{3, 5}, Shape{2, 3, 4}}) {
      for (int dim = 0; dim < static_cast<int>(shard.size()); ++dim) {
        for (bool gathered : {false, true}) {
          Shape whole = shard;
          whole[dim] *= world_;
          Shape c = whole;
          OpRequest r;
          r.op = Op::kAllGatherMatmul;
          r.dim = dim;
          const bool symmetric = gathered && dim % 2 == 0;
          r.operands = {MakeOperand(Role::kA, DType::kF32, shard, symmetric)};
          for (int64_t n : {7, 2}) {
            c.back() = n;
            r.operands.push_back(
                MakeOperand(Role::kB, DType::kF32, {whole.back(), n}, false, Transposed({whole.back(), n})));
            r.operands.push_back(MakeOperand(Role::kC, DType::kF32, c));
            r.operands.push_back(MakeOperand(Role::kBias, DType::kF32, {n}));
          }
          if (gathered) r.operands.push_back(MakeOperand(Role::kGatheredA, DType::kF32, whole, symmetric));
          const std::string name = std::to_string(shard.size()) + "d dim" + std::to_string(dim) +
                                   (gathered ? " gathered" : "") + (symmetric ? " sym" : "");
          dim == 0 ? AddWithSchedules(name, r) : Add(name, r);
        }
      }
    }
    // fp8: tensor-wise, row-wise sharded, row-wise replicated; every dimension of three. Along K a scale of
    // the shard's shape counts as sharded.
    for (int dim : {0, 1, 2}) {
      for (int mode = 0; mode < (dim == 2 ? 2 : 3); ++mode) {
        Shape shard = {2, 3, 8}, whole = shard;
        whole[dim] *= world_;
        Shape c = whole, own = shard, all = whole;
        c.back() = 6;
        own.back() = all.back() = 1;
        OpRequest r;
        r.op = Op::kAllGatherMatmul;
        r.dim = dim;
        r.operands = {MakeOperand(Role::kA, DType::kF8E4M3, shard),
                      MakeOperand(Role::kB, DType::kF8E5M2, {whole.back(), 6}),
                      MakeOperand(Role::kC, DType::kBf16, c),
                      MakeOperand(Role::kScaleA, DType::kF32,
                                  mode == 0   ? Shape{1}
                                  : mode == 1 ? own
                                              : all),
                      MakeOperand(Role::kScaleB, DType::kF32, mode == 0 ? Shape{1} : Shape{1, 6}),
                      MakeOperand(Role::kResultScale, DType::kF32, {1})};
        Add("fp8 dim" + std::to_string(dim) + " mode" + std::to_string(mode), r);
      }
    }
  }

  // Rows of several dimensions that lie at no common pitch, in A or in C or in both: several products for
  // each piece. With leading dimensions of one element, and two that are cut.
  void UnevenRows() {
    for (const Shape& shard : {Shape{3, 2, 8}, Shape{2, 3, 2, 8}, Shape{1, 4, 8}}) {
      for (int dim = 0; dim + 1 < static_cast<int>(shard.size()); ++dim) {
        for (int gapped = 1; gapped < 4; ++gapped) {
          Shape whole = shard;
          whole[dim] *= world_;
          const auto rows = [](Shape a, int64_t last) {
            a.back() = last;
            return a;
          };
          const auto lies = [gapped](int bit, const Shape& shape) {
            return (gapped & bit) != 0 ? Gapped(shape) : Shape();
          };
          const Shape c = rows(whole, 6), part = rows(shard, 6);
          const std::string name = "uneven" + std::to_string(gapped) + " " + std::to_string(shard.size()) +
                                   "d dim" + std::to_string(dim);
          OpRequest r;
          r.dim = dim;
          r.op = Op::kAllGatherMatmul;
          r.operands = {MakeOperand(Role::kA, DType::kF8E4M3, shard, false, lies(1, shard)),
                        MakeOperand(Role::kB, DType::kF8E5M2, {8, 6}),
                        MakeOperand(Role::kC, DType::kBf16, c, false, lies(2, c)),
                        MakeOperand(Role::kScaleA, DType::kF32, rows(gapped == 1 ? shard : whole, 1)),
                        MakeOperand(Role::kScaleB, DType::kF32, {1, 6}),
                        MakeOperand(Role::kBias, DType::kF32, {6})};
          Add(name, r);
          r.op = Op::kMatmulReduceScatter;
          r.operands[0].spec = {DType::kF8E4M3, whole, lies(1, whole)};
          r.operands[2].spec = {DType::kBf16, part, lies(2, part)};
          r.operands[3].spec.shape = rows(whole, 1);
          Add(name, r);
          if (dim != 0) continue;
          r.op = Op::kMatmulAllReduce;
          r.operands[2].spec = {DType::kBf16, c, lies(2, c)};
          Add(name, r);
        }
      }
    }
  }

  // Scales by blocks: A gathered along each dimension, its factors sharded or replicated, stored by rows or
  // by columns; B's by block and by column. Along K each shard is whole blocks; else the last block is short.
  void BlockScaledGathers() {
    for (const Shape& shard : {Shape{2, 130}, Shape{2, 1, 256}}) {
      for (int dim = 0; dim < static_cast<int>(shard.size()); ++dim) {
        const bool along_k = dim + 1 == static_cast<int>(shard.size());
        if (along_k && shard.back() % kScaleBlock != 0) continue;
        for (int mode = 0; mode < 2; ++mode) {
          Shape whole = shard;
          whole[dim] *= world_;
          const int64_t n = 3, blocks = (whole.back() + kScaleBlock - 1) / kScaleBlock;
          Shape c = whole, own = shard, all = whole;
          c.back() = n;
          own.back() = (shard.back() + kScaleBlock - 1) / kScaleBlock;
          all.back() = blocks;
          OpRequest r;
          r.op = Op::kAllGatherMatmul;
          r.dim = dim;
          const Shape scale = mode == 0 ? own : all;
          r.operands = {
              MakeOperand(Role::kA, DType::kF8E4M3, shard),
              MakeOperand(Role::kScaleA, DType::kF32, scale, false, dim == 0 ? Transposed(scale) : Shape())};
          for (int64_t factors : {int64_t{1}, n}) {
            r.operands.push_back(MakeOperand(Role::kB, DType::kF8E4M3, {whole.back(), n}));
            r.operands.push_back(MakeOperand(Role::kC, DType::kF32, c));
            r.operands.push_back(MakeOperand(Role::kScaleB, DType::kF32, {blocks, factors}));
          }
          Add("blocks " + std::to_string(shard.size()) + "d dim" + std::to_string(dim) + " mode" +
                  std::to_string(mode),
              r);
          if (mode == 1) continue;
          r.steps = 2 * world_;
          r.lanes = 2;
          Add("blocks " + std::to_string(shard.size()) + "d dim" + std::to_string(dim) + " S" +
                  std::to_string(r.steps),
              r);
        }
      }
    }
  }

  // Also scatters of B's columns, whose pieces begin within a block.
  void BlockScaledReductions() {
    for (int dim : {0, 1}) {
      for (bool each : {false, true}) {
        const int64_t columns = dim == 1 ? 70 : 5, k = 130, n = dim == 1 ? columns * world_ : columns;
        const int64_t c_rows = 2, rows = dim == 0 ? c_rows * world_ : c_rows;
        OpRequest r;
        r.op = Op::kMatmulReduceScatter;
        r.dim = dim;
        r.operands = {
            MakeOperand(Role::kA, DType::kF8E5M2, {rows, k}), MakeOperand(Role::kB, DType::kF8E4M3, {k, n}),
            MakeOperand(Role::kC, DType::kF32, {c_rows, columns}),
            MakeOperand(Role::kScaleA, DType::kF32, {rows, 2}, false, {1, rows}),
            MakeOperand(Role::kScaleB, DType::kF32, {2, each ? n : (n + kScaleBlock - 1) / kScaleBlock})};
        const std::string name = "blocks dim" + std::to_string(dim) + (each ? " each" : "");
        Add(name, r);
        r.steps = 2 * world_;
        r.lanes = 2;
        Add(name + " S" + std::to_string(r.steps), r);
        if (dim == 1) continue;
        r.steps = r.lanes = 0;
        r.op = Op::kMatmulAllReduce;
        r.operands[2].spec.shape = {rows, columns};
        Add(name, r);
      }
    }
  }

  void ReducedMatmuls() {
    for (const Shape& leading : {Shape{2}, Shape{2, 3}}) {
      for (int dim = 0; dim <= static_cast<int>(leading.size()); ++dim) {
        for (DType dtype : {DType::kF32, DType::kBf16, DType::kF8E4M3}) {
          Shape a = leading;
          if (dim < static_cast<int>(leading.size())) a[dim] *= world_;
          int64_t n = dim == static_cast<int>(leading.size()) ? 3 * world_ : 5;
          Shape c = leading;
          c.push_back(dim == static_cast<int>(leading.size()) ? 3 : 5);
          Shape rows = a;
          rows.push_back(1);
          a.push_back(4);
          const DType out = dtype == DType::kF8E4M3 ? DType::kF16 : dtype;
          OpRequest r;
          r.op = Op::kMatmulReduceScatter;
          r.dim = dim;
          r.operands = {MakeOperand(Role::kA, dtype, a), MakeOperand(Role::kB, dtype, {4, n}),
                        MakeOperand(Role::kC, out, c)};
          if (IsFloat8(dtype)) {
            r.operands.push_back(MakeOperand(Role::kScaleA, DType::kF32, rows));
            r.operands.push_back(MakeOperand(Role::kScaleB, DType::kF32, {1, n}));
            r.operands.push_back(MakeOperand(Role::kBias, DType::kF32, {n}));
            r.operands.push_back(MakeOperand(Role::kResultScale, DType::kF32, {1}));
          }
          r.wire = dtype == DType::kBf16 ? WireType::kF32 : WireType::kOutput;
          r.reduce_op = dtype == DType::kF32 ? ReduceOp::kAvg : ReduceOp::kSum;
          const std::string name =
              std::to_string(a.size()) + "d dim" + std::to_string(dim) + " " + std::string(DTypeName(dtype));
          dim == 0 ? AddWithSchedules(name, r) : Add(name, r);
        }
      }
    }
    for (const Shape& leading : {Shape{1}, Shape{7}, Shape{3, 5}}) {
      for (DType dtype : {DType::kF32, DType::kBf16, DType::kF8E5M2}) {
        Shape a = leading, c = leading, rows = leading;
        a.push_back(4);
        c.push_back(5);
        rows.push_back(1);
        OpRequest r;
        r.op = Op::kMatmulAllReduce;
        const DType out = dtype == DType::kF8E5M2 ? DType::kBf16 : dtype;
        for (bool symmetric : {false, true}) {
          r.operands = {MakeOperand(Role::kA, dtype, a), MakeOperand(Role::kB, dtype, {4, 5}),
                        MakeOperand(Role::kC, out, c, symmetric)};
          if (IsFloat8(dtype)) {
            r.operands.push_back(MakeOperand(Role::kScaleA, DType::kF32, rows));
            r.operands.push_back(MakeOperand(Role::kScaleB, DType::kF32, {1}));
            r.operands.push_back(MakeOperand(Role::kBias, DType::kF32, {5}));
          }
          r.wire = dtype == DType::kBf16 ? WireType::kF32 : WireType::kOutput;
          Add(std::to_string(a.size()) + "d rows" + std::to_string(leading[0]) + " " +
                  std::string(DTypeName(dtype)) + (symmetric ? " sym" : ""),
              r);
        }
      }
    }
  }

  void Rest() {
    for (Op op : {Op::kBarrier, Op::kEmpty}) {
      OpRequest r;
      r.op = op;
      Add("", r);
    }
    OpRequest async;
    async.op = Op::kAsyncInputMatmul;
    async.operands = {MakeOperand(Role::kA, DType::kF16, {6, 4}), MakeOperand(Role::kB, DType::kF16, {4, 3}),
                      MakeOperand(Role::kC, DType::kF32, {6, 3}),
                      MakeOperand(Role::kChunkSignals, DType::kI32, {3})};
    async.chunk_pivot = 1;
    Add("", async);
    // Everybody sends to and receives from everybody else; then a ring, in which two slots differ in size.
    for (bool ring : {false, true}) {
      if (world_ == 1) break;
      std::vector<OpRequest> requests(world_);
      for (int rank = 0; rank < world_; ++rank) {
        OpRequest& r = requests[rank];
        r.op = Op::kSendReceive;
        r.algorithm = Algorithm::kDirect;
        for (int shift = 1; shift < (ring ? 2 : world_); ++shift) {
          const int to = (rank + shift) % world_, from = (rank - shift + world_) % world_;
          r.operands.push_back(MakeOperand(Role::kInput, DType::kF32, {3, 5}));
          r.transfers.push_back({true, to, static_cast<int>(r.operands.size()) - 1});
          r.operands.push_back(MakeOperand(Role::kOutput, DType::kF32, {3, 5}));
          r.transfers.push_back({false, from, static_cast<int>(r.operands.size()) - 1});
        }
      }
      AddExact(ring ? "ring" : "everybody", requests, group_);
    }
  }

  const int world_;
  const GroupContext group_;
  std::vector<Case> cases_;
};

}  // namespace

Operand MakeOperand(Role role, DType dtype, std::vector<int64_t> shape, bool symmetric,
                    std::vector<int64_t> strides) {
  Operand operand;
  operand.role = role;
  operand.spec = {dtype, std::move(shape), std::move(strides)};
  operand.symmetric = symmetric;
  return operand;
}

GroupContext ReferenceSwitchGroup(int world) {
  GroupContext group;
  group.topology.source = "test";
  for (int i = 0; i < world; ++i) {
    GpuInfo& gpu = group.topology.gpus.emplace_back();
    gpu.uuid = "GPU-" + std::to_string(i);
    gpu.switch_links = 18;
    for (int j = 0; j < world; ++j) group.topology.p2p[i][j] = true;
  }
  return group;
}

GroupContext ReferenceMeshGroup() {
  GroupContext group = ReferenceSwitchGroup(8);
  for (int i = 0; i < 8; ++i) {
    group.topology.gpus[i].switch_links = 0;
    for (int j = 0; j < 8; ++j) {
      const bool linked = i != j && (i / 4 == j / 4 || i % 4 == j % 4);
      group.topology.nvlinks[i][j] = linked ? 1 : 0;
      group.topology.p2p[i][j] = linked || i == j;
    }
  }
  return group;
}

std::vector<Case> CasesOf(int world) { return Cases(world).Run(); }

}  // namespace tandem::plan
