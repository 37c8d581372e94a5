#include "daemon/planner/matmul_notes.h"

#include <algorithm>

#include "daemon/planner/text.h"

namespace tandem::plan {
namespace {

constexpr int64_t kFloat8Multiple = 16;  // of cuBLASLt's extents in fp8
constexpr int64_t kBlockScaledRows = 4;  // their multiple where scales are by blocks

// The stride along K, the one across, and whether the elements are those of a matrix.
struct Layout {
  int64_t along = 1, across = 1;
  int64_t k = 1, other = 1;
  bool DenseAlong() const { return along == 1 || k == 1; }
  bool DenseAcross() const { return across == 1 || other == 1; }
};

Layout LayoutOf(const View& view, bool is_a) {
  const size_t last = view.extent.size() - 1;
  Layout layout;
  if (is_a) {
    layout = {view.stride[last], view.stride[last - 1], view.extent[last], view.extent[last - 1]};
  } else {
    layout = {view.stride[0], view.stride[1], view.extent[0], view.extent[1]};
  }
  return layout;
}

std::string Slow(std::string_view why) {
  return Text("its product runs on the plain kernel, many times slower than cuBLASLt: ", why);
}

void NoteOperand(const Problem& problem, int slot, bool is_a, std::vector<std::string>* notes) {
  const View view = problem.Slot(0, slot);
  const Layout layout = LayoutOf(view, is_a);
  const char* name = is_a ? "A" : "B";
  if (!layout.DenseAlong() && !layout.DenseAcross()) {
    notes->push_back(Slow(Text(name, " is dense along neither dimension")));
    return;
  }
  if (!IsFloat8(view.dtype)) return;
  if (layout.DenseAlong()) return;
  const bool copied = !is_a || (view.extent.size() == 2 && problem.request->op != Op::kAsyncInputMatmul);
  if (copied) {
    notes->push_back(Text(name, " (fp8) is not dense along K: each launch transposes ", BytesText(Bytes(view)),
                          " for cuBLASLt"));
  } else {
    notes->push_back(Slow(Text(name, " (fp8) is not dense along K")));
  }
}

}  // namespace

std::vector<std::string> MatmulNotes(const Problem& problem) {
  std::vector<std::string> notes;
  if (problem.slots.a < 0 || problem.slots.b.empty() || problem.rows == 0 || problem.k == 0) return notes;
  const DType a = problem.operand(problem.slots.a).spec.dtype;
  NoteOperand(problem, problem.slots.a, true, &notes);
  if (IsBlockWise(problem.scale_mode) && problem.rows % kBlockScaledRows != 0) {
    notes.push_back(Slow("rows of products with scales by blocks must be multiples of 4"));
  }
  const Op op = problem.request->op;
  const bool in_product = op == Op::kAllGatherMatmul || op == Op::kAsyncInputMatmul;  // else the sum applies it
  if (in_product && !problem.slots.result_scale.empty()) notes.push_back(Slow("it has a result scale"));
  for (size_t i = 0; i < problem.slots.b.size(); ++i) {
    const DType b = problem.operand(problem.slots.b[i]).spec.dtype;
    const View columns = problem.Slot(0, problem.slots.b[i]);
    if (IsFloat8(a) != IsFloat8(b) || (!IsFloat8(a) && a != b)) notes.push_back(Slow("A and B differ in type"));
    if (IsFloat8(a) && IsFloat8(b)) {
      if (a == DType::kF8E5M2 && b == DType::kF8E5M2) notes.push_back(Slow("both operands are e5m2"));
      if (problem.k % kFloat8Multiple != 0 || columns.extent[1] % kFloat8Multiple != 0) {
        notes.push_back(Slow("extents of fp8 operands must be multiples of 16"));
      }
    }
    NoteOperand(problem, problem.slots.b[i], false, &notes);
  }
  std::sort(notes.begin(), notes.end());
  notes.erase(std::unique(notes.begin(), notes.end()), notes.end());
  return notes;
}

}  // namespace tandem::plan
