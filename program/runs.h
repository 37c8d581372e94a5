// File: runs.h
//
// `MergeRuns`: strided boxes of equal extents as runs of contiguous elements, the form in which kernels move
// data. For plan::View and DeviceView alike.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace tandem {

// `count` elements in runs of `inner`; of view v, run i starts at element i * pitch[v]. One run: inner ==
// count.
struct Runs {
  int64_t count = 0;
  int64_t inner = 0;
  std::vector<int64_t> pitch;
};

// Merges the dimensions of views with equal extents, in their order: element i of the runs is element i of
// every view, counted with the last dimension fastest. Nothing when some view has more than two levels, or
// inner elements apart.
template <typename AnyView>
std::optional<Runs> MergeRuns(std::span<const AnyView* const> views) {
  struct Dimension {
    int64_t extent;
    std::vector<int64_t> stride;  // by view
  };
  Runs runs;
  runs.count = 1;
  std::vector<Dimension> merged;  // outermost first
  for (size_t d = 0; d < views[0]->extent.size(); ++d) {
    Dimension next{views[0]->extent[d], {}};
    runs.count *= next.extent;
    if (next.extent == 1) continue;
    bool continues = !merged.empty();
    for (size_t v = 0; v < views.size(); ++v) {
      next.stride.push_back(views[v]->stride[d]);
      continues = continues && merged.back().stride[v] == next.stride[v] * next.extent;
    }
    if (continues) {
      merged.back().extent *= next.extent;
      merged.back().stride = std::move(next.stride);
    } else {
      merged.push_back(std::move(next));
    }
  }
  runs.inner = runs.count;
  runs.pitch.assign(views.size(), 0);
  if (runs.count <= 1 || merged.empty()) return runs;
  bool dense = true;
  for (int64_t stride : merged.back().stride) dense = dense && stride == 1;
  if (merged.size() == 1 && dense) return runs;
  if (merged.size() > 2 || (merged.size() == 2 && !dense)) return std::nullopt;
  runs.inner = merged.size() == 2 ? merged.back().extent : 1;
  runs.pitch = merged.front().stride;
  return runs;
}

}  // namespace tandem
