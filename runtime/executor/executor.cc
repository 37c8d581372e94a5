#include "runtime/executor/executor.h"

#include <algorithm>
#include <string>
#include <utility>

#include "program/packet_layout.h"
#include "runtime/executor/operation.h"

namespace tandem::runtime {
namespace {

// Sets of addresses of a fused matmul, a parity of epochs, that something is kept for: some kilobytes each.
constexpr size_t kMaxKeptSets = 64;

}  // namespace

CompiledProgram::KernelWords CompiledProgram::WordsOf(const CollectiveArgs& kernel) {
  if (kernel.skinny) {
    // Two ranks that sum in one step use the first half alone.
    const SkinnyLayout& layout = kernel.skinny->layout;
    return {layout.one_step ? layout.ctas() : layout.words(), 1};
  }
  if (!kernel.parts.empty()) return {};
  return {kernel.blocks, kernel.word_stride};
}

uint8_t CompiledProgram::AwaitedRanks(const std::function<bool(uint32_t word)>& arrived) const {
  uint8_t mask = 0;
  const auto look = [&](uint32_t word) {
    const auto writer = static_cast<uint8_t>(1u << word / plan::kSignalsPerWriter);
    if ((mask & writer) == 0 && !arrived(word)) mask |= writer;
  };
  for (size_t i = 0; i < operations_.size(); ++i) {
    const Operation& operation = operations_[i];
    if (operation.kind == Operation::Kind::kWaitSignal) look(operation.word);
    if (operation.collective == nullptr || !operation.uses_kernel) continue;
    const KernelWords words = WordsOf(*operation.collective);
    for (const Operation::WordPatch& first : operation.words) {
      for (int w = 0; w < words.count && first.reader == rank_; ++w)
        look(first.word + static_cast<uint32_t>(w * words.stride));
    }
    i += operation.expansion;  // the kernel runs in its place
  }
  return mask & static_cast<uint8_t>(~(1u << rank_));
}

std::span<const uint32_t> CompiledProgram::ChunkSignals(std::span<const SlotAddress> slots) const {
  for (const Operation& operation : operations_) {
    if (operation.chunk_signals == nullptr) continue;
    for (const Patch& patch : operation.patches) {
      const bool words = patch.target == operation.chunk_signals.get();
      if (!words || patch.space != plan::Space::kOperand || patch.slot >= slots.size()) continue;
      const std::byte* base = slots[patch.slot].own;
      if (patch.rank != rank_ || base == nullptr) return {};
      return {reinterpret_cast<const uint32_t*>(base + patch.offset),
              static_cast<size_t>(operation.matmul->chunks)};
    }
  }
  return {};
}

bool CompiledProgram::AwaitsPackets() const {
  return std::any_of(operations_.begin(), operations_.end(), [](const Operation& operation) {
    return operation.collective != nullptr && operation.uses_kernel && !operation.collective->packets.empty();
  });
}

uint8_t CompiledProgram::AwaitedPackets(const std::function<bool(uint64_t packet)>& come) const {
  for (const Operation& operation : operations_) {
    if (operation.collective == nullptr || !operation.uses_kernel || operation.collective->packets.empty())
      continue;
    const CollectiveArgs& args = *operation.collective;
    const PacketLayout layout{.half_bytes = args.packet_bytes,
                              .world = world_size_,
                              .shots = args.exchange == PacketExchange::kTwoShot ? 2 : 1};
    for (int shot = 0; shot < layout.shots; ++shot) {
      uint8_t mask = 0;
      for (int writer = 0; writer < world_size_; ++writer) {
        if (writer == rank_) continue;
        // First every rank's piece for this one, then each writer's sum.
        const auto piece =
            static_cast<uint64_t>(args.pieces[static_cast<size_t>(shot == 0 ? rank_ : writer)]);
        const uint64_t packets = PacketLayout::packets_of(piece * DTypeBytes(args.dtype));
        const uint64_t first = layout.first_packet(shot, writer);
        if (packets > 0 && !(come(first) && come(first + packets - 1)))
          mask |= static_cast<uint8_t>(1u << writer);
      }
      if (mask != 0) return mask;  // the next exchange waits for this one
    }
  }
  return 0;
}

Executor::Executor(Backend* backend, std::vector<Lane*> lanes)
    : backend_(backend), lanes_(std::move(lanes)), events_(lanes_.size()) {}

Executor::~Executor() = default;

bool CompiledProgram::forks() const {
  return std::any_of(lane_used_.begin() + 1, lane_used_.begin() + lanes_, [](bool used) { return used; });
}

Status CompiledProgram::Prepare(Backend& backend) {
  for (Operation& operation : operations_) {
    if (operation.collective != nullptr) operation.uses_kernel = backend.HasCollective(*operation.collective);
    if (operation.matmul != nullptr) TANDEM_RETURN_IF_ERROR(backend.PrepareMatmul(*operation.matmul));
  }
  FindFirstKernel(backend);
  return Status::Ok();
}

void CompiledProgram::FindFirstKernel(Backend& backend) {
  first_kernel_ = -1;
  const auto first = std::find_if(operations_.begin(), operations_.end(), [](const Operation& operation) {
    // A collective that no kernel runs is its expansion.
    const bool none = operation.kind == Operation::Kind::kNop ||
                      (operation.kind == Operation::Kind::kCollective && !operation.uses_kernel);
    return operation.lane == 0 && !none;
  });
  if (first == operations_.end()) return;
  bool without_trace = false;
  switch (first->kind) {
    case Operation::Kind::kCopy:
      without_trace = backend.HonoursGuard(first->copy->copy_engine ? Guarded::kCopyEngine : Guarded::kCopy);
      break;
    case Operation::Kind::kMatmul: without_trace = backend.HonoursGuard(Guarded::kMatmul); break;
    case Operation::Kind::kReduce: without_trace = backend.HonoursGuard(Guarded::kReduce); break;
    case Operation::Kind::kCollective: {
      const bool multiplies = !first->collective->parts.empty() || first->collective->skinny.has_value();
      without_trace = backend.HonoursGuard(multiplies ? Guarded::kFused : Guarded::kCollective);
      break;
    }
    default: break;
  }
  if (without_trace) first_kernel_ = static_cast<int>(first - operations_.begin());
}

Result<Event*> Executor::LaneEvent(int lane, int index) {
  auto& events = events_[static_cast<size_t>(lane)];
  while (events.size() <= static_cast<size_t>(index)) {
    TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<Event> event, backend_->MakeEvent());
    events.push_back(std::move(event));
  }
  return events[static_cast<size_t>(index)].get();
}

