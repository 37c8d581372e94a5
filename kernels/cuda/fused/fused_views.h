// File: fused_views.h
//
// The matrices that a fused matmul's parts read and write, as slices that share a tensor map.
#pragma once

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/backend.h"
#include "kernels/cuda/fused/fused_launch.h"
#include "tandem/status.h"

namespace tandem::cuda {

inline constexpr int64_t kMaxSlices = 1024;

// A view as rows of one pitch.
struct Rows {
  int64_t count = 1, columns = 1, pitch = 1;
};

inline std::optional<Rows> FoldRows(const DeviceView& view) {
  if (view.extent.empty()) return std::nullopt;
  Rows rows;
  rows.columns = rows.pitch = view.extent.back();
  if (rows.columns > 1 && view.stride.back() != 1) return std::nullopt;
  int64_t expected = -1;
  for (size_t d = view.extent.size() - 1; d-- > 0;) {
    rows.count *= view.extent[d];
    if (view.extent[d] == 1) continue;
    if (expected < 0) {
      rows.pitch = view.stride[d];
    } else if (view.stride[d] != expected) {
      return std::nullopt;
    }
    expected = view.stride[d] * view.extent[d];
  }
  if (rows.pitch < rows.columns ||
      rows.pitch * static_cast<int64_t>(DTypeBytes(view.dtype)) % kTmaBytes != 0) {
    return std::nullopt;
  }
  return rows;
}

// Views of one shape as slices at equal distances: base, pitch, and each view's slice.
struct Slices {
  std::vector<const std::byte*> addresses;
  const std::byte* base = nullptr;
  int64_t pitch = 0, count = 1;  // pitch in bytes

  Status Arrange(const char* what) {
    if (addresses.empty()) return Status::Ok();
    std::vector<const std::byte*> sorted = addresses;
    std::sort(sorted.begin(), sorted.end());
    base = sorted.front();
    for (size_t i = 1; i < sorted.size(); ++i) {
      int64_t distance = sorted[i] - sorted[i - 1];
      if (pitch == 0 || distance < pitch) pitch = distance;
    }
    if (reinterpret_cast<uintptr_t>(base) % kTmaBytes != 0 || pitch % kTmaBytes != 0) {
      return Unimplemented(std::string(what) + " is not aligned to 16 bytes");
    }
    for (const std::byte* address : sorted) {
      if (pitch > 0 && (address - base) % pitch != 0) {
        return Unimplemented(std::string("parts of ") + what + " do not lie at equal distances");
      }
    }
    if (pitch > 0) count = (sorted.back() - base) / pitch + 1;
    if (sorted.size() > 1 && pitch == 0) return Unimplemented(std::string("parts of ") + what + " coincide");
    if (count > kMaxSlices) return Unimplemented(std::string("parts of ") + what + " lie too far apart");
    return Status::Ok();
  }
  int16_t IndexOf(const std::byte* address) const {
    return static_cast<int16_t>(pitch == 0 ? 0 : (address - base) / pitch);
  }
  MatrixSlices Matrix(int64_t row_pitch, size_t element) const {
    return {base, row_pitch, count, pitch / static_cast<int64_t>(element)};
  }
};

// A place that a part's product or sum is stored in. Those of one kind share a tensor map.
struct Output {
  // Kinds of C's maps. kInPlace: results that stay, sums and products that no peer asks for. kStaged: partial
  // sums that wait here for a copy or handoff. Then, for each rank, sums stored in that rank's memory.
  enum Kind { kInPlace, kStaged, kFirstDelivered };
  const DeviceView* view = nullptr;
  Word* done = nullptr;
  int kind = kInPlace;
};
inline constexpr int kOutputKinds = Output::kFirstDelivered + 2 * kMaxRanks;

// The first is the piece's own, the others are copies.
inline std::vector<Output> OutputsOf(const FusedPart& part) {
  std::vector<Output> outputs;
  if (part.sums) {
    outputs.push_back({&part.sum.dst, part.done, Output::kInPlace});
  } else {
    const bool stays = part.done == nullptr && part.deliveries.empty();
    outputs.push_back({&part.matmul.c, part.done, stays ? Output::kInPlace : Output::kStaged});
  }
  for (const FusedDelivery& delivery : part.deliveries) {
    outputs.push_back(
        {&delivery.to, delivery.done, Output::kFirstDelivered + 2 * delivery.rank + (part.sums ? 1 : 0)});
  }
  return outputs;
}

// The tensor maps of C: 0 and 1 for this rank's memory, the others for kinds of deliveries in the order of
// their first appearance. A short part has a separate map of the same kind.
class OutputMaps {
 public:
  // `short_rows`: of short parts; 0: there is none.
  explicit OutputMaps(int64_t short_rows) : short_rows_(short_rows) {}

  void Add(const FusedPart& part) {
    const int64_t rows = FoldRows(part.matmul.a)->count;
    for (const Output& output : OutputsOf(part)) {
      OfKind& kind = Of(output.kind, rows);
      const int64_t pitch = FoldRows(*output.view)->pitch;
      kind.slices.addresses.push_back(output.view->data);
      kind.one_pitch = kind.one_pitch && (kind.pitch < 0 || kind.pitch == pitch);
      kind.pitch = pitch;
      if (kind.map >= 0) continue;
      const bool taken = kinds_[0][output.kind].map >= 0 || kinds_[1][output.kind].map >= 0;
      kind.map = output.kind < Output::kFirstDelivered && !taken ? output.kind : next_++;
    }
  }
  Status Arrange(size_t element, MatrixSlices* maps) {
    if (next_ > kMaxOutMaps) return Unimplemented("results for too many ranks");
    for (size_t height = 0; height < kinds_.size(); ++height) {
      for (OfKind& kind : kinds_[height]) {
        if (kind.map < 0) continue;
        if (!kind.one_pitch) return Unimplemented("parts of different pitch");
        TANDEM_RETURN_IF_ERROR(kind.slices.Arrange("C"));
        if (kind.slices.base == nullptr) continue;
        maps[kind.map] = kind.slices.Matrix(kind.pitch, element);
        if (height == 1) maps[kind.map].rows = short_rows_;
      }
    }
    return Status::Ok();
  }
  // Map and slice of an output of a part of `rows` rows.
  std::pair<int16_t, int16_t> Place(const Output& output, int64_t rows) {
    const OfKind& kind = Of(output.kind, rows);
    return {static_cast<int16_t>(kind.map), kind.slices.IndexOf(output.view->data)};
  }

 private:
  struct OfKind {
    Slices slices;
    int64_t pitch = -1;
    bool one_pitch = true;
    int map = -1;
  };
  OfKind& Of(int kind, int64_t rows) {
    return kinds_[rows == short_rows_ ? 1 : 0][static_cast<size_t>(kind)];
  }

  int64_t short_rows_;
  std::array<std::array<OfKind, kOutputKinds>, 2> kinds_;  // of high parts, of short ones
  int next_ = Output::kFirstDelivered;
};

}  // namespace tandem::cuda
