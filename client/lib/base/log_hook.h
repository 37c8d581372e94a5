// File: log_hook.h
//
// `LogHook`: where the library's lines go. Thread-safe. One a process, never destroyed, since threads of gRPC
// may write until the process ends.
#pragma once

#include <atomic>
#include <functional>
#include <shared_mutex>
#include <string_view>
#include <utility>

#include "client/lib/base/control_api.h"
#include "common/exceptions.h"
#include "tandem/log.h"

namespace tandem::client {

class LogHook {
 public:
  static LogHook& Get();
  // See SetLogCallback.
  Status Set(std::function<void(ClientLogLevel, std::string_view)> callback, ClientLogLevel least);
  bool Wants(ClientLogLevel severity) const {
    return static_cast<int>(severity) >= plugin_.least.load(std::memory_order_relaxed);
  }
  // Drops the line where nobody wants it, and where the callback has caused it.
  void Write(ClientLogLevel severity, std::string_view text) noexcept;
  // For the gRPC plugin.
  PluginLog& plugin() { return plugin_; }
  // Once the plugin has been loaded: it hears what is wanted.
  void TellPlugin();

 private:
  LogHook();
  void Tell() const;  // `mutex_` is held

  std::shared_mutex mutex_;  // shared while the callback runs
  std::function<void(ClientLogLevel, std::string_view)> callback_;
  PluginLog plugin_;
};

// Writes the text that `make` returns, if anybody wants it.
template <typename MakeText>
void LogLine(ClientLogLevel severity, MakeText&& make) noexcept {
  if (!LogHook::Get().Wants(severity)) return;
  IgnoreExceptions([&] { LogHook::Get().Write(severity, std::forward<MakeText>(make)()); });
}

// An event: "group_stalled, group 3, rank 1: …".
void LogEvent(const ClientEvent& event) noexcept;

}  // namespace tandem::client
