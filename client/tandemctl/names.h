// File: names.h
//
// The words that tandemctl takes for operations, algorithms, types, scales and shells. An unknown word is an
// error that lists the known ones.
#pragma once

#include <string>
#include <vector>

#include "tandem/op_request.h"
#include "tandem/status.h"

namespace tandem::ctl {

std::vector<std::string> OpNames();
std::vector<std::string> AlgorithmNames();
std::vector<std::string> DTypeNames();  // of operands that tandemctl can describe
std::vector<std::string> ScaleNames();  // "tensor_wise", "row_wise", "block_wise"
std::vector<std::string> PlacementNames();
std::vector<std::string> DeterminismNames();
std::vector<std::string> RoundingNames();
std::vector<std::string> ShellNames();  // that have completion scripts

// "a, b, c".
std::string Listed(const std::vector<std::string>& names);

// INVALID_ARGUMENT: "unknown operation 'all_reduc'; did you mean 'all_reduce'? The operations are …".
Result<Op> ReadOp(const std::string& name);
Result<Algorithm> ReadAlgorithm(const std::string& name);
Result<DType> ReadDType(const std::string& name);

}  // namespace tandem::ctl