Status Executor::SetCollective(CompiledProgram::Operation& operation, int rank,
                               const LaunchContext& context) {
  CollectiveArgs& args = *operation.collective;
  for (const auto& word : operation.words) {
    Word* base = context.signals[word.reader];
    if (base == nullptr) {
      return FailedPrecondition("the signal area of rank " + std::to_string(word.reader) + " is not mapped");
    }
    *word.target = base + word.word;
  }
  for (size_t peer = 0; peer < args.packets.size(); ++peer) {
    if (context.signals[peer] == nullptr) {
      return FailedPrecondition("the packets of rank " + std::to_string(peer) + " are not mapped");
    }
    args.packets[peer] = reinterpret_cast<std::byte*>(context.signals[peer]) + plan::kSignalWordBytes +
                         (context.epoch & 1) * plan::kPacketHalfBytes;
  }
  args.rank = rank;
  args.epoch = context.epoch;
  args.abort_word = context.abort_word;
  if (!args.parts.empty() || args.skinny) KeepPrepared(operation, context.epoch);
  return Status::Ok();
}

void Executor::KeepPrepared(CompiledProgram::Operation& operation, uint64_t epoch) {
  std::vector<const void*>& bound = operation.bound;
  bound.clear();
  for (const auto& patch : operation.patches) bound.push_back(*patch.target);
  for (const auto& word : operation.words) bound.push_back(*word.target);
  auto& sets = operation.kept[epoch & 1];
  auto set = std::find_if(sets.begin(), sets.end(), [&](const auto& each) { return each.bound == bound; });
  if (set == sets.end()) {
    if (sets.size() < kMaxKeptSets) {
      set = sets.emplace(sets.end());
    } else {
      set = std::min_element(sets.begin(), sets.end(),
                             [](const auto& a, const auto& b) { return a.used < b.used; });
      set->prepared.reset();
    }
    set->bound = bound;
  }
  set->used = epoch;
  operation.collective->prepared = &set->prepared;
}

