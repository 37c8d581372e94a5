// File: row_requests.h
//
// `RowRequests`: one request for any number of rows. The rows are the first dimension of the input, or of A.
// The first dimensions of all operands that hold rows follow it in proportion; weights, bias and scales of
// columns stay. A flat tensor is a tensor of rows of one element.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tandem/op_request.h"
#include "tandem/status.h"

namespace tandem {

// A value: any thread may use it.
class RowRequests {
 public:
  // `requests`: of all ranks, or of one that stands for all, for some number of rows of at least one.
  // Row-wise scales need two or more, since one element is a scale of the whole tensor. INVALID_ARGUMENT
  // names the field: an operation without rows, a dimension that is not the first, operands whose rows are
  // not in proportion.
  static Result<RowRequests> Make(std::span<const OpRequest> requests, int world_size);

  // Numbers of rows are multiples of it: the ranks' parts are equal.
  int64_t unit() const { return unit_; }
  // All requests for `rows` rows, placed in the client, with max_rows 0. INVALID_ARGUMENT, field "rows":
  // negative, or no multiple of unit().
  Result<std::vector<OpRequest>> At(int64_t rows) const;

 private:
  // The first extent of an operand: rows * times / parts; times 0: it does not follow the rows.
  struct Extent {
    int64_t times = 0, parts = 1;
  };

  std::vector<OpRequest> requests_;
  std::vector<Extent> extents_;  // by slot
  int64_t unit_ = 1;
};

// The request of a family (OpRequest::max_rows) with the shapes of its bound; any other request as it is. The
// errors of RowRequests::Make; INVALID_ARGUMENT, field "max_rows": the bound is no positive multiple of the
// unit.
Result<OpRequest> AtBound(const OpRequest& request, int world_size);

}  // namespace tandem
