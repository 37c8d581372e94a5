#include "tests/conformance/matrix.h"

namespace tandem::conformance {
namespace {

struct MatmulTypes {
  DType a, b, c;
};
const std::vector<MatmulTypes> kMatmulTypes = {
    {DType::kF32, DType::kF32, DType::kF32},        {DType::kF16, DType::kF16, DType::kF16},
    {DType::kF16, DType::kF16, DType::kF32},        {DType::kBf16, DType::kBf16, DType::kBf16},
    {DType::kBf16, DType::kBf16, DType::kF32},      {DType::kF8E4M3, DType::kF8E4M3, DType::kBf16},
    {DType::kF8E4M3, DType::kF8E4M3, DType::kF16},  {DType::kF8E4M3, DType::kF8E4M3, DType::kF32},
    {DType::kF8E4M3, DType::kF8E5M2, DType::kBf16}, {DType::kF8E5M2, DType::kF8E4M3, DType::kBf16}};

struct MatmulExtents {
  Shape leading;  // of a rank's shard of A, or of C
  int64_t n, k;
  const char* note = "";
};
const std::vector<MatmulExtents> kMatmulExtents = {
    {{1}, 1, 1},
    {{1}, 16, 16},
    {{3}, 7, 5},
    {{17}, 13, 31},
    {{16}, 32, 64},
    {{33}, 64, 48, "rows that no tile divides"},
    {{100}, 72, 80, "M/W no multiple of 128, N of 256"},
    {{8, 64}, 16, 32, "AsyncTPTest: batch 8, M 64, N 16, K 32"},
    {{2, 16}, 64, 32, "micro-pipeline tests: (2, 16, 32) @ (32, 64)"},
    {{2, 3}, 5, 4},
    {{2, 3, 5}, 8, 16},
    {{0}, 8, 16, "no rows"},
    {{4}, 0, 16, "no columns"},
    {{4}, 8, 0, "nothing to sum"},
};

// The optional operands of product number `i`.
void DrawEpilogue(Matrix* matrix, const MatmulTypes& types, int64_t n, bool bias, bool scale,
                  OpRequest* request) {
  if (bias) {
    request->operands.push_back(
        MakeOperand(Role::kBias, matrix->draw().OneIn(2) || IsFloat8(types.c) ? DType::kF32 : types.c, {n}));
  }
  if (scale) request->operands.push_back(MakeOperand(Role::kResultScale, DType::kF32, {1}));
}

Values DrawValues(Matrix* matrix, const MatmulTypes& types, int64_t k) {
  // Integers are summed exactly only where the sum's type holds them.
  const bool exact = types.c == DType::kF32 && k <= 128;
  switch (matrix->draw().Below(4)) {
    case 0: return exact ? Values::kExact : Values::kRandom;
    case 1: return Values::kSpecial;
    default: return Values::kRandom;
  }
}

Operand DrawB(Matrix* matrix, const MatmulTypes& types, int64_t k, int64_t n) {
  // Weight gradients and PyTorch's fused test: B stored by rows or by columns.
  const bool transposed = matrix->draw().OneIn(2);
  return MakeOperand(Role::kB, types.b, {k, n}, false, transposed ? TransposedStrides({k, n}) : Shape());
}

void AddWithSchedules(Matrix* matrix, OpRequest request, const Extras& extras) {
  matrix->AddEvery(request, extras);
  // The ring's S is any multiple of the world size, on one to eight lanes (nvFuser: S = 8, three streams).
  const int choice = matrix->draw().Below(5);
  const std::pair<int, int> schedules[] = {{1, 1}, {1, 2}, {2, 3}, {3, 2}, {2, 8}};
  request.steps = schedules[choice].first * matrix->world();
  request.lanes = schedules[choice].second;
  matrix->AddEvery(request, extras);
  request.steps = 0;
  request.lanes = 1 + matrix->draw().Below(4);
  request.algorithm = Algorithm::kPipeline;
  matrix->Add(request, extras);
}

// The scales of A for each mode that a shape can have: tensor-wise, row-wise sharded, row-wise replicated.
Shape ScaleShape(int mode, Shape own, Shape whole) {
  own.back() = whole.back() = 1;
  return mode == 0 ? Shape{1} : mode == 1 ? own : whole;
}

void AddGatherMatmul(Matrix* matrix, const MatmulTypes& types, const MatmulExtents& extents, int dim) {
  Draw& draw = matrix->draw();
  const int world = matrix->world();
  Shape shard = extents.leading;
  shard.push_back(extents.k);
  Shape whole = shard;
  whole[static_cast<size_t>(dim)] *= world;
  const bool along_k = dim + 1 == static_cast<int>(shard.size());
  const bool fp8 = IsFloat8(types.a);
  const bool bias = draw.OneIn(3), result_scale = draw.OneIn(fp8 ? 2 : 6), gathered = draw.OneIn(2);
  const int products = draw.OneIn(3) ? 3 : 1;
  OpRequest request;
  request.op = Op::kAllGatherMatmul;
  request.dim = draw.OneIn(4) ? dim - static_cast<int>(shard.size()) : dim;
  request.operands = {MakeOperand(Role::kA, types.a, shard, draw.OneIn(3))};
  for (int i = 0; i < products; ++i) {
    const int64_t n = extents.n + i * (extents.n == 0 ? 0 : 3) * (fp8 ? 16 : 1);
    Shape c = whole;
    c.back() = n;
    request.operands.push_back(DrawB(matrix, types, whole.back(), n));
    request.operands.push_back(MakeOperand(Role::kC, types.c, c));
    if (fp8) {
      request.operands.push_back(
          MakeOperand(Role::kScaleB, DType::kF32, draw.OneIn(2) ? Shape{1, n} : Shape{1}));
    }
    DrawEpilogue(matrix, types, n, bias, result_scale, &request);
  }
  if (fp8) {
    const int mode = draw.Below(along_k ? 2 : 3);
    request.operands.push_back(MakeOperand(Role::kScaleA, DType::kF32, ScaleShape(mode, shard, whole)));
    request.fast_accumulation = !draw.OneIn(3);
  }
  if (gathered) request.operands.push_back(MakeOperand(Role::kGatheredA, types.a, whole, draw.OneIn(2)));
  Extras extras;
  extras.note = extents.note;
  extras.values = DrawValues(matrix, types, whole.back());
  extras.shift = draw.Of(std::vector<int>{0, 0, 0, 1, 8, 16});
  AddWithSchedules(matrix, request, extras);
}

void AddReducedMatmul(Matrix* matrix, Op op, const MatmulTypes& types, const MatmulExtents& extents,
                      int dim) {
  Draw& draw = matrix->draw();
  const int world = matrix->world();
  const bool scatter = op == Op::kMatmulReduceScatter;
  const auto dims = static_cast<int>(extents.leading.size()) + 1;
  Shape c = extents.leading;
  c.push_back(extents.n);
  Shape whole = c;
  if (scatter) whole[static_cast<size_t>(dim)] *= world;
  Shape a = whole;
  a.back() = extents.k;
  const int64_t n = whole.back();
  OpRequest request;
  request.op = op;
  request.dim = scatter ? (draw.OneIn(4) ? dim - dims : dim) : 0;
  request.operands = {MakeOperand(Role::kA, types.a, a), DrawB(matrix, types, extents.k, n),
                      MakeOperand(Role::kC, types.c, c, draw.OneIn(2))};
  if (IsFloat8(types.a)) {
    Shape rows = a;
    rows.back() = 1;
    request.operands.push_back(MakeOperand(Role::kScaleA, DType::kF32, draw.OneIn(2) ? rows : Shape{1}));
    request.operands.push_back(
        MakeOperand(Role::kScaleB, DType::kF32, draw.OneIn(2) ? Shape{1, n} : Shape{1}));
    request.fast_accumulation = !draw.OneIn(3);
  } else if (draw.OneIn(4) && extents.leading.size() == 1) {
    request.operands[0].spec.strides = TransposedStrides(a);  // dW = dYᵀ X
  }
  DrawEpilogue(matrix, types, n, draw.OneIn(3), draw.OneIn(4), &request);
  if (draw.OneIn(3)) request.reduce_op = ReduceOp::kAvg;
  if (draw.OneIn(3)) request.wire = WireType::kF32;
  Extras extras;
  extras.note = extents.note;
  extras.values = DrawValues(matrix, types, extents.k);
  extras.shift = draw.Of(std::vector<int>{0, 0, 0, 1, 8, 16});
  scatter ? AddWithSchedules(matrix, request, extras) : matrix->AddEvery(request, extras);
}

// C = A * B whose rows are used chunk by chunk; every chunk is ready here, the waiting has separate tests.
void AddAsyncInput(Matrix* matrix) {
  for (const MatmulTypes& types : kMatmulTypes) {
    for (int chunks : {1, 2, 5}) {
      const int64_t rows = 3 * chunks, n = 24, k = 16;
      OpRequest request;
      request.op = Op::kAsyncInputMatmul;
      request.chunk_pivot = matrix->draw().Below(chunks);
      request.operands = {MakeOperand(Role::kA, types.a, {rows, k}), DrawB(matrix, types, k, n),
                          MakeOperand(Role::kC, types.c, {rows, n}),
                          MakeOperand(Role::kChunkSignals, DType::kI32, {chunks})};
      if (IsFloat8(types.a)) {
        request.operands.push_back(MakeOperand(Role::kScaleA, DType::kF32, {1}));
        request.operands.push_back(MakeOperand(Role::kScaleB, DType::kF32, {1}));
      }
      DrawEpilogue(matrix, types, n, matrix->draw().OneIn(2), false, &request);
      matrix->AddEvery(request, {});
    }
  }
}

// fp8 products have K and N in multiples of 16 in the shapes above where a tensor core's layout needs it, and
// odd ones elsewhere: both must be right, or refused with the reason.
const std::vector<MatmulExtents> kLarge = {
    {{128}, 256, 256, "whole tiles"},
    {{129}, 260, 264, "one over whole tiles"},
    {{1024}, 1024, 1024, "PyTorch's fused test on four ranks: M 4096, N = K = 1024"},
};

}  // namespace

void AddGatherMatmuls(Matrix* matrix) {
  for (const MatmulTypes& types : kMatmulTypes) {
    for (const MatmulExtents& extents : kMatmulExtents) {
      for (int dim = 0; dim <= static_cast<int>(extents.leading.size()); ++dim) {
        AddGatherMatmul(matrix, types, extents, dim);
      }
    }
    for (const MatmulExtents& extents : kLarge) AddGatherMatmul(matrix, types, extents, 0);
  }
  AddAsyncInput(matrix);
}

void AddReducedMatmuls(Matrix* matrix) {
  for (const MatmulTypes& types : kMatmulTypes) {
    for (const MatmulExtents& extents : kMatmulExtents) {
      for (int dim = 0; dim <= static_cast<int>(extents.leading.size()); ++dim) {
        AddReducedMatmul(matrix, Op::kMatmulReduceScatter, types, extents, dim);
      }
      AddReducedMatmul(matrix, Op::kMatmulAllReduce, types, extents, 0);
    }
    for (const MatmulExtents& extents : kLarge) {
      AddReducedMatmul(matrix, Op::kMatmulReduceScatter, types, extents, 0);
      AddReducedMatmul(matrix, Op::kMatmulAllReduce, types, extents, 0);
    }
  }
}

}  // namespace tandem::conformance
