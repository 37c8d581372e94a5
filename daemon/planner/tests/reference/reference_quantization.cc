// The quantised norm, computed from the norm that a program has written.
#include <algorithm>
#include <cmath>

#include "daemon/planner/tests/reference/reference_ops.h"

namespace tandem::plan {
namespace {

int SlotWith(const OpRequest& request, Role role) {
  const auto found = std::find_if(request.operands.begin(), request.operands.end(),
                                  [role](const Operand& operand) { return operand.role == role; });
  return found == request.operands.end() ? -1 : static_cast<int>(found - request.operands.begin());
}

}  // namespace

std::string WrongQuantization(const OpRequest& request, const std::vector<std::vector<uint8_t>>& slots) {
  const int quantized = SlotWith(request, Role::kQuantizedOutput),
            made = SlotWith(request, Role::kScaleOutput);
  if (quantized < 0) return "";
  const int output = std::max(SlotWith(request, Role::kOutput), SlotWith(request, Role::kC));
  const auto load = [&](int slot) {
    const int alias = request.operands[static_cast<size_t>(slot)].alias_of;
    return LoadTensor(request, slot, 0, slots[static_cast<size_t>(alias >= 0 ? alias : slot)]);
  };
  const std::vector<double> normed = load(output), have = load(quantized);
  const std::vector<double> scales = load(made < 0 ? SlotWith(request, Role::kStaticScale) : made);
  const auto columns = static_cast<size_t>(request.operands[static_cast<size_t>(output)].spec.shape.back());
  const size_t of_row =
      made < 0 ? 0 : std::max<size_t>(1, scales.size() * columns / std::max<size_t>(1, normed.size()));
  std::vector<double> most(scales.size(), 1.0 / 512);
  for (size_t i = 0; i < normed.size(); ++i) {
    const size_t at = of_row == 0 ? 0 : i / columns * of_row + (of_row == 1 ? 0 : i % columns / 128);
    most[at] = std::max(most[at], std::fabs(normed[i]));
    // Four bits and a sign, of which one step may be off where the quotient is rounded.
    const double want = std::clamp(normed[i] / scales[at], -448.0, 448.0);
    if (std::fabs(have[i] - want) > std::max(std::fabs(want) * 0x1p-4, 0x1p-10) * 1.001)
      return "quantised element " + std::to_string(i) + " is " + std::to_string(have[i]);
  }
  for (size_t i = 0; made >= 0 && i < scales.size(); ++i) {
    if (std::fabs(scales[i] * 448 / most[i] - 1) > 1e-6) return "scale " + std::to_string(i) + " is wrong";
  }
  return "";
}

}  // namespace tandem::plan
