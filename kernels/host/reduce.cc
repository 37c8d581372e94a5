#include "kernels/host/reduce.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "common/op_tables.h"
#include "kernels/host/convert.h"
#include "kernels/reduction.h"

namespace tandem::host {
namespace {

// Elements that are accumulated at once: the accumulators and a converted source stay in the first-level
// cache.
constexpr int64_t kTile = 2048;

struct RowSource {
  const std::byte* data;
  DType dtype;
  int64_t stride;
};

void CombineFloats(ReduceOp op, const float* values, int64_t count, float* sums) {
  WithReduction(op, [&](auto constant) {
    for (int64_t i = 0; i < count; ++i) sums[i] = Combine(constant.value, sums[i], values[i]);
  });
}

// sums[i] = Σ sources[s][i], or another reduction, in the order of the sources.
void Accumulate(ReduceOp op, const RowSource* sources, size_t source_count, int64_t first, int64_t count,
                float* sums) {
  alignas(64) float converted[kTile];
  for (size_t s = 0; s < source_count; ++s) {
    const RowSource& source = sources[s];
    const std::byte* from =
        source.data + first * source.stride * static_cast<int64_t>(DTypeBytes(source.dtype));
    if (s == 0) {
      ConvertToFloat(from, source.dtype, source.stride, count, sums);
    } else if (source.dtype == DType::kF32 && source.stride == 1) {
      CombineFloats(op, reinterpret_cast<const float*>(from), count, sums);
    } else {
      ConvertToFloat(from, source.dtype, source.stride, count, converted);
      CombineFloats(op, converted, count, sums);
    }
  }
}

// A sum or product that overflows wraps, as it does in NCCL.
template <typename T>
void ReduceIntegers(ReduceOp op, const RowSource* sources, size_t source_count, std::byte* destination,
                    int64_t destination_stride, int64_t count) {
  T* to = reinterpret_cast<T*>(destination);
  WithReduction(op, [&](auto constant) {
    for (int64_t i = 0; i < count; ++i) {
      T result = reinterpret_cast<const T*>(sources[0].data)[i * sources[0].stride];
      for (size_t s = 1; s < source_count; ++s) {
        result = Combine(constant.value, result,
                         reinterpret_cast<const T*>(sources[s].data)[i * sources[s].stride]);
      }
      to[i * destination_stride] = result;
    }
  });
}

void ReduceIntegerRow(ReduceOp op, const RowSource* sources, size_t source_count, std::byte* destination,
                      DType dtype, int64_t destination_stride, int64_t count) {
  switch (DTypeBytes(dtype)) {
    case 1: ReduceIntegers<uint8_t>(op, sources, source_count, destination, destination_stride, count); break;
    case 4: ReduceIntegers<int32_t>(op, sources, source_count, destination, destination_stride, count); break;
    default:
      ReduceIntegers<int64_t>(op, sources, source_count, destination, destination_stride, count);
      break;
  }
}

}  // namespace

Result<BoxReduce> PrepareReduce(const ReduceArgs& args) {
  if (args.sources.empty()) return InvalidArgument("a reduction without sources");
  TANDEM_RETURN_IF_ERROR(CheckView(args.dst, "reduce destination"));
  bool floating = IsFloating(args.dst.dtype);
  BoxReduce reduce;
  // Two places are left for destination and bias.
  if (args.sources.size() + 2 > kMaxBoxViews) {
    return Unimplemented("a reduction of " + std::to_string(args.sources.size()) + " sources; at most " +
                         std::to_string(kMaxBoxViews - 2));
  }
  std::array<const DeviceView*, kMaxBoxViews> views;
  size_t view_count = 0;
  for (const DeviceView& source : args.sources) {
    TANDEM_RETURN_IF_ERROR(CheckView(source, "reduce source"));
    if (floating ? !IsFloating(source.dtype) : source.dtype != args.dst.dtype) {
      return InvalidArgument("reduction of " + std::string(DTypeName(source.dtype)) + " into " +
                             std::string(DTypeName(args.dst.dtype)));
    }
    views[view_count++] = &source;
    reduce.sources.push_back({source.data, source.dtype});
  }
  if (!floating && (args.scale != 1.0f || args.has_bias || args.has_result_scale)) {
    return InvalidArgument("integer sums take no scale and no bias");
  }
  if (args.reduce_op != ReduceOp::kSum &&
      (args.scale != 1.0f || args.has_bias || args.has_result_scale || args.reduce_op == ReduceOp::kAvg)) {
    return InvalidArgument("a sum alone takes a scale and a bias; an average is one with a scale");
  }
  if (floating && IsBitwise(args.reduce_op)) return InvalidArgument("a bitwise reduction of floats");
  views[view_count++] = &args.dst;
  // The bias is one more view of the same extents that does not move but along the last dimension.
  thread_local DeviceView bias;  // for the room in its vectors
  if (args.has_bias) {
    TANDEM_RETURN_IF_ERROR(CheckView(args.bias, "bias"));
    int64_t last = args.dst.extent.empty() ? 1 : args.dst.extent.back();
    if (plan::Elements(args.bias) != last || !IsFloating(args.bias.dtype)) {
      return InvalidArgument("bias of " + std::to_string(plan::Elements(args.bias)) +
                             " elements for a last dimension of " + std::to_string(last));
    }
    bias.data = args.bias.data;
    bias.dtype = args.bias.dtype;
    bias.extent = args.dst.extent;
    bias.stride.assign(args.dst.extent.size(), 0);
    for (size_t d = 0; d < args.bias.extent.size(); ++d) {
      if (args.bias.extent[d] != 1 && !bias.stride.empty()) bias.stride.back() = args.bias.stride[d];
    }
    reduce.has_bias = true;
    reduce.bias = {bias.data, bias.dtype};
    views[view_count++] = &bias;
  }
  if (args.has_result_scale) {
    TANDEM_RETURN_IF_ERROR(CheckView(args.result_scale, "result scale"));
    if (plan::Elements(args.result_scale) != 1 || args.result_scale.dtype != DType::kF32) {
      return InvalidArgument("the result scale is one f32");
    }
    reduce.result_scale = args.result_scale.data;
  }
  TANDEM_ASSIGN_OR_RETURN(reduce.box, MakeStridedBox(std::span(views.data(), view_count)));
  reduce.destination = args.dst.data;
  reduce.dtype = args.dst.dtype;
  reduce.reduce_op = args.reduce_op;
  reduce.scale = args.scale;
  return reduce;
}

void RunReduce(const BoxReduce& reduce, const TaskContext&) {
  const StridedBox& box = reduce.box;
  size_t source_count = reduce.sources.size();
  int destination_view = static_cast<int>(source_count);
  int64_t destination_stride = box.inner_stride(destination_view);
  int64_t element_bytes = static_cast<int64_t>(DTypeBytes(reduce.dtype));
  bool integers = !IsFloating(reduce.dtype);
  float result_scale = 1.0f;
  if (reduce.result_scale != nullptr && box.count > 0) {
    std::memcpy(&result_scale, reduce.result_scale, sizeof(float));
  }
  std::array<RowSource, kMaxBoxViews> rows;
  alignas(64) float sums[kTile];
  alignas(64) float bias[kTile];
  ForEachRow(box, [&](const auto& offsets) {
    for (size_t s = 0; s < source_count; ++s) {
      const BoxReduce::Source& source = reduce.sources[s];
      rows[s] = {source.data + offsets[s] * static_cast<int64_t>(DTypeBytes(source.dtype)), source.dtype,
                 box.inner_stride(static_cast<int>(s))};
    }
    std::byte* destination = reduce.destination + offsets[destination_view] * element_bytes;
    if (integers) {
      ReduceIntegerRow(reduce.reduce_op, rows.data(), source_count, destination, reduce.dtype,
                       destination_stride, box.inner_extent());
      return;
    }
    for (int64_t first = 0; first < box.inner_extent(); first += kTile) {
      int64_t count = std::min(kTile, box.inner_extent() - first);
      Accumulate(reduce.reduce_op, rows.data(), source_count, first, count, sums);
      if (reduce.scale != 1.0f) {
        for (int64_t i = 0; i < count; ++i) sums[i] *= reduce.scale;
      }
      if (reduce.has_bias) {
        int64_t bias_stride = box.inner_stride(destination_view + 1);
        int64_t bias_offset = offsets[destination_view + 1] + first * bias_stride;
        ConvertToFloat(reduce.bias.data + bias_offset * static_cast<int64_t>(DTypeBytes(reduce.bias.dtype)),
                       reduce.bias.dtype, bias_stride, count, bias);
        CombineFloats(ReduceOp::kSum, bias, count, sums);
      }
      if (reduce.result_scale != nullptr) {
        for (int64_t i = 0; i < count; ++i) sums[i] *= result_scale;
      }
      ConvertFromFloat(sums, count, destination + first * destination_stride * element_bytes, reduce.dtype,
                       destination_stride);
    }
  });
}

void ReduceContiguous(const std::vector<const std::byte*>& sources, std::byte* destination, DType dtype,
                      int64_t count, ReduceOp reduce_op, float scale) {
  std::array<RowSource, kMaxBoxViews> rows;
  for (size_t s = 0; s < sources.size(); ++s) rows[s] = {sources[s], dtype, 1};
  if (!IsFloating(dtype)) {
    ReduceIntegerRow(reduce_op, rows.data(), sources.size(), destination, dtype, 1, count);
    return;
  }
  alignas(64) float sums[kTile];
  for (int64_t first = 0; first < count; first += kTile) {
    int64_t tile = std::min(kTile, count - first);
    Accumulate(reduce_op, rows.data(), sources.size(), first, tile, sums);
    if (scale != 1.0f) {
      for (int64_t i = 0; i < tile; ++i) sums[i] *= scale;
    }
    ConvertFromFloat(sums, tile, destination + first * static_cast<int64_t>(DTypeBytes(dtype)), dtype, 1);
  }
}

}  // namespace tandem::host
