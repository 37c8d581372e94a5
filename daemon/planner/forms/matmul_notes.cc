#include "daemon/planner/forms/matmul_notes.h"

#include <algorithm>

#include "daemon/planner/forms/matmul_parts.h"
#include "daemon/planner/forms/row_products.h"
#include "program/text.h"

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
  // A line begins within the one before it, as in what is expanded.
  bool Overlaps() const {
    return !(DenseAlong() && (other == 1 || across >= k)) && !(DenseAcross() && (k == 1 || along >= other));
  }
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

// fp8 that cuBLASLt needs dense along K: a copy is made of a B, and of an A of one row dimension.
bool IsTransposed(const Problem& problem, int slot, bool is_a) {
  const View view = problem.Slot(0, slot);
  const Layout layout = LayoutOf(view, is_a);
  const bool copied = !is_a || (view.extent.size() == 2 && problem.request->op != Op::kAsyncInputMatmul);
  return IsFloat8(view.dtype) && layout.DenseAcross() && !layout.DenseAlong() && copied;
}

class Reasons {
 public:
  explicit Reasons(const Problem& problem)
      : problem_(problem),
        op_(problem.request->op),
        in_product_(op_ == Op::kAllGatherMatmul || op_ == Op::kAsyncInputMatmul) {}

  std::vector<PlainReason> All() {
    const Slots& slots = problem_.slots;
    CheckOperand(slots.a, true);
    CheckTypes();
    CheckScales();
    for (size_t i = 0; i < slots.b.size(); ++i) {
      CheckOperand(slots.b[i], false);
      CheckOutput(i);
      CheckRows(i);
    }
    std::vector<PlainReason> once;
    for (PlainReason& reason : reasons_) {
      if (std::find(once.begin(), once.end(), reason) == once.end()) once.push_back(std::move(reason));
    }
    return once;
  }

 private:
  void Add(std::string why, bool in_key = false) { reasons_.push_back({std::move(why), in_key}); }
  void AddFloat8Output(DType type) { Add(Text("its products are rounded to ", DTypeName(type)), true); }
  DType TypeOf(int slot) const { return problem_.operand(slot).spec.dtype; }
  // Products add up in fp32 apart from C number `i`, and bias and result scale come as the sum is rounded.
  bool SumsOverK(size_t i) const {
    return op_ == Op::kAllGatherMatmul && problem_.last_dim() && problem_.world_size > 1 &&
           TypeOf(problem_.slots.c[i]) != DType::kF32;
  }

  void CheckOperand(int slot, bool is_a) {
    const View view = problem_.Slot(0, slot);
    const Layout layout = LayoutOf(view, is_a);
    const char* name = is_a ? "A" : "B";
    if (!layout.DenseAlong() && !layout.DenseAcross()) {
      Add(Text(name, " is dense along neither dimension"));
    } else if (layout.Overlaps()) {
      Add(Text("elements of ", name, " overlap"));
    } else if (IsFloat8(view.dtype) && !layout.DenseAlong() && !IsTransposed(problem_, slot, is_a)) {
      Add(Text(name, " (fp8) is not dense along K"));
    }
  }

  void CheckTypes() {
    const Slots& slots = problem_.slots;
    const DType a = TypeOf(slots.a);
    if (IsBlockWise(problem_.scale_mode) && problem_.rows % kBlockScaledRows != 0) {
      Add("rows of products with scales by blocks must be multiples of 4");
    }
    if (!IsFloat8(a)) return;
    if (!in_product_ && IsFloat8(problem_.wire)) AddFloat8Output(problem_.wire);
    for (int slot : slots.b) {
      if (a == DType::kF8E5M2 && TypeOf(slot) == DType::kF8E5M2) Add("both operands are e5m2", true);
      if (problem_.k % kFloat8Multiple != 0 || problem_.Slot(0, slot).extent[1] % kFloat8Multiple != 0) {
        Add("extents of fp8 operands must be multiples of 16");
      }
    }
  }

  // Those by blocks are arranged as cuBLASLt wants them.
  void CheckScales() {
    const Slots& slots = problem_.slots;
    if (IsBlockWise(problem_.scale_mode) || (slots.scale_a < 0 && slots.scale_b.empty())) return;
    if (slots.scale_a < 0) return Add("B has scales, and A has none");
    if (slots.scale_b.empty()) return Add("A has scales, and B has none");
    const View of_a = problem_.Slot(0, slots.scale_a);
    bool contiguous = IsContiguous(of_a);
    for (int slot : slots.scale_b) {
      const View of_b = problem_.Slot(0, slot);
      contiguous = contiguous && IsContiguous(of_b);
      if (Elements(of_a) != 1 && Elements(of_b) == 1)
        Add("A has a scale for each row, B one for all columns");
      if (Elements(of_a) == 1 && Elements(of_b) != 1)
        Add("B has a scale for each column, A one for all rows");
    }
    if (!contiguous) Add("the scales are not contiguous");
  }

