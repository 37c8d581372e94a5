#include "daemon/planner/problem/scale_checks.h"

#include "daemon/planner/problem/operand_checks.h"
#include "program/text.h"

namespace tandem::plan {
namespace {

using Shape = std::vector<int64_t>;

Status CheckType(const Problem& problem, int slot) {
  if (Spec(problem, slot).dtype != DType::kF32)
    return FieldError(OperandField(slot, "dtype"), "scales are f32");
  if (!IsFloat8(Spec(problem, problem.slots.a).dtype)) {
    return FieldError(OperandField(slot, "role"), "scales go with fp8 operands only");
  }
  return Status::Ok();
}

Shape WithLast(Shape shape, int64_t extent) {
  shape.back() = extent;
  return shape;
}

// The modes that the shape of a scale of B allows.
struct ScaleOfB {
  bool plain = false;   // one element, or (1, N)
  bool blocks = false;  // (blocks of K, blocks of N or N)
};

ScaleOfB Classify(const Shape& scale, const Shape& b) {
  const int64_t k_blocks = ScaleBlocks(b[0]), n_blocks = ScaleBlocks(b[1]);
  const bool one = *ElementCount(scale) == 1;
  ScaleOfB found;
  found.plain = one || scale == Shape{1, b[1]};
  found.blocks = k_blocks > 0 && (scale == Shape{k_blocks, n_blocks} || scale == Shape{k_blocks, b[1]} ||
                                  (one && k_blocks == 1 && n_blocks == 1));
  return found;
}

// Whether B's scales are by blocks: all of them, or none.
Result<bool> HasBlocks(const Problem& problem) {
  bool must = false;  // some are nothing else
  int not_blocks = -1;
  for (size_t i = 0; i < problem.slots.scale_b.size(); ++i) {
    const int slot = problem.slots.scale_b[i];
    TANDEM_RETURN_IF_ERROR(CheckType(problem, slot));
    const Shape &scale = Spec(problem, slot).shape, &b = Spec(problem, problem.slots.b[i]).shape;
    const ScaleOfB found = Classify(scale, b);
    if (!found.plain && !found.blocks) {
      const int64_t blocks = ScaleBlocks(b[0]);
      return FieldError(
          OperandField(slot, "shape"),
          Text(ShapeText(scale), " is neither one element, nor ", ShapeText({1, b[1]}), ", nor by blocks ",
               ShapeText({blocks, ScaleBlocks(b[1])}), " or ", ShapeText({blocks, b[1]})));
    }
    must = must || !found.plain;
    if (!found.blocks) not_blocks = slot;
  }
  if (must && not_blocks >= 0) {
    return FieldError(OperandField(not_blocks, "shape"), "must be by blocks as another scale of B is");
  }
  return must;
}

Status FillBlockWise(Problem* problem, const Shape& gathered) {
  const int slot = problem->slots.scale_a;
  if (slot < 0) {
    return FieldError(OperandField(problem->slots.scale_b[0], "shape"),
                      "scales of B by blocks need an operand of role scale_a by blocks");
  }
  TANDEM_RETURN_IF_ERROR(CheckType(*problem, slot));
  const Shape &a = Spec(*problem, problem->slots.a).shape, &shape = Spec(*problem, slot).shape;
  const bool gathers = problem->request->op == Op::kAllGatherMatmul;
  if (gathers && problem->last_dim() && problem->world_size > 1 && a.back() % kScaleBlock != 0) {
    return FieldError(OperandField(problem->slots.a, "shape"),
                      Text("its last extent ", a.back(),
                           " is gathered, and scales by blocks need it to be a multiple of ", kScaleBlock));
  }
  const Shape own = WithLast(a, ScaleBlocks(a.back())),
              whole = WithLast(gathered, ScaleBlocks(gathered.back()));
  if (shape == own) {
    problem->scale_mode = gathers ? ScaleMode::kBlockWiseSharded : ScaleMode::kBlockWise;
  } else if (gathers && shape == whole) {
    problem->scale_mode = ScaleMode::kBlockWiseReplicated;
  } else {
    return FieldError(OperandField(slot, "shape"), Text(ShapeText(shape), " is not ", ShapeText(own),
                                                        gathers ? Text(" or ", ShapeText(whole)) : "",
                                                        ", as B's scales by blocks demand"));
  }
  return Status::Ok();
}

}  // namespace

int64_t ScaleBlocks(int64_t extent) { return extent / kScaleBlock + (extent % kScaleBlock != 0); }

Status FillScaleMode(Problem* problem, const Shape& gathered) {
  TANDEM_ASSIGN_OR_RETURN(const bool blocks, HasBlocks(*problem));
  if (blocks) return FillBlockWise(problem, gathered);
  const int slot = problem->slots.scale_a;
  if (slot < 0) {
    if (!problem->slots.scale_b.empty()) problem->scale_mode = ScaleMode::kTensorWise;
    return Status::Ok();
  }
  TANDEM_RETURN_IF_ERROR(CheckType(*problem, slot));
  const Shape& shape = Spec(*problem, slot).shape;
  const Shape& a = Spec(*problem, problem->slots.a).shape;
  const Shape own = WithLast(a, 1), whole = WithLast(gathered, 1);
  const bool gathers = problem->request->op == Op::kAllGatherMatmul;
  // The shard's shape wins a tie: its scales travel, which is right for equal scales too.
  if (gathers && shape == own) {
    problem->scale_mode = ScaleMode::kRowWiseSharded;
  } else if (*ElementCount(shape) == 1) {
    problem->scale_mode = ScaleMode::kTensorWise;
  } else if (shape == own) {
    problem->scale_mode = ScaleMode::kRowWise;
  } else if (gathers && shape == whole) {
    problem->scale_mode = ScaleMode::kRowWiseReplicated;
  } else {
    const bool as_blocks = shape == WithLast(a, ScaleBlocks(a.back())) ||
                           shape == WithLast(gathered, ScaleBlocks(gathered.back()));
    return FieldError(OperandField(slot, "shape"),
                      Text(ShapeText(shape), " is neither one element, nor ", ShapeText(own),
                           gathers ? Text(", nor ", ShapeText(whole)) : std::string(),
                           as_blocks ? "; scales by blocks need B's by blocks" : ""));
  }
  return Status::Ok();
}

}  // namespace tandem::plan
