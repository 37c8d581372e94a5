// The checks that need no order: shapes, lanes, dependencies, ranks, signal indexes.
#include <algorithm>
#include <bit>
#include <string>

#include "program/norm_layout.h"
#include "program/norm_scales.h"
#include "program/step_fields.h"
#include "program/text.h"
#include "program/verifier/graph.h"

namespace tandem::plan::verify {
namespace {

class ProgramChecker {
 public:
  ProgramChecker(const RankProgram& program, const VerifyContext& context)
      : program_(program), context_(context) {}

  Status Run() {
    for (size_t s = 0; s < program_.steps.size(); ++s) {
      const Step& step = program_.steps[s];
      Status status = CheckPlace(step, s);
      if (status.ok()) status = CheckWork(step);
      if (status.ok()) continue;
      return Refuse(
          status.detail().reason.empty() ? "MALFORMED" : status.detail().reason,
          Describe({&program_, 1}, program_.rank, static_cast<uint32_t>(s), -1) + ": " + status.message());
    }
    return {};
  }

 private:
  Status CheckPlace(const Step& step, size_t index) const {
    if (step.lane >= program_.lanes)
      return InvalidArgument("lane " + std::to_string(step.lane) + " does not exist");
    for (uint32_t dep : step.deps) {
      if (dep >= index)
        return InvalidArgument("depends on step " + std::to_string(dep) + ", which is not earlier");
    }
    return {};
  }

  Status CheckView(const View& view, const char* name) const {
    if (view.ref.rank >= program_.world_size) return InvalidArgument(std::string(name) + " is of no rank");
    if (view.ref.space > Space::kBulk) return InvalidArgument(std::string(name) + " is in no known space");
    if (view.ref.space == Space::kOperand && view.ref.slot >= context_.operand_bytes[view.ref.rank].size()) {
      return InvalidArgument(std::string(name) + " is in slot " + std::to_string(view.ref.slot) +
                             ", which does not exist");
    }
    Result<ByteBox> box = BoxOf(view);
    return box.ok() ? Status() : box.status().WithContext(name);
  }

  Status CheckWritten(const View& view, const char* name) const {
    TANDEM_RETURN_IF_ERROR(CheckView(view, name));
    if (BoxOf(view)->repeats) return InvalidArgument(std::string(name) + " reaches some byte twice");
    return {};
  }

  Status CheckSignal(int peer, int index) const {
    if (peer >= program_.world_size) return InvalidArgument("signal to or from no rank");
    if (index >= program_.signal_count || index < first_signal_ || index >= last_signal_) {
      return Refuse("SIGNAL", "signal index " + std::to_string(index) + " is outside [" +
                                  std::to_string(first_signal_) + ", " +
                                  std::to_string(std::min(last_signal_, program_.signal_count)) + ")");
    }
    return {};
  }

  // The views of a step's work, each by itself.
  template <class Work>
  Status CheckViews(const Work& work) const {
    return ForEachView(
        [this](const char* name, ViewUse use, const View& view) {
          return use == ViewUse::kWrite ? CheckWritten(view, name) : CheckView(view, name);
        },
        work);
  }

  Status Check(const NopStep&) const { return {}; }
  Status Check(const SignalStep& signal) const { return CheckSignal(signal.to_rank, signal.index); }
  Status Check(const WaitStep& wait) const { return CheckSignal(wait.from_rank, wait.index); }

  // A copy, or the send of a transfer group.
  template <class Move>
  Status CheckMove(const Move& move) const {
    TANDEM_RETURN_IF_ERROR(CheckViews(move));
    if (move.src.extent != move.dst.extent)
      return InvalidArgument("source and destination have different extents");
    if (move.src.dtype != move.dst.dtype)
      return InvalidArgument("source and destination have different dtypes");
    return {};
  }
  Status Check(const CopyStep& copy) const { return CheckMove(copy); }
  Status Check(const TransferGroupStep& group) const {
    for (const TransferPart& part : group.parts) {
      TANDEM_RETURN_IF_ERROR(CheckSignal(part.peer, part.index));
      if (!part.send) continue;
      TANDEM_RETURN_IF_ERROR(CheckMove(part));
      if (part.dst.ref.rank != part.peer) return InvalidArgument("a send's destination is not its peer's");
    }
    return {};
  }

