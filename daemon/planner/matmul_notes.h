// File: matmul_notes.h
//
// What a plan must say about its products on CUDA: copies that a layout costs, and products that cuBLASLt does not take
// and the slow kernel of any strides computes. Nothing is slow in silence.
#pragma once

#include <string>
#include <vector>

#include "daemon/planner/problem.h"

namespace tandem::plan {

// One sentence a finding; empty where cuBLASLt takes everything as it lies, or there is no product.
std::vector<std::string> MatmulNotes(const Problem& problem);

}  // namespace tandem::plan
