#include "tests/conformance/matrix.h"

namespace tandem::conformance {
namespace {

const std::vector<DType> kAllDTypes = {DType::kF32,    DType::kF16, DType::kBf16, DType::kF8E4M3,
                                       DType::kF8E5M2, DType::kI32, DType::kI64,  DType::kU8};

// An exchange of shards of `shard` along `dim` in the role that the operation gives it.
OpRequest Exchange(Op op, DType dtype, const Shape& shard, int dim, int world, bool symmetric) {
  Shape whole = shard;
  whole[static_cast<size_t>(dim < 0 ? dim + static_cast<int>(shard.size()) : dim)] *= world;
  OpRequest request;
  request.op = op;
  request.dim = dim;
  request.operands = {MakeOperand(Role::kInput, dtype, op == Op::kAllGather ? shard : whole, symmetric),
                      MakeOperand(Role::kOutput, dtype, op == Op::kReduceScatter ? shard : whole, symmetric)};
  return request;
}

// With room after every dimension: none joins another, and those of a dimension for each rank are nine.
Shape GappedStrides(const Shape& shape) {
  Shape strides(shape.size());
  int64_t next = 2;
  for (size_t d = shape.size(); d-- > 0; next *= shape[d] + 1) strides[d] = next;
  return strides;
}

void AddExchange(Matrix* matrix, Op op, DType dtype, const Shape& shard, int dim,
                 const std::string& note = {}) {
  Draw& draw = matrix->draw();
  OpRequest request = Exchange(op, dtype, shard, dim, matrix->world(), draw.OneIn(2));
  Extras extras;
  extras.note = note;
  extras.shift = draw.Of(std::vector<int>{0, 0, 1, 2, 4, 8});
  extras.skew = draw.OneIn(4) ? 1 : 0;
  extras.values = Values::kBits;
  if (op == Op::kReduceScatter) {
    extras.values = Values::kRandom;
    if (IsFloating(dtype)) {
      extras.values = draw.Of(std::vector<Values>{Values::kRandom, Values::kExact, Values::kSpecial});
      if (draw.OneIn(3)) request.reduce_op = ReduceOp::kAvg;
      if (draw.OneIn(3)) request.wire = WireType::kF32;
    }
    if (draw.OneIn(3)) DrawReduction(&draw, dtype, &request, &extras);
  }
  if (draw.OneIn(2)) {
    request.operands[1].alias_of = 0;
    // A part's strides are the larger tensor's, in words or left out.
    const int part = PartSlot(request);
    if (part >= 0 && draw.OneIn(2)) {
      request.operands[static_cast<size_t>(part)].spec.strides = StridesOf(request, 1 - part);
    }
  }
  if (op != Op::kAllToAll && draw.OneIn(5)) request.low_contention = true;
  matrix->AddEvery(request, extras);
}

void AddBroadcasts(Matrix* matrix) {
  for (int root = 0; root < matrix->world(); ++root) {
    for (int64_t count : {0, 1, 5, 16, 33, 1025}) {
      Draw& draw = matrix->draw();
      const DType dtype = draw.Of(kAllDTypes);
      const bool symmetric = draw.OneIn(2);
      OpRequest request;
      request.op = Op::kBroadcast;
      request.root = root;
      request.operands = {MakeOperand(Role::kInput, dtype, {count}, symmetric),
                          MakeOperand(Role::kOutput, dtype, {count}, symmetric)};
      if (draw.OneIn(2)) request.operands[1].alias_of = 0;
      matrix->AddEvery(request, {.values = Values::kBits, .shift = draw.Of(std::vector<int>{0, 1, 3, 8})});
    }
  }
}

}  // namespace

void AddExchanges(Matrix* matrix) {
  const int world = matrix->world();
  for (Op op : {Op::kAllGather, Op::kReduceScatter, Op::kAllToAll}) {
    for (DType dtype : kAllDTypes) {
      // nccl-tests: 0 and 1 element, odd counts, powers of two and one to either side.
      for (int64_t count : {0, 1, 3, 7, 8, 15, 16, 17, 63, 65, 127, 129, 1023, 1025}) {
        AddExchange(matrix, op, dtype, {count}, 0);
      }
      // Every dimension, counted from the front and from the back.
      for (int dim : {0, 1, 2, -1, -2}) AddExchange(matrix, op, dtype, {2, 3, 5}, dim);
    }
    // PyTorch test_low_contention_all_gather and _reduce_scatter: (64, 64) of f32, symmetric or not, sum or
    // average.
    for (int dim : {0, 1}) AddExchange(matrix, op, DType::kF32, {64, 64}, dim, "low_contention tests");
    // PyTorch test_reduce_scatter: 128, 8192 and 36 * 1024 * 16 bytes, whole or split along the last
    // dimension.
    for (int64_t bytes : {128, 8192, 36 * 1024 * 16}) {
      AddExchange(matrix, op, DType::kBf16, {bytes / 2 / world}, 0, "reduce_scatter test");
      AddExchange(matrix, op, DType::kBf16, {8, bytes / 16 / world}, 1, "reduce_scatter test, split last");
    }
    // PyTorch multimem_all_gather: 32 elements at alignments of 4, 8 and 16 bytes.
    for (DType dtype : {DType::kF32, DType::kBf16, DType::kU8}) AddExchange(matrix, op, dtype, {32}, 0);
    // Over the SM's bound: the choice is another.
    AddExchange(matrix, op, DType::kF32, {(int64_t{8} << 20) / 4 / world + 1}, 0, "above 8 MiB");
    OpRequest strided = Exchange(op, DType::kF16, {3, 5}, 0, world, false);
    strided.operands[0].spec.strides = TransposedStrides(strided.operands[0].spec.shape);
    strided.operands[1].spec.strides = {9, 1};
    matrix->AddEvery(strided, {.note = "strided"});
    if (op != Op::kAllToAll) {
      strided.operands[1].alias_of = 0;
      const int part = PartSlot(strided);
      strided.operands[static_cast<size_t>(part)].spec.strides.clear();
      strided.operands[static_cast<size_t>(1 - part)].spec.strides = {9, 1};
      matrix->AddEvery(strided, {.note = "strided"});
    }
    OpRequest gapped = Exchange(op, DType::kBf16, Shape(8, 2), 1, world, false);
    for (Operand& operand : gapped.operands) operand.spec.strides = GappedStrides(operand.spec.shape);
    matrix->AddEvery(gapped, {.note = "eight dims"});
    if (op == Op::kAllToAll) continue;
    gapped.operands[1].alias_of = 0;
    gapped.operands[static_cast<size_t>(PartSlot(gapped))].spec.strides.clear();
    matrix->AddEvery(gapped, {.note = "eight dims"});
  }
  AddBroadcasts(matrix);
}

void AddLongExchanges(Matrix* matrix) {
  for (Op op : {Op::kAllGather, Op::kReduceScatter}) {
    for (DType dtype : kAllDTypes) {
      for (int64_t count : {16384, 20011}) AddExchange(matrix, op, dtype, {count}, 0);
    }
  }
}

void AddTransfers(Matrix* matrix) {
  const int world = matrix->world();
  for (Op op : {Op::kBarrier, Op::kEmpty}) {
    OpRequest request;
    request.op = op;
    matrix->AddEvery(request, {});
  }
  if (world == 1) return;
  // A ring; then everybody with everybody, each message of another size. Several between the same two
  // ranks meet in their order.
  for (int64_t count : {0, 1, 5, 257, 4096}) {
    for (bool ring : {true, false}) {
      std::vector<OpRequest> requests(static_cast<size_t>(world));
      for (int rank = 0; rank < world; ++rank) {
        OpRequest& request = requests[static_cast<size_t>(rank)];
        request.op = Op::kSendReceive;
        request.algorithm = Algorithm::kDirect;
        for (int shift = 1; shift < (ring ? 2 : world); ++shift) {
          for (int message = 0; message < 2; ++message) {
            const int to = (rank + shift) % world, from = (rank - shift + world) % world;
            const auto length = [&](int sender) { return Shape{count + message * 3 + (ring ? 0 : sender)}; };
            request.operands.push_back(MakeOperand(Role::kInput, DType::kBf16, length(rank)));
            request.transfers.push_back({true, to, static_cast<int>(request.operands.size()) - 1});
            request.operands.push_back(MakeOperand(Role::kOutput, DType::kBf16, length(from)));
            request.transfers.push_back({false, from, static_cast<int>(request.operands.size()) - 1});
          }
        }
      }
      matrix->AddRanks(
          std::move(requests),
          {.note = ring ? "ring" : "everybody", .values = Values::kBits, .shift = count == 5 ? 1 : 0});
    }
  }
}

}  // namespace tandem::conformance
