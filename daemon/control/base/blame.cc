#include "daemon/control/base/blame.h"

#include <algorithm>
#include <cstdio>
#include <utility>

namespace tandem::daemon {

std::string RankList(const std::vector<uint32_t>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(ranks[i]);
  return text;
}

StatusDetail BlameRanks(std::string reason, std::vector<uint32_t> ranks, std::string field, int64_t pid) {
  std::sort(ranks.begin(), ranks.end());
  StatusDetail detail{.reason = std::move(reason), .who = RankList(ranks), .field = std::move(field)};
  detail.ranks = std::move(ranks);
  detail.pid = pid;
  return detail;
}

StatusDetail BlameRank(std::string reason, int rank, std::string field, int64_t pid) {
  if (rank >= 0) return BlameRanks(std::move(reason), {static_cast<uint32_t>(rank)}, std::move(field), pid);
  // A rank that no group has: named as it came.
  StatusDetail detail{
      .reason = std::move(reason), .who = "rank " + std::to_string(rank), .field = std::move(field)};
  detail.pid = pid;
  return detail;
}

StatusDetail BlameGpu(std::string reason, int gpu, std::string field) {
  StatusDetail detail{
      .reason = std::move(reason), .who = "gpu " + std::to_string(gpu), .field = std::move(field)};
  detail.gpu = gpu;
  return detail;
}

engine::v1::Command BreakCommand(uint64_t group_id, const Status& why) {
  const StatusDetail& detail = why.detail();
  engine::v1::Command command;
  engine::v1::BreakGroup& message = *command.mutable_break_group();
  message.set_group_id(group_id);
  message.set_code(static_cast<int>(why.code()));
  message.set_message(why.message());
  message.set_reason(detail.reason);
  message.set_who(detail.who);
  message.mutable_ranks()->Add(detail.ranks.begin(), detail.ranks.end());
  message.set_pid(detail.pid);
  if (detail.gpu >= 0) message.set_gpu(detail.gpu);
  return command;
}

std::string Seconds(std::chrono::milliseconds time) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.3g s", static_cast<double>(std::max<int64_t>(time.count(), 0)) / 1000);
  return text;
}

}  // namespace tandem::daemon
