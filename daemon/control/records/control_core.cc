#include "daemon/control/records/control_core.h"

#include <mutex>

#include "daemon/control/base/blame.h"
#include "daemon/control/base/capabilities.h"

namespace tandem::daemon {
void ControlCore::Log(LogSeverity severity, const std::string& text) const {
  if (options.log) options.log(severity, text);
}

void ControlCore::LogOf(std::optional<uint32_t> uid, LogSeverity severity, const std::string& text) const {
  if (options.log_of) {
    options.log_of(uid, severity, text);
  } else {
    Log(severity, text);
  }
}

Result<int> ControlCore::FindGpu(const std::string& uuid) const {
  Result<int> gpu = options.topology.Find(uuid);
  if (!gpu.ok()) return gpu.status().WithDetail({.reason = "NO_GPU", .who = {}, .field = "gpu_uuid"});
  return gpu;
}

Result<int> ControlCore::FindGpu(const SessionRecord& session, const std::string& uuid) const {
  Result<int> gpu = FindGpu(uuid);
  if (!gpu.ok() || !session.gpus.has_value() || session.gpus->contains(*gpu)) return gpu;
  return PermissionDenied("the node's rules do not admit this process to GPU " + uuid)
      .WithDetail({.reason = "GPU_NOT_ALLOWED", .who = {}, .field = "gpu_uuid"});
}

Result<int> ControlCore::UseGpu(SessionRecord& session, const std::string& uuid) {
  TANDEM_ASSIGN_OR_RETURN(const int gpu, FindGpu(session, uuid));
  RegistryLock lock(registry);
  registry.UseEngine(session, gpu);
  if (registry.GenerationOf(gpu) == 0) engines.Wake(gpu);
  return gpu;
}

void ControlCore::KeepAnEngine(SessionRecord& session) {
  if (options.restart_grace.count() == 0 || registry.engine_uses.empty()) return;
  const int gpu = session.gpus.has_value() && !session.gpus->empty() ? *session.gpus->begin() : 0;
  registry.UseEngine(session, gpu);
  if (registry.GenerationOf(gpu) == 0) engines.Wake(gpu);
}

Result<std::optional<std::set<int>>> ControlCore::AllowedGpus(const PeerIdentity& peer) const {
  if (options.allow.empty()) return std::optional<std::set<int>>();
  for (const AllowRule& rule : options.allow) {
    if (rule.Fits(peer.uid, peer.gid, peer.cgroup)) return rule.gpus;
  }
  return PermissionDenied("the node's rules admit neither uid " + std::to_string(peer.uid) + " nor gid " +
                          std::to_string(peer.gid) + " nor cgroup " + peer.cgroup)
      .WithDetail({.reason = "NOT_ALLOWED", .who = "uid " + std::to_string(peer.uid), .field = {}});
}

Status ControlCore::CheckCrashLoop(int gpu) const {
  const EngineStatus status = engines.StatusOf(gpu);
  if (status.state != EngineState::kCrashLooped) return Status::Ok();
  const std::string name = std::to_string(gpu);
  return Status(Code::kUnavailable,
                "the engine of GPU " + name + " is held down after a crash loop" +
                    (status.last_exit.empty() ? "" : " (last end: " + status.last_exit + ")") +
                    "; find the cause in tandemd's log, then start it again: tandemctl reset " + name,
                BlameGpu("ENGINE_CRASH_LOOPED", gpu));
}

std::function<void(const std::string&)> ControlCore::IllegalTransitionHandler() const {
  return [this](const std::string& text) {
    Log(LogSeverity::kError, "defect: " + text);
    if (options.illegal_transition) options.illegal_transition(text);
  };
}

Status ControlCore::SendDescriptors(uint64_t session_id, uint64_t transfer_id,
                                    const std::vector<SharedFd>& fds) const {
  std::shared_lock lock(lease_port_mutex_);
  if (lease_port_ == nullptr) return Internal("no lease socket");
  return lease_port_->Send(session_id, transfer_id, fds);
}

void ControlCore::CloseLease(uint64_t session_id, const Status& why) const {
  std::shared_lock lock(lease_port_mutex_);
  if (lease_port_ != nullptr) lease_port_->Close(session_id, why);
}

void ControlCore::SetLeasePort(LeasePort* port) {
  std::lock_guard lock(lease_port_mutex_);
  lease_port_ = port;
}

GpuSharing ControlCore::GpuSharingOf(const GroupRecord& group) const {
  std::vector<RankSharing> ranks;
  for (size_t rank = 0; rank < group.members.size(); ++rank) {
    const MemberRecord& member = group.members[rank];
    ranks.push_back({"rank " + std::to_string(rank), member.session->mps, engines.StatusOf(member.gpu).mps});
  }
  return DescribeGpuSharing(SharedCapabilities(engines, group.gpus).on_gpu, ranks);
}

}  // namespace tandem::daemon
