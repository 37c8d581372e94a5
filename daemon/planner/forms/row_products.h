// File: row_products.h
//
// Products of an A or a C of several leading dimensions. cuBLASLt multiplies matrices, whose rows lie at one
// pitch; a slice along an inner dimension has none, and is several matrices.
#pragma once

#include <vector>

#include "program/views.h"

namespace tandem::plan {

// Whether A's rows lie at one pitch, and C's, and A's row scales one after another.
bool IsOfMatrices(const MatmulStep& step);

// `step` as products of matrices, cut along its leading dimensions, in as few as there can be. `step` itself
// if it is one already, or would be more than a lane should be given at once: then the kernel of any strides
// computes it.
std::vector<MatmulStep> RowProducts(const MatmulStep& step);

}  // namespace tandem::plan