  Status Check(const MatmulStep& m) const {
    TANDEM_RETURN_IF_ERROR(CheckViews(m));
    if (m.a.extent.empty() || m.b.extent.size() != 2 || m.c.extent.size() != m.a.extent.size()) {
      return InvalidArgument("operands of the matmul have the wrong number of dimensions");
    }
    int64_t rows = LeadingRows(m.a), columns = m.b.extent[1];
    if (m.a.extent.back() != m.b.extent[0] || m.c.extent.back() != columns || LeadingRows(m.c) != rows) {
      return InvalidArgument("extents of A, B and C do not fit");
    }
    auto check = [](bool has, const View& view, const char* name, int64_t one, int64_t other) -> Status {
      if (!has || Elements(view) == one || Elements(view) == other) return {};
      return InvalidArgument(std::string(name) + " has " + std::to_string(Elements(view)) + " elements");
    };
    if (m.block_scales) {
      TANDEM_RETURN_IF_ERROR(CheckBlockScales(m, rows, columns));
    } else {
      TANDEM_RETURN_IF_ERROR(check(m.has_scale_a, m.scale_a, "scale of A", 1, rows));
      TANDEM_RETURN_IF_ERROR(check(m.has_scale_b, m.scale_b, "scale of B", 1, columns));
    }
    TANDEM_RETURN_IF_ERROR(check(m.has_bias, m.bias, "bias", columns, columns));
    return check(m.has_result_scale, m.result_scale, "result scale", 1, 1);
  }

  Status CheckBlockScales(const MatmulStep& m, int64_t rows, int64_t columns) const {
    if (!m.has_scale_a || !m.has_scale_b) return InvalidArgument("scales by blocks of one operand alone");
    const int64_t blocks = (m.a.extent.back() + kScaleBlock - 1) / kScaleBlock;
    if (m.scale_a.extent.empty() || m.scale_a.extent.back() != blocks || LeadingRows(m.scale_a) != rows) {
      return InvalidArgument("scale of A has not one element for each row and block of K");
    }
    const int64_t reach = (m.first_column + columns + kScaleBlock - 1) / kScaleBlock;
    if (m.scale_b.extent.size() != 2 || m.scale_b.extent[0] != blocks || m.first_column < 0 ||
        m.first_column >= kScaleBlock ||
        (m.scale_b.extent[1] != columns && m.scale_b.extent[1] != (columns == 0 ? 0 : reach))) {
      return InvalidArgument(
          "scale of B has not one element for each block of K and column, or block of columns");
    }
    return {};
  }

  Status Check(const ReduceStep& r) const {
    TANDEM_RETURN_IF_ERROR(CheckViews(r));
    if (r.sources.empty()) return InvalidArgument("reduces nothing");
    for (const View& source : r.sources) {
      if (source.extent != r.dst.extent)
        return InvalidArgument("sources and destination have different extents");
    }
    if (r.has_bias && (r.dst.extent.empty() || Elements(r.bias) != r.dst.extent.back()))
      return InvalidArgument("bias does not fit");
    if (r.has_result_scale && Elements(r.result_scale) != 1)
      return InvalidArgument("result scale is not one element");
    return {};
  }

  Status Check(const NormStep& n) const {
    TANDEM_RETURN_IF_ERROR(CheckViews(n));
    if (n.out.extent.empty() || n.weight.extent != std::vector<int64_t>{n.out.extent.back()})
      return InvalidArgument("the norm's weight does not fit");
    if (const char* why = WhyNotQuantized(n); why != nullptr) return InvalidArgument(why);
    const auto shared = static_cast<unsigned>(n.row_blocks);
    if (shared != 0 && (!std::has_single_bit(shared) || shared > kMaxNormRowBlocks))
      return InvalidArgument(Text("no kernel norms a row by ", n.row_blocks, " blocks"));
    return ForEachView(
        [&n](const char*, ViewUse, const View& view) -> Status {
          if (&view == &n.quantized || &view == &n.static_scale || &view == &n.scales) return {};
          const bool shaped = &view == &n.weight || view.extent == n.out.extent;
          if (shaped && view.dtype == n.out.dtype && IsContiguous(view)) return {};
          return InvalidArgument("views of a norm are contiguous and of one shape and dtype");
        },
        n);
  }