Status Executor::Enqueue(CompiledProgram& program, const LaunchContext& context) {
  Status status = EnqueueOperations(program, context);
  // The remains of a failed launch must be on the lanes now: there the break of the group releases them.
  if (status.ok()) return status;
  for (Lane* lane : lanes_) (void)lane->FlushWords();
  // Lane 0 must not come to the launch's end while another lane still waits: that wait would be nobody's any
  // more.
  (void)Join(program);
  return status;
}

Status Executor::Join(const CompiledProgram& program) {
  Status joined;
  const size_t lanes = std::min(static_cast<size_t>(program.lanes_), lanes_.size());
  for (size_t lane = 1; lane < lanes; ++lane) {
    if (!program.lane_used_[lane]) continue;
    Result<Event*> end = LaneEvent(static_cast<int>(lane), 0);
    Status status = end.status();
    if (status.ok()) status = lanes_[lane]->Record(*end);
    if (status.ok()) status = lanes_[0]->Wait(*end);
    if (joined.ok()) joined = status;  // the others are joined all the same
  }
  return joined;
}

Status Executor::CheckContext(const CompiledProgram& program, const LaunchContext& context) {
  if (context.slots.size() < program.slot_count_) {
    return InvalidArgument(std::to_string(context.slots.size()) + " slots are bound; the program uses " +
                           std::to_string(program.slot_count_));
  }
  if (program.needs_communicator_ && context.communicator == nullptr) {
    return FailedPrecondition("the program needs a communicator");
  }
  if (!context.step_events.empty() && context.step_events.size() != program.step_count_) {
    return InvalidArgument("step events for another program");
  }
  return Status::Ok();
}

Status Executor::Bind(const CompiledProgram& program, CompiledProgram::Operation& operation,
                      const LaunchContext& context) {
  using Kind = CompiledProgram::Operation::Kind;
  for (const auto& patch : operation.patches) {
    std::byte* base = nullptr;
    switch (patch.space) {
      case plan::Space::kWorkspace: base = context.workspace[patch.rank]; break;
      case plan::Space::kBulk: base = context.bulk[patch.rank]; break;
      case plan::Space::kOperand: {
        const SlotAddress& slot = context.slots[patch.slot];
        base = patch.rank == program.rank_ ? slot.own : slot.peer[patch.rank];
        break;
      }
    }
    // An empty tensor may be bound to nothing; the kernels refuse a null address where there are elements.
    *patch.target = base == nullptr ? nullptr : base + patch.offset;
  }
  if (operation.copy != nullptr) operation.copy->guard = context.guard;
  if (operation.matmul != nullptr) operation.matmul->guard = context.guard;
  if (operation.reduce != nullptr) operation.reduce->guard = context.guard;
  if (operation.collective != nullptr) operation.collective->guard = context.guard;
  if (operation.chunk_signals != nullptr) {
    if (*operation.chunk_signals == nullptr) return InvalidArgument("the chunk signals are not bound");
    operation.matmul->chunk_signals = reinterpret_cast<const uint32_t*>(*operation.chunk_signals);
    operation.matmul->abort_word = context.abort_word;
  }
  if (operation.collective != nullptr && operation.uses_kernel) {
    TANDEM_RETURN_IF_ERROR(SetCollective(operation, program.rank_, context));
  }
  const bool is_signal = operation.kind == Kind::kSignal || operation.kind == Kind::kWaitSignal;
  if (is_signal && context.signals[operation.rank] == nullptr) {
    return FailedPrecondition("the signal area of rank " + std::to_string(operation.rank) + " is not mapped");
  }
  return Status::Ok();
}

