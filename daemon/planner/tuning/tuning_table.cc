#include "daemon/planner/tuning/tuning_table.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <utility>

#include "common/digest.h"
#include "daemon/planner/types/operation_plan.h"
#include "program/text.h"

namespace tandem::plan {
namespace {

// Half an octave: a factor of √2, with a little for rounding.
constexpr double kBucket = 0.5 + 1e-9;
constexpr double kMaxUs = 1e9;
constexpr int kMaxSamples = 1000000;
constexpr int kMaxSteps = 4096;

// The distance of two shapes in octaves, summed; negative when an extent lies outside the other's bucket.
double Distance(const TuningShape& a, const TuningShape& b) {
  if (a.size() != b.size()) return -1;
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i] == b[i]) continue;
    if (a[i] <= 0 || b[i] <= 0) return -1;
    const double octaves = std::fabs(std::log2(static_cast<double>(a[i]) / static_cast<double>(b[i])));
    if (octaves > kBucket) return -1;
    sum += octaves;
  }
  return sum;
}

Status CheckText(std::string_view name, const std::string& text, bool required) {
  if (required && text.empty()) return InvalidArgument(Text(name, " is empty"));
  if (text.size() > kMaxTuningText)
    return InvalidArgument(Text(name, " is longer than ", kMaxTuningText, " bytes"));
  for (char c : text) {
    if (c < 0x20 || c > 0x7e)
      return InvalidArgument(Text(name, " has a character that is not printable ASCII"));
  }
  return Status::Ok();
}

// A finite time, and not absurd.
bool IsTime(double us) { return us > 0 && us < kMaxUs; }

Status CheckCandidate(Op op, const TuningCandidate& candidate) {
  const std::vector<Algorithm> known = AlgorithmsOf(op);
  if (std::find(known.begin(), known.end(), candidate.algorithm) == known.end()) {
    return InvalidArgument(Text(OpName(op), " has no algorithm ", AlgorithmName(candidate.algorithm)));
  }
  const std::string name(AlgorithmName(candidate.algorithm));
  if (candidate.steps < 0 || candidate.steps > kMaxSteps)
    return InvalidArgument(name + ": steps out of range");
  if (candidate.lanes < 0 || candidate.lanes > kMaxLanes)
    return InvalidArgument(name + ": lanes out of range");
  TANDEM_RETURN_IF_ERROR(CheckText("refused", candidate.refused, false));
  if (candidate.samples == 0) {
    if (candidate.refused.empty()) return InvalidArgument(name + ": neither measured nor refused");
    if (candidate.median_us != 0 || candidate.p10_us != 0 || candidate.p90_us != 0) {
      return InvalidArgument(name + ": times without samples");
    }
    return Status::Ok();
  }
  if (!candidate.refused.empty()) return InvalidArgument(name + ": both measured and refused");
  if (candidate.samples < 0 || candidate.samples > kMaxSamples)
    return InvalidArgument(name + ": samples out of range");
  if (!IsTime(candidate.p10_us) || !IsTime(candidate.median_us) || !IsTime(candidate.p90_us) ||
      candidate.p10_us > candidate.median_us || candidate.median_us > candidate.p90_us) {
    return InvalidArgument(name + ": its times are not 0 < p10 <= median <= p90 microseconds");
  }
  return Status::Ok();
}

}  // namespace

std::string TuningShapeText(const TuningShape& shape) {
  std::string text;
  for (int64_t extent : shape) text += (text.empty() ? "" : "x") + std::to_string(extent);
  return text;
}

std::string TuningId(const TuningEntry& entry) {
  const TuningKey& key = entry.key;
  const std::string text =
      Text(key.gpu, "|", key.topology_class, "|", key.world_size, "|", OpName(key.op), "|", key.types, "|",
           key.scales, "|", key.traits, "|", TuningShapeText(entry.shape));
  char id[17];
  std::snprintf(id, sizeof(id), "%016llx", static_cast<unsigned long long>(TagDigest(text)));
  return id;
}

