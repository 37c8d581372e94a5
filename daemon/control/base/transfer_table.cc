#include "daemon/control/base/transfer_table.h"

#include <algorithm>
#include <string>
#include <utility>

namespace tandem::daemon {
namespace {

std::string NameOf(uint64_t transfer_id) { return "transfer " + std::to_string(transfer_id); }

}  // namespace

Status TransferTable::Add(uint64_t transfer_id, uint32_t index, uint32_t total, ForeignFds fds) {
  MutexLock lock(mutex_);
  if (closed_) return Unavailable("the session has ended");
  auto it = entries_.find(transfer_id);
  if (it == entries_.end()) {
    if (entries_.size() >= max_transfers_) {
      return Status(Code::kResourceExhausted, "too many transfers wait to be claimed",
                    {.reason = "QUOTA_TRANSFERS",
                     .who = {},
                     .field = "transfer_id",
                     .limit = static_cast<long long>(max_transfers_),
                     .usage = static_cast<long long>(entries_.size())});
    }
    it = entries_.emplace(transfer_id, Entry{}).first;
    it->second.total = total;
    it->second.since = Waiter::Clock::now();
    if (total == 0 || total > kMaxTransferFds) {
      it->second.refused =
          Status(Code::kInvalidArgument,
                 NameOf(transfer_id) + " has " + std::to_string(total) + " descriptors; 1 to " +
                     std::to_string(kMaxTransferFds) + " are allowed",
                 {.reason = "TOO_MANY_DESCRIPTORS",
                  .who = {},
                  .field = "total",
                  .limit = kMaxTransferFds,
                  .usage = total});
    } else {
      it->second.fds.Reserve(total);
    }
  }
  Entry& entry = it->second;
  if (!entry.refused.ok()) {
    changed_.notify_all();
    return Status::Ok();
  }
  Status wrong;
  if (total != entry.total)
    wrong = InvalidArgument(NameOf(transfer_id) + ": its parts disagree on the total");
  if (fds.empty() || index > entry.total || fds.size() > entry.total - index) {
    wrong = InvalidArgument(NameOf(transfer_id) + ": a part lies outside of its " +
                            std::to_string(entry.total) + " descriptors");
  }
  for (size_t i = 0; wrong.ok() && i < fds.size(); ++i) {
    if (entry.fds[index + i].valid()) wrong = InvalidArgument(NameOf(transfer_id) + ": two parts overlap");
  }
  if (!wrong.ok()) {
    entry.fds = {};
    entry.present = 0;
    entry.refused = wrong;
    changed_.notify_all();
    return wrong;
  }
  for (size_t i = 0; i < fds.size(); ++i) entry.fds[index + i] = std::move(fds[i]);
  entry.present += static_cast<uint32_t>(fds.size());
  if (entry.present == entry.total) changed_.notify_all();
  return Status::Ok();
}

void TransferTable::Refuse(uint64_t transfer_id, Status why) {
  MutexLock lock(mutex_);
  if (closed_ || (!entries_.contains(transfer_id) && entries_.size() >= max_transfers_)) return;
  Entry entry;
  entry.since = Waiter::Clock::now();
  entry.refused = std::move(why);
  entries_.insert_or_assign(transfer_id, std::move(entry));
  changed_.notify_all();
}

Result<ForeignFds> TransferTable::Claim(uint64_t transfer_id, const Waiter& waiter) {
  MutexLock lock(mutex_);
  const bool came = waiter.Wait(lock, changed_, [&]() TANDEM_REQUIRES(mutex_) {
    if (closed_) return true;
    auto it = entries_.find(transfer_id);
    return it != entries_.end() && (!it->second.refused.ok() || it->second.present == it->second.total);
  });
  if (closed_) return Unavailable("the session has ended");
  auto it = entries_.find(transfer_id);
  if (!came) {
    return Status(Code::kNotFound, NameOf(transfer_id) + " has not come over the lease socket in full",
                  {.reason = "NO_TRANSFER", .who = {}, .field = "transfer_id"});
  }
  Entry entry = std::move(it->second);
  entries_.erase(it);
  if (!entry.refused.ok()) return entry.refused;
  return std::move(entry.fds);
}

bool TransferTable::ReapOrphans(std::chrono::milliseconds age) {
  MutexLock lock(mutex_);
  const auto limit = Waiter::Clock::now() - age;
  std::erase_if(entries_, [&](const auto& item) { return item.second.since <= limit; });
  return !entries_.empty();
}

void TransferTable::Close() {
  MutexLock lock(mutex_);
  closed_ = true;
  entries_.clear();
  changed_.notify_all();
}

size_t TransferTable::descriptors() const {
  MutexLock lock(mutex_);
  size_t count = 0;
  for (const auto& [id, entry] : entries_) count += entry.present;
  return count;
}

}  // namespace tandem::daemon
