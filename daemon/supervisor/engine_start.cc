// The start of an engine's process, up to its Ready.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "common/fd_socket.h"
#include "daemon/supervisor/engine_keeper.h"
#include "tandem/engine/v1/engine.pb.h"

namespace tandem::daemon {

using engine::v1::Command;
using std::chrono::milliseconds;

namespace {

std::string Seconds(double seconds) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2f s", seconds);
  return text;
}

// "1.82 s: process 0.05 s, driver 1.20 s"; the process is what the engine has not counted.
std::string StartText(double seconds, const engine::v1::Ready& ready) {
  double counted = 0;
  std::string phases;
  for (const auto& phase : ready.start_phases()) {
    counted += static_cast<double>(phase.microseconds()) * 1e-6;
    phases += ", " + phase.name() + " " + Seconds(static_cast<double>(phase.microseconds()) * 1e-6);
  }
  return Seconds(seconds) + ": process " + Seconds(std::max(0.0, seconds - counted)) + phases;
}

}  // namespace

engine::v1::Start StartCommand(const EngineSettings& settings, int gpu, const std::string& gpu_uuid,
                               uint64_t memory_bytes) {
  engine::v1::Start start;
  start.set_gpu(static_cast<uint32_t>(gpu));
  start.set_gpu_uuid(gpu_uuid);
  start.set_backend(settings.backend);
  start.set_hardware_queues(settings.hardware_queues);
  start.set_memory_bytes(memory_bytes);
  start.set_visibility_delay_us(settings.visibility_delay_us);
  start.set_trace_records(settings.trace_records);
  start.set_emulated_fused(settings.emulated_fused);
  start.set_no_speculative_launch(!settings.speculative_launch);
  start.set_engines_per_gpu(settings.engines_per_gpu);
  start.set_restart_grace_ms(static_cast<uint64_t>(settings.restart_grace.count()));
  return start;
}

Result<UniqueFd> EngineKeeper::ListenForSuccessor() const {
  const std::string path = SuccessorSocketPath(settings_.successor_directory, gpu_);
  ::unlink(path.c_str());  // of the engine before, which may still hold it
  return ListenSeqpacket(path, 0600);
}

void EngineKeeper::NoteReady(const engine::v1::Ready& ready) {
  status_.own_memory_bytes = ready.own_memory_bytes();
  status_.kernel_sms = ready.kernel_sms();
  status_.no_fused_kernels = ready.fused_kernels() ? "" : ready.no_fused_kernels();
  const engine::v1::Capabilities& announced = ready.capabilities();
  status_.capabilities = ready.has_capabilities()
                             ? EngineCapabilities{.packet_kernels = announced.packet_kernels(),
                                                  .communicators = announced.communicators(),
                                                  .ipc_memory = announced.ipc_memory(),
                                                  .on_gpu = announced.on_gpu()}
                             : CapabilitiesOfBackend(settings_.backend);
}

Status EngineKeeper::StartEngine(EngineProcess& process, std::shared_ptr<EngineConnection>& connection) {
  TANDEM_ASSIGN_OR_RETURN(auto sockets, SeqpacketPair());
  std::vector<std::string> environment = slot_.environment;
  if (!settings_.mps_directories.empty()) {
    const std::string& directory = settings_.mps_directories[mps_choice_];
    environment.push_back("CUDA_MPS_PIPE_DIRECTORY=" + directory);
    std::lock_guard<std::mutex> lock(mutex_);
    status_.mps = ProbeMps(directory);
  }
  const std::string& executable = settings_.executable.empty() ? settings_.program : settings_.executable;
  TANDEM_ASSIGN_OR_RETURN(
      process, EngineProcess::Spawn(executable, sockets.second.get(), environment, settings_.program));
  sockets.second.Reset();
  connection = std::make_shared<EngineConnection>(
      std::move(sockets.first), wake_.get(),
      "engine of GPU " + std::to_string(gpu_) + " (" + slot_.gpu_uuid + ")");
  Command command;
  engine::v1::Start& start = *command.mutable_start() =
      StartCommand(settings_, gpu_, slot_.gpu_uuid, slot_.memory_bytes);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    status_.pid = process.pid();
    start.set_generation(status_.generation);
    start.set_seed(status_.generation * 8 + static_cast<uint64_t>(gpu_));
  }
  if (settings_.restart_grace.count() == 0)
    return connection->Post(command, {order_log_, slot_.stats_area.get()});
  TANDEM_ASSIGN_OR_RETURN(const UniqueFd listener, ListenForSuccessor());
  return connection->Post(command, {order_log_, slot_.stats_area.get(), journal_, listener.get()});
}

Status EngineKeeper::AwaitReady(EngineProcess& process, EngineConnection& connection,
                                Clock::time_point began) {
  auto until = Clock::now() + settings_.start_deadline;
  while (!stopping()) {
    for (auto& message : connection.TakeInbox()) {
      if (message->has_ready()) {
        std::lock_guard<std::mutex> lock(mutex_);
        status_.start_seconds = std::chrono::duration<double>(Clock::now() - began).count();
        status_.start = StartText(status_.start_seconds, message->ready());
        NoteReady(message->ready());
        return Status::Ok();
      }
      if (message->has_ack()) {
        return Unavailable("it refused to start: " + message->ack().message())
            .WithDetail({message->ack().reason(), "", "", 0, 0});
      }
      return Unavailable("it sent something else before Ready");
    }
    TANDEM_RETURN_IF_ERROR(connection.state());
    if (Clock::now() >= until) {
      return DeadlineExceeded("not ready after " + std::to_string(settings_.start_deadline.count()) + " ms");
    }
    Pause(process.pidfd(),
          std::min(std::chrono::ceil<milliseconds>(until - Clock::now()), milliseconds(1000)));
  }
  return Unavailable("stopping");
}

}  // namespace tandem::daemon
