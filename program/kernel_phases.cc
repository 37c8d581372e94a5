#include "program/kernel_phases.h"

#include <algorithm>
#include <array>
#include <span>
#include <utility>

#include "program/byte_box.h"
#include "program/packet_layout.h"
#include "program/runs.h"
#include "program/views.h"

namespace tandem::plan {
namespace {

// The limits of one kernel (kernels/cuda/device/collective.h).
constexpr size_t kMaxPhases = 4, kMaxItems = 24, kMaxPointers = 96, kMaxWords = 80, kMaxSources = 8;

// The least bytes of the largest item that a block should have: one 16-byte word for each thread.
constexpr uint64_t kBytesPerBlock = 8192;
// As many as fill the links with what is only moved; large tensors gain by more, most where they are summed
// (bench/figures/collectives.md, "Blocks").
constexpr uint64_t kFewBlocks = 32, kBytesPerFurtherBlock = 16384;

class Fuser {
 public:
  bool Add(const Step& step) {
    if (const auto* copy = std::get_if<CopyStep>(&step.work)) return AddCopy(*copy);
    if (const auto* reduce = std::get_if<ReduceStep>(&step.work)) return AddReduce(*reduce);
    if (const auto* signal = std::get_if<SignalStep>(&step.work)) {
      Current().signals.push_back({signal->to_rank, signal->index});
      return true;
    }
    if (const auto* wait = std::get_if<WaitStep>(&step.work)) {
      if (phases_.empty() || !phases_.back().signals.empty()) phases_.emplace_back();
      phases_.back().waits.push_back({wait->from_rank, wait->index});
      return true;
    }
    return std::holds_alternative<NopStep>(step.work);
  }

  std::optional<std::vector<KernelPhase>> Take() {
    size_t items = 0, pointers = 0, words = 0;
    for (const KernelPhase& phase : phases_) {
      items += phase.items.size();
      words += phase.waits.size() + phase.signals.size();
      for (const KernelItem& item : phase.items) {
        pointers += item.sources.size() + item.destinations.size();
        if (item.sources.size() > kMaxSources || !HasRuns(item)) return std::nullopt;
      }
      if (ReadsOwnItems(phase)) return std::nullopt;
    }
    if (phases_.size() > kMaxPhases || items > kMaxItems || pointers > kMaxPointers || words > kMaxWords) {
      return std::nullopt;
    }
    return std::move(phases_);
  }

 private:
  KernelPhase& Current() {
    if (phases_.empty()) phases_.emplace_back();
    return phases_.back();
  }
  static bool HasRuns(const KernelItem& item) {
    std::vector<const View*> views;
    for (const View& view : item.sources) views.push_back(&view);
    for (const View& view : item.destinations) views.push_back(&view);
    for (const View* view : views) {
      if (view->dtype != views[0]->dtype || view->extent != views[0]->extent) return false;
    }
    return MergeRuns(std::span<const View* const>(views)).has_value();
  }

  // Items of a phase run without a barrier of the block between them.
  static bool ReadsOwnItems(const KernelPhase& phase) {
    for (size_t i = 0; i < phase.items.size(); ++i) {
      for (const View& written : phase.items[i].destinations) {
        for (size_t j = i + 1; j < phase.items.size(); ++j) {
          const std::vector<View>& read = phase.items[j].sources;
          if (std::find(read.begin(), read.end(), written) != read.end()) return true;
        }
      }
    }
    return false;
  }

  bool AddCopy(const CopyStep& copy) {
    std::vector<KernelItem>& items = Current().items;
    if (!items.empty()) {
      KernelItem& last = items.back();
      // The same source, or the sum just made, goes to one more place.
      const bool same_source = last.sources.size() == 1 && last.scale == 1.0f && last.sources[0] == copy.src;
      const bool same_sum = last.destinations[0] == copy.src;
      if (same_source || same_sum) {
        last.destinations.push_back(copy.dst);
        return true;
      }
    }
    items.push_back({{copy.src}, {copy.dst}, 1.0f});
    return true;
  }
  bool AddReduce(const ReduceStep& reduce) {
    if (reduce.has_bias || reduce.has_result_scale || reduce.sources.empty()) return false;
    // A kernel is made for one reduction.
    if (reduce_op_.value_or(reduce.reduce_op) != reduce.reduce_op) return false;
    reduce_op_ = reduce.reduce_op;
    Current().items.push_back({reduce.sources, {reduce.dst}, reduce.scale, reduce.reduce_op});
    return true;
  }

