#include "kernels/cuda/lane/reduce_plan.h"

#include "kernels/cuda/device/guarded.h"
#include "kernels/cuda/device/launch.h"
#include "kernels/host/reduce.h"

namespace tandem::cuda {

Status EnqueueReduce(const ReduceArgs& args, CUstream_st* stream) {
  TANDEM_ASSIGN_OR_RETURN(host::BoxReduce box, host::PrepareReduce(args));
  if (box.box.count == 0) return Status::Ok();
  if (box.sources.size() > kMaxSources) return Unimplemented("a sum of over 18 sources");
  ReduceLaunch launch = {};
  auto strides_of = [&](size_t view) {
    Strides strides = {};
    for (int d = 0; d < box.box.dims; ++d) strides.of[d] = box.box.stride[view][static_cast<size_t>(d)];
    return strides;
  };
  launch.sources = static_cast<int>(box.sources.size());
  launch.dims = box.box.dims;
  launch.count = box.box.count;
  bool dense = box.box.dims == 1 && !box.has_bias;
  for (int d = 0; d < box.box.dims; ++d) launch.extent[d] = box.box.extent[static_cast<size_t>(d)];
  for (size_t s = 0; s < box.sources.size(); ++s) {
    launch.source[s] = box.sources[s].data;
    launch.source_type[s] = static_cast<uint8_t>(box.sources[s].dtype);
    launch.source_stride[s] = strides_of(s);
    dense = dense && launch.source_stride[s].of[0] == 1;
  }
  launch.destination = box.destination;
  launch.type = static_cast<uint8_t>(box.dtype);
  launch.destination_stride = strides_of(box.sources.size());
  dense = dense && launch.destination_stride.of[0] == 1;
  if (box.has_bias) {
    launch.bias = box.bias.data;
    launch.bias_type = static_cast<uint8_t>(box.bias.dtype);
    launch.bias_stride = strides_of(box.sources.size() + 1);
  }
  launch.result_scale = reinterpret_cast<const float*>(box.result_scale);
  launch.scale = box.scale;
  launch.reduce_op = static_cast<uint8_t>(box.reduce_op);
  launch.contiguous = dense;
  launch.guard = DeviceGuardOf(args.guard);
  return LaunchReduce(launch, stream);
}

}  // namespace tandem::cuda
