#include "common/sd_notify.h"

#include <systemd/sd-daemon.h>
#include <time.h>

#include <cstdint>
#include <string>

#include "common/log.h"

namespace tandem {

void NotifyReady(const std::string& status) {
  sd_notify(0, ("READY=1\nSTATUS=" + log::OneLine(status)).c_str());
}

void NotifyReloading() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  const uint64_t us =
      static_cast<uint64_t>(now.tv_sec) * 1'000'000 + static_cast<uint64_t>(now.tv_nsec) / 1000;
  sd_notify(0, ("RELOADING=1\nMONOTONIC_USEC=" + std::to_string(us)).c_str());
}

void NotifyStatus(const std::string& status) { sd_notify(0, ("STATUS=" + log::OneLine(status)).c_str()); }

void NotifyStopping(const std::string& status) {
  sd_notify(0, ("STOPPING=1\nSTATUS=" + log::OneLine(status)).c_str());
}

void NotifyAlive() { sd_notify(0, "WATCHDOG=1"); }

std::chrono::microseconds WatchdogInterval() {
  uint64_t interval = 0;
  if (sd_watchdog_enabled(0, &interval) <= 0) return std::chrono::microseconds(0);
  return std::chrono::microseconds(interval);
}

}  // namespace tandem
