#include "tests/gpu/kernel_group.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "program/kernel_phases.h"

namespace tandem::runtime {
namespace {

constexpr std::byte kGuard{0xC5};

}  // namespace

KernelGroup::KernelGroup(TestMachine* machine, std::vector<OpRequest> requests,
                         const KernelGroupOptions& options, plan::GroupContext context)
    : machine_(machine), requests_(std::move(requests)), options_(options) {
  auto plan = plan::MakePlan(requests_, context);
  if (!plan.ok()) {
    status_ = plan.status();
    return;
  }
  plan_ = std::move(*plan);
  const auto* step = plan_.programs[0].steps.size() == 1
                         ? std::get_if<plan::CollectiveStep>(&plan_.programs[0].steps[0].work)
                         : nullptr;
  if (step == nullptr || step->blocks == 0) {
    status_ = FailedPrecondition("the plan is no single collective with a kernel");
    return;
  }
  blocks_ = options.max_blocks > 0 ? std::min<int>(step->blocks, options.max_blocks) : step->blocks;
  if (options.blocks > 0) blocks_ = options.blocks;
  machine_->Reset();
  half_bytes_ = (plan_.workspace_bytes + 255) / 256 * 256;
  abort_word_ = machine_->AllocateWord();
  for (int rank = 0; rank < world_size(); ++rank) {
    workspace_.push_back(machine_->Allocate(rank, 2 * half_bytes_));
    bulk_.push_back(machine_->Allocate(rank, plan_.bulk_bytes));
    signals_.push_back(machine_->Allocate(rank, plan::kClientSignalAreaBytes));
    finished_.push_back(machine_->AllocateWord());
    owned_lanes_.push_back(std::move(*machine_->backend(rank).MakeLane(0)));
    lanes_.push_back(dynamic_cast<cuda::CudaLane*>(owned_lanes_.back().get()));
  }
  operands_.resize(options.separate ? static_cast<size_t>(options.launches) : 1);
  for (auto& set : operands_) {
    for (int rank = 0; rank < world_size(); ++rank) {
      set.emplace_back();
      const OpRequest& request = requests_[static_cast<size_t>(rank)];
      for (size_t slot = 0; slot < request.operands.size(); ++slot) {
        const DType type = request.operands[slot].spec.dtype;
        const size_t bytes = Bytes(rank, static_cast<int>(slot)) + 2 * kGuardBytes + 256;
        SharedMemory memory = machine_->Allocate(rank, bytes);
        const std::vector<std::byte> guard(bytes, kGuard);
        machine_->Upload(memory, rank, guard.data(), bytes);
        for (std::byte*& address : memory.at) {
          if (address != nullptr)
            address += kGuardBytes + static_cast<size_t>(options.shift) * DTypeBytes(type);
        }
        set.back().push_back(memory);
      }
    }
  }
}

size_t KernelGroup::Home(int rank, int slot) const {
  const int alias = requests_[static_cast<size_t>(rank)].operands[static_cast<size_t>(slot)].alias_of;
  return static_cast<size_t>(alias >= 0 ? alias : slot);
}

size_t KernelGroup::Bytes(int rank, int slot) const {
  return static_cast<size_t>(*BoundBytes(requests_[static_cast<size_t>(rank)], slot));
}

std::byte* KernelGroup::Data(int rank, int slot, int launch) const {
  const auto viewer = static_cast<size_t>(rank);
  return operands_[Set(launch)][viewer][Home(rank, slot)].at[viewer];
}

std::byte* KernelGroup::Resolve(int viewer, const plan::Ref& ref, uint64_t launch_number, int launch) const {
  const auto at = static_cast<size_t>(viewer);
  switch (ref.space) {
    case plan::Space::kWorkspace:
      return workspace_[ref.rank].at[at] + (launch_number & 1) * half_bytes_ + ref.offset;
    case plan::Space::kBulk: return bulk_[ref.rank].at[at] + ref.offset;
    case plan::Space::kOperand: break;
  }
  return operands_[Set(launch)][ref.rank][Home(ref.rank, ref.slot)].at[at] + ref.offset;
}

DeviceView KernelGroup::Resolve(int viewer, const plan::View& view, uint64_t launch_number,
                                int launch) const {
  return {Resolve(viewer, view.ref, launch_number, launch), view.dtype, view.extent, view.stride};
}

CollectiveArgs KernelGroup::Args(int rank, uint64_t launch_number, int launch) const {
  auto step = std::get<plan::CollectiveStep>(plan_.programs[static_cast<size_t>(rank)].steps[0].work);
  step.blocks = static_cast<uint16_t>(blocks_);
  CollectiveArgs args;
  args.dtype = step.in.dtype;
  args.blocks = blocks_;
  args.rank = rank;
  args.world_size = world_size();
  args.launch_number = launch_number;
  args.abort_word = abort_word_;
  const auto own = static_cast<size_t>(rank);
  if (step.algorithm == Algorithm::kLowLatency) {
    const plan::PacketPlan plan = *plan::PlanPackets(step, world_size());
    auto& packets = args.work.emplace<PacketsArgs>();
    packets.exchange = plan.exchange;
    packets.scale = plan.scale;
    packets.pieces = plan.pieces;
    packets.packet_bytes = plan::kPacketHalfBytes;
    packets.dense = step.dense;
    for (const plan::View& view : plan.source)
      packets.source.push_back(Resolve(rank, view, launch_number, launch));
    for (const plan::View& view : plan.destination)
      packets.destination.push_back(Resolve(rank, view, launch_number, launch));
    for (const SharedMemory& area : signals_) {
      packets.packets.push_back(area.at[own] + plan::kSignalWordBytes +
                                (launch_number & 1) * plan::kPacketHalfBytes);
    }
    return args;
  }
  auto& work = args.work.emplace<PhasesArgs>();
  work.word_stride = plan::kKernelWordStride;
  auto word = [&](int reader, int writer, int index) {
    return reinterpret_cast<Word*>(signals_[static_cast<size_t>(reader)].at[own]) +
           writer * plan::kSignalsPerWriter + plan::KernelWordIndex(step, index);
  };
  const auto phases = plan::FusePhases(step);
  for (const plan::KernelPhase& from : *phases) {
    CollectivePhase& phase = work.phases.emplace_back();
    for (const plan::KernelWord& wait : from.waits) phase.waits.push_back(word(rank, wait.rank, wait.index));
    for (const plan::KernelWord& signal : from.signals)
      phase.signals.push_back(word(signal.rank, rank, signal.index));
    for (const plan::KernelItem& item : from.items) {
      CollectiveItem& to = phase.items.emplace_back();
      to.scale = item.scale;
      to.reduce_op = item.reduce_op;
      for (const plan::View& view : item.sources)
        to.sources.push_back(Resolve(rank, view, launch_number, launch));
      for (const plan::View& view : item.destinations)
        to.destinations.push_back(Resolve(rank, view, launch_number, launch));
    }
  }
  return args;
}

cuda::ClientHalves KernelGroup::halves(int rank) const {
  cuda::ClientHalves halves;
  halves.half_bytes = half_bytes_;
  for (size_t peer = 0; peer < workspace_.size(); ++peer)
    halves.workspace[peer] = workspace_[peer].at[static_cast<size_t>(rank)];
  return halves;
}

uint64_t* KernelGroup::own_words(int rank) const {
  const auto r = static_cast<size_t>(rank);
  return reinterpret_cast<uint64_t*>(signals_[r].at[r]);
}

Status KernelGroup::Launch(int rank, uint64_t launch_number, int launch) {
  return lane(rank).Collective(Args(rank, launch_number, launch));
}

bool KernelGroup::Finish(double seconds) {
  ++finishes_;
  for (size_t rank = 0; rank < lanes_.size(); ++rank) {
    if (!lanes_[rank]->WriteWord(finished_[rank], finishes_).ok()) return false;
  }
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  for (Word* word : finished_) {
    while (word->load(std::memory_order_acquire) != finishes_) {
      if (std::chrono::steady_clock::now() > deadline) return false;
      std::this_thread::yield();
    }
  }
  return true;
}

void KernelGroup::Set(int rank, int slot, int launch, const std::vector<std::byte>& bytes) {
  machine_->Upload(operands_[Set(launch)][static_cast<size_t>(rank)][Home(rank, slot)], rank, bytes.data(),
                   bytes.size());
}

std::vector<std::byte> KernelGroup::Get(int rank, int slot, int launch) {
  std::vector<std::byte> bytes(static_cast<size_t>(
      *SpanBytes(requests_[static_cast<size_t>(rank)].operands[static_cast<size_t>(slot)].spec)));
  machine_->Download(bytes.data(), operands_[Set(launch)][static_cast<size_t>(rank)][Home(rank, slot)], rank,
                     bytes.size());
  return bytes;
}

bool KernelGroup::GuardsIntact() {
  for (auto& set : operands_) {
    for (int rank = 0; rank < world_size(); ++rank) {
      for (size_t slot = 0; slot < set[static_cast<size_t>(rank)].size(); ++slot) {
        if (Home(rank, static_cast<int>(slot)) != slot) continue;
        for (int64_t offset : {-static_cast<int64_t>(kGuardBytes),
                               static_cast<int64_t>(Bytes(rank, static_cast<int>(slot)))}) {
          SharedMemory guard = set[static_cast<size_t>(rank)][slot];
          for (std::byte*& address : guard.at) {
            if (address != nullptr) address += offset;
          }
          std::vector<std::byte> bytes(kGuardBytes);
          machine_->Download(bytes.data(), guard, rank, bytes.size());
          if (!std::all_of(bytes.begin(), bytes.end(), [](std::byte byte) { return byte == kGuard; }))
            return false;
        }
      }
    }
  }
  return true;
}

}  // namespace tandem::runtime
