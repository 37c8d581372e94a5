// File: fuzz_input.h
//
// `FuzzInput`: takes a fuzzer's bytes apart. Reading past the end gives zeros, so that every input means
// something.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>

namespace tandem::fuzz {

class FuzzInput {
 public:
  FuzzInput(const uint8_t* data, size_t size) : rest_(reinterpret_cast<const char*>(data), size) {}

  bool Empty() const { return rest_.empty(); }
  size_t Left() const { return rest_.size(); }

  // The next sizeof(T) bytes as they are; those that are missing are zero.
  template <typename T>
  T Take() {
    T value{};
    std::string_view bytes = TakeBytes(sizeof(T));
    std::memcpy(&value, bytes.data(), bytes.size());
    return value;
  }
  uint8_t Byte() { return Take<uint8_t>(); }
  // At most `count` bytes.
  std::string_view TakeBytes(size_t count) {
    std::string_view bytes = rest_.substr(0, std::min(count, rest_.size()));
    rest_.remove_prefix(bytes.size());
    return bytes;
  }
  // Bytes with their length, 16 bits, before them.
  std::string_view TakeBlock() { return TakeBytes(Take<uint16_t>()); }
  std::string_view Rest() { return TakeBytes(rest_.size()); }

 private:
  std::string_view rest_;
};

// Ends the process with a message: the fuzzer's finding.
[[noreturn]] inline void Finding(const std::string& what) {
  std::fprintf(stderr, "FINDING: %s\n", what.c_str());
  std::abort();
}

inline void Expect(bool holds, const std::string& what) {
  if (!holds) Finding(what);
}

}  // namespace tandem::fuzz
