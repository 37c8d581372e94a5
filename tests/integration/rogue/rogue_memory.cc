// A rogue's writes to the memory that it maps: its ring, its words, its symmetric tensors.
#include <atomic>
#include <cstring>

#include "ipc/channel_layout.h"
#include "ipc/futex.h"
#include "tests/integration/rogue/rogue.h"

namespace tandem::rogue {

// OpenChannel on "gpu", and both memfds of the channel.
Status Rogue::MapChannel(const json& command) {
  entries_ = command.value("entries", 16u);
  v1::OpenChannelRequest request;
  request.set_gpu_uuid(command.value("gpu", ""));
  request.set_entries(entries_);
  std::string bytes;
  TANDEM_RETURN_IF_ERROR(
      CallBytes("OpenChannel", request.SerializeAsString(), ToHex(attached_.token()), &bytes));
  v1::OpenChannelReply reply;
  reply.ParseFromString(bytes);
  TANDEM_ASSIGN_OR_RETURN(std::vector<UniqueFd> fds, ReceiveTransfer(reply.transfer_id()));
  if (fds.size() != 2) return Internal("a channel has two descriptors");
  TANDEM_ASSIGN_OR_RETURN(ring_, Mapping::Map(fds[0].get(), 0, RingBytes(entries_), true));
  TANDEM_ASSIGN_OR_RETURN(words_, Mapping::Map(fds[1].get(), 0, WordsBytes(entries_), true));
  sequence_ = 0;
  return Status::Ok();
}

// Rendezvous of "tensor_id" in "group_id", and all of every rank's segment.
Status Rogue::MapTensor(const json& command) {
  v1::RendezvousRequest request;
  request.set_tensor_id(command.value("tensor_id", uint64_t{0}));
  request.set_group_id(command.value("group_id", uint64_t{0}));
  std::string bytes;
  TANDEM_RETURN_IF_ERROR(
      CallBytes("Rendezvous", request.SerializeAsString(), ToHex(attached_.token()), &bytes));
  v1::RendezvousReply reply;
  reply.ParseFromString(bytes);
  TANDEM_ASSIGN_OR_RETURN(std::vector<UniqueFd> fds, ReceiveTransfer(reply.transfer_id()));
  for (const UniqueFd& fd : fds) {
    TANDEM_ASSIGN_OR_RETURN(Mapping mapping, Mapping::Map(fd.get(), 0, reply.segment_bytes(), true));
    tensor_.push_back(std::move(mapping));
  }
  return Status::Ok();
}

// "count" entries of "kind": "random" bytes, a "sequence" that is not next, too many "bindings", an unknown
// "entry_kind". Or a captured "slot" that is not there, "arm" without end, well-formed "launch"es of
// "plan_id". "full": never past the ring's room; the reply says how many went in.
Status Rogue::Push(const json& command, json* reply) {
  if (!ring_.valid()) return FailedPrecondition("map_channel first");
  auto* header = ring_.As<RingHeader>();
  const std::string kind = command.value("kind", "random");
  int pushed = 0;
  for (int i = 0; i < command.value("count", 1); ++i) {
    if (command.value("full", false) && header->producer.load() - header->consumer.load() >= entries_) break;
    uint64_t words[kEntryBytes / 8] = {};
    LaunchEntry entry;
    entry.plan_id = command.value("plan_id", uint64_t{1});
    entry.sequence = ++sequence_;
    if (kind == "sequence") entry.sequence = random_();
    if (kind == "bindings") entry.binding_count = 0xffffffff;
    if (kind == "entry_kind") entry.kind = static_cast<EntryKind>(77);
    if (kind == "slot" || kind == "arm") {
      entry.kind = EntryKind::kArm;
      entry.sequence = 0;
      entry.captured_slot = kind == "slot" ? -5 : i % kCapturedSlots;
    }
    std::memcpy(words, &entry, sizeof(entry));
    if (kind == "random") {
      for (uint64_t& word : words) word = random_();
    }
    RingSlot& slot = ring_.As<RingSlot>(kRingSlotsOffset)[header->producer.load() & (entries_ - 1)];
    for (size_t w = 0; w < std::size(words); ++w) slot.words[w].store(words[w], std::memory_order_relaxed);
    header->producer.fetch_add(1);
    ++pushed;
    header->sleeping.store(0);
    FutexWake(&header->sleeping);
  }
  (*reply)["pushed"] = pushed;
  return Status::Ok();
}

// The ring's header says "producer" entries.
Status Rogue::SetHeader(const json& command) {
  if (!ring_.valid()) return FailedPrecondition("map_channel first");
  auto* header = ring_.As<RingHeader>();
  header->producer.store(command.value("producer", ~uint64_t{0}));
  header->entries.store(command.value("entries", uint32_t{1} << 30));
  header->sleeping.store(0);
  FutexWake(&header->sleeping);
  return Status::Ok();
}

Status Rogue::SetRequest(const json& command) {
  if (!words_.valid()) return FailedPrecondition("map_channel first");
  words_.As<ChannelWordsHeader>()->request.store(command.value("value", uint64_t{0}));
  return Status::Ok();
}

// Random bytes over all of "ring", "words" or "tensor", "rounds" times.
Status Rogue::Scribble(const json& command, json* reply) {
  const std::string what = command.value("what", "ring");
  size_t bytes = 0;
  auto write = [&](const Mapping& mapping) {
    for (size_t at = 0; at + 8 <= mapping.size(); at += 8) {
      mapping.As<std::atomic<uint64_t>>(at)->store(random_(), std::memory_order_relaxed);
    }
    bytes += mapping.size();
  };
  for (int round = 0; round < command.value("rounds", 1); ++round) {
    if (what == "ring") write(ring_);
    if (what == "words") write(words_);
    if (what == "tensor") {
      for (const Mapping& mapping : tensor_) write(mapping);
    }
  }
  if (ring_.valid()) FutexWake(&ring_.As<RingHeader>()->sleeping);
  (*reply)["bytes"] = bytes;
  return Status::Ok();
}

// Done and why the channel was ended.
Status Rogue::Words(json* reply) {
  if (!words_.valid()) return FailedPrecondition("map_channel first");
  const auto* header = words_.As<ChannelWordsHeader>();
  (*reply)["done"] = header->done.load();
  (*reply)["released"] = header->released.load() == 1;
  char text[kStatusTextBytes + 1] = {};
  for (size_t i = 0; i < kStatusTextBytes / 8; ++i) {
    const uint64_t word = header->closed.text[i].load();
    std::memcpy(text + 8 * i, &word, 8);
  }
  (*reply)["why"] = std::string(text);
  return Status::Ok();
}

}  // namespace tandem::rogue
