// File: digest.h
//
// The digest of a launch's tag, as the client library and tandemd both compute it: a launch by ring and one
// by gRPC must agree. It finds mistakes, not attackers: ranks of a group trust each other.
#pragma once

#include <cstdint>
#include <string_view>

namespace tandem {

// FNV-1a, 64 bits (Fowler, Noll, Vo). 0 for an empty tag: "no tag".
constexpr uint64_t TagDigest(std::string_view tag) {
  if (tag.empty()) return 0;
  uint64_t hash = 0xcbf29ce484222325;
  for (char c : tag) {
    hash ^= static_cast<uint8_t>(c);
    hash *= 0x100000001b3;
  }
  return hash;
}

}  // namespace tandem
