// Compile: checks a rank program against what it may touch and flattens it into calls on lanes.

#include <set>
#include <string>
#include <type_traits>
#include <utility>

#include "program/kernel_phases.h"
#include "program/step_fields.h"
#include "program/views.h"
#include "runtime/executor/executor.h"
#include "runtime/executor/fused_steps.h"
#include "runtime/executor/operation.h"
#include "runtime/executor/view_bounds.h"

namespace tandem::runtime {

using plan::RankProgram;
using plan::Space;
using plan::Step;
using plan::View;

// One compilation.
class ProgramCompiler {
 public:
  ProgramCompiler(const RankProgram& program, const ProgramLimits& limits, CompiledProgram* out)
      : program_(program), limits_(limits), out_(out) {}

  Status Run() {
    TANDEM_RETURN_IF_ERROR(CheckFrame(program_, limits_));
    out_->rank_ = program_.rank;
    out_->world_size_ = program_.world_size;
    out_->lanes_ = program_.lanes;
    out_->step_count_ = program_.steps.size();
    out_->lane_used_[0] = true;
    // Event 0 of each lane is its fork or join.
    out_->events_per_lane_.fill(1);
    FindRecordedSteps();
    for (size_t i = 0; i < program_.steps.size(); ++i) {
      Status status = AddStep(static_cast<uint32_t>(i));
      if (!status.ok()) return status.WithContext("step " + std::to_string(i) + StepLabel(i));
    }
    return Status::Ok();
  }

 private:
  using Operation = CompiledProgram::Operation;

  // A collective's expansion may hold collectives; no planner nests them deeply.
  static constexpr int kMaxDepth = 4;

  std::string StepLabel(size_t i) const {
    const std::string& label = program_.steps[i].label;
    return label.empty() ? "" : " (" + label + ")";
  }

  // Only steps that another lane depends on need an event.
  void FindRecordedSteps() {
    for (const Step& step : program_.steps) {
      for (uint32_t dep : step.deps) {
        if (dep < program_.steps.size() && program_.steps[dep].lane != step.lane) recorded_.insert(dep);
      }
    }
    event_of_step_.assign(program_.steps.size(), 0);
  }

  Status AddStep(uint32_t index) {
    const Step& step = program_.steps[index];
    if (step.lane >= program_.lanes) return OutOfRange("lane " + std::to_string(step.lane));
    out_->lane_used_[step.lane] = true;
    lane_ = step.lane;
    step_ = index;
    for (uint32_t dep : step.deps) {
      if (dep >= index)
        return InvalidArgument("depends on step " + std::to_string(dep) + ", which is not earlier");
      uint16_t other = program_.steps[dep].lane;
      if (other == step.lane) continue;
      Add<Operation::WaitEvent>({other, event_of_step_[dep]});
    }
    size_t first = out_->operations_.size();
    TANDEM_RETURN_IF_ERROR(AddWork(step, 0));
    if (out_->operations_.size() == first) Add<Operation::Nop>();
    out_->operations_[first]->starts_step = true;
    out_->operations_.back()->ends_step = true;
    if (recorded_.count(index) != 0) {
      event_of_step_[index] = out_->events_per_lane_[lane_]++;
      Add<Operation::RecordEvent>({event_of_step_[index]});
    }
    return Status::Ok();
  }

  // A new operation, which the next patches are of; its work, with addresses still to be set.
  template <class Work>
  Work& Add(Work work = {}) {
    operation_ = out_->operations_.emplace_back(std::make_unique<Operation>()).get();
    operation_->lane = lane_;
    operation_->step = step_;
    return operation_->work.emplace<Work>(std::move(work));
  }

  Status AddWork(const Step& step, int depth) {
    return std::visit([&](const auto& work) { return AddWork(work, depth); }, step.work);
  }

  Status AddWork(const plan::NopStep&, int) { return Status::Ok(); }
  Status AddWork(const plan::CopyStep& step, int) { return AddCopy(step); }
  Status AddWork(const plan::SignalStep& step, int) { return AddSignal(step.to_rank, step.index); }
  Status AddWork(const plan::WaitStep& step, int) { return AddWait(step.from_rank, step.index); }
  Status AddWork(const plan::ReduceStep& step, int) { return Bind(step, &Add<ReduceArgs>()); }