  Status Check(const NcclStep& n) const {
    if (nested_) return InvalidArgument("a kernel's expansion cannot call NCCL");
    if (n.root < 0 || n.root >= program_.world_size) return InvalidArgument("root is no rank");
    for (const View* view : {&n.in, &n.out}) {
      if (view == &n.in ? !n.Reads(program_.rank) : !n.Writes(program_.rank)) continue;
      TANDEM_RETURN_IF_ERROR(CheckWritten(*view, view == &n.in ? "input" : "output"));
      if (view->ref.rank != program_.rank)
        return InvalidArgument("a collective of NCCL works on own memory only");
      if (BoxOf(*view)->rank != 0) return InvalidArgument("a collective of NCCL needs contiguous buffers");
    }
    int64_t in = Elements(n.in), out = Elements(n.out), world = program_.world_size;
    bool fits = true;
    switch (n.kind) {
      case NcclKind::kAllReduce: fits = in == out; break;
      case NcclKind::kAllGather: fits = out == world * in; break;
      case NcclKind::kReduceScatter: fits = in == world * out; break;
      case NcclKind::kAllToAll: fits = in == out && in % world == 0; break;
      case NcclKind::kBroadcast:
      case NcclKind::kReduce: fits = program_.rank != n.root || in == out; break;
      case NcclKind::kBarrier: break;
    }
    return fits ? Status() : InvalidArgument("input and output of the collective do not fit");
  }

  Status Check(const CollectiveStep& collective) {
    if (nested_) return InvalidArgument("a kernel's expansion holds another kernel");
    nested_ = true;
    first_signal_ = collective.first_signal;
    last_signal_ = collective.first_signal + collective.signal_count;
    Status status;
    for (size_t i = 0; i < collective.expansion.size() && status.ok(); ++i) {
      status = CheckWork(collective.expansion[i]);
      if (!status.ok()) status = status.WithContext("expansion step " + std::to_string(i));
    }
    nested_ = false;
    first_signal_ = 0;
    last_signal_ = kSignalsPerWriter;
    return status;
  }

  Status CheckWork(const Step& step) {
    return std::visit([this](const auto& work) { return Check(work); }, step.work);
  }

  const RankProgram& program_;
  const VerifyContext& context_;
  bool nested_ = false;                                     // within a collective
  int first_signal_ = 0, last_signal_ = kSignalsPerWriter;  // what the step at hand may use
};

}  // namespace

Status Refuse(std::string_view reason, std::string message) {
  StatusDetail detail;
  detail.reason = std::string(reason);
  return Status(Code::kInternal, std::move(message), std::move(detail));
}

std::string Describe(std::span<const RankProgram> programs, int rank, uint32_t step, int launch) {
  std::string text = "rank " + std::to_string(rank);
  if (launch >= 0) text += " launch " + std::to_string(launch);
  if (step == kBeginOfLaunch) return text + " begin";
  if (step == kEndOfLaunch) return text + " end";
  text += " step " + std::to_string(step);
  for (const RankProgram& program : programs) {
    if (program.rank != rank || step >= program.steps.size()) continue;
    text += " (" +
            (program.steps[step].label.empty() ? std::string(StepKindName(program.steps[step]))
                                               : program.steps[step].label) +
            ")";
    break;
  }
  return text;
}

Status CheckPrograms(std::span<const RankProgram> programs, const VerifyContext& context) {
  const int world = static_cast<int>(programs.size());
  if (world < 1 || world > kMaxWorldSize) return Refuse("MALFORMED", "world size must be 1 to 8");
  if (context.operand_bytes.size() != programs.size())
    return Refuse("MALFORMED", "operand sizes are not of all ranks");
  size_t slots = 0;
  for (const auto& bytes : context.operand_bytes) slots = std::max(slots, bytes.size());
  if (context.symmetric.size() < slots || context.alias.size() < slots) {
    return Refuse("MALFORMED", "the context does not describe every slot");
  }
  for (int rank = 0; rank < world; ++rank) {
    const RankProgram& program = programs[rank];
    std::string who = "rank " + std::to_string(rank);
    if (program.rank != rank || program.world_size != world) {
      return Refuse("MALFORMED", who + "'s program says rank " + std::to_string(program.rank) + " of " +
                                     std::to_string(program.world_size));
    }
    if (program.lanes < 1 || program.lanes > kMaxLanes)
      return Refuse("MALFORMED", who + " has a bad number of lanes");
    if (program.workspace_bytes != programs[0].workspace_bytes ||
        program.bulk_bytes != programs[0].bulk_bytes) {
      return Refuse("MALFORMED", who + "'s workspace differs from rank 0's");
    }
    if (program.signal_count < 0 || program.signal_count > kSignalsPerWriter ||
        program.signal_count != programs[0].signal_count) {
      return Refuse("SIGNAL", who + " declares " + std::to_string(program.signal_count) +
                                  " signals, rank 0 " + std::to_string(programs[0].signal_count));
    }
    TANDEM_RETURN_IF_ERROR(ProgramChecker(program, context).Run());
  }
  return {};
}

}  // namespace tandem::plan::verify