Status Executor::EnqueueFirstKernel(CompiledProgram& program, const LaunchContext& context) {
  using Kind = CompiledProgram::Operation::Kind;
  if (!program.has_first_kernel())
    return FailedPrecondition("nothing of the program can be enqueued ahead of its launch");
  TANDEM_RETURN_IF_ERROR(CheckContext(program, context));
  CompiledProgram::Operation& first = program.operations_[static_cast<size_t>(program.first_kernel_)];
  TANDEM_RETURN_IF_ERROR(Bind(program, first, context));
  Lane& lane = *lanes_[0];
  switch (first.kind) {
    case Kind::kCopy: return lane.Copy(*first.copy);
    case Kind::kMatmul: return lane.Matmul(*first.matmul);
    case Kind::kReduce: return lane.Reduce(*first.reduce);
    case Kind::kCollective: return lane.Collective(*first.collective);
    default: return Internal("a first kernel of another kind");
  }
}

Result<std::vector<BoundWork>> Executor::BindAroundKernel(CompiledProgram& program,
                                                          const LaunchContext& context) {
  using Operation = CompiledProgram::Operation;
  TANDEM_RETURN_IF_ERROR(CheckContext(program, context));
  std::vector<BoundWork> work;
  int kernels = 0;
  for (size_t i = 0; i < program.operations_.size(); ++i) {
    Operation& operation = program.operations_[i];
    if (operation.kind == Operation::Kind::kNop) continue;
    const bool local = operation.matmul != nullptr || operation.copy != nullptr ||
                       operation.reduce != nullptr || operation.norm != nullptr;
    const bool kernel = operation.collective != nullptr && ++kernels == 1;
    if (operation.lane != 0 || operation.chunk_signals != nullptr || !(local || kernel)) {
      return Unimplemented(
          "the program has other work than one kernel for a collective, and products, copies, "
          "sums and norms around it");
    }
    TANDEM_RETURN_IF_ERROR(Bind(program, operation, context));
    if (kernel) TANDEM_RETURN_IF_ERROR(SetCollective(operation, program.rank_, context));
    work.push_back({operation.collective.get(), operation.matmul.get(), operation.copy.get(),
                    operation.reduce.get(), operation.norm.get()});
    i += operation.expansion;
  }
  if (kernels == 0) return Unimplemented("the program has no kernel for a collective");
  return work;
}