  Status AddWork(const plan::MatmulStep& step, int) {
    if (step.has_chunk_signals) {
      // The stride of a single word says nothing.
      const View& words = step.chunk_signals;
      if (words.dtype != DType::kI32 || words.extent.size() != 1 || words.stride.size() != 1 ||
          words.extent[0] < 1 || (words.extent[0] > 1 && words.stride[0] != 1)) {
        return InvalidArgument("chunk signals are a contiguous row of i32");
      }
      if (words.extent[0] > plan::kMaxChunkSignals) {
        return InvalidArgument(std::to_string(words.extent[0]) + " chunk signals are more than " +
                               std::to_string(plan::kMaxChunkSignals) +
                               ": the lane would hold the engine before the first one comes");
      }
    }
    return Bind(step, &Add<MatmulArgs>());
  }

  Status AddWork(const plan::NormStep& step, int) {
    TANDEM_RETURN_IF_ERROR(ForEachView(
        [this](const char* name, plan::ViewUse, const View& view) { return CheckOwn(view, name); }, step));
    return Bind(step, &Add<NormArgs>());
  }

  Status AddWork(const plan::TransferGroupStep& step, int) {
    for (const plan::TransferPart& part : step.parts) {
      if (!part.send) continue;
      if (part.dst.ref.rank != part.peer) return InvalidArgument("a send to another rank than its peer");
      TANDEM_RETURN_IF_ERROR(AddCopy({part.src, part.dst, true}));
      TANDEM_RETURN_IF_ERROR(AddSignal(part.peer, part.index));
    }
    for (const plan::TransferPart& part : step.parts) {
      if (!part.send) TANDEM_RETURN_IF_ERROR(AddWait(part.peer, part.index));
    }
    return Status::Ok();
  }

  Status AddWork(const plan::NcclStep& step, int) {
    NcclArgs& args = Add<NcclArgs>();
    CopyValues(step, &args);
    out_->needs_communicator_ = true;
    if (step.kind == plan::NcclKind::kBarrier) return Status::Ok();
    if (step.root < 0 || step.root >= program_.world_size)
      return OutOfRange("root " + std::to_string(step.root));
    if (step.Reads(program_.rank)) {
      TANDEM_RETURN_IF_ERROR(CheckOwn(step.in, "input"));
      TANDEM_RETURN_IF_ERROR(Resolve(step.in, "input", &args.in));
    }
    if (!step.Writes(program_.rank)) return Status::Ok();
    TANDEM_RETURN_IF_ERROR(CheckOwn(step.out, "output"));
    return Resolve(step.out, "output", &args.out);
  }

  Status AddWork(const plan::CollectiveStep& step, int depth) {
    if (depth >= kMaxDepth) return InvalidArgument("collectives nested too deeply");
    const bool has_kernel =
        (step.blocks > 0 || step.skinny || step.algorithm == Algorithm::kFused) && depth == 0;
    if (has_kernel) TANDEM_RETURN_IF_ERROR(AddKernel(step));
    const size_t first = out_->operations_.size();
    Operation::Kernel* const kernel = has_kernel ? operation_->As<Operation::Kernel>() : nullptr;
    for (const Step& part : step.expansion) TANDEM_RETURN_IF_ERROR(AddWork(part, depth + 1));
    if (has_kernel) kernel->expansion = out_->operations_.size() - first;
    return Status::Ok();
  }

  Status AddKernel(const plan::CollectiveStep& step) {
    CollectiveArgs& args = Add<Operation::Kernel>().args;
    args.dtype = step.in.dtype;
    args.blocks = step.blocks;
    args.rank = program_.rank;
    args.world_size = program_.world_size;
    if (step.skinny) return SetSkinny(step, &args.work.emplace<SkinnyArgs>());
    if (step.algorithm == Algorithm::kFused) return SetFused(step, &args.work.emplace<FusedArgs>());
    return step.algorithm == Algorithm::kLowLatency ? SetPackets(step, &args.work.emplace<PacketsArgs>())
                                                    : SetPhases(step, &args.work.emplace<PhasesArgs>());
  }

