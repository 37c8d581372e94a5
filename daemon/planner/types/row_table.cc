#include "daemon/planner/types/row_table.h"

#include <algorithm>

#include "program/text.h"

namespace tandem::plan {

Result<const RowRange*> RowTable::Find(int64_t rows) const {
  if (rows < 0)
    return InvalidArgument(Text("rows: ", rows, " is negative"))
        .WithDetail({.reason = "INVALID_FIELD", .field = "rows"});
  if (rows > max_rows) {
    return OutOfRange(Text("rows: ", rows, " is above the family's bound of ", max_rows))
        .WithDetail({.reason = "ROWS_ABOVE_BOUND", .field = "rows", .limit = max_rows, .usage = rows});
  }
  if (rows % unit != 0)
    return InvalidArgument(Text("rows: ", rows, " is no multiple of ", unit))
        .WithDetail({.reason = "INVALID_FIELD", .field = "rows"});
  const auto found =
      std::lower_bound(ranges.begin(), ranges.end(), rows,
                       [](const RowRange& range, int64_t value) { return range.last < value; });
  if (found == ranges.end()) return Internal("a family's ranges end before its bound");
  return &*found;
}

std::string ListRows(const RowTable& table) {
  std::string text;
  int64_t first = 0;
  for (const RowRange& range : table.ranges) {
    text +=
        Text(first, first == range.last ? "" : Text(" - ", range.last), "  ", AlgorithmName(range.algorithm));
    if (range.collective != Algorithm::kAuto) text += Text(" (", AlgorithmName(range.collective), ")");
    text += Text("  ", MicrosecondsText(range.predicted_us), "  ", range.reason, "\n");
    first = range.last + table.unit;
  }
  return text;
}

}  // namespace tandem::plan
