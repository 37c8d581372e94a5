// File: norm_cost.h
//
// The faster kernels for a sum by dense packets and the RMSNorm that follows. The thresholds are measured.
#pragma once

#include <string>

#include "program/program.h"

namespace tandem::plan {

// Why a second kernel norms `rows` rows of `world_size` ranks faster; empty: the sum's own kernel does.
std::string WhyNormedApartFaster(int64_t rows, int world_size);

// Thread blocks that share each row of `norm` in the sum's kernel of `blocks`: a power of two.
int FastestRowBlocks(const NormStep& norm, int blocks, int world_size);

}  // namespace tandem::plan
