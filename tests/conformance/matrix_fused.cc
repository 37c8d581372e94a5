// Cases that the fused kernels must not refuse where they are on offer. Every type that they have, B by rows
// and by columns, pieces with full and with partial tiles of 128 rows, several tiles an owner, epilogues.
#include "tests/conformance/matrix.h"

namespace tandem::conformance {
namespace {

struct FusedTypes {
  DType a, b, out;
  bool fast = true;
};
using enum DType;
const std::vector<FusedTypes> kFusedTypes = {{kBf16, kBf16, kBf16},
                                             {kBf16, kBf16, kF32},
                                             {kF16, kF16, kF16},
                                             {kF16, kF16, kF32},
                                             {kF8E4M3, kF8E4M3, kBf16},
                                             {kF8E4M3, kF8E4M3, kF16},
                                             {kF8E4M3, kF8E4M3, kF32},
                                             {kF8E4M3, kF8E4M3, kBf16, false},
                                             {kF8E4M3, kF8E4M3, kF16, false},
                                             {kF8E4M3, kF8E4M3, kF32, false},
                                             {kF8E4M3, kF8E5M2, kBf16},
                                             {kF8E5M2, kF8E4M3, kBf16},
                                             {kF8E4M3, kF8E5M2, kBf16, false},
                                             {kF8E5M2, kF8E4M3, kBf16, false},
                                             {kF8E4M3, kF8E5M2, kF32, false},
                                             {kF8E5M2, kF8E4M3, kF16, false},
                                             {kF8E4M3, kF8E5M2, kF16},
                                             {kF8E5M2, kF8E4M3, kF32},
                                             {kF8E5M2, kF8E5M2, kF16},
                                             {kF8E5M2, kF8E5M2, kBf16, false},
                                             {kF8E5M2, kF8E5M2, kF32}};

struct FusedExtents {
  int64_t rows, n, k;  // rows of a piece
  const char* note = "";
};
const std::vector<FusedExtents> kFusedExtents = {{1, 8, 16, "one row"},
                                                 {33, 1032, 144, "few rows"},
                                                 {100, 72, 80, "no whole tile"},
                                                 {128, 256, 64, "one tile"},
                                                 {130, 264, 272, "one over whole tiles"},
                                                 {1024, 16, 32, "two tiles an owner"}};
// Whole products of an all-reduce: unequal parts, and owners of no rows on some numbers of ranks.
const std::vector<FusedExtents> kUneven = {{1, 8, 16, "one row of all"},
                                           {9, 136, 80, "few uneven rows"},
                                           {37, 1032, 144, "37 tokens"},
                                           {1037, 264, 80, "1037 tokens"},
                                           {8229, 520, 32, "uneven rows of several tiles an owner"}};
// Few rows, with so many columns that the skinny kernel takes wider tiles than 64. On two ranks: with B's
// columns contiguous, 112, 128, 224 and 256 along one row of tiles, 112 and 224 along two; with B's rows
// contiguous, 128 and 256 for 112 and 224.
const std::vector<FusedExtents> kWide = {
    {16, 14328, 48, "few rows, 14328 columns"},         {9, 16200, 48, "few rows, 16200 columns"},
    {16, 28000, 32, "few rows, 28000 columns"},         {5, 32000, 32, "few rows, 32000 columns"},
    {128, 5000, 48, "two rows of tiles, 5000 columns"}, {100, 14320, 32, "two rows of tiles, 14320 columns"}};
// More than a wave of tiles on two ranks, and rows of A long enough for bands of columns, the last one
// narrower.
const FusedExtents kBands = {512, 4360, 2064, "two bands"};
// Many stages of sums of fp8, the last one not whole.
const FusedExtents kLongFused = {70, 40, 2064, "long sums"};

// `all`: rows of the product.
void AddOne(Matrix* matrix, Op op, const FusedTypes& types, const FusedExtents& extents, int64_t all) {
  Draw& draw = matrix->draw();
  const int64_t n = extents.n, k = extents.k;
  const bool fp8 = IsFloat8(types.a), gathers = op == Op::kAllGatherMatmul;
  OpRequest request;
  request.op = op;
  request.algorithm = Algorithm::kFused;
  const Shape b = {k, n};
  request.operands = {
      MakeOperand(Role::kA, types.a, {gathers ? extents.rows : all, k}, draw.OneIn(3)),
      MakeOperand(Role::kB, types.b, b, false, fp8 || draw.OneIn(2) ? TransposedStrides(b) : Shape()),
      MakeOperand(Role::kC, types.out, {op == Op::kMatmulReduceScatter ? extents.rows : all, n},
                  draw.OneIn(2))};
  if (fp8) {
    const bool rows = draw.OneIn(2);
    const int64_t scaled = gathers && draw.OneIn(2) ? extents.rows : all;
    request.operands.push_back(MakeOperand(Role::kScaleA, DType::kF32, rows ? Shape{scaled, 1} : Shape{1}));
    request.operands.push_back(MakeOperand(Role::kScaleB, DType::kF32, rows ? Shape{1, n} : Shape{1}));
    request.fast_accumulation = types.fast;
  }
  if (draw.OneIn(2)) {
    request.operands.push_back(MakeOperand(Role::kBias, draw.OneIn(2) ? DType::kF32 : types.out, {n}));
  }
  if (draw.OneIn(3)) request.operands.push_back(MakeOperand(Role::kResultScale, DType::kF32, {1}));
  Extras extras;
  extras.note = std::string("fused, ") + extents.note;
  extras.must_run = true;
  // Addresses off 16 bytes run step by step, or few rows by a kernel that loads them itself.
  extras.shift = draw.Of(std::vector<int>{0, 0, 16, 1});
  matrix->Add(request, extras);
}

// A gather for three products, their widths unequal; the gathered A is returned to half of the callers.
void AddSeveral(Matrix* matrix, DType type, const FusedExtents& extents) {
  Draw& draw = matrix->draw();
  const int64_t all = extents.rows * matrix->world();
  OpRequest request;
  request.op = Op::kAllGatherMatmul;
  request.algorithm = Algorithm::kFused;
  request.operands = {MakeOperand(Role::kA, type, {extents.rows, extents.k}, draw.OneIn(3))};
  for (int64_t n : {extents.n, extents.n + 16, extents.n + 32}) {
    const Shape b = {extents.k, n};
    request.operands.push_back(
        MakeOperand(Role::kB, type, b, false, draw.OneIn(2) ? TransposedStrides(b) : Shape()));
    request.operands.push_back(MakeOperand(Role::kC, type, {all, n}, draw.OneIn(2)));
  }
  if (draw.OneIn(2)) request.operands.push_back(MakeOperand(Role::kGatheredA, type, {all, extents.k}));
  Extras extras;
  extras.note = std::string("fused, three B, ") + extents.note;
  extras.must_run = true;
  matrix->Add(request, extras);
}

}  // namespace

void AddFusedMatmuls(Matrix* matrix) {
  if (matrix->world() == 1) return;  // nothing to overlap
  for (DType type : {kBf16, kF16}) {
    for (const FusedExtents& extents : kFusedExtents) AddSeveral(matrix, type, extents);
  }
  for (Op op : {Op::kAllGatherMatmul, Op::kMatmulReduceScatter, Op::kMatmulAllReduce}) {
    for (const FusedTypes& types : kFusedTypes) {
      for (const FusedExtents& extents : kFusedExtents)
        AddOne(matrix, op, types, extents, extents.rows * matrix->world());
      if (types.a == types.b && types.a != kF8E5M2 && types.out == (IsFloat8(types.a) ? kBf16 : types.a)) {
        for (const FusedExtents& extents : kWide)
          AddOne(matrix, op, types, extents, extents.rows * matrix->world());
        if (!IsFloat8(types.a) && op == Op::kMatmulReduceScatter)
          AddOne(matrix, op, types, kBands, kBands.rows * matrix->world());
      }
      if (IsFloat8(types.a)) AddOne(matrix, op, types, kLongFused, kLongFused.rows * matrix->world());
      if (op != Op::kMatmulAllReduce) continue;
      for (const FusedExtents& extents : kUneven) AddOne(matrix, op, types, extents, extents.rows);
    }
  }
}

}  // namespace tandem::conformance
