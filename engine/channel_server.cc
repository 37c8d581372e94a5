#include "engine/channel_server.h"

#include <algorithm>
#include <string>
#include <utility>

namespace tandem::engine {

Status ChannelServer::Open(uint64_t id, uint64_t session_id, uint32_t entries, int ring_fd, int words_fd) {
  for (const auto& channel : channels_) {
    if (channel->id == id) return AlreadyExists("channel " + std::to_string(id) + " is open already");
  }
  if (dead_->crowded())
    return ResourceExhausted("closed channels cannot be released, because the lanes are never idle");
  TANDEM_ASSIGN_OR_RETURN(ChannelConsumer consumer, ChannelConsumer::Map(ring_fd, words_fd, entries));
  // Lanes write the done words. Registered once for the mapping, and unregistered only when no lane can be
  // using them.
  std::span<std::byte> words = consumer.words().pages();
  TANDEM_RETURN_IF_ERROR(backend_->RegisterHostMemory(words.data(), words.size()));
  std::shared_ptr<Channel> channel(new Channel(), [dead = dead_, words](Channel* closed) {
    dead->Add([owned = std::shared_ptr<Channel>(closed), words](Backend* backend) {
      if (backend != nullptr) (void)backend->UnregisterHostMemory(words.data());
    });
  });
  channel->consumer = std::move(consumer);
  channel->id = id;
  channel->session_id = session_id;
  channel->entries = entries;
  channel->consumer.Beat(NowNs(), generation_);
  channels_.push_back(std::move(channel));
  return Status::Ok();
}

Status ChannelServer::Close(uint64_t id) {
  auto found = std::find_if(channels_.begin(), channels_.end(), [id](const auto& c) { return c->id == id; });
  if (found == channels_.end()) return NotFound("no channel " + std::to_string(id));
  captured_ -= (*found)->captured_live;
  queue_->ChannelEnded(**found);
  for (const LaunchEntry& entry : (*found)->waiting) queue_->NoteDropped(entry, (*found)->session_id);
  // Launches that have arrived hold the channel by shared_ptr until they have ended.
  (*found)->ended = true;
  channels_.erase(found);
  return Status::Ok();
}

void ChannelServer::EndChannel(const std::shared_ptr<Channel>& channel, const std::string& why) {
  channel->ended = true;
  captured_ -= channel->captured_live;
  queue_->ChannelEnded(*channel);
  for (const LaunchEntry& entry : channel->waiting) queue_->NoteDropped(entry, channel->session_id);
  channel->waiting.clear();
  channel->captured = {};
  channel->captured_live = 0;
  channel->consumer.words().Release(
      InvalidArgument(why).WithDetail({.reason = "RING_BROKEN", .who = {}, .field = {}}));
  queue_->KeepReleased(channel);
}

void ChannelServer::TakeCapturedEntry(const std::shared_ptr<Channel>& channel, const LaunchEntry& entry) {
  if (entry.captured_slot < 0 || entry.captured_slot >= kCapturedSlots || entry.sequence != 0) {
    return EndChannel(channel, "the ring holds an entry for captured slot " +
                                   std::to_string(entry.captured_slot) + " with sequence " +
                                   std::to_string(entry.sequence));
  }
  auto& slot = channel->captured[static_cast<size_t>(entry.captured_slot)];
  int before = slot != nullptr;
  if (entry.kind == EntryKind::kArm) {
    slot = std::make_unique<CapturedLaunch>();
    slot->entry = entry;
    queue_->NoteCaptured(entry, channel->session_id);
  } else {
    slot.reset();
  }
  int change = (slot != nullptr) - before;
  channel->captured_live += change;
  captured_ += change;
  if (change > 0) last_doorbell_ns_ = NowNs();
  channel->consumer.SetArmed(entry.captured_slot, slot != nullptr);
}

bool ChannelServer::PollRing(const std::shared_ptr<Channel>& channel) {
  bool any = false;
  LaunchEntry entry;
  // A client that pushes as fast as the engine takes, or claims so, gets one round of the ring: others wait
  // too.
  for (uint32_t taken = 0; taken < channel->entries; ++taken) {
    if (channel->ended || channel->waiting.size() >= channel->entries) break;
    if (channel->consumer.Overrun()) {
      EndChannel(channel, "the ring's header claims more entries than the ring of " +
                              std::to_string(channel->entries) + " has");
      return true;
    }
    if (!channel->consumer.Poll(&entry)) break;
    any = true;
    if (entry.binding_count > kMaxBindings) {
      EndChannel(channel,
                 "the ring holds an entry with " + std::to_string(entry.binding_count) + " bindings");
    } else if (entry.kind == EntryKind::kArm || entry.kind == EntryKind::kDisarm) {
      TakeCapturedEntry(channel, entry);
    } else if (entry.kind != EntryKind::kLaunch || entry.sequence != channel->last_sequence + 1) {
      EndChannel(channel, "the ring holds an entry with sequence " + std::to_string(entry.sequence) +
                              " where " + std::to_string(channel->last_sequence + 1) + " is next");
    } else {
      channel->last_sequence = entry.sequence;
      channel->waiting.push_back(entry);
      queue_->NoteQueued(entry, channel->session_id);
    }
  }
  return any;
}

LaunchRequest ChannelServer::RequestOf(const std::shared_ptr<Channel>& channel, const LaunchEntry& entry) {
  LaunchRequest request;
  request.origin = {.kind = Origin::Kind::kChannel,
                    .channel = channel,
                    .id = entry.sequence,
                    .slot = -1,
                    .session_id = channel->session_id};
  request.plan_id = entry.plan_id;
  request.group_generation = entry.group_generation;
  request.deadline_ns = entry.deadline_ns;
  request.tag_digest = entry.tag_digest;
  request.bindings = std::span(entry.bindings, entry.binding_count);
  return request;
}

bool ChannelServer::ArriveNext(const std::shared_ptr<Channel>& channel) {
  if (channel->under_way || channel->waiting.empty()) return false;
  const LaunchEntry& front = channel->waiting.front();
  uint64_t request = channel->consumer.Request();
  if (request < front.sequence || request >= kOrdinaryLimit) return false;
  LaunchEntry entry = front;
  channel->waiting.pop_front();
  channel->under_way = true;
  if (after_last_) after_last_->Saw(-1);
  after_last_.reset();
  queue_->Arrive(RequestOf(channel, entry));
  return true;
}

bool ChannelServer::HasWaiting() const {
  return std::any_of(channels_.begin(), channels_.end(),
                     [](const auto& channel) { return !channel->waiting.empty(); });
}

LaunchRequest ChannelServer::CapturedRequestOf(const std::shared_ptr<Channel>& channel, int slot) {
  const CapturedLaunch& captured = *channel->captured[static_cast<size_t>(slot)];
  LaunchRequest request = RequestOf(channel, captured.entry);
  request.origin.kind = Origin::Kind::kCaptured;
  request.origin.id = captured.replays;
  request.origin.slot = slot;
  return request;
}

bool ChannelServer::SpeculateNext() {
  const Origin* started = queue_->Started();
  if (started == nullptr || !queue_->MaySpeculate()) return false;
  const std::shared_ptr<Channel> channel = started->channel;
  if (channel->ended) {
    queue_->ForgetStarted();
    return false;
  }
  if (started->kind == Origin::Kind::kChannel) {
    // Until the client has pushed it there is nothing to expect.
    if (channel->waiting.empty()) return false;
    channel->after->Saw(0);
    const bool tries = channel->after->Trusted();
    queue_->ForgetStarted();
    return tries && queue_->Speculate(RequestOf(channel, channel->waiting.front()), channel->after);
  }
  const CapturedLaunch* latest = channel->captured[static_cast<size_t>(started->slot)].get();
  queue_->ForgetStarted();
  if (latest == nullptr || !latest->after->Trusted() || latest->after->next() < 0) return false;
  const auto slot = static_cast<int>(latest->after->next() % kCapturedSlots);
  const auto next = std::find_if(channels_.begin(), channels_.end(), [&](const auto& each) {
    return NameOf(*each, slot) == latest->after->next() && !each->ended;
  });
  if (next == channels_.end() || (*next)->captured[static_cast<size_t>(slot)] == nullptr) return false;
  return queue_->Speculate(CapturedRequestOf(*next, slot), latest->after);
}

bool ChannelServer::PollDoorbells(const std::shared_ptr<Channel>& channel) {
  bool any = false;
  for (int i = 0; i < kCapturedSlots; ++i) {
    CapturedLaunch* captured = channel->captured[static_cast<size_t>(i)].get();
    if (captured == nullptr || captured->busy || !channel->consumer.TakeDoorbell(i)) continue;
    any = true;
    last_doorbell_ns_ = NowNs();
    captured->busy = true;
    ++captured->replays;
    if (after_last_) after_last_->Saw(NameOf(*channel, i));
    after_last_ = captured->after;
    queue_->Arrive(CapturedRequestOf(channel, i));
  }
  return any;
}

bool ChannelServer::Poll() {
  bool any = false;
  for (size_t i = 0; i < channels_.size(); ++i) {
    const std::shared_ptr<Channel>& channel = channels_[i];
    if (channel->ended) continue;
    any |= PollRing(channel);
    any |= ArriveNext(channel);
    if (channel->captured_live > 0) any |= PollDoorbells(channel);
  }
  return any;
}

void ChannelServer::TakeAll() {
  for (size_t i = 0; i < channels_.size(); ++i) {
    const std::shared_ptr<Channel> channel = channels_[i];
    if (!channel->ended) PollRing(channel);
  }
}

bool ChannelServer::PrepareSleep(std::vector<FutexWaiter>* waiters, bool* news) {
  bool all = true;
  for (const auto& channel : channels_) {
    if (channel->ended) continue;
    channel->consumer.AnnounceSleep();
    *news |= channel->consumer.HasEntry();
    if (waiters->size() < kMaxFutexWaiters) {
      waiters->push_back({channel->consumer.sleep_word(), 1});
    } else {
      all = false;
    }
  }
  return all;
}

void ChannelServer::EndSleep() {
  for (const auto& channel : channels_) channel->consumer.EndSleep();
}

void ChannelServer::Beat(uint64_t now_ns) {
  for (const auto& channel : channels_) channel->consumer.Beat(now_ns, generation_);
}

void ChannelServer::ReleaseAll(const Status& why) {
  for (const auto& channel : channels_) channel->consumer.words().Release(why);
}

}  // namespace tandem::engine