  void CheckOutput(size_t i) {
    const View c = problem_.Slot(0, problem_.slots.c[i]);
    const bool writes_c = in_product_ ? !SumsOverK(i) : problem_.wire == c.dtype;
    if (!writes_c) return;
    const Layout layout = LayoutOf(c, true);
    if (!layout.DenseAlong() && !layout.DenseAcross()) Add("C is dense along neither dimension");
    if (!in_product_) return;  // the sum over ranks applies bias and result scale
    if (IsFloat8(c.dtype)) AddFloat8Output(c.dtype);
    if (!problem_.slots.result_scale.empty()) Add("it has a result scale");
    if (problem_.slots.bias.empty()) return;
    const View bias = problem_.Slot(0, problem_.slots.bias[i]);
    if (bias.dtype != c.dtype)
      Add(Text("its bias is ", DTypeName(bias.dtype), " while C is ", DTypeName(c.dtype)));
    if (!IsContiguous(bias)) Add("its bias is not contiguous");
    if (!layout.DenseAlong()) Add("it has a bias, and C has contiguous columns");
  }

  // A rank's piece of the product, as programs cut it into matrices.
  void CheckRows(size_t i) {
    MatmulStep piece = WholeMatmul(problem_, 0, i);
    const bool cut = (op_ == Op::kAllGatherMatmul || op_ == Op::kMatmulReduceScatter) && !problem_.last_dim();
    if (cut && op_ == Op::kAllGatherMatmul) {
      const int64_t shard = piece.a.extent[static_cast<size_t>(problem_.dim)];
      piece.c = Slice(piece.c, problem_.dim, 0, shard);
      if (AreScalesReplicated(problem_.scale_mode))
        piece.scale_a = Slice(piece.scale_a, problem_.dim, 0, shard);
    } else if (cut) {
      piece = PartialMatmul(problem_, 0, problem_.dim, {0, piece.c.extent[static_cast<size_t>(problem_.dim)]},
                            piece.c);
    }
    if (op_ != Op::kAsyncInputMatmul) piece = RowProducts(piece)[0];
    if (!HasOnePitch(piece.a) || !HasOnePitch(piece.c)) Add("the rows of A or C are not evenly spaced");
  }

  const Problem& problem_;
  const Op op_;
  const bool in_product_;
  std::vector<PlainReason> reasons_;
};

}  // namespace

std::vector<PlainReason> WhyPlain(const Problem& problem) {
  const bool products = problem.slots.a >= 0 && !problem.slots.b.empty() && problem.rows > 0 && problem.k > 0;
  if (!products || !problem.group->packet_kernels) return {};
  return Reasons(problem).All();
}

std::vector<std::string> MatmulNotes(const Problem& problem) {
  std::vector<std::string> notes;
  if (problem.slots.a < 0 || problem.slots.b.empty() || problem.rows == 0 || problem.k == 0) return notes;
  if (problem.request->determinism == Determinism::kBatch) {
    return {
        "determinism = batch: its product runs on the plain kernel, many times slower than cuBLASLt, whose "
        "sums "
        "depend on the rows"};
  }
  for (const PlainReason& reason : WhyPlain(problem)) {
    notes.push_back(
        Text("its product runs on the plain kernel, many times slower than cuBLASLt: ", reason.why));
  }
  const auto note_copy = [&](int slot, bool is_a) {
    if (!IsTransposed(problem, slot, is_a)) return;
    // A piece of A goes into one product, all of B into each.
    notes.push_back(Text(is_a ? "A" : "B", " (fp8) is not dense along K: each ",
                         is_a ? "launch" : "of its products", " transposes ",
                         BytesText(Bytes(problem.Slot(0, slot))), " for cuBLASLt"));
  };
  note_copy(problem.slots.a, true);
  for (int slot : problem.slots.b) note_copy(slot, false);
  std::sort(notes.begin(), notes.end());
  notes.erase(std::unique(notes.begin(), notes.end()), notes.end());
  return notes;
}

}  // namespace tandem::plan