Status Executor::EnqueueOperations(CompiledProgram& program, const LaunchContext& context) {
  using Kind = CompiledProgram::Operation::Kind;
  if (static_cast<size_t>(program.lanes_) > lanes_.size()) {
    return FailedPrecondition("the program has " + std::to_string(program.lanes_) + " lanes, the engine " +
                              std::to_string(lanes_.size()));
  }
  TANDEM_RETURN_IF_ERROR(CheckContext(program, context));
  const CompiledProgram::Operation* enqueued =
      context.first_kernel_enqueued && program.has_first_kernel()
          ? &program.operations_[static_cast<size_t>(program.first_kernel_)]
          : nullptr;
  // All addresses are set, and found to be there, before anything is enqueued.
  for (auto& operation : program.operations_) {
    if (&operation != enqueued) TANDEM_RETURN_IF_ERROR(Bind(program, operation, context));
  }

  const bool forks = program.forks();
  if (forks && enqueued != nullptr && !context.lanes_idle)
    return FailedPrecondition("other lanes would wait for the first kernel");
  if (forks && !context.lanes_idle) {
    TANDEM_ASSIGN_OR_RETURN(Event * fork, LaneEvent(0, 0));
    TANDEM_RETURN_IF_ERROR(lanes_[0]->Record(fork));
    for (int lane = 1; lane < program.lanes_; ++lane) {
      if (program.lane_used_[lane]) TANDEM_RETURN_IF_ERROR(lanes_[lane]->Wait(fork));
    }
  }
  // Words are kept back on one lane at most: a peer never waits for a signal while this thread feeds another
  // lane.
  Lane* previous = lanes_[0];
  size_t skipped = 0;  // operations of an expansion whose kernel has been enqueued
  for (auto& operation : program.operations_) {
    Lane& lane = *lanes_[operation.lane];
    if (&lane != previous) TANDEM_RETURN_IF_ERROR(previous->FlushWords());
    previous = &lane;
    const StepEvents* traced = context.step_events.empty() ? nullptr : &context.step_events[operation.step];
    if (traced != nullptr && operation.starts_step && traced->start != nullptr) {
      TANDEM_RETURN_IF_ERROR(lane.Record(traced->start));
    }
    const bool skip = skipped > 0 || &operation == enqueued;
    if (skipped > 0) --skipped;
    if (&operation == enqueued) skipped = operation.expansion;
    switch (skip ? Kind::kNop : operation.kind) {
      case Kind::kNop: break;
      case Kind::kCopy: TANDEM_RETURN_IF_ERROR(lane.Copy(*operation.copy)); break;
      case Kind::kMatmul: TANDEM_RETURN_IF_ERROR(lane.Matmul(*operation.matmul)); break;
      case Kind::kReduce: TANDEM_RETURN_IF_ERROR(lane.Reduce(*operation.reduce)); break;
      case Kind::kNorm: TANDEM_RETURN_IF_ERROR(lane.Norm(*operation.norm)); break;
      case Kind::kNccl:
        operation.nccl->communicator = context.communicator;
        TANDEM_RETURN_IF_ERROR(lane.Nccl(*operation.nccl));
        break;
      case Kind::kCollective:
        if (!operation.uses_kernel) break;
        if (Status status = lane.Collective(*operation.collective); !status.ok()) {
          // A fused matmul's peers see the same words from its steps: bindings that the kernel cannot take
          // run by them.
          if (operation.collective->parts.empty() || status.code() != Code::kUnimplemented) return status;
          break;
        }
        skipped = operation.expansion;
        break;
      case Kind::kSignal:
        TANDEM_RETURN_IF_ERROR(
            lane.WriteWord(context.signals[operation.rank] + operation.word, context.epoch));
        break;
      case Kind::kWaitSignal:
        TANDEM_RETURN_IF_ERROR(
            lane.WaitWord(context.signals[operation.rank] + operation.word, context.epoch));
        break;
      case Kind::kWaitEvent: {
        TANDEM_ASSIGN_OR_RETURN(Event * event, LaneEvent(operation.event_lane, operation.event));
        TANDEM_RETURN_IF_ERROR(lane.Wait(event));
        break;
      }
      case Kind::kRecordEvent: {
        TANDEM_ASSIGN_OR_RETURN(Event * event, LaneEvent(operation.lane, operation.event));
        TANDEM_RETURN_IF_ERROR(lane.Record(event));
        break;
      }
    }
    if (traced != nullptr && operation.ends_step && traced->end != nullptr) {
      TANDEM_RETURN_IF_ERROR(lane.Record(traced->end));
    }
  }
  if (previous != lanes_[0]) TANDEM_RETURN_IF_ERROR(previous->FlushWords());
  return Join(program);
}

}  // namespace tandem::runtime
