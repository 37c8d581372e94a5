// File: slot_overlap.h
//
// Overlaps in memory of a launch's slots: the pairs of slots that must be apart, and a check. Immutable: any
// thread may ask.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "ipc/channel_layout.h"
#include "tandem/op_request.h"

namespace tandem::client {

// Where a launch's slots begin in this process, by slot; 0: not bound.
using SlotAddresses = std::array<uintptr_t, kMaxBindings>;

class SlotOverlap {
 public:
  struct Pair {
    int first = 0, second = 0;
  };

  // The slots of a request that the daemon has accepted.
  explicit SlotOverlap(const OpRequest& request);

  // The first two slots that share bytes although the launch writes one of them and they are not in place
  // with each other. Allocates nothing. Rows of equal pitch may interleave, as columns of one matrix do.
  std::optional<Pair> Find(const SlotAddresses& addresses) const;

 private:
  // The bytes of a slot: `rows` of them `width` long and `pitch` apart. Without a pitch all `span` bytes.
  struct Shape {
    uint64_t span = 0, pitch = 0, width = 0;
  };
  static Shape ShapeOf(const OpRequest& request, int slot);
  bool Shares(const Pair& pair, const SlotAddresses& addresses) const;

  std::vector<Shape> shapes_;  // by slot
  std::vector<Pair> pairs_;    // that must not share memory
};

}  // namespace tandem::client
