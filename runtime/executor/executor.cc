#include "runtime/executor/executor.h"

#include <algorithm>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>

#include "program/packet_layout.h"
#include "runtime/executor/operation.h"

namespace tandem::runtime {
namespace {

// Sets of addresses of a fused matmul, a parity of launch numbers, that something is kept for: some kilobytes
// each.
constexpr size_t kMaxPreparedSets = 64;

template <class... Functions>
struct Overloaded : Functions... {
  using Functions::operator()...;
};
template <class... Functions>
Overloaded(Functions...) -> Overloaded<Functions...>;

// Whether the products of a kernel are summed in the order that the plan promises.
bool HasFixedOrder(const CollectiveArgs& kernel) {
  if (const auto* skinny = kernel.As<SkinnyArgs>()) return skinny->matmul.fixed_order;
  const auto* fused = kernel.As<FusedArgs>();
  return fused != nullptr && !fused->parts.empty() && fused->parts.front().matmul.fixed_order;
}

Status RefuseOtherOrder(const std::string& why) {
  return InvalidArgument("determinism = batch, and other kernels add in another order: " + why);
}

}  // namespace

CompiledProgram::KernelWords CompiledProgram::WordsOf(const CollectiveArgs& kernel) {
  if (const auto* skinny = kernel.As<SkinnyArgs>()) {
    // Two ranks that sum in one step use the first half alone.
    return {skinny->layout.one_step ? skinny->layout.ctas() : skinny->layout.words(), 1};
  }
  if (const auto* phases = kernel.As<PhasesArgs>()) return {kernel.blocks, phases->word_stride};
  return {};
}

uint8_t CompiledProgram::AwaitedRanks(const std::function<bool(uint32_t word)>& arrived) const {
  uint8_t mask = 0;
  const auto look = [&](uint32_t word) {
    const auto writer = static_cast<uint8_t>(1u << word / plan::kSignalsPerWriter);
    if ((mask & writer) == 0 && !arrived(word)) mask |= writer;
  };
  for (size_t i = 0; i < operations_.size(); ++i) {
    if (const auto* wait = operations_[i]->As<Operation::WaitSignal>()) look(wait->word);
    const Operation::Kernel* kernel = operations_[i]->RunningKernel();
    if (kernel == nullptr) continue;
    const KernelWords words = WordsOf(kernel->args);
    for (const auto& first : kernel->words) {
      for (int w = 0; w < words.count && first.rank == rank_; ++w)
        look(first.word + static_cast<uint32_t>(w * words.stride));
    }
    i += kernel->expansion;  // the kernel runs in its place
  }
  return mask & static_cast<uint8_t>(~(1u << rank_));
}

std::span<const uint32_t> CompiledProgram::ChunkSignals(std::span<const SlotAddress> slots) const {
  for (const auto& operation : operations_) {
    const auto* product = operation->As<MatmulArgs>();
    if (product == nullptr || !product->has_chunk_signals) continue;
    for (const Patch& patch : operation->patches) {
      const bool words = patch.target == &product->chunk_signals.data;
      if (!words || patch.space != plan::Space::kOperand || patch.slot >= slots.size()) continue;
      const std::byte* base = slots[patch.slot].own;
      if (patch.rank != rank_ || base == nullptr) return {};
      return {reinterpret_cast<const uint32_t*>(base + patch.offset), static_cast<size_t>(product->chunks())};
    }
  }
  return {};
}

bool CompiledProgram::AwaitsPackets() const {
  return std::any_of(operations_.begin(), operations_.end(), [](const auto& operation) {
    const Operation::Kernel* kernel = operation->RunningKernel();
    return kernel != nullptr && kernel->args.template As<PacketsArgs>() != nullptr;
  });
}

uint8_t CompiledProgram::AwaitedPackets(const std::function<bool(uint64_t packet)>& come) const {
  for (const auto& operation : operations_) {
    const Operation::Kernel* kernel = operation->RunningKernel();
    const auto* args = kernel != nullptr ? kernel->args.As<PacketsArgs>() : nullptr;
    if (args == nullptr) continue;
    const PacketLayout layout{.half_bytes = args->packet_bytes,
                              .world = world_size_,
                              .shots = args->exchange == plan::PacketExchange::kTwoShot ? 2 : 1};
    for (int shot = 0; shot < layout.shots; ++shot) {
      uint8_t mask = 0;
      for (int writer = 0; writer < world_size_; ++writer) {
        if (writer == rank_) continue;
        // First every rank's piece for this one, then each writer's sum.
        const auto piece =
            static_cast<uint64_t>(args->pieces[static_cast<size_t>(shot == 0 ? rank_ : writer)]);
        const uint64_t packets = PacketLayout::packets_of(piece * DTypeBytes(kernel->args.dtype));
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
  for (const auto& operation : operations_) {
    if (auto* kernel = operation->As<Operation::Kernel>()) {
      kernel->runs = backend.HasCollective(kernel->args);
      // The host's loops give the same bits step by step.
      if (!kernel->runs && HasFixedOrder(kernel->args) && backend.Capabilities().on_gpu)
        return RefuseOtherOrder("no fused kernel takes this product");
    }
    if (auto* product = operation->As<MatmulArgs>()) TANDEM_RETURN_IF_ERROR(backend.PrepareMatmul(*product));
  }
  FindFirstKernel(backend);
  return Status::Ok();
}

void CompiledProgram::FindFirstKernel(Backend& backend) {
  first_kernel_ = -1;
  const auto first = std::find_if(operations_.begin(), operations_.end(), [](const auto& operation) {
    // A collective that no kernel runs is its expansion.
    const auto* kernel = operation->template As<Operation::Kernel>();
    const bool none =
        operation->template As<Operation::Nop>() != nullptr || (kernel != nullptr && !kernel->runs);
    return operation->lane == 0 && !none;
  });
  if (first == operations_.end()) return;
  const Operation& operation = **first;
  bool without_trace = false;
  if (const auto* copy = operation.As<CopyArgs>()) {
    without_trace = backend.HonoursGuard(copy->copy_engine ? Guarded::kCopyEngine : Guarded::kCopy);
  } else if (operation.As<MatmulArgs>() != nullptr) {
    without_trace = backend.HonoursGuard(Guarded::kMatmul);
  } else if (operation.As<ReduceArgs>() != nullptr) {
    without_trace = backend.HonoursGuard(Guarded::kReduce);
  } else if (const auto* kernel = operation.As<Operation::Kernel>()) {
    without_trace = backend.HonoursGuard(kernel->args.Multiplies() ? Guarded::kFused : Guarded::kCollective);
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

Status Executor::SetKernel(CompiledProgram::Operation& operation, const LaunchContext& context) {
  auto& kernel = *operation.As<CompiledProgram::Operation::Kernel>();
  for (const auto& word : kernel.words) {
    Word* base = context.signals[word.rank];
    if (base == nullptr) {
      return FailedPrecondition("the signal area of rank " + std::to_string(word.rank) + " is not mapped");
    }
    *word.target = base + word.word;
  }
  if (auto* packets = std::get_if<PacketsArgs>(&kernel.args.work)) {
    for (size_t peer = 0; peer < packets->packets.size(); ++peer) {
      if (context.signals[peer] == nullptr) {
        return FailedPrecondition("the packets of rank " + std::to_string(peer) + " are not mapped");
      }
      packets->packets[peer] = reinterpret_cast<std::byte*>(context.signals[peer]) + plan::kSignalWordBytes +
                               (context.launch_number & 1) * plan::kPacketHalfBytes;
    }
  }
  kernel.args.launch_number = context.launch_number;
  kernel.args.abort_word = context.abort_word;
  if (kernel.args.Multiplies()) KeepPrepared(operation, context.launch_number);
  return Status::Ok();
}

void Executor::KeepPrepared(CompiledProgram::Operation& operation, uint64_t launch_number) {
  auto& kernel = *operation.As<CompiledProgram::Operation::Kernel>();
  std::vector<const void*>& bound = kernel.bound;
  bound.clear();
  for (const auto& patch : operation.patches) bound.push_back(*patch.target);
  for (const auto& word : kernel.words) bound.push_back(*word.target);
  auto& sets = kernel.kept[launch_number & 1];
  auto set = std::find_if(sets.begin(), sets.end(), [&](const auto& each) { return each.bound == bound; });
  if (set == sets.end()) {
    if (sets.size() < kMaxPreparedSets) {
      set = sets.emplace(sets.end());
    } else {
      set = std::min_element(sets.begin(), sets.end(),
                             [](const auto& a, const auto& b) { return a.used < b.used; });
      set->prepared.reset();
    }
    set->bound = bound;
  }
  set->used = launch_number;
  kernel.args.prepared = &set->prepared;
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
  using Operation = CompiledProgram::Operation;
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
  return std::visit(
      [&](auto& work) -> Status {
        using Work = std::decay_t<decltype(work)>;
        if constexpr (requires { work.guard; }) work.guard = context.guard;
        if constexpr (std::is_same_v<Work, MatmulArgs>) {
          if (!work.has_chunk_signals) return Status::Ok();
          if (work.chunk_words() == nullptr) return InvalidArgument("the chunk signals are not bound");
          work.abort_word = context.abort_word;
        } else if constexpr (std::is_same_v<Work, Operation::Kernel>) {
          work.args.guard = context.guard;
          if (work.runs) return SetKernel(operation, context);
        } else if constexpr (std::is_base_of_v<Operation::SignalWord, Work>) {
          if (context.signals[work.rank] == nullptr) {
            return FailedPrecondition("the signal area of rank " + std::to_string(work.rank) +
                                      " is not mapped");
          }
        }
        return Status::Ok();
      },
      operation.work);
}

Status Executor::EnqueueFirstKernel(CompiledProgram& program, const LaunchContext& context) {
  if (!program.has_first_kernel())
    return FailedPrecondition("nothing of the program can be enqueued ahead of its launch");
  TANDEM_RETURN_IF_ERROR(CheckContext(program, context));
  CompiledProgram::Operation& first = *program.operations_[static_cast<size_t>(program.first_kernel_)];
  TANDEM_RETURN_IF_ERROR(Bind(program, first, context));
  if (const auto* kernel = first.As<CompiledProgram::Operation::Kernel>())
    return lanes_[0]->Collective(kernel->args);
  size_t skipped = 0;
  return EnqueueWork(first, context, &skipped);
}

namespace {

// The arguments of work that a stream without lanes takes; nothing of other work.
std::optional<BoundWork> BoundWorkOf(const MatmulArgs& product) {
  return product.has_chunk_signals ? std::nullopt : std::optional<BoundWork>(&product);
}
template <class Args>
std::optional<BoundWork> BoundWorkOf(const Args& args) {
  if constexpr (requires { args.args; }) {
    return &args.args;
  } else if constexpr (std::is_constructible_v<BoundWork, const Args*>) {
    return &args;
  } else {
    return std::nullopt;
  }
}

}  // namespace

Result<std::vector<BoundWork>> Executor::BindAroundKernel(CompiledProgram& program,
                                                          const LaunchContext& context) {
  using Operation = CompiledProgram::Operation;
  TANDEM_RETURN_IF_ERROR(CheckContext(program, context));
  std::vector<BoundWork> bound;
  int kernels = 0;
  for (size_t i = 0; i < program.operations_.size(); ++i) {
    Operation& operation = *program.operations_[i];
    if (operation.As<Operation::Nop>() != nullptr) continue;
    const std::optional<BoundWork> work =
        std::visit([](const auto& args) { return BoundWorkOf(args); }, operation.work);
    auto* kernel = operation.As<Operation::Kernel>();
    if (operation.lane != 0 || !work || (kernel != nullptr && ++kernels > 1)) {
      return Unimplemented(
          "the program has other work than one kernel for a collective, and products, copies, "
          "sums and norms around it");
    }
    TANDEM_RETURN_IF_ERROR(Bind(program, operation, context));
    if (kernel != nullptr) {
      TANDEM_RETURN_IF_ERROR(SetKernel(operation, context));
      i += kernel->expansion;
    }
    bound.push_back(*work);
  }
  if (kernels == 0) return Unimplemented("the program has no kernel for a collective");
  return bound;
}

Status Executor::EnqueueWork(CompiledProgram::Operation& operation, const LaunchContext& context,
                             size_t* skipped) {
  using Operation = CompiledProgram::Operation;
  Lane& lane = *lanes_[operation.lane];
  const auto enqueue = Overloaded{
      [](Operation::Nop&) { return Status::Ok(); },
      [&](CopyArgs& args) { return lane.Copy(args); },
      [&](MatmulArgs& args) { return lane.Matmul(args); },
      [&](ReduceArgs& args) { return lane.Reduce(args); },
      [&](NormArgs& args) { return lane.Norm(args); },
      [&](NcclArgs& args) {
        args.communicator = context.communicator;
        return lane.Nccl(args);
      },
      [&](Operation::Kernel& kernel) {
        if (!kernel.runs) return Status::Ok();
        Status status = lane.Collective(kernel.args);
        // A fused matmul's peers see the same words from its steps: bindings that the kernel cannot take run
        // by them.
        const bool by_steps = status.code() == Code::kUnimplemented && kernel.args.As<FusedArgs>() != nullptr;
        if (status.ok()) *skipped = kernel.expansion;
        if (by_steps && HasFixedOrder(kernel.args)) return RefuseOtherOrder(status.message());
        return by_steps ? Status::Ok() : status;
      },
      [&](Operation::Signal& signal) {
        return lane.WriteWord(context.signals[signal.rank] + signal.word, context.launch_number);
      },
      [&](Operation::WaitSignal& wait) {
        return lane.WaitWord(context.signals[wait.rank] + wait.word, context.launch_number);
      },
      [&](Operation::WaitEvent& wait) {
        Result<Event*> event = LaneEvent(wait.lane, wait.event);
        return event.ok() ? lane.Wait(*event) : event.status();
      },
      [&](Operation::RecordEvent& record) {
        Result<Event*> event = LaneEvent(operation.lane, record.event);
        return event.ok() ? lane.Record(*event) : event.status();
      }};
  return std::visit(enqueue, operation.work);
}

Status Executor::EnqueueOperations(CompiledProgram& program, const LaunchContext& context) {
  if (static_cast<size_t>(program.lanes_) > lanes_.size()) {
    return FailedPrecondition("the program has " + std::to_string(program.lanes_) + " lanes, the engine " +
                              std::to_string(lanes_.size()));
  }
  TANDEM_RETURN_IF_ERROR(CheckContext(program, context));
  const CompiledProgram::Operation* enqueued =
      context.first_kernel_enqueued && program.has_first_kernel()
          ? program.operations_[static_cast<size_t>(program.first_kernel_)].get()
          : nullptr;
  // All addresses are set, and found to be there, before anything is enqueued.
  for (const auto& operation : program.operations_) {
    if (operation.get() != enqueued) TANDEM_RETURN_IF_ERROR(Bind(program, *operation, context));
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
  for (const auto& each : program.operations_) {
    CompiledProgram::Operation& operation = *each;
    Lane& lane = *lanes_[operation.lane];
    if (&lane != previous) TANDEM_RETURN_IF_ERROR(previous->FlushWords());
    previous = &lane;
    const StepEvents* traced = context.step_events.empty() ? nullptr : &context.step_events[operation.step];
    if (traced != nullptr && operation.starts_step && traced->start != nullptr) {
      TANDEM_RETURN_IF_ERROR(lane.Record(traced->start));
    }
    const bool skip = skipped > 0 || &operation == enqueued;
    if (skipped > 0) --skipped;
    if (&operation == enqueued) {
      const auto* kernel = operation.As<CompiledProgram::Operation::Kernel>();
      skipped = kernel != nullptr ? kernel->expansion : 0;
    }
    if (!skip) TANDEM_RETURN_IF_ERROR(EnqueueWork(operation, context, &skipped));
    if (traced != nullptr && operation.ends_step && traced->end != nullptr) {
      TANDEM_RETURN_IF_ERROR(lane.Record(traced->end));
    }
  }
  if (previous != lanes_[0]) TANDEM_RETURN_IF_ERROR(previous->FlushWords());
  return Join(program);
}

}  // namespace tandem::runtime
