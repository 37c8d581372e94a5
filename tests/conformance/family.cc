#include "tests/conformance/family.h"

#include <algorithm>
#include <utility>

#include "common/row_requests.h"

namespace tandem::conformance {
namespace {

// The first extent of the input, or of A.
int64_t RowsOf(const OpRequest& request) {
  for (const Operand& operand : request.operands) {
    if (operand.role == Role::kInput || operand.role == Role::kA)
      return operand.spec.shape.empty() ? 0 : operand.spec.shape[0];
  }
  return 0;
}

// More rows fit operands that are contiguous. Others keep their strides.
bool HasStrides(const Case& test) {
  return std::any_of(test.requests.begin(), test.requests.end(), [](const OpRequest& request) {
    return std::any_of(request.operands.begin(), request.operands.end(),
                       [](const Operand& operand) { return !operand.spec.strides.empty(); });
  });
}

// Scales of A that lie column by column: fewer rows would leave gaps between the columns.
bool HasScalesByColumns(const OpRequest& request) {
  return std::any_of(request.operands.begin(), request.operands.end(), [](const Operand& operand) {
    const std::vector<int64_t>& strides = operand.spec.strides;
    return operand.role == Role::kScaleA && strides.size() == 2 && strides[0] < strides[1];
  });
}

}  // namespace

Result<FamilyCase> FamilyOf(const Case& test, int rank, uint64_t draw) {
  const int world = static_cast<int>(test.requests.size());
  // All ranks' requests, so that all ranks decide alike.
  for (const OpRequest& request : test.requests) {
    TANDEM_RETURN_IF_ERROR(RowRequests::Make({&request, 1}, world).status());
    if (RowsOf(request) != RowsOf(test.requests[0])) return InvalidArgument("the ranks have unlike rows");
  }
  if (HasNorm(test.requests[0]) && test.requests[0].operands[0].spec.shape.size() == 1)
    return InvalidArgument("one row of columns, whose number would vary");
  if (HasScalesByColumns(test.requests[0])) return InvalidArgument("scales that lie column by column");
  FamilyCase family;
  family.request = test.requests[static_cast<size_t>(rank)];
  TANDEM_ASSIGN_OR_RETURN(const RowRequests rows, RowRequests::Make({&family.request, 1}, world));
  family.rows = RowsOf(family.request);
  family.unit = rows.unit();
  if (family.rows % family.unit != 0) return InvalidArgument("the rows are no multiple of the family's unit");
  Draw from(draw);
  const int64_t more = HasStrides(test) ? 0 : from.Below(3) * from.Below(20) * family.unit;
  family.request.max_rows = family.rows + more;
  return family;
}

Result<Case> WithRows(const Case& test, int64_t rows) {
  TANDEM_ASSIGN_OR_RETURN(const RowRequests all,
                          RowRequests::Make(test.requests, static_cast<int>(test.requests.size())));
  Case other = test;
  TANDEM_ASSIGN_OR_RETURN(other.requests, all.At(rows));
  for (size_t rank = 0; rank < other.requests.size(); ++rank)
    other.requests[rank].placement = test.requests[rank].placement;
  return other;
}

}  // namespace tandem::conformance
