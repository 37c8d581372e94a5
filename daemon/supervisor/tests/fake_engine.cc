// An engine program that answers the protocol and does nothing, or misbehaves as the file beside its socket
// asks. The GPU's UUID in Start names the way ("crash_at_start", "never_ready", "garbage", "exit_3_on_ping",
// "hang_on_stop", …).
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <string>

#include "common/fd_socket.h"
#include "common/shared_memory.h"
#include "tandem/engine/v1/engine.pb.h"

using tandem::engine::v1::Command;
using tandem::engine::v1::Message;

namespace {

void Send(int socket, const Message& message, const std::vector<int>& fds = {}) {
  if (!tandem::SendMessage(socket, message.SerializeAsString(), fds).ok()) std::_Exit(7);
}

bool EndsWith(const char* text, const std::string& end) {
  return text != nullptr && std::string(text).ends_with(end);
}

void Acknowledge(int socket, uint64_t id, int code = 0, const std::string& text = "",
                 const std::string& reason = "") {
  Message message;
  message.mutable_ack()->set_id(id);
  message.mutable_ack()->set_code(code);
  message.mutable_ack()->set_message(text);
  message.mutable_ack()->set_reason(reason);
  Send(socket, message);
}

// Has this process held at its end, SIGKILL or not, until somebody opens the FIFO `path` for writing: by a
// tracer, which keeps what it traces from ending. False if the system lets nobody trace it.
bool HoldAtTheEnd(const char* path) {
  int reported[2];
  if (path == nullptr || ::pipe2(reported, O_CLOEXEC) != 0) return false;
  const pid_t self = ::getpid();
  ::prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
  if (::fork() == 0) {
    const char held = ::ptrace(PTRACE_SEIZE, self, nullptr, PTRACE_O_TRACEEXIT) == 0 ? 1 : 0;
    if (::write(reported[1], &held, 1) != 1 || held == 0) std::_Exit(0);
    for (int fd = 0; fd < 256; ++fd) ::close(fd);  // the socket is the traced process's own
    ::waitpid(self, nullptr, __WALL);
    (void)::open(path, O_RDONLY | O_CLOEXEC);
    ::ptrace(PTRACE_DETACH, self, nullptr, nullptr);
    std::_Exit(0);
  }
  char held = 0;
  return ::read(reported[0], &held, 1) == 1 && held != 0;
}

constexpr int kGoOn = -1;

// Answers Start, which came with so many descriptors, as `mode` says. The exit code, or kGoOn.
int Start(int socket, const Command& command, const std::string& mode, size_t descriptors) {
  if (descriptors != 2) return 67;
  if (mode == "crash_at_start") return 3;
  if (mode == "crash_first_time" && command.start().generation() == 1) return 3;
  if (mode == "abort_at_start") std::abort();
  if (mode == "blocked" || (mode == "blocked_at_first" && command.start().generation() <= 4) ||
      (mode == "needs_spare" && !EndsWith(std::getenv("CUDA_MPS_PIPE_DIRECTORY"), "/spare"))) {
    Acknowledge(socket, command.id(), 14, "cuInit: the MPS server is not ready",
                "CUDA_ERROR_MPS_SERVER_NOT_READY");
    return kGoOn;
  }
  if (mode == "environment") {  // what it was given stands beside what it has inherited
    const char* given = std::getenv("TANDEM_FAKE_GIVEN");
    const char* inherited = std::getenv("TANDEM_FAKE_INHERITED");
    if (given == nullptr || std::strcmp(given, "new") != 0 || inherited == nullptr) return 69;
  }
  if (mode == "never_ready") return kGoOn;
  if (mode == "held_at_the_end" && !HoldAtTheEnd(std::getenv("TANDEM_FAKE_HELD_BY"))) return 70;
  if (mode == "garbage") {
    (void)tandem::SendMessage(socket, "\xff\xff\xff garbage");
    return kGoOn;
  }
  if (mode == "refuse") {
    Acknowledge(socket, command.id(), 8, "no room for memory");
    return kGoOn;
  }
  Message ready;
  ready.mutable_ready()->set_pid(::getpid());
  auto* phase = ready.mutable_ready()->add_start_phases();
  phase->set_name("driver");
  phase->set_microseconds(2500);
  if (mode == "announces") {
    ready.mutable_ready()->mutable_capabilities()->set_packet_kernels(true);
    ready.mutable_ready()->mutable_capabilities()->set_on_gpu(true);
  }
  Send(socket, ready);
  Acknowledge(socket, command.id());
  return kGoOn;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3 || std::strcmp(argv[1], "--fd") != 0) return 64;
  int socket = std::atoi(argv[2]);
  // Every descriptor but 0 to 2 and the socket must have been left behind.
  for (int fd = 4; fd < 256; ++fd) {
    if (fd != socket && ::close(fd) == 0) return 65;
  }
  ::signal(SIGTERM, SIG_IGN);
  std::string mode;
  while (true) {
    auto packet = tandem::ReceiveMessage(socket);
    if (!packet.ok()) {
      while (mode == "ignore_end_of_file" || mode == "held_at_the_end") ::pause();
      return 0;
    }
    Command command;
    if (!command.ParseFromString(packet->body)) return 66;
    switch (command.command_case()) {
      case Command::kStart: {
        mode = command.start().gpu_uuid();
        if (const int code = Start(socket, command, mode, packet->fds.size()); code != kGoOn) return code;
        break;
      }
      case Command::kAllocateSegment: {
        auto fd = tandem::CreateSealedMemfd("fake", command.allocate_segment().bytes());
        if (!fd.ok()) return 68;
        Message message;
        message.mutable_allocated()->set_segment_id(command.allocate_segment().segment_id());
        Send(socket, message, {fd->get()});
        Acknowledge(socket, command.id());
        break;
      }
      case Command::kQueueSnapshot: {
        if (mode == "silent") break;
        Message message;
        message.mutable_queue()->add_items()->set_plan_id(42);
        Send(socket, message);
        Acknowledge(socket, command.id());
        break;
      }
      case Command::kLaunch: {
        Acknowledge(socket, command.id());
        Message message;
        message.mutable_launch_done()->set_launch_id(command.launch().launch_id());
        Send(socket, message);
        break;
      }
      case Command::kRemovePlan: Acknowledge(socket, command.id(), 5, "no such plan"); break;
      case Command::kRemoveGroup: {  // never answered; a message shows that it has arrived
        Message message;
        message.mutable_launch_done()->set_launch_id(command.remove_group().group_id());
        Send(socket, message);
        break;
      }
      case Command::kBreakGroup: {  // the way to end it in the middle of a call
        if (mode != "context_lost") return 9;
        Message message;
        message.mutable_ended()->set_code(10);
        message.mutable_ended()->set_message("cuStreamQuery: CUDA_ERROR_ILLEGAL_ADDRESS (700)");
        message.mutable_ended()->set_reason("CONTEXT_LOST");
        Send(socket, message);
        return 3;
      }
      case Command::kPing:
        if (mode == "silent" || mode == "held_at_the_end") break;
        Acknowledge(socket, command.id());
        break;
      case Command::kStop:
        if (mode == "ignore_end_of_file") break;
        return 0;
      default: Acknowledge(socket, command.id());
    }
  }
}
