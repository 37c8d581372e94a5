// File: values.h
//
// The inputs of a case: made from {seed, rank, slot} alone, so that every rank can make every other's and
// compute for itself what must come out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tests/conformance/conformance_case.h"

namespace tandem::conformance {

// The elements of a tensor packed, last dimension fastest, in its dtype. `rank` and `slot` decide which
// values are equal on all ranks by definition (replicated scales, the epilogue of a matmul all-reduce).
std::vector<std::byte> MakeValues(const Case& test, int rank, int slot, uint64_t seed);

// Whether the request's scales are by blocks of K (from B's shape); and the shape of the scales of a rank's
// own A: by row and, with blocks, by block.
bool HasBlockScales(const OpRequest& request);
std::vector<int64_t> OwnScaleShape(const OpRequest& request);

// Packed elements as doubles; integers by value.
std::vector<double> ToDoubles(const std::vector<std::byte>& packed, DType dtype);

// Copies between packed elements and the strided tensor at `tensor`.
void Scatter(const TensorSpec& spec, const std::vector<std::byte>& packed, std::byte* tensor);
std::vector<std::byte> Gather(const TensorSpec& spec, const std::byte* tensor);

}  // namespace tandem::conformance