  Status SetSkinny(const plan::CollectiveStep& step, SkinnyArgs* args) {
    const auto world = static_cast<size_t>(program_.world_size), own = static_cast<size_t>(program_.rank);
    TANDEM_ASSIGN_OR_RETURN(args->layout, SkinnyLayoutOf(step, program_.world_size));
    args->scales_travel = step.skinny->scales_travel;
    TANDEM_RETURN_IF_ERROR(Bind(step.skinny->matmul, &args->matmul));
    TANDEM_RETURN_IF_ERROR(CheckSignal(0, step.first_signal + args->layout.words() - 1));
    args->areas.resize(world);
    args->words.resize(world);
    args->arrived.resize(world);
    for (size_t rank = 0; rank < world; ++rank) {
      const plan::Ref ref{Space::kWorkspace, static_cast<uint8_t>(rank), 0, step.skinny->area};
      const View area = plan::Packed(ref, DType::kU8, {args->layout.area_bytes()});
      TANDEM_RETURN_IF_ERROR(Resolve(area, "an exchange area", &args->areas[rank]));
      if (rank == own) continue;
      AddWord(program_.rank, static_cast<uint8_t>(rank), step.first_signal, &args->words[rank]);
      AddWord(static_cast<int>(rank), static_cast<uint8_t>(own), step.first_signal, &args->arrived[rank]);
    }
    return Status::Ok();
  }

  Status SetFused(const plan::CollectiveStep& step, FusedArgs* args) {
    TANDEM_ASSIGN_OR_RETURN(const FusedCut cut, CutFusedSteps(step, program_.rank));
    args->parts.resize(cut.parts.size());  // addresses of words and views inside must stay
    for (size_t i = 0; i < args->parts.size(); ++i)
      TANDEM_RETURN_IF_ERROR(SetPart(cut.parts[i], &args->parts[i]));
    TANDEM_RETURN_IF_ERROR(SetWaits(cut.closing, &args->closing));
    args->handshake = cut.handshake;
    args->pushes.resize(cut.pushes.size());
    for (size_t i = 0; i < cut.pushes.size(); ++i) {
      const DeliverySteps& from = cut.pushes[i];
      FusedPush& push = args->pushes[i];
      push.rank = from.copy->dst.ref.rank;
      TANDEM_RETURN_IF_ERROR(Resolve(from.copy->src, "what is pushed", &push.from));
      TANDEM_RETURN_IF_ERROR(Resolve(from.copy->dst, "a push", &push.to));
      if (from.signal != nullptr) TANDEM_RETURN_IF_ERROR(SetDone(*from.signal, &push.done));
    }
    return cut.entered == nullptr ? Status::Ok() : SetWait(*cut.entered, &args->entered);
  }

  Status SetPart(const FusedSteps& steps, FusedPart* part) {
    TANDEM_RETURN_IF_ERROR(SetWaits(steps.waits, &part->waits));
    TANDEM_RETURN_IF_ERROR(Bind(*steps.matmul, &part->matmul));
    if (steps.sum != nullptr) {
      part->sums = true;
      part->own = steps.own;
      TANDEM_RETURN_IF_ERROR(SetWaits(steps.sum_waits, &part->sum_waits));
      TANDEM_RETURN_IF_ERROR(Bind(*steps.sum, &part->sum));
    }
    if (steps.done != nullptr) TANDEM_RETURN_IF_ERROR(SetDone(*steps.done, &part->done));
    part->deliveries.resize(steps.deliveries.size());
    for (size_t i = 0; i < steps.deliveries.size(); ++i) {
      FusedDelivery& delivery = part->deliveries[i];
      delivery.rank = steps.deliveries[i].copy->dst.ref.rank;
      TANDEM_RETURN_IF_ERROR(Resolve(steps.deliveries[i].copy->dst, "a delivery", &delivery.to));
      TANDEM_RETURN_IF_ERROR(SetDone(*steps.deliveries[i].signal, &delivery.done));
      delivery.words = steps.deliveries[i].signals;
      TANDEM_RETURN_IF_ERROR(
          CheckSignal(delivery.rank, steps.deliveries[i].signal->index + delivery.words - 1));
    }
    return Status::Ok();
  }

