#include "kernels/cuda/lane/copy_plan.h"

#include <algorithm>

#include "kernels/cuda/device/guarded.h"
#include "kernels/cuda/device/launch.h"
#include "kernels/host/copy.h"

namespace tandem::cuda {
namespace {

// The largest pitch that the driver takes (CU_DEVICE_ATTRIBUTE_MAX_PITCH).
constexpr int64_t kMaxPitch = (int64_t{1} << 31) - 1;

CUdeviceptr Address(const std::byte* data) { return reinterpret_cast<CUdeviceptr>(data); }

// True when a copy engine can take the box; `rows`, `planes` and the pitches describe it.
struct EngineBox {
  int64_t width = 0, rows = 1, planes = 1;            // bytes, and how many
  int64_t source_pitch = 0, destination_pitch = 0;    // bytes from row to row
  int64_t source_height = 1, destination_height = 1;  // rows from plane to plane
};

bool FitEngine(const host::BoxCopy& copy, EngineBox* out) {
  const host::StridedBox& box = copy.box;
  if (box.dims > 3 || box.inner_stride(0) != 1 || box.inner_stride(1) != 1) return false;
  EngineBox engine;
  engine.width = box.inner_extent() * copy.element_bytes;
  auto at = [&](int view, int from_inner) {
    return box.stride[static_cast<size_t>(view)][static_cast<size_t>(box.dims - 1 - from_inner)];
  };
  if (box.dims >= 2) {
    engine.rows = box.extent[static_cast<size_t>(box.dims - 2)];
    engine.source_pitch = at(0, 1) * copy.element_bytes;
    engine.destination_pitch = at(1, 1) * copy.element_bytes;
    for (int64_t pitch : {engine.source_pitch, engine.destination_pitch}) {
      if (pitch < engine.width || pitch > kMaxPitch) return false;
    }
  }
  if (box.dims == 3) {
    engine.planes = box.extent[0];
    if (at(0, 2) % at(0, 1) != 0 || at(1, 2) % at(1, 1) != 0) return false;
    engine.source_height = at(0, 2) / at(0, 1);
    engine.destination_height = at(1, 2) / at(1, 1);
    if (engine.source_height < engine.rows || engine.destination_height < engine.rows) return false;
  }
  *out = engine;
  return true;
}

Status EnqueueEngine(const host::BoxCopy& copy, const EngineBox& box, CudaDriver& driver, CUstream stream) {
  CUdeviceptr source = Address(copy.source), destination = Address(copy.destination);
  if (box.rows == 1 && box.planes == 1) {
    return driver.MemcpyBesideKernelsAsync(destination, source, static_cast<size_t>(box.width), stream);
  }
  CUDA_MEMCPY3D call = {};
  call.srcMemoryType = call.dstMemoryType = CU_MEMORYTYPE_UNIFIED;
  call.srcDevice = source;
  call.dstDevice = destination;
  call.srcPitch = static_cast<size_t>(box.source_pitch);
  call.dstPitch = static_cast<size_t>(box.destination_pitch);
  call.srcHeight = static_cast<size_t>(std::max(box.source_height, box.rows));
  call.dstHeight = static_cast<size_t>(std::max(box.destination_height, box.rows));
  call.WidthInBytes = static_cast<size_t>(box.width);
  call.Height = static_cast<size_t>(box.rows);
  call.Depth = static_cast<size_t>(box.planes);
  return driver.Memcpy3DBesideKernelsAsync(call, stream);
}

}  // namespace

Status EnqueueCopy(const CopyArgs& args, CudaDriver& driver, CUstream stream) {
  TANDEM_ASSIGN_OR_RETURN(host::BoxCopy copy, host::PrepareCopy(args));
  if (copy.box.count == 0) return Status::Ok();
  EngineBox engine;
  if (args.copy_engine && FitEngine(copy, &engine)) {
    TANDEM_RETURN_IF_ERROR(CheckUnguarded(args.guard, "a copy by a copy engine"));
    return EnqueueEngine(copy, engine, driver, stream);
  }
  CopyLaunch launch = {};
  launch.source = copy.source;
  launch.destination = copy.destination;
  launch.element_bytes = static_cast<int>(copy.element_bytes);
  launch.dims = copy.box.dims;
  launch.count = copy.box.count;
  launch.guard = DeviceGuardOf(args.guard);
  for (int d = 0; d < copy.box.dims; ++d) {
    auto dim = static_cast<size_t>(d);
    launch.extent[d] = copy.box.extent[dim];
    launch.source_stride.of[d] = copy.box.stride[0][dim];
    launch.destination_stride.of[d] = copy.box.stride[1][dim];
  }
  return LaunchCopy(launch, stream);
}

}  // namespace tandem::cuda
