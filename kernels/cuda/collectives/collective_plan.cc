#include "kernels/cuda/collectives/collective_plan.h"

#include <cstddef>
#include <span>
#include <vector>

#include "kernels/cuda/device/guarded.h"
#include "program/packet_layout.h"
#include "program/program.h"
#include "program/runs.h"

namespace tandem::cuda {
namespace {

WaitLimits LimitsOf(const CollectiveArgs& args) {
  WaitLimits limits;
  limits.abort_word = reinterpret_cast<const uint64_t*>(args.abort_word);
  return limits;
}

bool Sums(const CollectiveItem& item) { return item.sources.size() > 1 || item.scale != 1.0f; }

// Fills the tables of one launch.
class PhasesWriter {
 public:
  PhasesWriter(const CollectiveArgs& args, const PhasesArgs& work) : args_(args), work_(work) {
    launch_.launch_number = args.launch_number;
    launch_.limits = LimitsOf(args);
    launch_.guard = DeviceGuardOf(args.guard);
    launch_.blocks = args.blocks;
    launch_.word_stride = work.word_stride;
    launch_.type = static_cast<uint8_t>(args.dtype);
    for (const CollectivePhase& phase : work.phases) {
      for (const CollectiveItem& item : phase.items) {
        if (!Sums(item)) continue;
        launch_.sums = true;
        launch_.reduce_op = static_cast<uint8_t>(item.reduce_op);
      }
    }
    // Moves are moves of bytes.
    unit_ = launch_.sums ? 1 : static_cast<int64_t>(DTypeBytes(args.dtype));
  }

  Result<PhasesLaunch> Write() {
    for (const CollectivePhase& from : work_.phases) {
      Phase& phase = launch_.phase[launch_.phases++];
      phase.first_wait = words_;
      phase.waits = AddWords(from.waits);
      phase.first_signal = words_;
      phase.signals = AddWords(from.signals);
      phase.first_item = items_;
      for (const CollectiveItem& item : from.items) TANDEM_RETURN_IF_ERROR(AddItem(item));
      phase.items = static_cast<uint16_t>(items_ - phase.first_item);
    }
    return launch_;
  }

 private:
  uint16_t AddWords(const std::vector<Word*>& words) {
    for (Word* word : words) launch_.word[words_++] = reinterpret_cast<uint64_t*>(word);
    return static_cast<uint16_t>(words.size());
  }

  Status AddItem(const CollectiveItem& from) {
    std::vector<const DeviceView*> views;
    for (const DeviceView& view : from.sources) views.push_back(&view);
    for (const DeviceView& view : from.destinations) views.push_back(&view);
    auto runs = MergeRuns(std::span<const DeviceView* const>(views));
    if (!runs) return InvalidArgument("an item of a collective whose elements do not lie in runs");
    if (runs->count == 0) return Status::Ok();
    PhaseItem& item = launch_.item[items_++];
    item.count = runs->count * unit_;
    item.inner = runs->inner * unit_;
    item.scale = from.scale;
    item.first_pointer = pointers_;
    item.sources = static_cast<uint8_t>(from.sources.size());
    item.destinations = static_cast<uint8_t>(from.destinations.size());
    const auto element = static_cast<int64_t>(launch_.sums ? DTypeBytes(args_.dtype) : 1);
    uint64_t bits = item.inner == item.count ? 0 : static_cast<uint64_t>(item.inner * element);
    for (size_t v = 0; v < views.size(); ++v) {
      if (views[v]->data == nullptr)
        return InvalidArgument("an operand of a collective that is bound to nothing");
      launch_.pointer[pointers_] = views[v]->data;
      launch_.pitch[pointers_] = runs->pitch[v] * unit_;
      bits |= reinterpret_cast<uintptr_t>(views[v]->data) |
              static_cast<uint64_t>(launch_.pitch[pointers_] * element);
      ++pointers_;
    }
    item.vector = bits % 16 == 0;
    return Status::Ok();
  }

