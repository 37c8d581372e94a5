#include "daemon/control/records/group_record.h"

#include <algorithm>
#include <chrono>
#include <cstdio>

#include "daemon/control/base/blame.h"

namespace tandem::daemon {

void GroupRecord::Stall(const Status& why) {
  client.stall.Apply(StallEvent::kLaunchFailed, why);
  AbortClientLaunches(1, why);
}

uint64_t GroupRecord::UnsharedWorkspaceBytes() const {
  uint64_t bytes = 0;
  for (const auto& [id, plan] : plans) bytes += 2 * AllocatedHalf(plan.half_bytes);
  return bytes;
}

bool GroupRecord::RenewsEngines() const {
  return std::all_of(members.begin(), members.end(),
                     [](const MemberRecord& member) { return member.renews_engines; });
}

bool GroupRecord::IsOrdered() const {
  const auto order = options.find("order");
  return order != options.end() && order->second == "same" && RenewsEngines();
}

bool GroupRecord::UsesGpu(int gpu) const { return std::find(gpus.begin(), gpus.end(), gpu) != gpus.end(); }

void GroupRecord::EndGatherings(const Status& why) {
  for (const auto& [key, open] : prepares) open->EndGathering(why);
  for (const auto& [key, open] : tensor_barriers) open->EndGathering(why);
  for (const auto& [id, plan] : plans) {
    if (plan.client) plan.client->armed.EndGathering(why);
  }
  if (client.renewal != nullptr) client.renewal->EndGathering(why);
  if (suspension != nullptr) suspension->EndGathering(why);
}

void GroupRecord::AbortClientLaunches(uint64_t from, const Status& why, int except_rank) {
  for (size_t rank = 0; rank < client.pages.size(); ++rank) {
    if (static_cast<int>(rank) != except_rank) client.pages[rank].Abort(from, why);
  }
}

uint64_t GroupRecord::ClientLaunches() const {
  constexpr uint64_t kMost = uint64_t{1} << 48;  // members write their pages as they like
  uint64_t launches = 0;
  for (const VerdictPage& page : client.pages)
    launches = std::max(launches, std::min(page.Finished(), kMost));
  return launches - std::min(launches, client.renewals * kRenewalSkips);
}

std::string GroupRecord::ClientWaits() const {
  constexpr uint64_t kLateNs = 1'000'000'000;
  const auto now = static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                             std::chrono::steady_clock::now().time_since_epoch())
                                             .count());
  std::vector<uint32_t> waiting, idle;
  uint64_t longest = 0;
  for (size_t rank = 0; rank < client.pages.size(); ++rank) {
    const uint64_t since = client.pages[rank].WaitsSince();
    if (since == 0) {
      if (!members[rank].left) idle.push_back(static_cast<uint32_t>(rank));
    } else if (since < now && now - since > kLateNs) {
      waiting.push_back(static_cast<uint32_t>(rank));
      longest = std::max(longest, now - since);
    }
  }
  if (waiting.empty() || idle.empty()) return {};
  char seconds[32];
  std::snprintf(seconds, sizeof(seconds), "%.1f s", static_cast<double>(longest) / 1e9);
  return RankList(waiting) + (waiting.size() == 1 ? " has" : " have") +
         " waited in launches on their streams for " + seconds + "; " + RankList(idle) +
         (idle.size() == 1 ? " has" : " have") + " none under way";
}

std::vector<std::shared_ptr<SegmentSet>> GroupRecord::Segments() const {
  std::vector<std::shared_ptr<SegmentSet>> sets = {half0, half1, bulk, client.signals, client.workspace};
  sets.insert(sets.end(), outgrown.begin(), outgrown.end());
  sets.insert(sets.end(), symmetric.begin(), symmetric.end());
  std::erase(sets, nullptr);
  return sets;
}

void GroupRecord::PostEvent(const v1::Event& event, int except_rank, uint64_t most) {
  for (size_t rank = 0; rank < members.size(); ++rank) {
    const MemberRecord& member = members[rank];
    if (static_cast<int>(rank) == except_rank || member.left || member.session->ended) continue;
    member.session->PostEvent(event, most);
  }
}

}  // namespace tandem::daemon
