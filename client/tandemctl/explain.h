// File: explain.h
//
// `tandemctl explain`: plans an operation without a daemon, proves the plan with the verifier, and prints why
// this algorithm, why not the others, and the programs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "daemon/planner/planner.h"
#include "tandem/op_request.h"
#include "tandem/status.h"

namespace tandem::ctl {

struct ExplainOptions {
  std::string op = "all_reduce";
  std::string shape;    // the first operand of one rank: the input, or A; barrier and empty have none
  std::string b_shape;  // B of operations with a matmul
  std::string dtype = "bf16";
  std::string scales;  // fp8: "tensor_wise" (the default), "row_wise" or "block_wise"
  std::string algorithm = "auto";
  std::string placement = "auto";   // "auto", "engine" or "client"
  std::string determinism = "off";  // "off", "run" or "batch"
  std::string rounding;             // "once" or "model", of a residual and a norm behind the sum; "": without
  std::string topology_file;        // "": emulated GPUs, all linked by switches
  int world = 4;
  int dim = 0;
  int root = 0;
  int steps = 0;
  int lanes = 0;
  int64_t max_rows = 0;  // not 0: a family up to this number of rows, whatever the rows of `shape`
  // B's rows are contiguous; else its columns, as of the weights [N, K] of a linear layer.
  bool b_rows = false;
  bool symmetric = false;          // the operands are symmetric tensors
  bool exact = false;              // partial sums travel as fp32
  bool slow_accumulation = false;  // fp8 products are summed in fp32 throughout
  int program = -1;                // the rank whose program is listed; -1: none, -2: all
};

// Extents as "4096x8192"; INVALID_ARGUMENT.
Result<std::vector<int64_t>> ParseShape(const std::string& text);
// One request per rank.
Result<std::vector<OpRequest>> MakeRequests(const ExplainOptions& options);

struct Explanation {
  plan::OperationPlan plan;
  std::string topology_class;
  std::string prediction_model;  // the GPUs that predicted times are of
};
// Plans and verifies.
Result<Explanation> Explain(const ExplainOptions& options);
// For people, and for programs.
std::string ExplanationText(const Explanation& explanation, const ExplainOptions& options);
std::string ExplanationJson(const Explanation& explanation, const ExplainOptions& options);

}  // namespace tandem::ctl
