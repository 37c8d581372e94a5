// File: digest.h
//
// Digests of launches and their tags. The client library, tandemd and the engines compute them alike, so that
// a launch by ring and a launch by gRPC agree. They find mistakes, not attackers: ranks of a group trust each
// other. The algorithm is FNV-1a with 64 bits (Fowler, Noll, Vo).
#pragma once

#include <cstdint>
#include <string_view>

namespace tandem {

// The digest of nothing.
inline constexpr uint64_t kDigestSeed = 0xcbf29ce484222325;

// `digest` with one byte more.
constexpr uint64_t FoldByte(uint64_t digest, uint8_t byte) { return (digest ^ byte) * 0x100000001b3; }

// `digest` with the eight bytes of `value` more, the lowest first.
constexpr uint64_t FoldDigest(uint64_t digest, uint64_t value) {
  for (int shift = 0; shift < 64; shift += 8) digest = FoldByte(digest, static_cast<uint8_t>(value >> shift));
  return digest;
}

// The digest of a launch's tag. 0 for an empty tag: "no tag".
constexpr uint64_t TagDigest(std::string_view tag) {
  if (tag.empty()) return 0;
  uint64_t digest = kDigestSeed;
  for (char c : tag) digest = FoldByte(digest, static_cast<uint8_t>(c));
  return digest;
}

}  // namespace tandem
