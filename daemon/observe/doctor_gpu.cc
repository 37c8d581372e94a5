// The doctor on GPUs: MPS and who shares it, engines that cannot start, NVSwitch's fabric, and what clients
// have set.
#include <algorithm>
#include <string>

#include "daemon/observe/doctor.h"

namespace tandem::daemon {
namespace {

using Findings = std::vector<DoctorFinding>;

// More of one kind would bury the rest.
constexpr size_t kMaxNamed = 8;

std::string GpuName(const DoctorInput& input, size_t gpu) {
  std::string name = "GPU " + std::to_string(gpu);
  if (gpu < input.topology.gpus.size()) name += " (" + input.topology.gpus[gpu].uuid + ")";
  return name;
}

std::string SessionText(const SessionSnapshot& session) {
  return "session " + std::to_string(session.id) + " (pid " + std::to_string(session.pid) + ", " +
         session.command + ")";
}

std::string Join(const std::vector<std::string>& texts) {
  std::string all;
  for (size_t i = 0; i < std::min(texts.size(), kMaxNamed); ++i) all += (i == 0 ? "" : ", ") + texts[i];
  if (texts.size() > kMaxNamed) all += " and " + std::to_string(texts.size() - kMaxNamed) + " more";
  return all;
}

void CheckMps(const DoctorInput& input, Findings& findings) {
  std::vector<std::string> with, without;
  for (size_t gpu = 0; gpu < input.engines.size(); ++gpu) {
    const MpsEndpoint& mps = input.engines[gpu].mps;
    if (mps.answers) {
      if (std::find(with.begin(), with.end(), mps.directory) == with.end()) with.push_back(mps.directory);
    } else {
      without.push_back("GPU " + std::to_string(gpu));
    }
  }
  if (!without.empty()) {
    const std::string directory = input.engines.empty() ? "" : input.engines.front().mps.directory;
    findings.push_back(
        {Severity::kWarning, "mps",
         "no MPS server for the engines of " + Join(without) + " (nothing answers at " + directory +
             "): where clients and engines both run kernels, a launch costs about 290 us more",
         "start MPS with -multiuser-server (systemd unit tandem-mps.service), then restart tandemd; copies "
         "by copy engines are not affected"});
  }
  if (!with.empty()) {
    findings.push_back(
        {Severity::kOk, "mps", "engines run under MPS at " + Join(with),
         "beside a client that fills the GPU a short kernel of an engine starts after 52 to 61 us; with "
         "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=90 for clients and engines after 10 to 28 us"});
  }
  std::vector<std::string> apart;
  for (const SessionSnapshot& session : input.sessions) {
    const bool shares =
        std::any_of(input.engines.begin(), input.engines.end(),
                    [&](const EngineStatus& engine) { return ShareMpsServer(session.mps, engine.mps); });
    if (!shares && !with.empty()) apart.push_back(SessionText(session) + " at " + session.mps.directory);
  }
  if (!apart.empty()) {
    findings.push_back(
        {Severity::kWarning, "mps_sharing",
         "clients that share no MPS server with the engines pay about 290 us more a launch: " + Join(apart),
         "start them with CUDA_MPS_PIPE_DIRECTORY=" + with.front() +
             " (mounted, in a container); on_slow_placement = error refuses such a job"});
  }
}

void CheckBlocked(const DoctorInput& input, Findings& findings) {
  for (size_t gpu = 0; gpu < input.engines.size(); ++gpu) {
    const EngineStatus& engine = input.engines[gpu];
    if (engine.context_lost && engine.blocked.empty()) {
      findings.push_back(
          {Severity::kNote, "gpu_context_lost",
           "the engine of " + GpuName(input, gpu) +
               " fell with every process on its GPU: " + engine.last_exit,
           "a fault of one process under MPS, or its kill -9 in a kernel, ends all contexts on that GPU: "
           "jobs that must survive the faults of others need an MPS server of their own"});
    }
    if (engine.blocked.empty()) continue;
    std::vector<std::string> holders;
    if (gpu < input.gpu_processes.size()) {
      for (const GpuProcess& process : input.gpu_processes[gpu]) {
        if (!process.is_mps_server && process.pid != engine.pid) holders.push_back(GpuProcessText(process));
      }
    }
    findings.push_back(
        {Severity::kFailure, "engine_blocked",
         "the engine of " + GpuName(input, gpu) + " cannot start yet: " + engine.blocked + "; " +
             (holders.empty() ? "no process is seen to hold a context there"
                              : "these processes still hold a context there: " + Join(holders)),
         "it starts by itself after the last one's end (goal: within 2 s); tandemctl evict --gpu " +
             std::to_string(gpu) +
             " ends them; a spare MPS server (mps.spare_pipe_directory) would not "
             "have to wait"});
  }
}

// Processes that are no clients of ours, under the same server: their faults are ours.
void CheckStrangers(const DoctorInput& input, Findings& findings) {
  for (size_t gpu = 0; gpu < std::min(input.engines.size(), input.gpu_processes.size()); ++gpu) {
    if (!input.engines[gpu].mps.answers) continue;
    std::vector<std::string> strangers;
    for (const GpuProcess& process : input.gpu_processes[gpu]) {
      const bool client =
          std::any_of(input.sessions.begin(), input.sessions.end(),
                      [&](const SessionSnapshot& session) { return session.pid == process.pid; });
      const bool engine = std::any_of(input.engines.begin(), input.engines.end(),
                                      [&](const EngineStatus& status) { return status.pid == process.pid; });
      if (process.under_mps && !process.is_mps_server && !client && !engine) {
        strangers.push_back(GpuProcessText(process));
      }
    }
    if (strangers.empty()) continue;
    findings.push_back(
        {Severity::kNote, "mps_strangers",
         "on " + GpuName(input, gpu) +
             " processes that are no clients of Tandem are under MPS too: " + Join(strangers),
         "a fault of theirs ends the engine and every client on that GPU; give them another MPS server, or "
         "none, if that must not be"});
  }
}

void CheckFabric(const DoctorInput& input, Findings& findings) {
  for (const GpuInfo& gpu : input.topology.gpus) {
    if (gpu.fabric_state.empty() || gpu.fabric_state == "none" || gpu.fabric_state == "completed") continue;
    findings.push_back({Severity::kFailure, "fabric",
                        "GPU " + gpu.uuid + " is not registered with its NVSwitches (" + gpu.fabric_state +
                            "): it has no peer access, groups with it use the host's memory or fail",
                        "systemctl status nvidia-fabricmanager; nvidia-smi -q shows its Fabric state; then "
                        "restart tandemd"});
  }
}

void CheckConnections(const DoctorInput& input, Findings& findings) {
  std::vector<std::string> narrow;
  for (const SessionSnapshot& session : input.sessions) {
    if (session.device_max_connections == 1) narrow.push_back(SessionText(session));
  }
  if (narrow.empty()) return;
  findings.push_back(
      {Severity::kNote, "max_connections",
       "CUDA_DEVICE_MAX_CONNECTIONS=1 in " + Join(narrow) +
           ": streams share one hardware queue and hide each other's launches; opposite orders on two ranks "
           "end by their deadline",
       "leave it unset or set 32, unless the framework needs 1; then launch in the same order on all ranks"});
}

}  // namespace

void CheckGpus(const DoctorInput& input, std::vector<DoctorFinding>& findings) {
  CheckMps(input, findings);
  CheckBlocked(input, findings);
  CheckStrangers(input, findings);
  CheckFabric(input, findings);
  CheckConnections(input, findings);
}

}  // namespace tandem::daemon
