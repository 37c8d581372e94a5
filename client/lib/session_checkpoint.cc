// ClientSession: checkpoints of the process, which end its connections (docs/suspend.md).
#include <sys/mman.h>

#include <cerrno>
#include <cstring>

#include "client/lib/session.h"
#include "common/shared_memory.h"

namespace tandem::client {
namespace {

// Maps `fd` in place of the memory at `data`, which a restored process has a copy of alone. `keep`: what the copy holds is
// right, and goes to the file first; else the file's contents are.
Status ShareAgain(std::byte* data, size_t bytes, int fd, bool keep) {
  TANDEM_ASSIGN_OR_RETURN(const size_t size, FileSize(fd));
  if (size < bytes) return Internal("the daemon sent memory shorter than that before");
  if (keep) {
    TANDEM_ASSIGN_OR_RETURN(const Mapping file, Mapping::Map(fd, 0, bytes, true));
    std::memmove(file.data(), data, bytes);
  }
  void* const mapped = ::mmap(data, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0);
  if (mapped == MAP_FAILED) return SystemError("mmap", errno);
  if (::madvise(data, bytes, MADV_DONTFORK) != 0) return SystemError("madvise", errno);
  return Status::Ok();
}

}  // namespace

Status ClientSession::CheckpointedError() {
  return FailedPrecondition("the session has been left to a restored process: EndCheckpoint takes it back")
      .WithDetail({.reason = "CHECKPOINTED"});
}

Status ClientSession::BeginCheckpoint(Milliseconds deadline) {
  std::lock_guard lock(checkpoint_mutex_);
  if (is_checkpointed_.load()) return Status::Ok();
  TANDEM_RETURN_IF_ERROR(CheckLaunchable());
  // Streams open them again.
  ReapAll();
  CloseIdleChannels();
  SweepRegistrations();
  is_checkpointed_.store(true, std::memory_order_release);
  Status begun = control_->BeginCheckpoint(deadline);
  if (!begun.ok()) is_checkpointed_.store(false, std::memory_order_release);
  return begun;
}

Status ClientSession::ShareMemoryAgain() {
  const std::vector<Registrations::Memory> memories = registrations_.OwnMemories();
  std::vector<uint64_t> ids;
  ids.reserve(memories.size());
  for (const auto& memory : memories) ids.push_back(memory.registration_id);
  if (!ids.empty()) {
    TANDEM_ASSIGN_OR_RETURN(const std::vector<UniqueFd> fds, control_->TakeShared(ids, {}));
    for (size_t i = 0; i < ids.size(); ++i)
      TANDEM_RETURN_IF_ERROR(ShareAgain(memories[i].data, memories[i].bytes, fds[i].get(), true));
  }
  for (const auto& group : ClientGroups()) {
    const Result<std::vector<UniqueFd>> fds = control_->TakeShared({}, {group->id()});
    if (fds.status().code() == Code::kNotFound) continue;  // the group is over, and Resume says why
    TANDEM_RETURN_IF_ERROR(fds.status());
    auto* const page = reinterpret_cast<std::byte*>(group->page().layout());
    TANDEM_RETURN_IF_ERROR(ShareAgain(page, kVerdictPageBytes, (*fds)[0].get(), false));
  }
  return Status::Ok();
}

Status ClientSession::EndCheckpoint(Milliseconds deadline) {
  TANDEM_RETURN_IF_ERROR(fork_guard_.Check());
  std::lock_guard lock(checkpoint_mutex_);
  if (!is_checkpointed_.load()) return Status::Ok();
  TANDEM_RETURN_IF_ERROR(control_->EndCheckpoint(deadline));
  TANDEM_RETURN_IF_ERROR(ShareMemoryAgain());
  is_checkpointed_.store(false, std::memory_order_release);
  return Status::Ok();
}

}  // namespace tandem::client
