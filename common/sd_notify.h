// File: sd_notify.h
//
// Reports of a service to systemd: readiness, a status line, the watchdog's heartbeat, the stop. They do
// nothing when the process was not started by systemd (NOTIFY_SOCKET is not set). Thread-safe.
#pragma once

#include <chrono>
#include <string>

namespace tandem {

// Opens the socket that all reports use. Call it at the start: a process that has no descriptor left later
// reports all the same. The first report calls it otherwise.
void OpenNotifySocket();
// READY=1 with a status line.
void NotifyReady(const std::string& status);
// RELOADING=1. NotifyReady ends it.
void NotifyReloading();
// The line that `systemctl status` shows.
void NotifyStatus(const std::string& status);
// STOPPING=1.
void NotifyStopping(const std::string& status);
// WATCHDOG=1.
void NotifyAlive();
// The service's WatchdogSec, or 0 if it has none.
std::chrono::microseconds WatchdogInterval();

}  // namespace tandem
