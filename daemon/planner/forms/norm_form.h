// File: norm_form.h
//
// Whether the kernel of a sum can norm its rows: a client's kernel of dense packets in one shot has whole rows
// (docs/algorithms.md, low_latency).
#pragma once

#include <string>

#include "program/program.h"

namespace tandem::plan {

// Words of program/norm_layout.h of a row.
int64_t RowWords(const NormStep& norm);
// Rows of all leading dimensions.
int64_t RowsOf(const NormStep& norm);

// Why the step before `norm` cannot norm its rows, on a rank of a group of `world_size`; empty: it can. The
// addresses of the operands, which a launch brings, may still forbid it.
std::string WhyNormedApart(const Step& before, const NormStep& norm, int world_size);

// Whether `row_blocks` thread blocks, a power of two, can share each row of `norm`, in a kernel of `blocks`.
bool CanShareRows(const NormStep& norm, int row_blocks, int blocks, int world_size);

}  // namespace tandem::plan
