// File: client_params.h
//
// The parameters of the kernels of a client-placed fused matmul (client_fused.h).
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/collectives/client_launch.h"
#include "kernels/cuda/fused/fused_matmul.h"

namespace tandem::cuda {

struct HandshakeLaunch {
  GroupDeviceState group_state;
  uint64_t* reported[kMaxRanks];       // by rank: this rank's word there
  const uint64_t* awaited[kMaxRanks];  // by rank: its word here
  uint64_t* words;                     // of the fused kernel, that peers write here
  int64_t word_count;
  uint64_t* cancelled;  // set to 1 if the launch must do nothing, else to 0
  int rank, world;
};

// Rows of bytes that a rank copies to a peer. A multiple of `width` bytes, as are addresses and pitches.
struct PushedRows {
  const std::byte* from;
  std::byte* to;
  int64_t rows, row_bytes, from_pitch, to_pitch;  // in bytes
  int width;                                      // 16, 4 or 1
  uint32_t first_chunk, chunks;                   // of chunk_words words each, the last one of fewer
  uint32_t chunk_words;                           // kPushChunk at most
  // The first chunks, which are kPushStep words of 16 bytes or a multiple, each together on both sides.
  uint32_t whole;
  // A word may announce several pushes: counted at one counter.
  uint64_t* done;     // set to 1 once all of them are there
  uint32_t* arrived;  // in device memory, zero between launches
  uint32_t awaited;   // their chunks
};
inline constexpr int kMaxPushes = 2 * kMaxRanks;  // a shard and its scales for each peer
// Words of a warp's part: long beside the draw of the next one, and small beside a shard. And of what a warp
// has on the way at a time.
inline constexpr uint32_t kPushChunk = 512, kPushStep = 128;

// Where a whole chunk lies at both ends.
struct PushedChunk {
  const std::byte* from;
  std::byte* to;
};
#ifdef __CUDACC__
__host__ __device__
#endif
    inline PushedChunk
    WholeChunk(const PushedRows& push, uint32_t chunk) {
  const uint32_t row_words = static_cast<uint32_t>(push.row_bytes) / 16, first = chunk * push.chunk_words;
  const uint32_t row = push.rows == 1 ? 0 : first / row_words;
  const int64_t byte = int64_t{first - row * row_words} * 16;
  return {push.from + row * push.from_pitch + byte, push.to + row * push.to_pitch + byte};
}

struct ClientPushes {
  PushedRows push[kMaxPushes];
  int count;
  uint32_t chunks;  // of all pushes
  uint32_t* drawn;  // in device memory, zero between launches
};

struct ClientFusedParams : FusedMatmulParams {
  ClientPushes pushes;
};

}  // namespace tandem::cuda
