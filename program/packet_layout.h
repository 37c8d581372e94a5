// File: packet_layout.h
//
// Where the packets of low-latency kernels lie in one half of a rank's packet area. Planner, engine and
// kernel must agree on it. A packet is eight bytes of data and the launch's number, written whole by one
// store: a reader that sees the launch number has the data.
#pragma once

#include <cstdint>

namespace tandem {

struct PacketLayout {
  static constexpr uint64_t kPacketBytes = 16, kDataBytes = 8;  // the launch number lies behind the data

  uint64_t half_bytes = 0;
  int world = 1;
  int shots = 1;  // exchanges of a launch: each has a slot for every writer

  // The packets of one slot.
  constexpr uint64_t slot_packets() const {
    return half_bytes / kPacketBytes / static_cast<uint64_t>(shots * world);
  }
  // The first packet that `writer` writes in exchange `shot`, counted from the half's begin.
  constexpr uint64_t first_packet(int shot, int writer) const {
    return static_cast<uint64_t>(shot * world + writer) * slot_packets();
  }
  // The packets that carry so many bytes.
  static constexpr uint64_t packets_of(uint64_t bytes) { return (bytes + kDataBytes - 1) / kDataBytes; }
};

// The same of dense packets: 16 bytes of data each, in slots that are empty while they hold zeros.
struct DensePacketLayout {
  static constexpr uint64_t kPacketBytes = 16;

  uint64_t half_bytes = 0;
  int world = 2;
  int shots = 1;

  // The packets of one slot: each peer has one for each shot.
  constexpr uint64_t slot_packets() const {
    return half_bytes / kPacketBytes / static_cast<uint64_t>(shots * (world - 1));
  }
};

}  // namespace tandem
