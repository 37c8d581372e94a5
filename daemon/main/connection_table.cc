#include "daemon/main/connection_table.h"

#include <algorithm>
#include <utility>

namespace tandem::daemon {

uint32_t ConnectionTable::UidOf(const ConnectionPeer& peer) {
  return peer.caller.has_value() ? peer.caller->uid : UINT32_MAX;
}

const ConnectionPeer* ConnectionTable::Find(uint64_t id) const {
  const auto found = connections_.find(id);
  return found == connections_.end() ? nullptr : &found->second.peer;
}

// Containers of one uid are distinguished: the owner with most strangers loses its oldest.
uint64_t ConnectionTable::OldestOf(uint32_t uid) const {
  std::map<std::string, std::pair<size_t, uint64_t>> owners;  // how many, and the oldest
  for (const uint64_t id : strangers_.at(uid)) {
    auto [owner, is_new] = owners.try_emplace(connections_.at(id).peer.owner, 0, id);
    ++owner->second.first;
  }
  const auto most = std::max_element(owners.begin(), owners.end(), [](const auto& a, const auto& b) {
    return a.second.first < b.second.first;
  });
  return most->second.second;
}

std::optional<uint64_t> ConnectionTable::Surplus(uint32_t uid) const {
  const auto own = strangers_.find(uid);
  if (own != strangers_.end() && own->second.size() > limits_.strangers_per_uid) return OldestOf(uid);
  if (stranger_count_ <= limits_.strangers) return std::nullopt;
  const auto most = std::max_element(strangers_.begin(), strangers_.end(), [](const auto& a, const auto& b) {
    return a.second.size() < b.second.size();
  });
  return OldestOf(most->first);
}

std::optional<uint64_t> ConnectionTable::Add(uint64_t id, ConnectionPeer peer) {
  const uint32_t uid = UidOf(peer);
  connections_[id] = {std::move(peer), 0};
  strangers_[uid].insert(id);
  ++stranger_count_;
  return Surplus(uid);
}

void ConnectionTable::TakeOut(uint64_t id, const Connection& connection) {
  if (connection.session != 0) {
    const auto session = of_session_.find(connection.session);
    session->second.erase(id);
    if (session->second.empty()) of_session_.erase(session);
    return;
  }
  const auto uid = strangers_.find(UidOf(connection.peer));
  uid->second.erase(id);
  if (uid->second.empty()) strangers_.erase(uid);
  --stranger_count_;
}

std::optional<uint64_t> ConnectionTable::Own(uint64_t id, uint64_t session) {
  const auto found = connections_.find(id);
  if (found == connections_.end() || found->second.session == session) return std::nullopt;
  TakeOut(id, found->second);
  found->second.session = session;
  std::set<uint64_t>& all = of_session_[session];
  all.insert(id);
  if (all.size() <= limits_.per_session) return std::nullopt;
  return *all.begin() == id ? *std::next(all.begin()) : *all.begin();
}

void ConnectionTable::Remove(uint64_t id) {
  const auto found = connections_.find(id);
  if (found == connections_.end()) return;
  TakeOut(id, found->second);
  connections_.erase(found);
}

std::vector<uint64_t> ConnectionTable::KeepSessions(const std::set<uint64_t>& living) {
  std::vector<uint64_t> ended;
  for (const auto& [session, ids] : of_session_) {
    if (!living.contains(session)) ended.insert(ended.end(), ids.begin(), ids.end());
  }
  std::vector<uint64_t> surplus;
  for (const uint64_t id : ended) {
    Connection& connection = connections_.at(id);
    TakeOut(id, connection);
    connection.session = 0;
    const uint32_t uid = UidOf(connection.peer);
    strangers_[uid].insert(id);
    ++stranger_count_;
    if (const auto too_many = Surplus(uid); too_many.has_value()) {
      // Each one is named once: what goes counts no more.
      surplus.push_back(*too_many);
      Remove(*too_many);
    }
  }
  return surplus;
}

}  // namespace tandem::daemon
