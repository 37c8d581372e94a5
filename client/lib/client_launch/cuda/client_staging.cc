#include "client/lib/client_launch/cuda/client_staging.h"

#include <string>
#include <variant>

namespace tandem::client {
namespace {

constexpr uintptr_t kTmaAlignment = 16;

// Calls visit(view, is_written) for the tensors that a step of a fused matmul reads and writes.
template <typename Visit>
void ForEachTensor(const plan::Step& step, const Visit& visit) {
  if (const auto* product = std::get_if<plan::MatmulStep>(&step.work)) {
    visit(product->a, false);
    visit(product->b, false);
    visit(product->c, true);
  } else if (const auto* copy = std::get_if<plan::CopyStep>(&step.work)) {
    visit(copy->src, false);
    visit(copy->dst, true);
  } else if (const auto* sum = std::get_if<plan::ReduceStep>(&step.work)) {
    for (const plan::View& source : sum->sources) visit(source, false);
    visit(sum->dst, true);
  }
}

}  // namespace

ClientStaging::ClientStaging(const plan::RankProgram& program, std::span<const runtime::SlotLimit> slots) {
  for (const runtime::SlotLimit& slot : slots)
    slots_.push_back({slot.bytes, slot.symmetric, false, false, {}});
  const auto mark = [this](const plan::View& view, bool is_written) {
    if (view.ref.space != plan::Space::kOperand || view.ref.slot >= slots_.size()) return;
    Slot& slot = slots_[view.ref.slot];
    slot.in_kernel = true;
    slot.is_written = slot.is_written || is_written;
  };
  for (const plan::Step& step : program.steps) {
    const auto* collective = std::get_if<plan::CollectiveStep>(&step.work);
    if (collective == nullptr || !plan::IsFusedKernel(*collective)) continue;
    for (const plan::Step& part : collective->expansion) ForEachTensor(part, mark);
  }
}

Result<ClientStaging::Staged> ClientStaging::PreparedFor(std::span<const runtime::SlotAddress> slots,
                                                         const Allocate& allocate) {
  Staged staged;
  staged.slots.assign(slots.begin(), slots.end());
  for (size_t s = 0; s < slots_.size() && s < slots.size(); ++s) {
    Slot& slot = slots_[s];
    const bool aligned = reinterpret_cast<uintptr_t>(slots[s].own) % kTmaAlignment == 0;
    if (aligned || !slot.in_kernel || slot.bytes == 0) continue;
    if (slot.symmetric && slot.is_written) {
      return Unimplemented("slot " + std::to_string(s) +
                           ", a symmetric output of a fused matmul, is bound to an address that is not "
                           "aligned to 16 bytes")
          .WithDetail({.field = "bindings[" + std::to_string(s) + "]"});
    }
    if (slot.copy == nullptr) {
      TANDEM_ASSIGN_OR_RETURN(slot.copy, allocate(slot.bytes));
    }
    staged.slots[s].own = slot.copy.get();
    // An output's gaps and what the kernels leave alone must come back as they were.
    staged.before.push_back({slot.copy.get(), slots[s].own, slot.bytes});
    if (slot.is_written) staged.after.push_back({slots[s].own, slot.copy.get(), slot.bytes});
  }
  return staged;
}

}  // namespace tandem::client
