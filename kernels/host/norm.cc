#include "kernels/host/norm.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <vector>

#include "kernels/host/convert.h"
#include "kernels/host/strided.h"

namespace tandem::host {
namespace {

bool IsPacked(const DeviceView& view) {
  int64_t step = 1;
  for (size_t d = view.extent.size(); d-- > 0;) {
    if (view.extent[d] != 1 && view.stride[d] != step) return false;
    step *= view.extent[d];
  }
  return true;
}

}  // namespace

Status CheckNorm(const NormArgs& args) {
  TANDEM_RETURN_IF_ERROR(CheckView(args.out, "norm output"));
  if (!IsFloating(args.out.dtype) || IsFloat8(args.out.dtype) || args.out.extent.empty())
    return InvalidArgument("a norm writes rows of f32, f16 or bf16");
  for (const DeviceView* view : {&args.sum, &args.out, args.has_residual ? &args.residual : nullptr,
                                 args.has_residual ? &args.residual_out : nullptr}) {
    if (view == nullptr) continue;
    TANDEM_RETURN_IF_ERROR(CheckView(*view, "an operand of a norm"));
    if (view->extent != args.out.extent || view->dtype != args.out.dtype || !IsPacked(*view))
      return InvalidArgument("operands of a norm are contiguous and of one shape and dtype");
  }
  TANDEM_RETURN_IF_ERROR(CheckView(args.weight, "norm weight"));
  if (args.weight.dtype != args.out.dtype || plan::Elements(args.weight) != args.out.extent.back() ||
      !IsPacked(args.weight)) {
    return InvalidArgument("a norm's weight is a contiguous row of the output's dtype");
  }
  return Status::Ok();
}

void RunNorm(const NormArgs& args) {
  const DType type = args.out.dtype;
  const int64_t columns = args.out.extent.back();
  if (columns == 0) return;
  const int64_t rows = plan::Elements(args.out) / columns;
  thread_local std::vector<float> values, other, weight;  // for their room
  for (std::vector<float>* row : {&values, &other, &weight}) row->resize(static_cast<size_t>(columns));
  ConvertToFloat(args.weight.data, type, 1, columns, weight.data());
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t offset = row * columns * static_cast<int64_t>(DTypeBytes(type));
    ConvertToFloat(args.sum.data + offset, type, 1, columns, values.data());
    if (args.has_residual) {
      ConvertToFloat(args.residual.data + offset, type, 1, columns, other.data());
      for (size_t i = 0; i < values.size(); ++i) values[i] += other[i];
      ConvertFromFloat(values.data(), columns, args.residual_out.data + offset, type, 1);
      // Rounding::kModel: the norm is of what the residual output holds.
      if (!args.unrounded) ConvertToFloat(args.residual_out.data + offset, type, 1, columns, values.data());
    }
    double squares = 0;  // a running sum of thousands in fp32 would be off by more than a rounding
    for (const float value : values) squares += static_cast<double>(value) * static_cast<double>(value);
    const double mean = squares / static_cast<double>(columns);
    const auto factor = static_cast<float>(1 / std::sqrt(mean + static_cast<double>(args.epsilon)));
    for (size_t i = 0; i < values.size(); ++i) values[i] = values[i] * factor * weight[i];
    ConvertFromFloat(values.data(), columns, args.out.data + offset, type, 1);
  }
}

}  // namespace tandem::host
