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
#include <utility>
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
  // A tensor's extents, the first of which may be a number of rows.
  void AddShape(std::span<const int64_t> extents) {
    if (shapes_ < first_extents_.size()) {
      first_extents_[shapes_] = static_cast<uint16_t>(extents.empty() ? kNoExtent : size_);
    } else {
      overflowed_ = true;
    }
    ++shapes_;
    Add(extents);
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
  friend class RowlessKey;
  static constexpr size_t kMaxWords = 512, kMaxShapes = 32, kNoExtent = kMaxWords;

  // Neither is initialised: only what was added is read.
  std::array<uint64_t, kMaxWords> words_;
  std::array<uint16_t, kMaxShapes> first_extents_;  // where the first extent of each shape is
  size_t size_ = 0, shapes_ = 0;
  bool overflowed_ = false;
};

using StoredKey = std::vector<uint64_t>;

// A call's key without the tensors' first extents: calls of a family may differ in them.
class RowlessKey {
 public:
  explicit RowlessKey(const CallKey& key) : size_(key.words().size()), shapes_(size_ == 0 ? 0 : key.shapes_) {
    std::memcpy(words_.data(), key.words_.data(), size_ * sizeof(uint64_t));
    for (size_t i = 0; i < shapes_; ++i) {
      const size_t at = key.first_extents_[i];
      extents_[i] = at == CallKey::kNoExtent ? -1 : static_cast<int64_t>(std::exchange(words_[at], 0));
    }
  }
  std::span<const uint64_t> words() const { return {words_.data(), size_}; }
  // By tensor, in the schema's order; -1: it has no dimension.
  std::span<const int64_t> extents() const { return {extents_.data(), shapes_}; }

 private:
  const size_t size_, shapes_;
  std::array<uint64_t, CallKey::kMaxWords> words_;
  std::array<int64_t, CallKey::kMaxShapes> extents_;
};

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
