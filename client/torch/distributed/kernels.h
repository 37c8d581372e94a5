// File: kernels.h
//
// The registration of Tandem's kernels for c10d's ops.
#pragma once

#include <torch/library.h>

#include <memory>
#include <vector>

namespace tandem::torch_distributed {

// Puts the kernels in front of torch's own, for as long as the result lives.
std::vector<std::unique_ptr<torch::Library>> RegisterKernels();

}  // namespace tandem::torch_distributed
