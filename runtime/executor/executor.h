// File: executor.h
//
// The executor: takes a rank's program once (Compile) and then enqueues launches of it on an engine's lanes.
// It knows the backend's interface only, no process, ring or descriptor.
//
// Example:
//   TANDEM_ASSIGN_OR_RETURN(auto program, CompiledProgram::Compile(rank_program, limits));
//   Executor executor(&backend, lanes);
//   TANDEM_RETURN_IF_ERROR(executor.Enqueue(*program, context));   // lanes[0] is reached after all of the
//   program
//
// Thread rule: one thread uses an Executor and the programs that it enqueues.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <variant>
#include <vector>

#include "kernels/backend.h"
#include "program/program.h"
#include "tandem/status.h"

namespace tandem::runtime {

// The facts about an operand slot that are known when the program is compiled.
struct SlotLimit {
  uint64_t bytes = 0;      // what a binding is guaranteed to have from its address on
  bool symmetric = false;  // peers' memory of this slot may be named
};

// The memory and words that a program may touch. Compile refuses programs that go beyond.
struct ProgramLimits {
  int rank = 0;
  int world_size = 1;
  uint64_t workspace_bytes = 0;  // of one half, on every rank
  uint64_t bulk_bytes = 0;
  std::vector<SlotLimit> slots;
};

// A slot's addresses in one launch. `peer` is read for symmetric slots only; peer[own rank] is not read.
struct SlotAddress {
  std::byte* own = nullptr;
  std::array<std::byte*, plan::kMaxWorldSize> peer{};
  bool operator==(const SlotAddress&) const = default;
};

// Two events around a step, for traces; either may be null.
struct StepEvents {
  Event* start = nullptr;
  Event* end = nullptr;
};

// The values that change from launch to launch. Enqueue copies what it needs.
struct LaunchContext {
  uint64_t launch_number = 0;
  // By rank, as mapped by this GPU: the workspace half of this launch's parity, the bulk area, the signal
  // area's base.
  std::array<std::byte*, plan::kMaxWorldSize> workspace{};
  std::array<std::byte*, plan::kMaxWorldSize> bulk{};
  std::array<Word*, plan::kMaxWorldSize> signals{};
  std::span<const SlotAddress> slots;
  Communicator* communicator = nullptr;  // needed by programs with NCCL steps
  // The group's: ends waits inside kernels, for peers and for chunk signals of the user's own.
  const Word* abort_word = nullptr;
  // On the first kernel, for EnqueueFirstKernel. Enqueue takes none.
  Guard guard{};
  // Empty, or one entry for each step of the plan::RankProgram.
  std::span<const StepEvents> step_events;
  // Nothing is on any lane that the program must follow, but what this thread has put onto lane 0 to time it:
  // the other lanes need not wait for lane 0 before they begin.
  bool lanes_idle = false;
  // EnqueueFirstKernel has enqueued the program's first kernel for this launch, with this very context:
  // Enqueue leaves it out. A program that forks needs lanes_idle then.
  bool first_kernel_enqueued = false;
};

// A program ready for launches: checked, collectives and transfer groups expanded, everything resolved that
// does not depend on the launch.
class CompiledProgram {
 public:
  // INVALID_ARGUMENT or OUT_OF_RANGE names the step that is wrong: a lane, rank, signal, slot or dependency
  // that does not exist, a view that leaves its memory, a peer's operand that is not symmetric.
  static Result<std::unique_ptr<CompiledProgram>> Compile(const plan::RankProgram& program,
                                                          const ProgramLimits& limits);
  ~CompiledProgram();

  // Lets the backend choose and load what the program's products need (Backend::PrepareMatmul), and say which
  // Call it once, before the first launch on that backend. Without it the first launch chooses by guess, may
  // load kernels beside waiting lanes, and runs collectives step by step, which the peers must then do as
  // well.
  Status Prepare(Backend& backend);

  int lanes() const { return lanes_; }               // lanes that the executor must have
  size_t step_count() const { return step_count_; }  // of the plan::RankProgram, for step_events
  bool needs_communicator() const { return needs_communicator_; }
  // True if the first work on lane 0 can be enqueued before the launch is decided, and cancelled without a
  // trace: a guarded product, copy or sum, or a fused kernel. Known once prepared.
  bool has_first_kernel() const { return first_kernel_ >= 0; }
  // True if it uses other lanes than lane 0.
  bool forks() const;
  // The client's words that a launch with these slots waits for, each until it is not 0; empty if it waits
  // for none, or they are not bound.
  std::span<const uint32_t> ChunkSignals(std::span<const SlotAddress> slots) const;
  // The ranks (a bit each) that a launch waits for: writers of words of the own signal area for which
  // `arrived` is false. Of a kernel its own words, once it is known (Prepare) that it runs.
  uint8_t AwaitedRanks(const std::function<bool(uint32_t word)>& arrived) const;
  // True if a kernel waits for packets, which have no words of their own. Known once prepared.
  bool AwaitsPackets() const;
  // The ranks (a bit each) whose packets a kernel waits for: writers of packets for which `come` is false,
  // counted from the begin of this launch's half of the own packet area. Looks at the first and the last
  // packet of each writer.
  uint8_t AwaitedPackets(const std::function<bool(uint64_t packet)>& come) const;

