#include "client/lib/cuda/placed/cuda_placed_work.h"

#include <algorithm>
#include <string>
#include <utility>

namespace tandem::client {
namespace {

// Sets of operands that parameters are kept for: some kilobytes each.
constexpr size_t kMaxKept = 64;

}  // namespace

Result<std::shared_ptr<CudaPlacedWork>> CudaPlacedWork::Make(const plan::RankProgram& program,
                                                             std::vector<engine::SlotLimit> slots,
                                                             const PlacedMemory& memory) {
  std::shared_ptr<CudaPlacedWork> made(new CudaPlacedWork);
  made->memory_ = memory;
  for (const engine::SlotLimit& slot : slots) made->slot_bytes_.push_back(slot.bytes);
  const engine::ProgramLimits limits{program.rank, program.world_size, memory.half_bytes, memory.bulk_bytes,
                                     std::move(slots)};
  TANDEM_ASSIGN_OR_RETURN(made->program_, engine::CompiledProgram::Compile(program, limits));
  return made;
}

Result<cuda::PlacedKernelLaunch> CudaPlacedWork::Build(std::span<const engine::SlotAddress> slots) {
  engine::LaunchContext context;
  context.signals = memory_.signals;
  context.workspace = memory_.workspace;
  context.bulk = memory_.bulk;
  context.slots = slots;
  TANDEM_ASSIGN_OR_RETURN(const CollectiveArgs* args, engine::Executor::BindSoleKernel(*program_, context));
  cuda::PlacedHalves halves;
  std::copy_n(memory_.workspace.begin(), halves.workspace.size(), halves.workspace.begin());
  halves.half_bytes = memory_.half_bytes;
  return cuda::MakePlacedLaunch(*args, halves);
}

Status CudaPlacedWork::LoadKernel() {
  // Any address does, so that views are not taken for operands that are bound to nothing.
  engine::SlotAddress address;
  address.own = reinterpret_cast<std::byte*>(memory_.signals.front());
  address.peer.fill(address.own);
  const std::vector<engine::SlotAddress> slots(slot_bytes_.size(), address);
  TANDEM_ASSIGN_OR_RETURN(const cuda::PlacedKernelLaunch launch, Build(slots));
  return cuda::Load(launch);
}

Status CudaPlacedWork::CheckReachable(std::span<const engine::SlotAddress> slots,
                                      cuda::CudaDriver& driver) const {
  for (size_t slot = 0; slot < slots.size(); ++slot) {
    if (slots[slot].own == nullptr || slot_bytes_[slot] == 0) continue;
    CUdeviceptr reached = 0;
    const Status known = driver.PointerGetAttribute(&reached, CU_POINTER_ATTRIBUTE_DEVICE_POINTER,
                                                    reinterpret_cast<CUdeviceptr>(slots[slot].own));
    if (known.ok()) continue;
    return InvalidArgument("is bound to memory that the GPU does not reach: " + known.message())
        .WithContext("slot " + std::to_string(slot))
        .WithDetail({.reason = "NOT_REGISTRABLE", .field = "bindings[" + std::to_string(slot) + "]"});
  }
  return Status::Ok();
}

Result<cuda::PlacedKernelLaunch*> CudaPlacedWork::For(std::span<const engine::SlotAddress> slots,
                                                      cuda::CudaDriver& driver) {
  auto kept = std::find_if(kept_.begin(), kept_.end(), [&](const Kept& each) {
    return std::equal(each.slots.begin(), each.slots.end(), slots.begin(), slots.end());
  });
  if (kept == kept_.end()) {
    TANDEM_RETURN_IF_ERROR(CheckReachable(slots, driver));
    TANDEM_ASSIGN_OR_RETURN(const cuda::PlacedKernelLaunch launch, Build(slots));
    if (kept_.size() < kMaxKept) {
      kept = kept_.emplace(kept_.end());
    } else {
      kept = std::min_element(kept_.begin(), kept_.end(),
                              [](const Kept& a, const Kept& b) { return a.used < b.used; });
    }
    kept->slots.assign(slots.begin(), slots.end());
    kept->launch = launch;
  }
  kept->used = ++uses_;
  return &kept->launch;
}

}  // namespace tandem::client