  std::vector<KernelPhase> phases_;
  std::optional<ReduceOp> reduce_op_;
};

struct ViewTouch {
  const View* view;
  std::optional<ByteBox> box;  // none: it may be any byte
};
// Reads of a rank's own memory, and writes to it by whatever rank.
struct Touches {
  std::vector<ViewTouch> reads, writes;
};

ViewTouch TouchOf(const View& view) {
  const Result<ByteBox> box = BoxOf(view);
  return {&view, box.ok() ? std::optional(*box) : std::nullopt};
}

// Whether they have no byte in common. Parts along an inner dimension lie between one another without
// meeting.
bool AreApart(const ViewTouch& a, const ViewTouch& b) { return a.box && b.box && !Intersect(*a.box, *b.box); }

// Where bytes are read and written in one launch, both are the same elements of equal boxes: the same block
// has them.
bool BlocksAgree(const Touches& touches) {
  for (const ViewTouch& write : touches.writes) {
    for (const ViewTouch& read : touches.reads) {
      const View &w = *write.view, &r = *read.view;
      if (w.ref.space != r.ref.space || w.ref.slot != r.ref.slot) continue;
      if (AreApart(write, read)) continue;
      if (w.ref.offset != r.ref.offset || w.extent != r.extent || w.stride != r.stride) return false;
    }
  }
  return true;
}

// The factor of the expansion's sums.
float ScaleOf(const CollectiveStep& step) {
  for (const Step& part : step.expansion) {
    if (const auto* reduce = std::get_if<ReduceStep>(&part.work)) return reduce->scale;
  }
  return 1.0f;
}

// One thread a packet.
int PacketBlocks(std::span<CollectiveStep* const> steps) {
  uint64_t largest = 0;
  for (size_t rank = 0; rank < steps.size(); ++rank) {
    auto plan = PlanPackets(*steps[rank], static_cast<int>(steps.size()));
    if (!plan) return 0;
    for (int64_t piece : plan->pieces) {
      largest = std::max(largest, static_cast<uint64_t>(piece) * DTypeBytes(steps[rank]->in.dtype));
    }
  }
  const bool dense = steps[0]->dense;
  const uint64_t bytes_per_block = dense ? 1024 : 4096;
  const uint64_t most = dense ? kMaxDenseBlocks : kMaxKernelBlocks;
  return static_cast<int>(std::clamp<uint64_t>((largest + bytes_per_block - 1) / bytes_per_block, 1, most));
}

// The blocks for the k-th collective of all ranks; 0 when no kernel can run it.
int BlocksFor(std::span<CollectiveStep* const> steps) {
  if (steps[0]->algorithm == Algorithm::kLowLatency) return PacketBlocks(steps);
  std::vector<std::vector<KernelPhase>> ranks;
  uint64_t largest = 0;
  for (const CollectiveStep* step : steps) {
    auto phases = FusePhases(*step);
    if (!phases) return 0;
    ranks.push_back(std::move(*phases));
  }
  std::vector<Touches> touches(ranks.size());
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const DType type = steps[0]->in.dtype;
    for (const KernelPhase& phase : ranks[rank]) {
      for (const KernelItem& item : phase.items) {
        if (item.sources[0].dtype != type) return 0;
        largest = std::max(largest, Bytes(item.sources[0]));
        for (const View& view : item.sources) {
          if (view.ref.rank != rank) return 0;  // kernels push
          touches[rank].reads.push_back(TouchOf(view));
        }
        for (const View& view : item.destinations) touches[view.ref.rank].writes.push_back(TouchOf(view));
      }
    }
  }
  if (!std::all_of(touches.begin(), touches.end(), BlocksAgree)) return 0;
  const int signals = std::max<int>(1, steps[0]->signal_count);
  const int most = std::min(kMaxKernelBlocks, kSignalsPerWriter / kKernelWordStride / signals);
  const uint64_t few = std::min(kFewBlocks, (largest + kBytesPerBlock - 1) / kBytesPerBlock);
  const uint64_t wanted = std::max(few, largest / kBytesPerFurtherBlock);
  return static_cast<int>(std::clamp<uint64_t>(wanted, 1, static_cast<uint64_t>(most)));
}

}  // namespace

