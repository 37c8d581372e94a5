#include "kernels/host/norm.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <vector>

#include "kernels/host/convert.h"
#include "kernels/host/strided.h"
#include "program/norm_scales.h"

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

// The scale of `count` values. A NaN among them is one of the scale.
float ScaleOf(const float* values, int64_t count) {
  float most = 0;
  for (int64_t i = 0; i < count; ++i) {
    const float magnitude = std::fabs(values[i]);
    if (magnitude > most || std::isnan(magnitude)) most = magnitude;
    if (std::isnan(most)) break;
  }
  return (most < plan::kLeastAmax ? plan::kLeastAmax : most) / plan::kMaxE4M3;
}

// Row `row` of the norm, as it is rounded, quantised.
void Quantize(const NormArgs& args, int64_t row, std::vector<float>* values) {
  const auto columns = static_cast<int64_t>(values->size());
  const int64_t blocks = args.has_scales ? args.scales.extent.back() : 1;
  const int64_t of_block = blocks == 1 ? columns : kScaleBlock;
  for (int64_t block = 0; block < blocks; ++block) {
    float* first = values->data() + block * of_block;
    const int64_t count = std::min(of_block, columns - block * of_block);
    float scale = 0;
    if (args.has_static_scale) {
      scale = *reinterpret_cast<const float*>(args.static_scale.data);
    } else {
      scale = ScaleOf(first, count);
      const int64_t at = row * *plan::RowPitchOf(args.scales) + block * args.scales.stride.back();
      reinterpret_cast<float*>(args.scales.data)[at] = scale;
    }
    for (int64_t i = 0; i < count; ++i) first[i] /= scale;
  }
  ConvertFromFloat(values->data(), columns, args.quantized.data + row * columns, args.quantized.dtype, 1);
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
  for (const DeviceView* view :
       {args.has_quantized ? &args.quantized : nullptr, args.has_static_scale ? &args.static_scale : nullptr,
        args.has_scales ? &args.scales : nullptr}) {
    if (view != nullptr) TANDEM_RETURN_IF_ERROR(CheckView(*view, "an operand of a quantised norm"));
  }
  if (const char* why = plan::WhyNotQuantized(args); why != nullptr) return InvalidArgument(why);
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
    if (!args.has_quantized) continue;
    ConvertToFloat(args.out.data + offset, type, 1, columns, values.data());
    Quantize(args, row, &values);
  }
}

}  // namespace tandem::host