  // The word (writer, index) of `reader`'s signal area, for the kernel at hand.
  void AddWord(int writer, uint8_t reader, int index, Word** target) {
    const auto word = static_cast<uint32_t>(writer * plan::kSignalsPerWriter + index);
    operation_->As<Operation::Kernel>()->words.push_back({{reader, word}, target});
  }
  Status SetDone(const plan::SignalStep& signal, Word** word) {
    TANDEM_RETURN_IF_ERROR(CheckSignal(signal.to_rank, signal.index));
    AddWord(program_.rank, signal.to_rank, signal.index, word);
    return Status::Ok();
  }
  Status SetWait(const plan::WaitStep& wait, Word** word) {
    TANDEM_RETURN_IF_ERROR(CheckSignal(wait.from_rank, wait.index));
    AddWord(wait.from_rank, static_cast<uint8_t>(program_.rank), wait.index, word);
    return Status::Ok();
  }
  Status SetWaits(const std::vector<const plan::WaitStep*>& waits, std::vector<Word*>* words) {
    words->resize(waits.size());
    for (size_t i = 0; i < waits.size(); ++i) TANDEM_RETURN_IF_ERROR(SetWait(*waits[i], &(*words)[i]));
    return Status::Ok();
  }

  Status SetPhases(const plan::CollectiveStep& step, PhasesArgs* args) {
    auto phases = plan::FusePhases(step);
    if (!phases) return InvalidArgument("a collective that no kernel runs has blocks for one");
    args->word_stride = plan::kKernelWordStride;
    args->phases.resize(phases->size());
    const auto own = static_cast<uint8_t>(program_.rank);
    for (size_t p = 0; p < phases->size(); ++p) {
      const plan::KernelPhase& from = (*phases)[p];
      CollectivePhase& to = args->phases[p];
      to.waits.resize(from.waits.size());
      to.signals.resize(from.signals.size());
      to.items.resize(from.items.size());
      for (size_t i = 0; i < from.waits.size(); ++i) {
        const plan::KernelWord& wait = from.waits[i];
        TANDEM_RETURN_IF_ERROR(AddKernelWord(step, own, wait.rank, wait.index, &to.waits[i]));
      }
      for (size_t i = 0; i < from.signals.size(); ++i) {
        const plan::KernelWord& signal = from.signals[i];
        TANDEM_RETURN_IF_ERROR(AddKernelWord(step, signal.rank, own, signal.index, &to.signals[i]));
      }
      for (size_t i = 0; i < from.items.size(); ++i) {
        to.items[i].scale = from.items[i].scale;
        to.items[i].reduce_op = from.items[i].reduce_op;
        TANDEM_RETURN_IF_ERROR(ResolveAll(from.items[i].sources, "source", &to.items[i].sources));
        TANDEM_RETURN_IF_ERROR(
            ResolveAll(from.items[i].destinations, "destination", &to.items[i].destinations));
      }
    }
    return Status::Ok();
  }

  Status SetPackets(const plan::CollectiveStep& step, PacketsArgs* args) {
    auto plan = plan::PlanPackets(step, program_.world_size);
    if (!plan) return InvalidArgument("a collective that packets cannot carry has blocks for them");
    args->exchange = plan->exchange;
    args->scale = plan->scale;
    args->pieces = plan->pieces;
    args->packets.assign(static_cast<size_t>(program_.world_size), nullptr);
    args->packet_bytes = plan::kPacketHalfBytes;
    args->dense = step.dense;
    TANDEM_RETURN_IF_ERROR(ResolveAll(plan->source, "source", &args->source));
    return ResolveAll(plan->destination, "destination", &args->destination);
  }

  Status AddKernelWord(const plan::CollectiveStep& step, uint8_t reader, uint8_t writer, int index,
                       Word** target) {
    const int word = plan::KernelWordIndex(step, index);
    TANDEM_RETURN_IF_ERROR(CheckSignal(reader, word + (step.blocks - 1) * plan::kKernelWordStride));
    TANDEM_RETURN_IF_ERROR(CheckSignal(writer, word));
    AddWord(writer, reader, word, target);
    return Status::Ok();
  }

