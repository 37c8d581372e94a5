// Compile: checks a rank program against what it may touch and flattens it into calls on lanes.

#include <set>
#include <string>
#include <utility>

#include "program/kernel_phases.h"
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
  using Kind = Operation::Kind;

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
      Operation& wait = Add(Kind::kWaitEvent);
      wait.event_lane = other;
      wait.event = event_of_step_[dep];
    }
    size_t first = out_->operations_.size();
    TANDEM_RETURN_IF_ERROR(AddWork(step, 0));
    if (out_->operations_.size() == first) Add(Kind::kNop);
    out_->operations_[first].starts_step = true;
    out_->operations_.back().ends_step = true;
    if (recorded_.count(index) != 0) {
      event_of_step_[index] = out_->events_per_lane_[lane_]++;
      Add(Kind::kRecordEvent).event = event_of_step_[index];
    }
    return Status::Ok();
  }

  Operation& Add(Kind kind) {
    Operation operation;
    operation.kind = kind;
    operation.lane = lane_;
    operation.step = step_;
    out_->operations_.push_back(std::move(operation));
    return out_->operations_.back();
  }

  Status AddWork(const Step& step, int depth) {
    return std::visit([&](const auto& work) { return AddWork(work, depth); }, step.work);
  }

  Status AddWork(const plan::NopStep&, int) { return Status::Ok(); }

  Status AddWork(const plan::CopyStep& step, int) { return AddCopy(step.src, step.dst, step.copy_engine); }

  Status AddWork(const plan::SignalStep& step, int) { return AddSignal(step.to_rank, step.index); }

  Status AddWork(const plan::WaitStep& step, int) { return AddWait(step.from_rank, step.index); }

  Status AddWork(const plan::MatmulStep& step, int) {
    Operation& operation = Add(Kind::kMatmul);
    operation.matmul = std::make_unique<MatmulArgs>();
    MatmulArgs& args = *operation.matmul;
    TANDEM_RETURN_IF_ERROR(SetMatmul(step, &args, &operation));
    if (step.has_chunk_signals) {
      // The stride of a single word says nothing.
      if (step.chunk_signals.dtype != DType::kI32 || step.chunk_signals.extent.size() != 1 ||
          step.chunk_signals.stride.size() != 1 || step.chunk_signals.extent[0] < 1 ||
          (step.chunk_signals.extent[0] > 1 && step.chunk_signals.stride[0] != 1)) {
        return InvalidArgument("chunk signals are a contiguous row of i32");
      }
      if (step.chunk_signals.extent[0] > plan::kMaxChunkSignals) {
        return InvalidArgument(std::to_string(step.chunk_signals.extent[0]) +
                               " chunk signals are more than " + std::to_string(plan::kMaxChunkSignals) +
                               ": the lane would hold the engine before the first one comes");
      }
      args.chunks = static_cast<int>(step.chunk_signals.extent[0]);
      args.chunk_pivot = step.chunk_pivot;
      DeviceView words;
      TANDEM_RETURN_IF_ERROR(Resolve(step.chunk_signals, "chunk signals", &words, &operation));
      // The words' address is no view's: it is patched beside the arguments.
      operation.chunk_signals = std::make_unique<std::byte*>(nullptr);
      operation.patches.back().target = operation.chunk_signals.get();
    }
    return Status::Ok();
  }

  // All but the chunk signals.
  Status SetMatmul(const plan::MatmulStep& step, MatmulArgs* out, Operation* operation) {
    MatmulArgs& args = *out;
    args.alpha = step.alpha;
    args.accumulate = step.accumulate;
    args.has_scale_a = step.has_scale_a;
    args.has_scale_b = step.has_scale_b;
    args.has_bias = step.has_bias;
    args.has_result_scale = step.has_result_scale;
    args.block_scales = step.block_scales;
    args.first_column = step.first_column;
    args.fast_accumulation = step.fast_accumulation;
    TANDEM_RETURN_IF_ERROR(Resolve(step.a, "A", &args.a, operation));
    TANDEM_RETURN_IF_ERROR(Resolve(step.b, "B", &args.b, operation));
    TANDEM_RETURN_IF_ERROR(Resolve(step.c, "C", &args.c, operation));
    if (step.has_scale_a) TANDEM_RETURN_IF_ERROR(Resolve(step.scale_a, "scale_a", &args.scale_a, operation));
    if (step.has_scale_b) TANDEM_RETURN_IF_ERROR(Resolve(step.scale_b, "scale_b", &args.scale_b, operation));
    if (step.has_bias) TANDEM_RETURN_IF_ERROR(Resolve(step.bias, "bias", &args.bias, operation));
    if (step.has_result_scale) {
      TANDEM_RETURN_IF_ERROR(Resolve(step.result_scale, "result_scale", &args.result_scale, operation));
    }
    return Status::Ok();
  }

  Status AddWork(const plan::ReduceStep& step, int) {
    Operation& operation = Add(Kind::kReduce);
    operation.reduce = std::make_unique<ReduceArgs>();
    return SetReduce(step, operation.reduce.get(), &operation);
  }

  Status SetReduce(const plan::ReduceStep& step, ReduceArgs* out, Operation* operation) {
    ReduceArgs& args = *out;
    args.scale = step.scale;
    args.has_bias = step.has_bias;
    args.has_result_scale = step.has_result_scale;
    args.sources.resize(step.sources.size());
    for (size_t i = 0; i < step.sources.size(); ++i) {
      TANDEM_RETURN_IF_ERROR(Resolve(step.sources[i], "reduce source", &args.sources[i], operation));
    }
    TANDEM_RETURN_IF_ERROR(Resolve(step.dst, "reduce destination", &args.dst, operation));
    if (step.has_bias) TANDEM_RETURN_IF_ERROR(Resolve(step.bias, "bias", &args.bias, operation));
    if (step.has_result_scale) {
      TANDEM_RETURN_IF_ERROR(Resolve(step.result_scale, "result_scale", &args.result_scale, operation));
    }
    return Status::Ok();
  }

  Status AddWork(const plan::NormStep& step, int) {
    Operation& operation = Add(Kind::kNorm);
    operation.norm = std::make_unique<NormArgs>();
    NormArgs& args = *operation.norm;
    args.epsilon = step.epsilon;
    args.has_residual = step.has_residual;
    TANDEM_RETURN_IF_ERROR(ResolveOwn(step.sum, "sum", &args.sum, &operation));
    TANDEM_RETURN_IF_ERROR(ResolveOwn(step.weight, "norm weight", &args.weight, &operation));
    TANDEM_RETURN_IF_ERROR(ResolveOwn(step.out, "norm output", &args.out, &operation));
    if (!step.has_residual) return Status::Ok();
    TANDEM_RETURN_IF_ERROR(ResolveOwn(step.residual, "residual", &args.residual, &operation));
    return ResolveOwn(step.residual_out, "residual output", &args.residual_out, &operation);
  }

  Status AddWork(const plan::TransferGroupStep& step, int) {
    for (const plan::TransferPart& part : step.parts) {
      if (!part.send) continue;
      if (part.dst.ref.rank != part.peer) return InvalidArgument("a send to another rank than its peer");
      TANDEM_RETURN_IF_ERROR(AddCopy(part.src, part.dst, true));
      TANDEM_RETURN_IF_ERROR(AddSignal(part.peer, part.index));
    }
    for (const plan::TransferPart& part : step.parts) {
      if (!part.send) TANDEM_RETURN_IF_ERROR(AddWait(part.peer, part.index));
    }
    return Status::Ok();
  }

  Status AddWork(const plan::NcclStep& step, int) {
    Operation& operation = Add(Kind::kNccl);
    operation.nccl = std::make_unique<NcclArgs>();
    NcclArgs& args = *operation.nccl;
    args.kind = static_cast<int>(step.kind);
    args.reduce_op = step.reduce_op;
    args.root = step.root;
    out_->needs_communicator_ = true;
    if (step.kind == plan::NcclKind::kBarrier) return Status::Ok();
    if (step.root < 0 || step.root >= program_.world_size)
      return OutOfRange("root " + std::to_string(step.root));
    bool is_root = step.root == program_.rank;
    if (step.kind != plan::NcclKind::kBroadcast || is_root) {
      TANDEM_RETURN_IF_ERROR(ResolveOwn(step.in, "collective input", &args.in, &operation));
    }
    if (step.kind != plan::NcclKind::kReduce || is_root) {
      TANDEM_RETURN_IF_ERROR(ResolveOwn(step.out, "collective output", &args.out, &operation));
    }
    return Status::Ok();
  }

  Status AddWork(const plan::CollectiveStep& step, int depth) {
    if (depth >= kMaxDepth) return InvalidArgument("collectives nested too deeply");
    const bool has_kernel =
        (step.blocks > 0 || step.skinny || step.algorithm == Algorithm::kFused) && depth == 0;
    const size_t kernel = out_->operations_.size();
    if (has_kernel) TANDEM_RETURN_IF_ERROR(AddKernel(step));
    for (const Step& part : step.expansion) TANDEM_RETURN_IF_ERROR(AddWork(part, depth + 1));
    if (has_kernel) out_->operations_[kernel].expansion = out_->operations_.size() - kernel - 1;
    return Status::Ok();
  }

  Status AddKernel(const plan::CollectiveStep& step) {
    Operation& operation = Add(Kind::kCollective);
    operation.collective = std::make_unique<CollectiveArgs>();
    CollectiveArgs& args = *operation.collective;
    args.dtype = step.in.dtype;
    args.blocks = step.blocks;
    args.rank = program_.rank;
    args.world_size = program_.world_size;
    if (step.skinny) return SetSkinny(step, &operation);
    if (step.algorithm == Algorithm::kFused) return SetParts(step, &operation);
    return step.algorithm == Algorithm::kLowLatency ? SetPackets(step, &operation)
                                                    : SetPhases(step, &operation);
  }

  Status SetSkinny(const plan::CollectiveStep& step, Operation* operation) {
    const auto world = static_cast<size_t>(program_.world_size), own = static_cast<size_t>(program_.rank);
    SkinnyArgs& args = operation->collective->skinny.emplace();
    TANDEM_ASSIGN_OR_RETURN(args.layout, SkinnyLayoutOf(step, program_.world_size));
    args.scales_travel = step.skinny->scales_travel;
    TANDEM_RETURN_IF_ERROR(SetMatmul(step.skinny->matmul, &args.matmul, operation));
    TANDEM_RETURN_IF_ERROR(CheckSignal(0, step.first_signal + args.layout.words() - 1));
    args.areas.resize(world);
    args.words.resize(world);
    args.arrived.resize(world);
    for (size_t rank = 0; rank < world; ++rank) {
      const plan::Ref ref{Space::kWorkspace, static_cast<uint8_t>(rank), 0, step.skinny->area};
      const View area = plan::Packed(ref, DType::kU8, {args.layout.area_bytes()});
      TANDEM_RETURN_IF_ERROR(Resolve(area, "an exchange area", &args.areas[rank], operation));
      if (rank == own) continue;
      const auto peers = static_cast<uint32_t>(rank * plan::kSignalsPerWriter + step.first_signal);
      operation->words.push_back({static_cast<uint8_t>(rank), OwnWord(step.first_signal), &args.words[rank]});
      operation->words.push_back({static_cast<uint8_t>(own), peers, &args.arrived[rank]});
    }
    return Status::Ok();
  }

  Status SetParts(const plan::CollectiveStep& step, Operation* operation) {
    TANDEM_ASSIGN_OR_RETURN(const FusedCut cut, CutFusedSteps(step, program_.rank));
    std::vector<FusedPart>& parts = operation->collective->parts;
    parts.resize(cut.parts.size());  // addresses of words and views inside must stay
    for (size_t i = 0; i < parts.size(); ++i)
      TANDEM_RETURN_IF_ERROR(SetPart(cut.parts[i], &parts[i], operation));
    TANDEM_RETURN_IF_ERROR(SetWaits(cut.closing, &operation->collective->closing, operation));
    operation->collective->meeting = cut.meeting;
    std::vector<FusedPush>& pushes = operation->collective->pushes;
    pushes.resize(cut.pushes.size());
    for (size_t i = 0; i < cut.pushes.size(); ++i) {
      const DeliverySteps& push = cut.pushes[i];
      pushes[i].rank = push.copy->dst.ref.rank;
      TANDEM_RETURN_IF_ERROR(Resolve(push.copy->src, "what is pushed", &pushes[i].from, operation));
      TANDEM_RETURN_IF_ERROR(Resolve(push.copy->dst, "a push", &pushes[i].to, operation));
      if (push.signal != nullptr) TANDEM_RETURN_IF_ERROR(SetDone(*push.signal, &pushes[i].done, operation));
    }
    return cut.entered == nullptr ? Status::Ok()
                                  : SetWait(*cut.entered, &operation->collective->entered, operation);
  }

  Status SetPart(const FusedSteps& steps, FusedPart* part, Operation* operation) {
    TANDEM_RETURN_IF_ERROR(SetWaits(steps.waits, &part->waits, operation));
    TANDEM_RETURN_IF_ERROR(SetMatmul(*steps.matmul, &part->matmul, operation));
    if (steps.sum != nullptr) {
      part->sums = true;
      part->own = steps.own;
      TANDEM_RETURN_IF_ERROR(SetWaits(steps.sum_waits, &part->sum_waits, operation));
      TANDEM_RETURN_IF_ERROR(SetReduce(*steps.sum, &part->sum, operation));
    }
    if (steps.done != nullptr) TANDEM_RETURN_IF_ERROR(SetDone(*steps.done, &part->done, operation));
    part->deliveries.resize(steps.deliveries.size());
    for (size_t i = 0; i < steps.deliveries.size(); ++i) {
      FusedDelivery& delivery = part->deliveries[i];
      delivery.rank = steps.deliveries[i].copy->dst.ref.rank;
      TANDEM_RETURN_IF_ERROR(Resolve(steps.deliveries[i].copy->dst, "a delivery", &delivery.to, operation));
      TANDEM_RETURN_IF_ERROR(SetDone(*steps.deliveries[i].signal, &delivery.done, operation));
      delivery.words = steps.deliveries[i].signals;
      TANDEM_RETURN_IF_ERROR(
          CheckSignal(delivery.rank, steps.deliveries[i].signal->index + delivery.words - 1));
    }
    return Status::Ok();
  }

  Status SetDone(const plan::SignalStep& signal, Word** word, Operation* operation) {
    TANDEM_RETURN_IF_ERROR(CheckSignal(signal.to_rank, signal.index));
    operation->words.push_back({signal.to_rank, OwnWord(signal.index), word});
    return Status::Ok();
  }

  uint32_t OwnWord(int index) const {
    return static_cast<uint32_t>(program_.rank * plan::kSignalsPerWriter + index);
  }

  Status SetWaits(const std::vector<const plan::WaitStep*>& waits, std::vector<Word*>* words,
                  Operation* operation) {
    words->resize(waits.size());
    for (size_t i = 0; i < waits.size(); ++i)
      TANDEM_RETURN_IF_ERROR(SetWait(*waits[i], &(*words)[i], operation));
    return Status::Ok();
  }
  Status SetWait(const plan::WaitStep& wait, Word** word, Operation* operation) {
    TANDEM_RETURN_IF_ERROR(CheckSignal(wait.from_rank, wait.index));
    const auto at = static_cast<uint32_t>(wait.from_rank * plan::kSignalsPerWriter + wait.index);
    operation->words.push_back({static_cast<uint8_t>(program_.rank), at, word});
    return Status::Ok();
  }

  Status SetPhases(const plan::CollectiveStep& step, Operation* operation) {
    auto phases = plan::FusePhases(step);
    if (!phases) return InvalidArgument("a collective that no kernel runs has blocks for one");
    CollectiveArgs& args = *operation->collective;
    args.word_stride = plan::kKernelWordStride;
    args.phases.resize(phases->size());
    const auto own = static_cast<uint8_t>(program_.rank);
    for (size_t p = 0; p < phases->size(); ++p) {
      const plan::KernelPhase& from = (*phases)[p];
      CollectivePhase& to = args.phases[p];
      to.waits.resize(from.waits.size());
      to.signals.resize(from.signals.size());
      to.items.resize(from.items.size());
      for (size_t i = 0; i < from.waits.size(); ++i) {
        TANDEM_RETURN_IF_ERROR(
            AddKernelWord(step, own, from.waits[i].rank, from.waits[i].index, &to.waits[i], operation));
      }
      for (size_t i = 0; i < from.signals.size(); ++i) {
        TANDEM_RETURN_IF_ERROR(
            AddKernelWord(step, from.signals[i].rank, own, from.signals[i].index, &to.signals[i], operation));
      }
      for (size_t i = 0; i < from.items.size(); ++i) {
        to.items[i].scale = from.items[i].scale;
        TANDEM_RETURN_IF_ERROR(
            ResolveAll(from.items[i].sources, "collective source", &to.items[i].sources, operation));
        TANDEM_RETURN_IF_ERROR(ResolveAll(from.items[i].destinations, "collective destination",
                                          &to.items[i].destinations, operation));
      }
    }
    return Status::Ok();
  }

  Status SetPackets(const plan::CollectiveStep& step, Operation* operation) {
    auto plan = plan::PlanPackets(step, program_.world_size);
    if (!plan) return InvalidArgument("a collective that packets cannot carry has blocks for them");
    CollectiveArgs& args = *operation->collective;
    args.exchange = static_cast<PacketExchange>(plan->exchange);
    args.scale = plan->scale;
    args.pieces = plan->pieces;
    args.packets.assign(static_cast<size_t>(program_.world_size), nullptr);
    args.packet_bytes = plan::kPacketHalfBytes;
    args.dense = step.dense;
    TANDEM_RETURN_IF_ERROR(ResolveAll(plan->source, "collective source", &args.source, operation));
    return ResolveAll(plan->destination, "collective destination", &args.destination, operation);
  }

  Status AddKernelWord(const plan::CollectiveStep& step, uint8_t reader, uint8_t writer, int index,
                       Word** target, Operation* operation) {
    const int word = plan::KernelWordIndex(step, index);
    TANDEM_RETURN_IF_ERROR(CheckSignal(reader, word + (step.blocks - 1) * plan::kKernelWordStride));
    TANDEM_RETURN_IF_ERROR(CheckSignal(writer, word));
    operation->words.push_back(
        {reader, static_cast<uint32_t>(writer * plan::kSignalsPerWriter + word), target});
    return Status::Ok();
  }

  Status ResolveAll(const std::vector<View>& views, const char* name, std::vector<DeviceView>* out,
                    Operation* operation) {
    out->resize(views.size());
    for (size_t i = 0; i < views.size(); ++i) {
      TANDEM_RETURN_IF_ERROR(Resolve(views[i], name, &(*out)[i], operation));
    }
    return Status::Ok();
  }

  Status AddCopy(const View& src, const View& dst, bool copy_engine) {
    Operation& operation = Add(Kind::kCopy);
    operation.copy = std::make_unique<CopyArgs>();
    operation.copy->copy_engine = copy_engine;
    if (src.extent != dst.extent || src.dtype != dst.dtype)
      return InvalidArgument("a copy between unlike views");
    TANDEM_RETURN_IF_ERROR(Resolve(src, "copy source", &operation.copy->src, &operation));
    return Resolve(dst, "copy destination", &operation.copy->dst, &operation);
  }

  Status CheckSignal(int rank, int index) const {
    if (rank >= program_.world_size || index >= plan::kSignalsPerWriter) {
      return OutOfRange("signal " + std::to_string(index) + " of rank " + std::to_string(rank));
    }
    return Status::Ok();
  }

  Status AddSignal(uint8_t to_rank, uint16_t index) {
    TANDEM_RETURN_IF_ERROR(CheckSignal(to_rank, index));
    Operation& operation = Add(Kind::kSignal);
    operation.rank = to_rank;
    operation.word = static_cast<uint32_t>(program_.rank * plan::kSignalsPerWriter + index);
    return Status::Ok();
  }

  Status AddWait(uint8_t from_rank, uint16_t index) {
    TANDEM_RETURN_IF_ERROR(CheckSignal(from_rank, index));
    Operation& operation = Add(Kind::kWaitSignal);
    operation.rank = static_cast<uint8_t>(program_.rank);
    operation.word = static_cast<uint32_t>(from_rank * plan::kSignalsPerWriter + index);
    return Status::Ok();
  }

  Status ResolveOwn(const View& view, const char* name, DeviceView* out, Operation* operation) {
    if (view.ref.rank != program_.rank) return InvalidArgument(std::string(name) + ": in a peer's memory");
    return Resolve(view, name, out, operation);
  }

  // Checks that `view` stays inside its memory, and leaves its address to the launch.
  Status Resolve(const View& view, const char* name, DeviceView* out, Operation* operation) {
    TANDEM_ASSIGN_OR_RETURN(const uint64_t limit, LimitOf(view, program_, limits_, name));
    TANDEM_ASSIGN_OR_RETURN(const bool empty, CheckInside(view, limit, name));
    out->dtype = view.dtype;
    out->extent = view.extent;
    out->stride = view.stride;
    if (view.ref.space == Space::kOperand && view.ref.slot >= out_->slot_count_)
      out_->slot_count_ = view.ref.slot + 1;
    operation->patches.push_back(
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
