// File: matrix.h
//
// The parts of the matrix, and the builder that they share. Where a case comes from another project's tests,
// the comment beside it names the test.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "tests/conformance/conformance_case.h"

namespace tandem::conformance {

using Shape = std::vector<int64_t>;

// The parts of a case beside its request.
struct Extras {
  std::string note = {};  // goes into the name
  Values values = Values::kRandom;
  int shift = 0;  // of every slot, in elements
  int skew = 0;
  bool judge_choice = false;
  std::string refusal = {};
  bool must_run = false;  // see Case
};

class Matrix {
 public:
  Matrix(int world, uint64_t seed) : world_(world), draw_(Mix(seed, static_cast<uint64_t>(world))) {}
  int world() const { return world_; }
  Draw& draw() { return draw_; }

  // One case: every rank asks the same.
  void Add(const OpRequest& request, const Extras& extras);
  // One case of requests that differ by rank.
  void AddRanks(std::vector<OpRequest> requests, const Extras& extras);
  // One case for each algorithm that the planner knows for the operation.
  void AddEvery(OpRequest request, const Extras& extras);

  std::vector<Case> Take() { return std::move(cases_); }

 private:
  const int world_;
  Draw draw_;
  std::vector<Case> cases_;
};

Operand MakeOperand(Role role, DType dtype, Shape shape, bool symmetric = false, Shape strides = {});
// Another reduction than a sum or an average, which the type has. A product overflows fp8 and fp16.
void DrawReduction(Draw* draw, DType dtype, OpRequest* request, Extras* extras);
// Strides of a tensor whose last two dimensions are stored the other way round.
Shape TransposedStrides(const Shape& shape);

void AddReductions(Matrix* matrix);          // all-reduce, reduce
void AddNorms(Matrix* matrix);               // the RMSNorm behind an all-reduce
void AddExchanges(Matrix* matrix);           // all-gather, reduce-scatter, all-to-all, broadcast
void AddLongExchanges(Matrix* matrix);       // pieces that dense packets carry
void AddTransfers(Matrix* matrix);           // send and receive, barrier, empty
void AddGatherMatmuls(Matrix* matrix);       // all-gather→matmul, async-input matmul
void AddReducedMatmuls(Matrix* matrix);      // matmul→reduce-scatter, matmul→all-reduce
void AddFusedMatmuls(Matrix* matrix);        // what the fused kernels take
void AddBlockScaledMatmuls(Matrix* matrix);  // fp8 with scales by blocks

}  // namespace tandem::conformance
