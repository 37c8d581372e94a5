// File: row_families.h
//
// `RowFamilies`: the plans behind `Collectives`. The arguments of a call alone decide its plan, so that
// all ranks come to the same one.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "client/lib/handles.h"
#include "tandem/collectives.h"

namespace tandem::client {

// Calls with equal kinds share families. Elements that are only moved travel as bits of their size.
struct CollectiveKind {
  Op op = Op::kAllReduce;
  DType dtype = DType::kF32;
  ReduceOp reduce_op = ReduceOp::kSum;
  int root = 0;
  bool in_place = false;
  auto operator<=>(const CollectiveKind&) const = default;
};

// INVALID_ARGUMENT, with the field: the call is none that families serve.
Status CheckCollective(const CollectiveCall& call, int rank, int ranks);
// CheckCollective must have let the call pass.
CollectiveKind KindOf(const CollectiveCall& call, int rank);
// The elements of the input, each of which is a row of the family. OUT_OF_RANGE.
Result<int64_t> CollectiveRows(const CollectiveCall& call, int ranks);
// The bound of the family to prepare for so many rows. It doubles from a least one on, and is a multiple of
// the ranks.
int64_t FamilyBound(int64_t rows, int ranks);

// Thread-safe.
class RowFamilies final : public Collectives {
 public:
  explicit RowFamilies(std::shared_ptr<GroupHandle> group) : group_(std::move(group)) {}
  Status Prepare(const CollectiveCall& call, Milliseconds deadline) override;
  Status Launch(StreamRef stream, const CollectiveCall& call) override;
  Status Wait(Milliseconds deadline) override;
  Result<bool> Query() override;

 private:
  struct RowFamily {
    int64_t bound = 0;
    std::shared_ptr<Plan> plan;
  };
  // The plan for a call of so many rows; null: there is none. `mutex_` is held.
  std::shared_ptr<Plan> Find(const CollectiveKind& kind, int64_t rows) const;
  // The same; without a plan all ranks prepare one. NOT_PREPARED where the deadline has no time.
  Result<std::shared_ptr<Plan>> FindOrPrepare(const CollectiveKind& kind, int64_t rows,
                                              Milliseconds deadline);
  Result<std::shared_ptr<Plan>> PrepareFamily(const CollectiveKind& kind, int64_t bound,
                                              Milliseconds deadline);
  std::vector<std::shared_ptr<Plan>> Plans() const;

  const std::shared_ptr<GroupHandle> group_;
  mutable std::mutex mutex_;
  uint64_t prepared_ = 0;                                      // guarded; equal on all ranks
  std::map<CollectiveKind, std::vector<RowFamily>> families_;  // guarded; bounds ascend
  std::map<CollectiveKind, Status> refused_;                   // guarded; alike on all ranks
};

}  // namespace tandem::client