  Status AddCopy(const plan::CopyStep& step) {
    if (step.src.extent != step.dst.extent || step.src.dtype != step.dst.dtype)
      return InvalidArgument("a copy between unlike views");
    return Bind(step, &Add<CopyArgs>());
  }

  Status CheckSignal(int rank, int index) const {
    if (rank >= program_.world_size || index >= plan::kSignalsPerWriter) {
      return OutOfRange("signal " + std::to_string(index) + " of rank " + std::to_string(rank));
    }
    return Status::Ok();
  }

  Status AddSignal(uint8_t to_rank, uint16_t index) {
    TANDEM_RETURN_IF_ERROR(CheckSignal(to_rank, index));
    Add<Operation::Signal>(
        {{to_rank, static_cast<uint32_t>(program_.rank * plan::kSignalsPerWriter + index)}});
    return Status::Ok();
  }

  Status AddWait(uint8_t from_rank, uint16_t index) {
    TANDEM_RETURN_IF_ERROR(CheckSignal(from_rank, index));
    Add<Operation::WaitSignal>({{static_cast<uint8_t>(program_.rank),
                                 static_cast<uint32_t>(from_rank * plan::kSignalsPerWriter + index)}});
    return Status::Ok();
  }

  Status CheckOwn(const View& view, const char* name) const {
    if (view.ref.rank == program_.rank) return Status::Ok();
    return InvalidArgument(std::string(name) + ": in a peer's memory");
  }

  // All of a step's work but its views.
  template <template <class> class Work>
  static void CopyValues(const Work<plan::Ref>& from, Work<std::byte*>* to) {
    ForEachField(
        [](const char*, const auto& value, auto& out) {
          if constexpr (std::is_same_v<std::decay_t<decltype(value)>, std::decay_t<decltype(out)>>) {
            out = value;
          } else if constexpr (requires { out.resize(1); }) {
            out.resize(value.size());
          }
        },
        from, *to);
  }

  // A step's work at the addresses that the launch will set.
  template <template <class> class Work>
  Status Bind(const Work<plan::Ref>& from, Work<std::byte*>* to) {
    CopyValues(from, to);
    return ForEachView([this](const char* name, plan::ViewUse, const View& view,
                              DeviceView& out) { return Resolve(view, name, &out); },
                       from, *to);
  }

  Status ResolveAll(const std::vector<View>& views, const char* name, std::vector<DeviceView>* out) {
    out->resize(views.size());
    for (size_t i = 0; i < views.size(); ++i) TANDEM_RETURN_IF_ERROR(Resolve(views[i], name, &(*out)[i]));
    return Status::Ok();
  }

  // Checks that `view` stays inside its memory, and leaves its address to the launch.
  Status Resolve(const View& view, const char* name, DeviceView* out) {
    TANDEM_ASSIGN_OR_RETURN(const uint64_t limit, LimitOf(view, program_, limits_, name));
    TANDEM_ASSIGN_OR_RETURN(const bool empty, CheckInside(view, limit, name));
    out->dtype = view.dtype;
    out->extent = view.extent;
    out->stride = view.stride;
    if (view.ref.space == Space::kOperand && view.ref.slot >= out_->slot_count_)
      out_->slot_count_ = view.ref.slot + 1;
    operation_->patches.push_back(
        {view.ref.space, view.ref.rank, view.ref.slot, empty ? 0 : view.ref.offset, &out->data});
    return Status::Ok();
  }

  const RankProgram& program_;
  const ProgramLimits& limits_;
  CompiledProgram* out_;
  std::set<uint32_t> recorded_;
  std::vector<int> event_of_step_;
  uint16_t lane_ = 0;
  uint32_t step_ = 0;
  Operation* operation_ = nullptr;  // the latest
};

CompiledProgram::CompiledProgram() = default;
CompiledProgram::~CompiledProgram() = default;

Result<std::unique_ptr<CompiledProgram>> CompiledProgram::Compile(const RankProgram& program,
                                                                  const ProgramLimits& limits) {
  std::unique_ptr<CompiledProgram> compiled(new CompiledProgram());
  TANDEM_RETURN_IF_ERROR(ProgramCompiler(program, limits, compiled.get()).Run());
  return compiled;
}

}  // namespace tandem::runtime
