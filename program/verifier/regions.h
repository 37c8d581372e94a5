// File: regions.h
//
// How the memory of two views lies to each other, for proofs that follow data from step to step.
#pragma once

#include "program/byte_box.h"
#include "program/program.h"

namespace tandem::plan::verify {

// Whether both lie in one buffer.
inline bool HaveOneBuffer(const View& a, const View& b) {
  return a.ref.space == b.ref.space && a.ref.rank == b.ref.rank && a.ref.slot == b.ref.slot;
}

// Whether some byte is in both; views that have no box meet whatever is in their buffer.
inline bool Overlap(const View& a, const View& b) {
  if (!HaveOneBuffer(a, b)) return false;
  const Result<ByteBox> of_a = BoxOf(a), of_b = BoxOf(b);
  return !of_a.ok() || !of_b.ok() || Intersect(*of_a, *of_b);
}

// Whether all of `part` lies between the first and the last byte of `whole`, in its buffer.
inline bool LiesWithin(const View& part, const View& whole) {
  if (!HaveOneBuffer(part, whole)) return false;
  const Result<ByteBox> inner = BoxOf(part), outer = BoxOf(whole);
  return inner.ok() && outer.ok() && inner->begin >= outer->begin && inner->end <= outer->end;
}

// The same elements in the same order, whosever they are.
inline bool AreAlike(const View& a, const View& b) {
  if (a.ref.space != b.ref.space || a.ref.slot != b.ref.slot || a.ref.offset != b.ref.offset ||
      a.dtype != b.dtype)
    return false;
  if (a.extent == b.extent && a.stride == b.stride) return true;
  return IsContiguous(a) && IsContiguous(b) && Elements(a) == Elements(b);
}

}  // namespace tandem::plan::verify
