// File: tried_rows.h
//
// The numbers of rows that a family's products are tried with before its first launch.
#pragma once

#include <cstdint>
#include <vector>

namespace tandem::client {

// Ascending multiples of `unit`, below `max_rows`. The best product of a number of rows has tiles that just cover
// them: the one for the next tried number fits nearly as well. So numbers lie as close
// to one another as tiles do. With many rows, more waves of tiles even it out.
std::vector<int64_t> TriedRows(int64_t unit, int64_t max_rows);

}  // namespace tandem::client
