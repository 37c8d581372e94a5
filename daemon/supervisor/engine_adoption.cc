#include "daemon/supervisor/engine_adoption.h"

#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "common/fd_socket.h"

namespace tandem::daemon {
namespace {

using Clock = std::chrono::steady_clock;
using engine::v1::Message;

constexpr size_t kNodeDescriptors = 3;

// Sets or, with 0, takes away the longest wait of a read.
void LimitReads(int socket, std::chrono::milliseconds limit) {
  const timeval time{limit.count() / 1000, (limit.count() % 1000) * 1000};
  ::setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof(time));
}

void Describe(const engine::v1::Inventory& inventory, AdoptedEngine* engine) {
  engine->build = inventory.build();
  engine->versions.insert(inventory.versions().begin(), inventory.versions().end());
  engine->start = inventory.start();
  engine->ready = inventory.ready();
  engine->pid = inventory.ready().pid();
  EngineHoldings& holdings = engine->holdings;
  holdings.generation = inventory.start().generation();
  holdings.segments.insert(inventory.segments().begin(), inventory.segments().end());
  holdings.registrations.insert(inventory.registrations().begin(), inventory.registrations().end());
  holdings.channels.insert(inventory.channels().begin(), inventory.channels().end());
  for (const engine::v1::HeldGroup& group : inventory.groups()) {
    EngineHoldings::HeldGroup& to = holdings.groups[group.group_id()];
    to.generation = group.generation();
    to.plans.insert(group.plans().begin(), group.plans().end());
    to.workspace = group.workspace();
  }
}

Status Take(Message& message, std::vector<UniqueFd> fds, AdoptedEngine* engine) {
  const bool begun = engine->pid != 0;
  if (message.has_inventory() && !begun) {
    if (fds.size() != kNodeDescriptors)
      return Internal("its inventory has " + std::to_string(fds.size()) + " descriptors");
    Describe(message.inventory(), engine);
    engine->order_log = std::move(fds[0]);
    engine->stats_area = std::move(fds[1]);
    engine->journal = std::move(fds[2]);
    return Status::Ok();
  }
  if (message.has_held() && begun) {
    auto& held = engine->holdings.fds[{message.held().kind(), message.held().id()}];
    for (UniqueFd& fd : fds) held.push_back(std::make_shared<const UniqueFd>(std::move(fd)));
    return Status::Ok();
  }
  return Internal("its inventory is out of order");
}

}  // namespace

std::string SuccessorSocketPath(const std::string& admin_directory, int gpu) {
  return admin_directory + "/engine-" + std::to_string(gpu) + ".sock";
}

Result<std::optional<AdoptedEngine>> AdoptEngine(const std::string& path,
                                                 std::chrono::milliseconds deadline) {
  Result<UniqueFd> socket = ConnectSeqpacket(path);
  if (!socket.ok()) return std::optional<AdoptedEngine>();
  const auto until = Clock::now() + deadline;
  AdoptedEngine engine;
  engine.socket = *std::move(socket);
  while (true) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now());
    if (left.count() <= 0)
      return DeadlineExceeded("the engine at " + path + " has not sent all that it holds");
    LimitReads(engine.socket.get(), left);
    Result<FdMessage> packet = ReceiveMessage(engine.socket.get());
    if (!packet.ok()) {
      if (packet.status().detail().reason == "WOULD_BLOCK") continue;
      // It has ended meanwhile, or its listener outlived it in somebody else's hands.
      return std::optional<AdoptedEngine>();
    }
    Message message;
    if (!message.ParseFromString(packet->body))
      return Internal("the engine at " + path + " sent a malformed message");
    if (message.has_inventory_end() && engine.pid != 0) break;
    TANDEM_RETURN_IF_ERROR(
        Take(message, std::move(packet->fds), &engine).WithContext("the engine at " + path));
  }
  LimitReads(engine.socket.get(), std::chrono::milliseconds(0));
  engine.pidfd.Reset(static_cast<int>(::syscall(SYS_pidfd_open, engine.pid, 0)));
  if (!engine.pidfd.valid()) {
    if (errno == ESRCH) return std::optional<AdoptedEngine>();
    return SystemError("pidfd_open", errno);
  }
  return std::optional<AdoptedEngine>(std::move(engine));
}

void EndEngines(std::vector<AdoptedEngine> engines, std::chrono::milliseconds grace) {
  for (const AdoptedEngine& engine : engines) {
    engine::v1::Command stop;
    stop.mutable_stop();
    SendMessage(engine.socket.get(), stop.SerializeAsString(), {}, false).ok();
  }
  const auto until = Clock::now() + grace;
  for (const AdoptedEngine& engine : engines) {
    pollfd ended{engine.pidfd.get(), POLLIN, 0};
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now());
    if (::poll(&ended, 1, static_cast<int>(std::max<int64_t>(left.count(), 0))) == 0) {
      ::syscall(SYS_pidfd_send_signal, engine.pidfd.get(), SIGKILL, nullptr, 0);
      ::poll(&ended, 1, static_cast<int>(grace.count()));
    }
  }
}

}  // namespace tandem::daemon
