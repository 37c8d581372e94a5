#include "client/nccl/offer.h"

namespace tandem::nccl {
namespace {

std::string RankText(size_t rank) { return "rank " + std::to_string(rank); }

}  // namespace

std::string WhyNotServed(std::span<const Offer> offers) {
  for (size_t rank = 0; rank < offers.size(); ++rank) {
    if (offers[rank].version != Offer::kVersion)
      return RankText(rank) + " has another version of libtandem-nccl.so";
  }
  for (size_t rank = 0; rank < offers.size(); ++rank) {
    if (const std::string refused = TextOf(offers[rank].refused); !refused.empty())
      return RankText(rank) + " cannot be served: " + refused;
  }
  for (size_t rank = 1; rank < offers.size(); ++rank) {
    if (TextOf(offers[rank].daemon) != TextOf(offers[0].daemon))
      return RankText(rank) + " has another daemon than rank 0, or is on another node";
  }
  for (size_t rank = 0; rank < offers.size(); ++rank) {
    for (size_t other = 0; other < rank; ++other) {
      if (TextOf(offers[rank].process) == TextOf(offers[other].process))
        return "ranks " + std::to_string(other) + " and " + std::to_string(rank) + " are of one process";
      if (TextOf(offers[rank].gpu) == TextOf(offers[other].gpu))
        return "ranks " + std::to_string(other) + " and " + std::to_string(rank) + " share a GPU";
    }
  }
  return {};
}

}  // namespace tandem::nccl
