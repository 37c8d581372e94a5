// File: call_key.h
//
// All that a call's plan depends on, as numbers: equal calls have equal keys.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

namespace tandem::torch_ops {

// Written on the stack, since a kernel's fast way allocates nothing.
class CallKey {
 public:
  void Add(uint64_t word) {
    if (size_ < words_.size()) {
      words_[size_] = word;
    } else {
      overflowed_ = true;
    }
    ++size_;
  }
  void Add(std::span<const int64_t> extents) {
    for (int64_t extent : extents) Add(static_cast<uint64_t>(extent));
  }
  void Add(std::string_view text) {
    Add(text.size());
    for (size_t at = 0; at < text.size(); at += sizeof(uint64_t)) {
      uint64_t word = 0;
      std::memcpy(&word, text.data() + at, std::min(sizeof(word), text.size() - at));
      Add(word);
    }
  }
  // A call with so many arguments has no key.
  bool overflowed() const { return overflowed_; }
  std::span<const uint64_t> words() const { return {words_.data(), overflowed_ ? 0 : size_}; }

 private:
  std::array<uint64_t, 512> words_;  // not initialised: only what was added is read
  size_t size_ = 0;
  bool overflowed_ = false;
};

using StoredKey = std::vector<uint64_t>;

// Both take stored keys and keys on the stack.
struct CallKeyHash {
  using is_transparent = void;
  size_t operator()(std::span<const uint64_t> words) const {
    uint64_t hash = words.size();
    for (uint64_t word : words) {
      hash = (hash ^ word) * 0x9E3779B97F4A7C15u;
      hash ^= hash >> 32;
    }
    return hash;
  }
};
struct CallKeyEqual {
  using is_transparent = void;
  bool operator()(std::span<const uint64_t> a, std::span<const uint64_t> b) const {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
  }
};

}  // namespace tandem::torch_ops