 private:
  friend class Executor;
  friend class ProgramCompiler;
  struct Operation;
  // Where a view's address goes at each launch.
  struct Patch {
    plan::Space space;
    uint8_t rank;
    uint16_t slot;
    uint64_t offset;
    std::byte** target;  // a `data` pointer inside an operation's arguments
  };

  CompiledProgram();
  // Number and stride of the words that a kernel waits for.
  struct KernelWords {
    int count = 1, stride = 1;
  };
  static KernelWords WordsOf(const CollectiveArgs& kernel);
  void FindFirstKernel(Backend& backend);

  int rank_ = 0;
  int world_size_ = 1;
  int lanes_ = 1;
  size_t step_count_ = 0;
  size_t slot_count_ = 0;
  bool needs_communicator_ = false;
  int first_kernel_ = -1;  // its operation, -1: none
  std::array<int, plan::kMaxLanes> events_per_lane_{};
  std::array<bool, plan::kMaxLanes> lane_used_{};
  std::vector<std::unique_ptr<Operation>> operations_;
};

// The arguments of one piece of a program's work.
using BoundWork = std::variant<const CollectiveArgs*, const MatmulArgs*, const CopyArgs*, const ReduceArgs*,
                               const NormArgs*>;

// Enqueues programs on one set of lanes. The lanes and the backend must outlive it.
class Executor {
 public:
  Executor(Backend* backend, std::vector<Lane*> lanes);
  ~Executor();

  // Enqueues one launch. All lanes of the program start after what lane 0 holds now, and lane 0 is joined
  // with them at the end: what the caller enqueues on lane 0 next runs after the whole program. Lane 0 may
  // still hold words back (Lane::HoldWords), for the caller to add to them and to flush; no other lane does.
  // On an error nothing or a part has been enqueued and the program must count as failed; peers may then wait
  // for its signals. Lane 0 is joined with the part too.
  Status Enqueue(CompiledProgram& program, const LaunchContext& context);

  // Enqueues the program's first kernel alone, which must honour `context.guard`; see
  // LaunchContext::first_kernel_enqueued. On an error nothing has been enqueued: UNIMPLEMENTED if the kernel
  // does not take these bindings, FAILED_PRECONDITION for a program without a first kernel that can be
  // cancelled.
  Status EnqueueFirstKernel(CompiledProgram& program, const LaunchContext& context);

  // The work, in order and with `context`'s addresses and words, of a program that is one kernel for a
  // collective, and products, copies and sums before and behind it. Good until the program is bound again.
  // For who puts it onto a stream without lanes. UNIMPLEMENTED: the program has other work, or no kernel.
  static Result<std::vector<BoundWork>> BindAroundKernel(CompiledProgram& program,
                                                         const LaunchContext& context);

 private:
  Status EnqueueOperations(CompiledProgram& program, const LaunchContext& context);
  // Lets lane 0 wait for what the program's other lanes hold now.
  Status Join(const CompiledProgram& program);
  static Status CheckContext(const CompiledProgram& program, const LaunchContext& context);
  // Sets an operation's addresses and words for one launch.
  static Status Bind(const CompiledProgram& program, CompiledProgram::Operation& operation,
                     const LaunchContext& context);
  // Sets a kernel's words and packets for one launch.
  static Status SetKernel(CompiledProgram::Operation& operation, const LaunchContext& context);
  // Gives a product what the backend has kept of earlier launches with these addresses.
  static void KeepPrepared(CompiledProgram::Operation& operation, uint64_t launch_number);
  // Puts one operation onto its lane. `skipped` becomes the length of its expansion, if a kernel runs in
  // place of that.
  Status EnqueueWork(CompiledProgram::Operation& operation, const LaunchContext& context, size_t* skipped);
  // The `index`-th event that is only ever recorded on `lane`.
  Result<Event*> LaneEvent(int lane, int index);

  Backend* backend_;
  std::vector<Lane*> lanes_;
  std::vector<std::vector<std::unique_ptr<Event>>> events_;  // by lane
};

}  // namespace tandem::runtime
