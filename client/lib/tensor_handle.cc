// SymmetricTensor: peers' buffers, signal pads, stream-ordered writes.
#include <algorithm>

#include "client/lib/base/backoff.h"
#include "client/lib/base/cancellation.h"
#include "client/lib/handles.h"
#include "common/deadline.h"
#include "common/exceptions.h"

namespace tandem::client {

Result<std::shared_ptr<SymmetricTensor>> TensorHandle::Make(std::shared_ptr<GroupHandle> group,
                                                            const RendezvousInfo& info,
                                                            uint64_t owned_tensor) {
  auto tensor = std::make_shared<TensorHandle>();
  tensor->group_ = std::move(group);
  tensor->owned_tensor_ = owned_tensor;
  size_t world = static_cast<size_t>(tensor->group_->world_size());
  auto inside = [&](uint64_t offset, uint64_t bytes) {
    return offset <= info.segment_bytes && bytes <= info.segment_bytes - offset;
  };
  if (info.segments.size() != world || info.segment_ids.size() != world ||
      info.rank != tensor->group_->rank() || !inside(info.buffer_offset, info.buffer_bytes) ||
      !inside(info.pad_offset, info.pad_bytes)) {
    return Internal("the daemon's answer to the rendezvous does not fit the group");
  }
  const std::shared_ptr<ClientSession>& session = tensor->group_->session();
  TANDEM_ASSIGN_OR_RETURN(tensor->device_, session->device());
  for (size_t i = 0; i < world; ++i) {
    TANDEM_ASSIGN_OR_RETURN(
        std::shared_ptr<DeviceMapping> mapping,
        session->segments().Map(tensor->device(), tensor->group_->gpu_uuid(), info.segment_ids[i],
                                info.segments[i].get(), info.segment_bytes));
    tensor->segments_.push_back(std::move(mapping));
  }
  tensor->registration_id_ = info.registration_id;
  tensor->rank_ = info.rank;
  tensor->bytes_ = info.buffer_bytes;
  tensor->buffer_offset_ = info.buffer_offset;
  tensor->pad_offset_ = info.pad_offset;
  tensor->pad_bytes_ = info.pad_bytes;
  UsageLedger& memory = session->memory();
  const uint64_t group_id = tensor->group_->id();
  tensor->counted_.push_back(memory.Hold(MemoryKind::kSymmetric, group_id, tensor->data(), tensor->bytes_));
  for (size_t i = 0; i < world; ++i) {
    const DeviceMapping& segment = *tensor->segments_[i];
    const bool is_own = static_cast<int>(i) == tensor->rank_;
    tensor->counted_.push_back(memory.Hold(is_own ? MemoryKind::kSegment : MemoryKind::kPeer, group_id,
                                           segment.data(), segment.bytes()));
  }
  session->registrations().Add(tensor->data(), tensor->bytes_, tensor->gpu_uuid(), tensor->group_->id(),
                               tensor->registration_id_, tensor->group_->name());
  tensor->group_->AddTensor(tensor);
  return std::shared_ptr<SymmetricTensor>(std::move(tensor));
}

TensorHandle::~TensorHandle() {
  IgnoreExceptions([&] {
    if (registration_id_ != 0) group_->session()->registrations().Remove(data(), registration_id_);
    if (owned_tensor_ != 0 && group_->session()->CanCallDaemon())
      (void)group_->session()->control().Free(owned_tensor_);
  });
}

Status TensorHandle::SaveContents() {
  auto saved = std::make_unique<Contents>();
  const std::string& gpu = group_->gpu_uuid();
  saved->buffer.resize(bytes_);
  TANDEM_RETURN_IF_ERROR(device().CopyNow(gpu, saved->buffer.data(), data(), bytes_));
  saved->pad.resize(pad_bytes_);
  const std::byte* const pad = segments_[static_cast<size_t>(rank_)]->data() + pad_offset_;
  TANDEM_RETURN_IF_ERROR(device().CopyNow(gpu, saved->pad.data(), pad, pad_bytes_));
  saved_ = std::move(saved);
  return Status::Ok();
}

Status TensorHandle::RestoreContents() {
  if (saved_ == nullptr) return Status::Ok();
  const std::string& gpu = group_->gpu_uuid();
  TANDEM_RETURN_IF_ERROR(device().CopyNow(gpu, data(), saved_->buffer.data(), bytes_));
  std::byte* const pad = segments_[static_cast<size_t>(rank_)]->data() + pad_offset_;
  return device().CopyNow(gpu, pad, saved_->pad.data(), pad_bytes_);
}

Status TensorHandle::CheckPeer(int peer) const {
  // A forked child has none of the mappings.
  TANDEM_RETURN_IF_ERROR(group_->session()->CheckUsable());
  if (peer >= 0 && peer < world_size()) return Status::Ok();
  return OutOfRange("rank " + std::to_string(peer) + " is not in 0.." + std::to_string(world_size() - 1));
}

Result<std::byte*> TensorHandle::GetBuffer(int peer, const std::vector<int64_t>& shape, DType dtype,
                                           size_t offset_bytes) const try {
  TANDEM_RETURN_IF_ERROR(CheckPeer(peer));
  TANDEM_ASSIGN_OR_RETURN(int64_t elements, ElementCount(shape));
  size_t bytes = static_cast<size_t>(elements) * DTypeBytes(dtype);
  if (offset_bytes > bytes_ || bytes > bytes_ - offset_bytes) {
    return OutOfRange(std::to_string(bytes) + " bytes from offset " + std::to_string(offset_bytes) +
                      " reach beyond the tensor's " + std::to_string(bytes_));
  }
  return Buffer(peer) + offset_bytes;
}
TANDEM_CATCH_TO_STATUS

std::span<uint32_t> TensorHandle::SignalPad(int peer) const {
  bool exists = false;
  IgnoreExceptions([&] { exists = CheckPeer(peer).ok(); });
  if (!exists) return {};
  return {reinterpret_cast<uint32_t*>(segments_[static_cast<size_t>(peer)]->data() + pad_offset_),
          pad_bytes_ / sizeof(uint32_t)};
}

int TensorHandle::channels() const { return static_cast<int>(pad_bytes_ / sizeof(uint32_t)) / world_size(); }

Status TensorHandle::CheckSignal(int peer, int channel) const {
  TANDEM_RETURN_IF_ERROR(CheckPeer(peer));
  if (channel >= 0 && channel < channels()) return Status::Ok();
  return OutOfRange("channel " + std::to_string(channel) + " is not in 0.." + std::to_string(channels() - 1));
}

uint32_t* TensorHandle::SignalWord(int to, int from, int channel) const {
  return SignalPad(to).data() + from * channels() + channel;
}

Result<bool> TensorHandle::Exchange(uint32_t* word, uint32_t from, uint32_t to,
                                    Clock::time_point deadline) const {
  PollBackoff backoff;
  while (true) {
    TANDEM_ASSIGN_OR_RETURN(bool done, device().Exchange32(group_->gpu_uuid(), word, from, to, deadline));
    if (done) return true;
    TANDEM_RETURN_IF_ERROR(CheckCancelled());
    TANDEM_RETURN_IF_ERROR(group_->session()->CheckLaunchable());
    TANDEM_RETURN_IF_ERROR(group_->state()->Broken());
    if (Clock::now() >= deadline) return false;
    backoff.Pause();
  }
}

Status TensorHandle::PutSignal(int peer, int channel, Milliseconds timeout) try {
  TANDEM_RETURN_IF_ERROR(CheckSignal(peer, channel));
  TANDEM_ASSIGN_OR_RETURN(bool put,
                          Exchange(SignalWord(peer, rank_, channel), 0, 1, Clock::now() + Bounded(timeout)));
  if (put) return Status::Ok();
  return DeadlineExceeded("rank " + std::to_string(peer) + " has not taken the last signal on channel " +
                          std::to_string(channel))
      .WithDetail({.reason = "RANK_LATE",
                   .who = "rank " + std::to_string(peer),
                   .ranks = {static_cast<uint32_t>(peer)}});
}
TANDEM_CATCH_TO_STATUS

Status TensorHandle::WaitSignal(int peer, int channel, Milliseconds timeout) try {
  TANDEM_RETURN_IF_ERROR(CheckSignal(peer, channel));
  TANDEM_ASSIGN_OR_RETURN(bool got,
                          Exchange(SignalWord(rank_, peer, channel), 1, 0, Clock::now() + Bounded(timeout)));
  if (got) return Status::Ok();
  return DeadlineExceeded("no signal from rank " + std::to_string(peer) + " on channel " +
                          std::to_string(channel))
      .WithDetail({.reason = "RANK_LATE",
                   .who = "rank " + std::to_string(peer),
                   .ranks = {static_cast<uint32_t>(peer)}});
}
TANDEM_CATCH_TO_STATUS

Status TensorHandle::Barrier(int channel, Milliseconds timeout) try {
  TANDEM_RETURN_IF_ERROR(CheckSignal(rank_, channel));
  BarrierProgress progress;
  {
    std::lock_guard lock(barriers_mutex_);
    if (const auto begun = barriers_.find(channel); begun != barriers_.end()) progress = begun->second;
  }
  Status met = MeetAll(channel, Clock::now() + Bounded(timeout), &progress);
  std::lock_guard lock(barriers_mutex_);
  if (met.ok()) {
    barriers_.erase(channel);
  } else {
    barriers_[channel] = progress;
  }
  return met;
}
TANDEM_CATCH_TO_STATUS

Status TensorHandle::MeetAll(int channel, Clock::time_point deadline, BarrierProgress* progress) {
  for (int step = 1; step < world_size(); ++step) {
    const int peer = (rank_ + step) % world_size();
    const uint32_t bit = 1u << peer;
    if ((progress->put & bit) != 0) continue;
    TANDEM_ASSIGN_OR_RETURN(bool put, Exchange(SignalWord(peer, rank_, channel), 0, 1, deadline));
    if (put) progress->put |= bit;
  }
  for (int step = 1; step < world_size(); ++step) {
    const int peer = (rank_ + step) % world_size();
    const uint32_t bit = 1u << peer;
    if ((progress->put & bit) == 0 || (progress->got & bit) != 0) continue;
    TANDEM_ASSIGN_OR_RETURN(bool got, Exchange(SignalWord(rank_, peer, channel), 1, 0, deadline));
    if (got) progress->got |= bit;
  }
  std::vector<uint32_t> missing;
  std::string names;
  for (int peer = 0; peer < world_size(); ++peer) {
    if (peer == rank_ || (progress->got & (1u << peer)) != 0) continue;
    missing.push_back(static_cast<uint32_t>(peer));
    names += (names.empty() ? "rank " : ", rank ") + std::to_string(peer);
  }
  if (missing.empty()) return Status::Ok();
  return DeadlineExceeded("did not come to the barrier on channel " + std::to_string(channel) + ": " + names)
      .WithDetail({.reason = "RANK_LATE", .who = names, .ranks = std::move(missing)});
}

Result<uint32_t*> TensorHandle::Words(int peer, size_t offset_bytes, size_t count) const {
  TANDEM_RETURN_IF_ERROR(CheckPeer(peer));
  if (offset_bytes % sizeof(uint32_t) != 0) return InvalidArgument("the offset is not a multiple of 4");
  if (offset_bytes > bytes_ || count > (bytes_ - offset_bytes) / sizeof(uint32_t)) {
    return OutOfRange(std::to_string(count) + " words from offset " + std::to_string(offset_bytes) +
                      " reach beyond the tensor's " + std::to_string(bytes_) + " bytes");
  }
  return reinterpret_cast<uint32_t*>(Buffer(peer) + offset_bytes);
}

Status TensorHandle::StreamWriteValue32(StreamRef ref, int peer, size_t offset_bytes, uint32_t value) try {
  TANDEM_ASSIGN_OR_RETURN(uint32_t * word, Words(peer, offset_bytes, 1));
  LaunchStreamStorage storage;
  TANDEM_ASSIGN_OR_RETURN(LaunchStream * stream, device().Open(ref, group_->gpu_uuid(), &storage));
  return stream->Write32(segments_[static_cast<size_t>(peer)], word, value);
}
TANDEM_CATCH_TO_STATUS

Status TensorHandle::Memset32(StreamRef ref, int peer, size_t offset_bytes, uint32_t value,
                              size_t count) try {
  TANDEM_ASSIGN_OR_RETURN(uint32_t * words, Words(peer, offset_bytes, count));
  LaunchStreamStorage storage;
  TANDEM_ASSIGN_OR_RETURN(LaunchStream * stream, device().Open(ref, group_->gpu_uuid(), &storage));
  // The segment, not the handle, is kept: a handle's end talks to the daemon, which a stream must not wait
  // for.
  return stream->Memset32(segments_[static_cast<size_t>(peer)], words, value, count);
}
TANDEM_CATCH_TO_STATUS

}  // namespace tandem::client
