// File: tuning_table.h
//
// Measured times of algorithms, and the look-up by which a plan finds those that hold for it. Plain values:
// no file, no clock, no lock (daemon/planner/tuning has those). A table that is shared is not changed any
// more.
//
// A measurement holds for its key, which must be equal, and its shape, which may be near. A measured shape
// stands for all shapes whose extents lie within a factor of √2 (its bucket). The exact shape comes first,
// then the nearest one by the sum of the extents' distances on a logarithmic scale.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tandem/op_request.h"
#include "tandem/status.h"

namespace tandem::plan {

// The key: must be equal.
struct TuningKey {
  std::string gpu;             // model of all the group's GPUs; "host" on the host backend
  std::string topology_class;  // TopologyClassName
  int world_size = 0;
  Op op = Op::kAllReduce;
  std::string types;   // "bf16 x bf16 -> bf16"; of a collective "bf16 -> bf16"
  std::string scales;  // ScaleModeName; empty without scales
  std::string traits;  // words of what else decides: "last_dim", "wire_f32", "b2" …; may be empty
  auto operator<=>(const TuningKey&) const = default;
};

// Rows, n and k of the whole product (Problem's); of a collective the message in bytes.
using TuningShape = std::vector<int64_t>;

// One algorithm with its parameters, measured or refused.
struct TuningCandidate {
  Algorithm algorithm = Algorithm::kAuto;
  int steps = 0, lanes = 0;  // as a request asks for them; 0: the planner's
  int samples = 0;           // rounds; 0: not measured
  double median_us = 0;      // over rounds, of a launch on the slowest rank, hand-over included
  double p10_us = 0, p90_us = 0;
  std::string refused;  // why it was not measured
  bool operator==(const TuningCandidate&) const = default;
};

struct TuningEntry {
  TuningKey key;
  TuningShape shape;
  std::string measured_at;                  // UTC, "2026-01-31T12:00:00Z"
  std::string version;                      // of the Tandem that was measured
  std::vector<TuningCandidate> candidates;  // measured ones first, the fastest first
  std::string source;                       // the file that it was read from; not part of it
};

inline constexpr size_t kMaxTuningCandidates = 64;
inline constexpr size_t kMaxTuningText = 256;  // bytes of any text in an entry

// Sixteen hex digits that name an entry: a digest of key and shape.
std::string TuningId(const TuningEntry& entry);
// "8192x3584x8192", or a message's bytes: "1048576".
std::string TuningShapeText(const TuningShape& shape);

// Sorts the candidates, and checks the form: counts, ranges, printable texts, 10 % ≤ median ≤ 90 %,
// algorithms that the operation has, at least one candidate measured. INVALID_ARGUMENT says what is wrong.
Status CheckTuningEntry(TuningEntry* entry);

class TuningTable {
 public:
  // Replaces an entry of equal key and shape.
  void Put(TuningEntry entry);
  // True if there was one.
  bool Remove(const std::string& id);
  // Those of `over` go over those here.
  void Merge(const TuningTable& over);

  // The entry for this shape, else the nearest whose bucket holds it, else null. Valid until the table
  // changes.
  const TuningEntry* Find(const TuningKey& key, const TuningShape& shape) const;
  const TuningEntry* FindId(const std::string& id) const;
  // In the order of keys and shapes.
  std::vector<const TuningEntry*> Entries() const;
  size_t size() const { return size_; }

 private:
  std::map<TuningKey, std::map<TuningShape, TuningEntry>> entries_;
  size_t size_ = 0;
};

}  // namespace tandem::plan