  const CollectiveArgs& args_;
  const PhasesArgs& work_;
  PhasesLaunch launch_ = {};
  int64_t unit_ = 1;
  uint16_t items_ = 0, pointers_ = 0, words_ = 0;
};

}  // namespace

bool TakesCollective(const CollectiveArgs& args) {
  if (args.blocks < 1 || args.world_size < 1 || args.world_size > kMaxGroupRanks) return false;
  if (const auto* packets = args.As<PacketsArgs>()) {
    const auto world = static_cast<size_t>(args.world_size);
    return packets->pieces.size() == world && packets->source.size() == world &&
           packets->destination.size() == world && packets->packets.size() == world;
  }
  const auto* work = args.As<PhasesArgs>();
  if (work == nullptr) return false;
  size_t items = 0, pointers = 0, words = 0;
  for (const CollectivePhase& phase : work->phases) {
    // One thread a word.
    if (phase.waits.size() > kCollectiveThreads || phase.signals.size() > kCollectiveThreads) return false;
    words += phase.waits.size() + phase.signals.size();
    items += phase.items.size();
    for (const CollectiveItem& item : phase.items) {
      if (item.sources.empty() || item.sources.size() > kMaxGroupRanks || item.destinations.empty())
        return false;
      pointers += item.sources.size() + item.destinations.size();
    }
  }
  return work->phases.size() <= kMaxPhases && items <= kMaxItems && pointers <= kMaxPointers &&
         words <= kMaxPhaseWords;
}

Result<PhasesLaunch> MakePhasesLaunch(const CollectiveArgs& args) {
  const auto* work = args.As<PhasesArgs>();
  if (work == nullptr || !TakesCollective(args)) return InvalidArgument("a collective that no kernel takes");
  return PhasesWriter(args, *work).Write();
}

Result<PacketsLaunch> MakePacketsLaunch(const CollectiveArgs& args) {
  const auto* work = args.As<PacketsArgs>();
  if (work == nullptr || !TakesCollective(args)) return InvalidArgument("a collective that no kernel takes");
  PacketsLaunch launch = {};
  launch.launch_number = args.launch_number;
  launch.limits = LimitsOf(args);
  launch.guard = DeviceGuardOf(args.guard);
  launch.blocks = args.blocks;
  launch.rank = args.rank;
  launch.world = args.world_size;
  launch.type = static_cast<uint8_t>(args.dtype);
  launch.scale = work->scale;
  const bool summable = IsFloating(args.dtype) && !IsFloat8(args.dtype);
  const bool gathers = work->exchange == plan::PacketExchange::kGather;
  if (work->dense && ((!gathers && !summable) || args.world_size < 2))
    return InvalidArgument("dense packets carry terms of sums in 16 or 32 bits");
  int shots = 1;
  int64_t unit = 1;
  switch (work->exchange) {
    case plan::PacketExchange::kSum: launch.shape = PacketShape::kSum; break;
    case plan::PacketExchange::kGather:
      launch.shape = PacketShape::kGather;
      unit = static_cast<int64_t>(DTypeBytes(args.dtype));
      break;
    default:
      launch.shape = PacketShape::kTwoShot;
      shots = 2;
      break;
  }
  static_assert(sizeof(Packet) == PacketLayout::kPacketBytes &&
                offsetof(Packet, launch_number) == PacketLayout::kDataBytes);
  const PacketLayout layout{.half_bytes = work->packet_bytes, .world = args.world_size, .shots = shots};
  launch.slot_packets = static_cast<int64_t>(layout.slot_packets());
  const DensePacketLayout dense{
      .half_bytes = plan::kDensePacketHalfBytes, .world = args.world_size, .shots = shots};
  const auto element = static_cast<uint64_t>(DTypeBytes(args.dtype));
  const auto fits =
      static_cast<int64_t>(work->dense ? dense.slot_packets() * DensePacketLayout::kPacketBytes / element
                                       : layout.slot_packets() * PacketLayout::kDataBytes / element);
  for (size_t p = 0; p < work->pieces.size(); ++p) {
    if (work->pieces[p] > fits) return InvalidArgument("a piece that its packets cannot hold");
    launch.count[p] = work->pieces[p] * unit;
    launch.source[p] = work->source[p].data;
    launch.destination[p] = work->destination[p].data;
    launch.area[p] = reinterpret_cast<Packet*>(work->packets[p]);
  }
  return launch;
}

}  // namespace tandem::cuda
