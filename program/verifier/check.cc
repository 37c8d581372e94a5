// The checks that need no order: shapes, lanes, dependencies, ranks, signal indexes.
#include <algorithm>
#include <string>

#include "program/verifier/graph.h"
#include "program/views.h"

namespace tandem::plan::verify {
namespace {

int64_t CountOf(const View& view) {
  int64_t count = 1;
  for (int64_t extent : view.extent) count *= extent;
  return count;
}

int64_t LeadingRows(const View& view) {
  int64_t rows = 1;
  for (size_t d = 0; d + 1 < view.extent.size(); ++d) rows *= view.extent[d];
  return rows;
}

class ProgramChecker {
 public:
  ProgramChecker(const RankProgram& program, const VerifyContext& context)
      : program_(program), context_(context) {}

  Status Run() {
    for (size_t s = 0; s < program_.steps.size(); ++s) {
      const Step& step = program_.steps[s];
      Status status = CheckPlace(step, s);
      if (status.ok()) status = CheckWork(step, /*nested=*/false);
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

  Status CheckCopy(const View& src, const View& dst) const {
    TANDEM_RETURN_IF_ERROR(CheckView(src, "source"));
    TANDEM_RETURN_IF_ERROR(CheckWritten(dst, "destination"));
    if (src.extent != dst.extent) return InvalidArgument("source and destination have different extents");
    if (src.dtype != dst.dtype) return InvalidArgument("source and destination have different dtypes");
    return {};
  }

  Status CheckMatmul(const MatmulStep& m) const {
    TANDEM_RETURN_IF_ERROR(CheckView(m.a, "A"));
    TANDEM_RETURN_IF_ERROR(CheckView(m.b, "B"));
    TANDEM_RETURN_IF_ERROR(CheckWritten(m.c, "C"));
    if (m.a.extent.empty() || m.b.extent.size() != 2 || m.c.extent.size() != m.a.extent.size()) {
      return InvalidArgument("operands of the matmul have the wrong number of dimensions");
    }
    int64_t rows = LeadingRows(m.a), columns = m.b.extent[1];
    if (m.a.extent.back() != m.b.extent[0] || m.c.extent.back() != columns || LeadingRows(m.c) != rows) {
      return InvalidArgument("extents of A, B and C do not fit");
    }
    auto check = [this](bool has, const View& view, const char* name, int64_t one, int64_t other) -> Status {
      if (!has) return {};
      TANDEM_RETURN_IF_ERROR(CheckView(view, name));
      if (CountOf(view) != one && CountOf(view) != other) {
        return InvalidArgument(std::string(name) + " has " + std::to_string(CountOf(view)) + " elements");
      }
      return {};
    };
    if (m.block_scales) {
      TANDEM_RETURN_IF_ERROR(CheckBlockScales(m, rows, columns));
    } else {
      TANDEM_RETURN_IF_ERROR(check(m.has_scale_a, m.scale_a, "scale of A", 1, rows));
      TANDEM_RETURN_IF_ERROR(check(m.has_scale_b, m.scale_b, "scale of B", 1, columns));
    }
    TANDEM_RETURN_IF_ERROR(check(m.has_bias, m.bias, "bias", columns, columns));
    TANDEM_RETURN_IF_ERROR(check(m.has_result_scale, m.result_scale, "result scale", 1, 1));
    return m.has_chunk_signals ? CheckView(m.chunk_signals, "chunk signals") : Status();
  }

  Status CheckBlockScales(const MatmulStep& m, int64_t rows, int64_t columns) const {
    if (!m.has_scale_a || !m.has_scale_b) return InvalidArgument("scales by blocks of one operand alone");
    TANDEM_RETURN_IF_ERROR(CheckView(m.scale_a, "scale of A"));
    TANDEM_RETURN_IF_ERROR(CheckView(m.scale_b, "scale of B"));
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

  Status CheckReduce(const ReduceStep& r) const {
    TANDEM_RETURN_IF_ERROR(CheckWritten(r.dst, "destination"));
    if (r.sources.empty()) return InvalidArgument("reduces nothing");
    for (const View& source : r.sources) {
      TANDEM_RETURN_IF_ERROR(CheckView(source, "source"));
      if (source.extent != r.dst.extent)
        return InvalidArgument("sources and destination have different extents");
    }
    if (r.has_bias) {
      TANDEM_RETURN_IF_ERROR(CheckView(r.bias, "bias"));
      if (r.dst.extent.empty() || CountOf(r.bias) != r.dst.extent.back())
        return InvalidArgument("bias does not fit");
    }
    if (r.has_result_scale) {
      TANDEM_RETURN_IF_ERROR(CheckView(r.result_scale, "result scale"));
      if (CountOf(r.result_scale) != 1) return InvalidArgument("result scale is not one element");
    }
    return {};
  }

  Status CheckNorm(const NormStep& n) const {
    TANDEM_RETURN_IF_ERROR(CheckView(n.sum, "sum"));
    TANDEM_RETURN_IF_ERROR(CheckView(n.weight, "norm weight"));
    TANDEM_RETURN_IF_ERROR(CheckWritten(n.out, "output"));
    std::vector<const View*> same = {&n.sum};
    if (n.has_residual) {
      TANDEM_RETURN_IF_ERROR(CheckView(n.residual, "residual"));
      TANDEM_RETURN_IF_ERROR(CheckWritten(n.residual_out, "residual output"));
      same.insert(same.end(), {&n.residual, &n.residual_out});
    }
    if (n.out.extent.empty() || n.weight.extent != std::vector<int64_t>{n.out.extent.back()})
      return InvalidArgument("the norm's weight does not fit");
    for (const View* view : same) {
      if (view->extent != n.out.extent || view->dtype != n.out.dtype || !IsContiguous(*view))
        return InvalidArgument("views of a norm are contiguous and of one shape and dtype");
    }
    if (n.weight.dtype != n.out.dtype || !IsContiguous(n.weight) || !IsContiguous(n.out))
      return InvalidArgument("views of a norm are contiguous and of one shape and dtype");
    return {};
  }

  Status CheckNccl(const NcclStep& n) const {
    if (n.root < 0 || n.root >= program_.world_size) return InvalidArgument("root is no rank");
    if (n.kind == NcclKind::kBarrier) return {};
    for (const View* view : {&n.in, &n.out}) {
      // Broadcast's in and reduce's out mean something on the root only.
      if (view == &n.in && n.kind == NcclKind::kBroadcast && program_.rank != n.root) continue;
      if (view == &n.out && n.kind == NcclKind::kReduce && program_.rank != n.root) continue;
      TANDEM_RETURN_IF_ERROR(CheckWritten(*view, view == &n.in ? "input" : "output"));
      if (view->ref.rank != program_.rank)
        return InvalidArgument("a collective of NCCL works on own memory only");
      if (BoxOf(*view)->rank != 0) return InvalidArgument("a collective of NCCL needs contiguous buffers");
    }
    int64_t in = CountOf(n.in), out = CountOf(n.out), world = program_.world_size;
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

  Status CheckWork(const Step& step, bool nested) {
    if (auto* copy = std::get_if<CopyStep>(&step.work)) return CheckCopy(copy->src, copy->dst);
    if (auto* signal = std::get_if<SignalStep>(&step.work))
      return CheckSignal(signal->to_rank, signal->index);
    if (auto* wait = std::get_if<WaitStep>(&step.work)) return CheckSignal(wait->from_rank, wait->index);
    if (auto* matmul = std::get_if<MatmulStep>(&step.work)) return CheckMatmul(*matmul);
    if (auto* reduce = std::get_if<ReduceStep>(&step.work)) return CheckReduce(*reduce);
    if (auto* norm = std::get_if<NormStep>(&step.work)) return CheckNorm(*norm);
    if (auto* group = std::get_if<TransferGroupStep>(&step.work)) {
      for (const TransferPart& part : group->parts) {
        TANDEM_RETURN_IF_ERROR(CheckSignal(part.peer, part.index));
        if (!part.send) continue;
        TANDEM_RETURN_IF_ERROR(CheckCopy(part.src, part.dst));
        if (part.dst.ref.rank != part.peer) return InvalidArgument("a send's destination is not its peer's");
      }
      return {};
    }
    if (auto* nccl = std::get_if<NcclStep>(&step.work)) {
      return nested ? InvalidArgument("a kernel's expansion cannot call NCCL") : CheckNccl(*nccl);
    }
    if (auto* collective = std::get_if<CollectiveStep>(&step.work)) {
      if (nested) return InvalidArgument("a kernel's expansion holds another kernel");
      first_signal_ = collective->first_signal;
      last_signal_ = collective->first_signal + collective->signal_count;
      Status status;
      for (size_t i = 0; i < collective->expansion.size() && status.ok(); ++i) {
        status = CheckWork(collective->expansion[i], true);
        if (!status.ok()) status = status.WithContext("expansion step " + std::to_string(i));
      }
      first_signal_ = 0;
      last_signal_ = kSignalsPerWriter;
      return status;
    }
    return {};
  }

  const RankProgram& program_;
  const VerifyContext& context_;
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
