// File: collective_cases.h
//
// Cases of collectives by kernels, their operands, and their right results.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "tandem/op_request.h"
#include "tests/gpu/kernel_group.h"

namespace tandem::runtime {

struct CollectiveCase {
  Op op = Op::kAllReduce;
  Algorithm algorithm = Algorithm::kOneShot;
  DType dtype = DType::kBf16;
  std::vector<int64_t> piece = {1000};  // the input's shape, or the output's of a reduce-scatter
  int dim = 0;
  ReduceOp reduce_op = ReduceOp::kSum;
  bool in_place = false, symmetric = false, cube_mesh = false;
  int shift = 0;
};

using Buffers = std::vector<std::vector<std::byte>>;  // by rank

// "all_reduce one_shot bf16 W=4 [1000 ] dim 0".
std::string Name(const CollectiveCase& test, int world);
// The request of every rank.
std::vector<OpRequest> Requests(const CollectiveCase& test, int world);
// `bytes` of values in [-2, 2], or of any integers; `special`: with NaN, infinities, zeros and extremes.
std::vector<std::byte> RandomElements(DType dtype, size_t bytes, std::mt19937* random, bool special);
// The right output of every rank for the inputs `in`; empty: anything.
Buffers Expected(const CollectiveCase& test, Buffers in, const KernelGroup& group);
// Sums of the ranks' elements in fp32, each times `scale`, rounded to `dtype` once.
std::vector<std::byte> Sum(const Buffers& parts, DType dtype, float scale,
                           ReduceOp reduce_op = ReduceOp::kSum);
// Equal bits, or both not a number.
testing::AssertionResult Same(const std::vector<std::byte>& got, const std::vector<std::byte>& expected,
                              DType dtype);
// Sets a rank's input, and gets its output. In place along a dimension one of them is the rank's part of the
// memory of both.
void SetInput(const CollectiveCase& test, KernelGroup* group, int rank, int launch,
              std::vector<std::byte> in);
std::vector<std::byte> GetOutput(const CollectiveCase& test, KernelGroup* group, int rank, int launch);

}  // namespace tandem::runtime
