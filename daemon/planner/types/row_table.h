// File: row_table.h
//
// `RowTable`: which algorithm a family's launches take, by their number of rows. It is alike on all ranks,
// and depends on nothing but the requests and the group.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tandem/op_request.h"
#include "tandem/status.h"

namespace tandem::plan {

struct RowRange {
  int64_t last = 0;  // rows; the range begins behind the last of the range before, the first one at 0
  Algorithm algorithm = Algorithm::kAuto;
  Algorithm collective = Algorithm::kAuto;  // see OperationPlan::collective
  double predicted_us = 0;                  // of `last` rows
  std::string reason;                       // why this one; of `last` rows
  bool operator==(const RowRange&) const = default;
};

struct RowTable {
  int64_t max_rows = 0;
  int64_t unit = 1;              // numbers of rows are multiples of it
  std::vector<RowRange> ranges;  // ascending; the last one ends at max_rows
  uint64_t workspace_bytes = 0;  // the most of any number of rows: one half, one rank
  uint64_t bulk_bytes = 0;
  bool operator==(const RowTable&) const = default;

  // The range that holds `rows`. OUT_OF_RANGE, field "rows": above max_rows. INVALID_ARGUMENT, field "rows":
  // negative, or no multiple of the unit.
  Result<const RowRange*> Find(int64_t rows) const;
};

// The ranges as text, one line each: "1 – 512  low_latency  12.3 us  why".
std::string ListRows(const RowTable& table);

}  // namespace tandem::plan
