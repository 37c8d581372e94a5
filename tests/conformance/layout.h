// File: layout.h
//
// The places of a case's tensors in a rank's two arenas (registered memory, and symmetric memory), with guard
// bytes between them, and the arenas' contents before and after a launch.
#pragma once

#include <cstddef>
#include <vector>

#include "tests/conformance/reference.h"

namespace tandem::conformance {

inline constexpr size_t kGuardBytes = 256;

struct Place {
  bool symmetric = false;
  size_t offset = 0;  // bytes in its arena: where the slot is bound
  size_t part = 0;  // bytes from there to its tensor: in place along a dimension the smaller one is a part of
                    // the larger one
  size_t tensor() const { return offset + part; }
};

struct Layout {
  std::vector<Place> places;                  // by slot; an alias lies where its holder does
  size_t own_bytes = 0, symmetric_bytes = 0;  // used of the arenas, guards included
};

// INVALID_ARGUMENT for a request whose tensors have no span. Symmetric outputs lie at multiples of
// `alignment` bytes, at most kGuardBytes.
Result<Layout> MakeLayout(const Case& test, int rank, size_t alignment = 1);

// Both arenas before a launch: guards of a pattern that differs at each byte, inputs, outputs of ones (a NaN
// in every floating type).
struct Image {
  std::vector<std::byte> own, symmetric;
  std::byte* At(const Place& place) { return (place.symmetric ? symmetric : own).data() + place.tensor(); }
};
Image MakeImage(const Case& test, const Layout& layout, const AllInputs& inputs, int rank);

}  // namespace tandem::conformance
