#include "client/torch/distributed/tallies.h"

namespace tandem::torch_distributed {

void Tallies::Add(Collective op, uint64_t bytes, std::string_view reason) {
  const std::lock_guard lock(mutex_);
  ByReason& counts = counts_[static_cast<size_t>(op)];
  auto found = counts.find(reason);
  if (found == counts.end()) found = counts.emplace(std::string(reason), Count{}).first;
  ++found->second.calls;
  found->second.bytes += bytes;
}

std::string Tallies::Lines() const {
  const std::lock_guard lock(mutex_);
  std::string lines;
  for (size_t op = 0; op < kCollectives; ++op) {
    for (const auto& [reason, count] : counts_[op]) {
      lines += std::string(kCollectiveNames[op]) + '\t' + std::to_string(count.calls) + '\t' +
               std::to_string(count.bytes) + '\t' + reason + '\n';
    }
  }
  return lines;
}

Tallies& TheTallies() {
  static auto* const tallies = new Tallies;
  return *tallies;
}

}  // namespace tandem::torch_distributed
