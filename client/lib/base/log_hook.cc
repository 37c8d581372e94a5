#include "client/lib/base/log_hook.h"

#include <cstddef>
#include <mutex>
#include <new>
#include <string>

namespace tandem::client {
namespace {

// Above every severity.
constexpr int kNobody = 4;

// The callback runs on this thread.
thread_local bool t_in_callback = false;

void WritePluginsLine(int severity, const char* text) {
  LogHook::Get().Write(static_cast<ClientLogLevel>(severity), text);
}

const char* NameOfEvent(ClientEvent::Kind kind) {
  switch (kind) {
    case ClientEvent::Kind::kRankLost: return "rank_lost";
    case ClientEvent::Kind::kGroupBroken: return "group_broken";
    case ClientEvent::Kind::kRankLeft: return "rank_left";
    case ClientEvent::Kind::kEngineRestarted: return "engine_restarted";
    case ClientEvent::Kind::kDraining: return "draining";
    case ClientEvent::Kind::kLate: return "late";
    case ClientEvent::Kind::kDaemonLost: return "daemon_lost";
    case ClientEvent::Kind::kPlanWarning: return "plan_warning";
    case ClientEvent::Kind::kGroupStalled: return "group_stalled";
    case ClientEvent::Kind::kSuspendRequested: return "suspend_requested";
    case ClientEvent::Kind::kResumeRequested: return "resume_requested";
  }
  return "event";
}

ClientLogLevel SeverityOf(ClientEvent::Kind kind) {
  if (kind == ClientEvent::Kind::kDaemonLost) return ClientLogLevel::kError;
  return kind == ClientEvent::Kind::kRankLeft ? ClientLogLevel::kInfo : ClientLogLevel::kWarning;
}

}  // namespace

LogHook::LogHook() {
  plugin_.write = &WritePluginsLine;
  plugin_.least = kNobody;
}

LogHook& LogHook::Get() {
  // Callers have no way to fail: it needs no memory, and outlives the last thread.
  alignas(LogHook) static std::byte storage[sizeof(LogHook)];
  static auto* const hook = new (storage) LogHook;
  return *hook;
}

Status LogHook::Set(std::function<void(ClientLogLevel, std::string_view)> callback, ClientLogLevel least) {
  if (t_in_callback) return FailedPrecondition("the log's callback must not set another one");
  const int wanted = callback ? static_cast<int>(least) : kNobody;
  {
    const std::unique_lock lock(mutex_);
    callback_.swap(callback);
    plugin_.least.store(wanted, std::memory_order_relaxed);
    Tell();
  }
  return Status::Ok();
}

void LogHook::TellPlugin() {
  const std::unique_lock lock(mutex_);
  Tell();
}

void LogHook::Tell() const {
  const int least = plugin_.least.load(std::memory_order_relaxed);
  if (auto* const follow = plugin_.follow.load(std::memory_order_acquire)) follow(least == kNobody, least);
}

void LogHook::Write(ClientLogLevel severity, std::string_view text) noexcept {
  if (!Wants(severity) || t_in_callback) return;
  IgnoreExceptions([&] {
    const std::shared_lock lock(mutex_);
    if (!callback_ || !Wants(severity)) return;
    t_in_callback = true;
    IgnoreExceptions([&] { callback_(severity, text); });
    t_in_callback = false;
  });
}

void LogEvent(const ClientEvent& event) noexcept {
  LogLine(SeverityOf(event.kind), [&] {
    std::string text = NameOfEvent(event.kind);
    if (event.group_id != 0) text += ", group " + std::to_string(event.group_id);
    if (event.rank >= 0) text += ", rank " + std::to_string(event.rank);
    return event.status.ok() ? text : text + ": " + event.status.ToString();
  });
}

}  // namespace tandem::client

namespace tandem {

Status SetLogCallback(std::function<void(ClientLogLevel, std::string_view)> callback,
                      ClientLogLevel least) try {
  return client::LogHook::Get().Set(std::move(callback), least);
}
TANDEM_CATCH_TO_STATUS

}  // namespace tandem
