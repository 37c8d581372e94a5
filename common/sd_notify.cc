#include "common/sd_notify.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <systemd/sd-daemon.h>
#include <time.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>

#include "common/log.h"
#include "common/unique_fd.h"

namespace tandem {
namespace {

// systemd's socket, which NOTIFY_SOCKET names, and this process's end.
class NotifySocket {
 public:
  NotifySocket() {
    const char* name = std::getenv("NOTIFY_SOCKET");
    if (name == nullptr || *name == 0) return;
    const std::string path = name;
    if ((path[0] != '/' && path[0] != '@') || path.size() >= sizeof(address_.sun_path)) {
      log::Warning("NOTIFY_SOCKET=" + log::FieldValue(path) + " is no Unix socket: systemd gets no reports");
      return;
    }
    address_.sun_family = AF_UNIX;
    path.copy(address_.sun_path, path.size());
    if (path[0] == '@') address_.sun_path[0] = 0;
    length_ =
        static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size() + (path[0] == '/' ? 1 : 0));
    socket_ = UniqueFd(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    if (!socket_.valid())
      log::Error("no socket for reports to systemd: " + std::string(std::strerror(errno)));
  }

  void Send(const std::string& text) {
    if (!socket_.valid()) return;
    const bool sent = ::sendto(socket_.get(), text.data(), text.size(), MSG_NOSIGNAL,
                               reinterpret_cast<const sockaddr*>(&address_), length_) >= 0;
    // systemd ends a service whose heartbeats it misses: the log has the cause, once.
    const std::string why = sent ? "" : std::strerror(errno);
    if (failing_.exchange(!sent) == !sent) return;
    if (sent) {
      log::Info("systemd gets reports again");
    } else {
      log::Error("systemd does not get this service's reports: " + why);
    }
  }

 private:
  sockaddr_un address_{};
  socklen_t length_ = 0;
  UniqueFd socket_;
  std::atomic<bool> failing_ = false;
};

NotifySocket& TheSocket() {
  static NotifySocket socket;
  return socket;
}

}  // namespace

void OpenNotifySocket() { (void)TheSocket(); }

void NotifyReady(const std::string& status) { TheSocket().Send("READY=1\nSTATUS=" + log::OneLine(status)); }

void NotifyReloading() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  const uint64_t us =
      static_cast<uint64_t>(now.tv_sec) * 1'000'000 + static_cast<uint64_t>(now.tv_nsec) / 1000;
  TheSocket().Send("RELOADING=1\nMONOTONIC_USEC=" + std::to_string(us));
}

void NotifyStatus(const std::string& status) { TheSocket().Send("STATUS=" + log::OneLine(status)); }

void NotifyStopping(const std::string& status) {
  TheSocket().Send("STOPPING=1\nSTATUS=" + log::OneLine(status));
}

void NotifyAlive() { TheSocket().Send("WATCHDOG=1"); }

std::chrono::microseconds WatchdogInterval() {
  uint64_t interval = 0;
  if (sd_watchdog_enabled(0, &interval) <= 0) return std::chrono::microseconds(0);
  return std::chrono::microseconds(interval);
}

}  // namespace tandem
