// fp8 products with scales by blocks of 128 (DeepSeek-V3's: A 1x128, B 128x128 or 1x128), factors stored by
// rows or by columns.
#include "tests/conformance/matrix.h"

namespace tandem::conformance {
namespace {

struct Types {
  DType a, b, c;
};
const std::vector<Types> kTypes = {{DType::kF8E4M3, DType::kF8E4M3, DType::kBf16},
                                   {DType::kF8E4M3, DType::kF8E4M3, DType::kF32},
                                   {DType::kF8E4M3, DType::kF8E4M3, DType::kF16},
                                   {DType::kF8E4M3, DType::kF8E5M2, DType::kF32},
                                   {DType::kF8E5M2, DType::kF8E4M3, DType::kBf16}};

struct Extents {
  int64_t rows, n, k;  // rows of a piece
  const char* note = "";
};
const std::vector<Extents> kExtents = {{4, 128, 128, "one block"},
                                       {32, 256, 512, "whole blocks"},
                                       {36, 144, 272, "K and N end within a block"},
                                       {3, 40, 144, "rows in no multiple of 4"},
                                       {5, 7, 200, "nothing is a multiple"}};
// DeepSeek-V3's expert layers, cut down: K of 7168 has 56 blocks.
const Extents kLong = {64, 256, 7168, "long sums"};

int64_t Blocks(int64_t extent) { return (extent + kScaleBlock - 1) / kScaleBlock; }

Operand Factors(Matrix* matrix, Role role, const Shape& shape) {
  const bool by_columns = matrix->draw().OneIn(2);  // as PyTorch's scaled products want them
  return MakeOperand(role, DType::kF32, shape, false, by_columns ? TransposedStrides(shape) : Shape());
}

void AddB(Matrix* matrix, const Types& types, int64_t k, int64_t n, OpRequest* request) {
  const Shape b = {k, n};
  request->operands.push_back(
      MakeOperand(Role::kB, types.b, b, false, matrix->draw().OneIn(4) ? Shape() : TransposedStrides(b)));
  // N of one block of columns is taken for one factor a column, unless K has several blocks.
  request->operands.push_back(
      Factors(matrix, Role::kScaleB, {Blocks(k), matrix->draw().OneIn(3) ? n : Blocks(n)}));
}

void AddAll(Matrix* matrix, OpRequest request, const Types& types, const char* note) {
  Draw& draw = matrix->draw();
  if (draw.OneIn(4)) {
    request.operands.push_back(
        MakeOperand(Role::kBias, draw.OneIn(2) ? DType::kF32 : types.c, {request.operands[1].spec.shape[1]}));
  }
  Extras extras;
  extras.note = std::string("blocks, ") + note;
  // 0 and 1 with factors of 1/2 and 2: a wrong factor is a wrong sum, not a less precise one.
  extras.values = types.c == DType::kF32 && draw.OneIn(2) ? Values::kExact : Values::kRandom;
  extras.shift = draw.Of(std::vector<int>{0, 0, 0, 1, 16});
  request.fast_accumulation = draw.OneIn(2);
  matrix->AddEvery(request, extras);
  if (request.op == Op::kMatmulAllReduce) return;
  request.algorithm = Algorithm::kRing;
  request.steps = (2 + draw.Below(2)) * matrix->world();
  request.lanes = 1 + draw.Below(3);
  matrix->Add(request, extras);
}

void AddGather(Matrix* matrix, const Types& types, const Extents& extents, int dim) {
  const int world = matrix->world();
  const Shape shard = {extents.rows, extents.k};
  Shape whole = shard;
  whole[static_cast<size_t>(dim)] *= world;
  OpRequest request;
  request.op = Op::kAllGatherMatmul;
  request.dim = dim;
  request.operands = {MakeOperand(Role::kA, types.a, shard, matrix->draw().OneIn(3))};
  AddB(matrix, types, whole[1], extents.n, &request);
  request.operands.push_back(MakeOperand(Role::kC, types.c, {whole[0], extents.n}));
  const Shape& scaled = matrix->draw().OneIn(3) ? whole : shard;
  request.operands.push_back(Factors(matrix, Role::kScaleA, {scaled[0], Blocks(scaled[1])}));
  if (matrix->draw().OneIn(3))
    request.operands.push_back(MakeOperand(Role::kGatheredA, types.a, whole, matrix->draw().OneIn(2)));
  AddAll(matrix, request, types, extents.note);
}

void AddReduction(Matrix* matrix, Op op, const Types& types, const Extents& extents, int dim) {
  const int world = matrix->world();
  const bool scatter = op == Op::kMatmulReduceScatter;
  const Shape c = {extents.rows, extents.n};
  Shape whole = c;
  if (scatter) whole[static_cast<size_t>(dim)] *= world;
  OpRequest request;
  request.op = op;
  request.dim = dim;
  request.operands = {MakeOperand(Role::kA, types.a, {whole[0], extents.k})};
  AddB(matrix, types, extents.k, whole[1], &request);
  request.operands.push_back(MakeOperand(Role::kC, types.c, c, matrix->draw().OneIn(2)));
  request.operands.push_back(Factors(matrix, Role::kScaleA, {whole[0], Blocks(extents.k)}));
  if (matrix->draw().OneIn(4)) request.wire = WireType::kF32;
  AddAll(matrix, request, types, extents.note);
}

// Cases that the fused kernel takes: e4m3 to bf16, B by columns with a factor a block, A's factors packed.
void AddFused(Matrix* matrix, Op op, const Extents& extents) {
  Draw& draw = matrix->draw();
  const int world = matrix->world();
  const int64_t all = extents.rows * world, own = op == Op::kAllGatherMatmul ? extents.rows : all;
  const Shape b = {extents.k, extents.n};
  OpRequest request;
  request.op = op;
  request.algorithm = Algorithm::kFused;
  request.operands = {
      MakeOperand(Role::kA, DType::kF8E4M3, {own, extents.k}, draw.OneIn(3)),
      MakeOperand(Role::kB, DType::kF8E4M3, b, false, TransposedStrides(b)),
      MakeOperand(Role::kC, DType::kBf16, {op == Op::kMatmulReduceScatter ? extents.rows : all, extents.n},
                  draw.OneIn(2)),
      Factors(matrix, Role::kScaleA, {draw.OneIn(2) ? all : own, Blocks(extents.k)}),
      Factors(matrix, Role::kScaleB, {Blocks(extents.k), Blocks(extents.n)})};
  if (draw.OneIn(2))
    request.operands.push_back(
        MakeOperand(Role::kBias, draw.OneIn(2) ? DType::kF32 : DType::kBf16, {extents.n}));
  if (draw.OneIn(3)) request.operands.push_back(MakeOperand(Role::kResultScale, DType::kF32, {1}));
  Extras extras;
  extras.note = std::string("fused, blocks, ") + extents.note;
  extras.must_run = true;
  extras.shift = draw.Of(std::vector<int>{0, 0, 16, 1});
  matrix->Add(request, extras);
}

// One row of tiles or several, one tile of 256 columns or several, K one block or many, the last one short.
const std::vector<Extents> kFusedBlockExtents = {{1, 8, 144, "one row"},
                                                 {128, 256, 256, "one tile"},
                                                 {100, 136, 272, "no whole tile"},
                                                 {130, 520, 400, "one over whole tiles"},
                                                 {300, 1040, 1024, "tiles of several blocks"},
                                                 {64, 40, 2064, "long sums"}};

}  // namespace

void AddBlockScaledMatmuls(Matrix* matrix) {
  for (const Types& types : kTypes) {
    for (const Extents& extents : kExtents) {
      AddGather(matrix, types, extents, 0);
      if (extents.k % kScaleBlock == 0) AddGather(matrix, types, extents, 1);
      for (int dim : {0, 1}) AddReduction(matrix, Op::kMatmulReduceScatter, types, extents, dim);
      AddReduction(matrix, Op::kMatmulAllReduce, types, extents, 0);
    }
  }
  if (matrix->world() > 1) {
    for (Op op : {Op::kAllGatherMatmul, Op::kMatmulReduceScatter, Op::kMatmulAllReduce}) {
      for (const Extents& extents : kFusedBlockExtents) AddFused(matrix, op, extents);
    }
  }
  AddGather(matrix, kTypes[0], kLong, 0);
  AddReduction(matrix, Op::kMatmulReduceScatter, kTypes[1], kLong, 0);
}

}  // namespace tandem::conformance
