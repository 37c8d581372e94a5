// File: convert.h
//
// Bulk conversion between the element types and float: the same results, bit by bit, as the scalar functions
// of tandem/dtype.h, in loops that the compiler vectorises.
#pragma once

#include <cstdint>

#include "tandem/dtype.h"

namespace tandem::host {

// out[i] = float(source[i * stride]) for i < count. `stride` in elements of `type`; 0 repeats one element.
void ConvertToFloat(const void* source, DType type, int64_t stride, int64_t count, float* out);

// destination[i * stride] = round(values[i]) for i < count, to nearest even.
void ConvertFromFloat(const float* values, int64_t count, void* destination, DType type, int64_t stride);

}  // namespace tandem::host
