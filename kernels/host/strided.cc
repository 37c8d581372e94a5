#include "kernels/host/strided.h"

#include <string>

namespace tandem::host {

Status CheckView(const DeviceView& view, const char* name) {
  if (view.extent.size() != view.stride.size()) {
    return InvalidArgument(std::string(name) + ": " + std::to_string(view.extent.size()) + " extents and " +
                           std::to_string(view.stride.size()) + " strides");
  }
  if (!IsValid(view.dtype)) return InvalidArgument(std::string(name) + ": unknown dtype");
  bool empty = false;
  for (int64_t extent : view.extent) {
    if (extent < 0) return InvalidArgument(std::string(name) + ": negative extent");
    empty = empty || extent == 0;
  }
  if (!empty && view.data == nullptr) return InvalidArgument(std::string(name) + ": no address");
  return Status::Ok();
}

Result<StridedBox> MakeStridedBox(std::span<const DeviceView* const> views) {
  if (views.empty() || views.size() > kMaxBoxViews) {
    return Unimplemented(std::to_string(views.size()) + " views in one step; at most " +
                         std::to_string(kMaxBoxViews));
  }
  const std::vector<int64_t>& extent = views[0]->extent;
  for (const DeviceView* view : views) {
    if (view->extent != extent) return InvalidArgument("views of one step differ in extents");
  }
  StridedBox box;
  box.views = static_cast<int>(views.size());
  box.count = plan::Elements(*views[0]);
  for (size_t d = 0; d < extent.size(); ++d) {
    if (extent[d] == 1) continue;
    bool merges = box.dims > 0;
    for (int v = 0; merges && v < box.views; ++v) {
      merges = box.stride[v][box.dims - 1] == views[v]->stride[d] * extent[d];
    }
    if (merges) {
      box.extent[box.dims - 1] *= extent[d];
    } else {
      if (box.dims == kMaxBoxDims) return Unimplemented("a view of over 8 dimensions that do not merge");
      box.extent[box.dims++] = extent[d];
    }
    for (int v = 0; v < box.views; ++v) box.stride[v][box.dims - 1] = views[v]->stride[d];
  }
  if (box.dims == 0) {
    box.dims = 1;
    box.extent[0] = 1;
    for (int v = 0; v < box.views; ++v) box.stride[v][0] = 1;
  }
  return box;
}

}  // namespace tandem::host
