#include "client/device/scratch_operands.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace tandem {
namespace {

// Operands begin at multiples of this many bytes, the alignment that kernels and copies are fast at.
constexpr size_t kAlignment = 256;
// The unit of the CUDA backend's allocations.
constexpr size_t kGranule = size_t{2} << 20;
// The numbers repeat after so many elements: a prime, so that no two rows of a matrix are alike.
constexpr size_t kPattern = 1'048'573;

size_t RoundUp(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

// A uniform number in [0, 2^24): Numerical Recipes' linear congruential generator.
uint32_t Next(uint32_t* state) {
  *state = *state * 1664525u + 1013904223u;
  return *state >> 8;
}

// About normal, of variance 1, as activations and weights are; integers in [0, 16); scales are a half, so
// that products of fp8 stay in range.
void FillOperand(const Operand& operand, std::byte* at, size_t bytes, uint32_t seed) {
  const DType type = operand.spec.dtype;
  const size_t element = DTypeBytes(type), pattern = std::min(bytes / element, kPattern);
  const bool scale =
      operand.role == Role::kScaleA || operand.role == Role::kScaleB || operand.role == Role::kResultScale;
  uint32_t state = seed * 2654435761u + 1;
  for (size_t i = 0; i < pattern; ++i) {
    float number = 0.5f;
    if (!scale && IsFloating(type)) {
      // The sum of twelve uniform ones in [0, 1) has variance 1 (Irwin–Hall).
      uint32_t sum = 0;
      for (int uniform = 0; uniform < 12; ++uniform) sum += Next(&state);
      number = static_cast<float>(static_cast<double>(sum) / (1 << 24) - 6.0);
    } else if (!scale) {
      number = static_cast<float>(Next(&state) >> 20);
    }
    StoreFromFloat(at, type, i, number);
  }
  for (size_t done = pattern * element; done < bytes;) {
    const size_t piece = std::min(pattern * element, bytes - done);
    std::memcpy(at + done, at, piece);
    done += piece;
  }
}

}  // namespace

Result<std::unique_ptr<ScratchOperands>> ScratchOperands::Make(const OpRequest& request, RankDevice& device,
                                                               RankStream& stream, const Allocate& allocate,
                                                               uint32_t seed, Milliseconds deadline) {
  std::unique_ptr<ScratchOperands> scratch(new ScratchOperands(request, device, stream, seed));
  std::vector<Binding>& bindings = scratch->bindings_;
  size_t own = 0;
  for (int slot = 0; slot < static_cast<int>(request.operands.size()); ++slot) {
    const Operand& operand = request.operands[static_cast<size_t>(slot)];
    if (operand.alias_of >= 0) {  // another slot's place, which is an earlier one's
      if (static_cast<size_t>(operand.alias_of) >= bindings.size())
        return InvalidArgument("an alias of a later operand");
      bindings.push_back(bindings[static_cast<size_t>(operand.alias_of)]);
      continue;
    }
    TANDEM_ASSIGN_OR_RETURN(const int64_t bytes, BoundBytes(request, slot));
    size_t& end = operand.symmetric ? scratch->symmetric_bytes_ : own;
    bindings.push_back({nullptr, end});
    end = RoundUp(end + static_cast<size_t>(bytes), kAlignment);
  }
  if (own > 0) {
    TANDEM_ASSIGN_OR_RETURN(scratch->own_, allocate(RoundUp(own, kGranule)));
    TANDEM_RETURN_IF_ERROR(scratch->Fill(*scratch->own_, false, deadline));
  }
  for (size_t slot = 0; slot < bindings.size(); ++slot) bindings[slot].memory = scratch->own_.get();
  return scratch;
}

Status ScratchOperands::AddSymmetric(Group& group, Milliseconds deadline) {
  if (symmetric_bytes_ == 0) return Status::Ok();
  TANDEM_ASSIGN_OR_RETURN(symmetric_,
                          group.Allocate({static_cast<int64_t>(symmetric_bytes_)}, DType::kU8, {}, deadline));
  TANDEM_RETURN_IF_ERROR(Fill(*symmetric_, true, deadline));
  for (size_t slot = 0; slot < bindings_.size(); ++slot) {
    if (request_.operands[slot].symmetric) bindings_[slot].memory = symmetric_.get();
  }
  return Status::Ok();
}

Status ScratchOperands::Fill(const Memory& memory, bool symmetric, Milliseconds deadline) {
  TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<RankMirror> mirror, device_.MakeMirror(memory));
  for (size_t slot = 0; slot < bindings_.size(); ++slot) {
    const Operand& operand = request_.operands[slot];
    if (operand.symmetric != symmetric || operand.alias_of >= 0 || IsOutput(operand.role)) continue;
    TANDEM_ASSIGN_OR_RETURN(const int64_t bytes, BoundBytes(request_, static_cast<int>(slot)));
    const auto size = static_cast<size_t>(bytes);
    if (size == 0) continue;
    FillOperand(operand, mirror->data() + bindings_[slot].offset, size, seed_ + static_cast<uint32_t>(slot));
    TANDEM_RETURN_IF_ERROR(mirror->ToDevice(stream_, bindings_[slot].offset, size));
  }
  return stream_.Synchronize(deadline);
}

}  // namespace tandem
