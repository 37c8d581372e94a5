// File: matmul_notes.h
//
// The notes of a plan on its products on CUDA: copies that a layout costs, and products that cuBLASLt refuses
// and the slow kernel of any strides computes. Nothing is slow in silence.
#pragma once

#include <string>
#include <vector>

#include "daemon/planner/problem/problem.h"

namespace tandem::plan {

// Why cuBLASLt refuses a product (MapToLt in kernels/cuda/matmul/matmul_map.cc), so that the plain kernel
// computes it unless a fused one does.
struct PlainReason {
  std::string why;
  bool in_key = false;  // the tuning table's keys contain it: the measured request of the key had it too

  bool operator==(const PlainReason&) const = default;
};
// All of them, for the products of a plan whose algorithm is not fused; empty on the host backend, which has
// no cuBLASLt.
std::vector<PlainReason> WhyPlain(const Problem& problem);

// One sentence a finding; empty where cuBLASLt takes everything as it lies, or there is no product.
std::vector<std::string> MatmulNotes(const Problem& problem);

}  // namespace tandem::plan
