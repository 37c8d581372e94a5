#include "tests/conformance/matrix.h"

namespace tandem::conformance {
namespace {

const std::vector<DType> kReducedDTypes = {DType::kF32,    DType::kF16, DType::kBf16, DType::kF8E4M3,
                                           DType::kF8E5M2, DType::kI32, DType::kI64,  DType::kU8};
const std::vector<DType> kFloats = {DType::kF32, DType::kF16, DType::kBf16};

// Attributes that are drawn instead of crossed.
void DrawAttributes(Matrix* matrix, DType dtype, OpRequest* request, Extras* extras) {
  Draw& draw = matrix->draw();
  const bool symmetric = draw.OneIn(2);
  for (Operand& operand : request->operands) operand.symmetric = symmetric;
  if (draw.OneIn(3)) request->operands[1].alias_of = 0;
  if (IsFloating(dtype)) {
    if (draw.OneIn(4)) request->reduce_op = ReduceOp::kAvg;
    if (draw.OneIn(4)) request->wire = WireType::kF32;
    extras->values = draw.Of(std::vector<Values>{Values::kRandom, Values::kExact, Values::kSpecial});
  }
  if (draw.OneIn(3)) DrawReduction(&draw, dtype, request, extras);
  // nccl-tests -u, mscclpp and vLLM: pointers 1, 2, 4, 8 and 16 bytes off; ranks alike or not.
  extras->shift = draw.Of(std::vector<int>{0, 0, 1, 2, 4, 8, 16});
  extras->skew = draw.OneIn(4) ? 1 : 0;
}

OpRequest AllReduceOf(DType dtype, Shape shape) {
  OpRequest request;
  request.op = Op::kAllReduce;
  request.operands = {MakeOperand(Role::kInput, dtype, shape), MakeOperand(Role::kOutput, dtype, shape)};
  return request;
}

// Counts of nccl-tests -c 1: 0 and 1 elements, powers of two and one to either side. Counts of mscclpp's
// executor tests, which the world size does not divide. Counts of torchcomms' Ll128 tests, around packets of
// 8, 16, 120 and 128 bytes. Random sizes, as in vLLM's test_custom_all_reduce.
void AddCounts(Matrix* matrix) {
  std::vector<int64_t> counts = {0,   1,   2,   3,   4,    5,    7,    8,    9,    15,   16,    17,    30,
                                 31,  32,  33,  60,  63,   64,   65,   119,  120,  121,  127,   128,   129,
                                 240, 255, 256, 257, 1023, 1024, 1025, 4095, 4096, 4097, 65535, 65536, 65537};
  for (int i = 0; i < 8; ++i) counts.push_back(1 + matrix->draw().Below(70000));
  for (int64_t count : counts) {
    for (DType dtype : kReducedDTypes) {
      if (count > 300 && dtype != DType::kF32 && dtype != DType::kBf16 && !matrix->draw().OneIn(3)) continue;
      OpRequest request = AllReduceOf(dtype, {count});
      Extras extras;
      DrawAttributes(matrix, dtype, &request, &extras);
      matrix->AddEvery(request, extras);
    }
  }
}

// The bounds of the choice, built-in and measured, and one element to either side: PyTorch
// test_intra_node_comm_all_reduce uses 4 KiB, 512 KiB and 10 MiB of bf16 and must not use 10 MiB and one
// element.
void AddThresholds(Matrix* matrix) {
  constexpr int64_t kKiB = 1 << 10, kMiB = 1 << 20;
  for (int64_t bytes : {4 * kKiB, 64 * kKiB, 256 * kKiB, 512 * kKiB, kMiB, 10 * kMiB, 16 * kMiB}) {
    for (int64_t over : {-1, 0, 1}) {
      Extras extras;
      extras.note = "choice";
      extras.judge_choice = true;
      matrix->Add(AllReduceOf(DType::kBf16, {bytes / 2 + over}), extras);
    }
  }
  for (DType dtype : {DType::kF32, DType::kBf16}) {
    for (int64_t bytes : {int64_t{256 << 10}, int64_t{10 << 20}}) {
      const int64_t count = bytes / static_cast<int64_t>(DTypeBytes(dtype));
      for (int64_t over : {-1, 0, 1}) {
        OpRequest request = AllReduceOf(dtype, {count + over});
        Extras extras;
        DrawAttributes(matrix, dtype, &request, &extras);
        matrix->AddEvery(request, extras);
      }
    }
  }
}

void AddShapes(Matrix* matrix) {
  // Several dimensions, strides, and gaps between rows.
  for (DType dtype : kFloats) {
    OpRequest request = AllReduceOf(dtype, {5, 3});
    request.operands[0].spec.strides = TransposedStrides({5, 3});
    request.operands[1].spec.strides = {4, 1};
    matrix->AddEvery(request, {.note = "strided"});
    request = AllReduceOf(dtype, {2, 3, 5, 7});
    matrix->AddEvery(request, {.values = Values::kExact});
  }
  // PyTorch SymmMemCollectiveTest: 4, 8192 and 8196 bytes at offsets of 0 and 16 bytes and alignments of 4, 8
  // and 16, one- and two-shot, in place and out of it.
  for (DType dtype : {DType::kF32, DType::kBf16}) {
    const int width = static_cast<int>(DTypeBytes(dtype));
    for (int bytes : {4, 8192, 8196}) {
      for (int offset : {0, 4, 8, 16}) {
        OpRequest request = AllReduceOf(dtype, {bytes / width});
        for (Operand& operand : request.operands) operand.symmetric = true;
        if (offset % 8 == 0) request.operands[1].alias_of = 0;
        matrix->AddEvery(request, {.note = "SymmMemCollectiveTest", .shift = offset / width});
      }
    }
  }
}

void AddReduces(Matrix* matrix) {
  for (int root = 0; root < matrix->world(); ++root) {
    for (int64_t count : {0, 1, 3, 17, 257, 4097}) {
      const DType dtype = matrix->draw().Of(kReducedDTypes);
      OpRequest request = AllReduceOf(dtype, {count});
      request.op = Op::kReduce;
      request.root = root;
      Extras extras;
      DrawAttributes(matrix, dtype, &request, &extras);
      matrix->AddEvery(request, extras);
    }
  }
}

}  // namespace

void AddReductions(Matrix* matrix) {
  AddCounts(matrix);
  AddThresholds(matrix);
  AddShapes(matrix);
  AddReduces(matrix);
}

}  // namespace tandem::conformance
