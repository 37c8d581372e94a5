// File: offer.h
//
// `Offer`: one rank's side of the decision whether Tandem serves a communicator. All ranks exchange theirs
// through NCCL, and come to the same answer.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

namespace tandem::nccl {

// Bytes that travel as they are. Texts end with a zero, and are cut where they are too long.
struct Offer {
  static constexpr uint32_t kVersion = 1;
  uint32_t version = kVersion;
  std::array<char, 36> process{};  // of session.h's ProcessIdentity()
  std::array<char, 36> key{};      // rank 0's is the job key of Tandem's group
  std::array<char, 96> daemon{};
  std::array<char, 96> gpu{};
  std::array<char, 244> refused{};  // why the rank cannot be served; empty: it can
};
static_assert(sizeof(Offer) == 512 && std::is_trivially_copyable_v<Offer>);

template <size_t size>
void SetText(std::array<char, size>* to, std::string_view text) {
  to->fill('\0');
  text.substr(0, size - 1).copy(to->data(), size - 1);
}
template <size_t size>
std::string TextOf(const std::array<char, size>& from) {
  const std::string_view all(from.data(), size);
  return std::string(all.substr(0, all.find('\0')));
}

// Why Tandem does not serve the ranks with these offers, in words that follow "since"; empty where it does.
std::string WhyNotServed(std::span<const Offer> offers);

}  // namespace tandem::nccl
