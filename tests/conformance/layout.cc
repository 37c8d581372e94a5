#include "tests/conformance/layout.h"

namespace tandem::conformance {

Result<Layout> MakeLayout(const Case& test, int rank, size_t alignment) {
  const OpRequest& request = test.requests[static_cast<size_t>(rank)];
  Layout layout;
  layout.places.resize(request.operands.size());
  for (size_t slot = 0; slot < request.operands.size(); ++slot) {
    const Operand& operand = request.operands[slot];
    if (operand.alias_of >= 0) continue;
    size_t& end = operand.symmetric ? layout.symmetric_bytes : layout.own_bytes;
    TANDEM_ASSIGN_OR_RETURN(int64_t span, BoundBytes(request, static_cast<int>(slot)));
    const int shift = test.shift.empty() ? 0 : test.shift[slot];
    const size_t elements = static_cast<size_t>(shift + (operand.symmetric ? 0 : test.skew * rank));
    Place& place = layout.places[slot];
    place.symmetric = operand.symmetric;
    size_t shifted = elements * DTypeBytes(operand.spec.dtype);
    if (operand.symmetric && IsOutput(operand.role)) shifted = shifted / alignment * alignment;
    place.offset = (end + 2 * kGuardBytes - 1) / kGuardBytes * kGuardBytes + shifted;
    end = place.offset + static_cast<size_t>(span) + kGuardBytes;
  }
  for (size_t slot = 0; slot < request.operands.size(); ++slot) {
    layout.places[slot] = layout.places[static_cast<size_t>(Holder(request, static_cast<int>(slot)))];
  }
  if (const int slot = PartSlot(request); slot >= 0) {
    const TensorSpec spec = SpecOf(request, slot);
    const auto dim = static_cast<size_t>(FrontDim(request, spec.shape.size()));
    layout.places[static_cast<size_t>(slot)].part =
        static_cast<size_t>(rank * spec.shape[dim] * spec.strides[dim]) * DTypeBytes(spec.dtype);
  }
  return layout;
}

Image MakeImage(const Case& test, const Layout& layout, const AllInputs& inputs, int rank) {
  const OpRequest& request = test.requests[static_cast<size_t>(rank)];
  Image image;
  for (auto [bytes, used] :
       {std::pair{&image.own, layout.own_bytes}, {&image.symmetric, layout.symmetric_bytes}}) {
    bytes->resize(used);
    for (size_t i = 0; i < used; ++i) (*bytes)[i] = static_cast<std::byte>(i * 37 + i / 256 + 11);
  }
  for (size_t slot = 0; slot < request.operands.size(); ++slot) {
    const Operand& operand = request.operands[slot];
    if (operand.alias_of >= 0) continue;
    std::vector<std::byte> packed = inputs[static_cast<size_t>(rank)][slot];
    if (packed.empty()) {
      packed.assign(static_cast<size_t>(CountOf(operand.spec.shape)) * DTypeBytes(operand.spec.dtype),
                    std::byte{0xff});
    }
    Scatter(SpecOf(request, static_cast<int>(slot)), packed, image.At(layout.places[slot]));
  }
  return image;
}

}  // namespace tandem::conformance