Status CheckTuningEntry(TuningEntry* entry) {
  const TuningKey& key = entry->key;
  TANDEM_RETURN_IF_ERROR(CheckText("gpu", key.gpu, true));
  TANDEM_RETURN_IF_ERROR(CheckText("topology_class", key.topology_class, true));
  TANDEM_RETURN_IF_ERROR(CheckText("types", key.types, true));
  TANDEM_RETURN_IF_ERROR(CheckText("scales", key.scales, false));
  TANDEM_RETURN_IF_ERROR(CheckText("traits", key.traits, false));
  TANDEM_RETURN_IF_ERROR(CheckText("measured_at", entry->measured_at, true));
  TANDEM_RETURN_IF_ERROR(CheckText("version", entry->version, true));
  if (key.world_size < 2 || key.world_size > kMaxWorldSize)
    return InvalidArgument("world_size is not within 2 to 8");
  const size_t extents = IsFusedOp(key.op) ? 3 : 1;
  if (entry->shape.size() != extents) return InvalidArgument(Text("the shape needs ", extents, " extents"));
  for (int64_t extent : entry->shape) {
    if (extent <= 0) return InvalidArgument("the shape's extents must be positive");
  }
  if (entry->candidates.size() > kMaxTuningCandidates) {
    return InvalidArgument(Text("more than ", kMaxTuningCandidates, " candidates"));
  }
  for (const TuningCandidate& candidate : entry->candidates)
    TANDEM_RETURN_IF_ERROR(CheckCandidate(key.op, candidate));
  std::stable_sort(entry->candidates.begin(), entry->candidates.end(), [](const auto& a, const auto& b) {
    if ((a.samples > 0) != (b.samples > 0)) return a.samples > 0;
    return a.median_us < b.median_us;
  });
  if (entry->candidates.empty() || entry->candidates[0].samples == 0)
    return InvalidArgument("no candidate is measured");
  return Status::Ok();
}

void TuningTable::Put(TuningEntry entry) {
  auto& shapes = entries_[entry.key];
  TuningShape shape = entry.shape;
  size_ += shapes.insert_or_assign(std::move(shape), std::move(entry)).second ? 1 : 0;
}

bool TuningTable::Remove(const std::string& id) {
  for (auto key = entries_.begin(); key != entries_.end(); ++key) {
    for (auto shape = key->second.begin(); shape != key->second.end(); ++shape) {
      if (TuningId(shape->second) != id) continue;
      key->second.erase(shape);
      if (key->second.empty()) entries_.erase(key);
      --size_;
      return true;
    }
  }
  return false;
}

void TuningTable::Merge(const TuningTable& over) {
  for (const TuningEntry* entry : over.Entries()) Put(*entry);
}

const TuningEntry* TuningTable::Find(const TuningKey& key, const TuningShape& shape) const {
  const auto found = entries_.find(key);
  if (found == entries_.end()) return nullptr;
  const TuningEntry* nearest = nullptr;
  double least = 0;
  for (const auto& [measured, entry] : found->second) {
    const double distance = Distance(measured, shape);
    if (distance < 0 || (nearest != nullptr && distance >= least)) continue;  // of equals the smaller shape
    nearest = &entry;
    least = distance;
  }
  return nearest;
}

const TuningEntry* TuningTable::FindId(const std::string& id) const {
  for (const TuningEntry* entry : Entries()) {
    if (TuningId(*entry) == id) return entry;
  }
  return nullptr;
}

std::vector<const TuningEntry*> TuningTable::Entries() const {
  std::vector<const TuningEntry*> entries;
  for (const auto& [key, shapes] : entries_) {
    for (const auto& [shape, entry] : shapes) entries.push_back(&entry);
  }
  return entries;
}

}  // namespace tandem::plan
