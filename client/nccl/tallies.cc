#include "client/nccl/tallies.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <vector>

#include "client/nccl/messages.h"

namespace tandem::nccl {
namespace {

bool IsWanted() {
  const char* wanted = std::getenv("TANDEM_REPORT");
  return wanted != nullptr && std::string_view(wanted) == "1";
}

void WriteLine() {
  const std::string line = TheTallies().Line();
  if (line.empty()) return;
  const char* rank = std::getenv("RANK");
  const std::string who = rank != nullptr && *rank != '\0' ? std::string("rank ") + rank
                                                           : "process " + std::to_string(::getpid());
  Say(who + " " + line);
}

}  // namespace

void CallTallies::Add(std::string_view reason) {
  const std::lock_guard lock(mutex_);
  const auto found = by_reason_.find(reason);
  if (found != by_reason_.end())
    ++found->second;
  else
    by_reason_.emplace(reason, 1);
}

std::string CallTallies::Line() const {
  std::vector<std::pair<uint64_t, std::string>> left;
  uint64_t taken = 0, seen = 0;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [reason, calls] : by_reason_) {
      seen += calls;
      if (reason.empty())
        taken = calls;
      else
        left.emplace_back(calls, reason);
    }
  }
  if (seen == 0) return {};
  std::sort(left.begin(), left.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  std::string line = "ran " + std::to_string(taken) + " of " + std::to_string(seen) + " collectives of NCCL";
  for (const auto& [calls, reason] : left) line += "; " + std::to_string(calls) + " not, since " + reason;
  return line;
}

CallTallies& TheTallies() {
  static auto* const tallies = [] {
    if (IsWanted()) std::atexit(WriteLine);
    return new CallTallies;
  }();
  return *tallies;
}

}  // namespace tandem::nccl