int KernelWordIndex(const CollectiveStep& step, int index) {
  return step.first_signal + index * step.blocks * kKernelWordStride;
}

std::optional<std::vector<KernelPhase>> FusePhases(const CollectiveStep& step) {
  Fuser fuser;
  for (const Step& part : step.expansion) {
    if (!fuser.Add(part)) return std::nullopt;
  }
  return fuser.Take();
}

uint64_t MaxPacketPieceBytes(PacketExchange exchange, int world_size, bool dense) {
  const int shots = exchange == PacketExchange::kTwoShot ? 2 : 1;
  if (dense) {
    const DensePacketLayout layout{.half_bytes = kDensePacketHalfBytes, .world = world_size, .shots = shots};
    return layout.slot_packets() * DensePacketLayout::kPacketBytes;
  }
  const PacketLayout layout{.half_bytes = kPacketHalfBytes, .world = world_size, .shots = shots};
  return layout.slot_packets() * PacketLayout::kDataBytes;
}

std::optional<PacketPlan> PlanPackets(const CollectiveStep& step, int world_size) {
  if (!IsContiguous(step.in) || !IsContiguous(step.out)) return std::nullopt;
  const View in = Flatten(step.in), out = Flatten(step.out);
  PacketPlan plan;
  plan.scale = ScaleOf(step);
  const bool gathers = step.op == Op::kAllGather;
  const bool two_shot = step.op == Op::kAllReduce && step.shots == 2;
  if (gathers) plan.exchange = PacketExchange::kGather;
  if (two_shot) plan.exchange = PacketExchange::kTwoShot;
  const bool summable = IsFloating(in.dtype) && !IsFloat8(in.dtype);
  if (!gathers && step.reduce_op != ReduceOp::kSum && step.reduce_op != ReduceOp::kAvg) return std::nullopt;
  if (step.dense && ((!gathers && !summable) || world_size < 2)) return std::nullopt;
  const uint64_t most = MaxPacketPieceBytes(plan.exchange, world_size, step.dense);
  for (int p = 0; p < world_size; ++p) {
    Range sent{0, Elements(in)}, received{0, Elements(out)};
    if (two_shot) {
      sent = received =
          AlignedPart(Elements(in), world_size, p, static_cast<int64_t>(16 / DTypeBytes(in.dtype)));
    } else if (gathers) {
      received = {p * Elements(in), Elements(in)};
    } else if (step.op == Op::kReduceScatter) {
      sent = {p * Elements(out), Elements(out)};
    }
    plan.pieces.push_back(sent.length);
    plan.source.push_back(Slice(in, 0, sent.begin, sent.length));
    plan.destination.push_back(Slice(out, 0, received.begin, received.length));
    if (Bytes(plan.source.back()) > most || Bytes(plan.source.back()) == 0) return std::nullopt;
  }
  return plan;
}

void PlanKernels(std::vector<RankProgram>* programs, int sms) {
  std::vector<std::vector<CollectiveStep*>> by_rank(programs->size());
  for (size_t rank = 0; rank < programs->size(); ++rank) {
    for (Step& step : (*programs)[rank].steps) {
      if (auto* collective = std::get_if<CollectiveStep>(&step.work)) {
        by_rank[rank].push_back(collective);
      } else if (MeetsPeers(step)) {
        return;
      }
    }
    // The kernel's words are all of the program's: no other step may have any.
    if (by_rank[rank].size() != 1) return;
  }
  for (size_t k = 0; k < by_rank[0].size(); ++k) {
    std::vector<CollectiveStep*> steps;
    steps.reserve(by_rank.size());
    for (const auto& collectives : by_rank) steps.push_back(collectives[k]);
    int blocks = BlocksFor(steps);
    if (blocks == 0) continue;
    if (sms > 0) blocks = std::min(blocks, sms);
    for (size_t rank = 0; rank < steps.size(); ++rank) {
      steps[rank]->blocks = static_cast<uint16_t>(blocks);
      RankProgram& program = (*programs)[rank];
      // The kernel's words take the place of the expansion's, and need more of them.
      if (steps[rank]->algorithm == Algorithm::kLowLatency) continue;
      const int words = steps[rank]->signal_count * blocks * kKernelWordStride;
      program.signal_count = std::max(program.signal_count, steps[rank]->first_signal + words);
    }
  }
}

}  // namespace tandem::plan
