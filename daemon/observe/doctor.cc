#include "daemon/observe/doctor.h"

#include <algorithm>
#include <cstdio>

#include "common/gpu_name.h"
#include "daemon/observe/health.h"
#include "daemon/topology/shared_gpus.h"

namespace tandem::daemon {
namespace {

using Findings = std::vector<DoctorFinding>;

// An idle engine should not need more memory.
constexpr uint64_t kMuchOwnMemory = uint64_t{700} << 20;

// An engine should be ready sooner, also after a restart.
constexpr double kSlowStartSeconds = 5;

std::string Gib(uint64_t bytes) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.1f GiB", static_cast<double>(bytes) / (1 << 30));
  return text;
}

void CheckBackend(const DoctorInput& input, Findings& findings) {
  if (input.backend == "host") {
    findings.push_back(
        {Severity::kNote, "backend",
         "host backend: " + std::to_string(input.topology.size()) + " emulated GPUs on the CPU",
         "for development, tests and teaching; set backend = \"cuda\" on a machine with GPUs"});
    if (input.visibility_delay_us > 0) {
      findings.push_back({Severity::kNote, "visibility_delay",
                          "copies and signals are delayed at random by up to " +
                              std::to_string(input.visibility_delay_us) + " us",
                          "a mode for tests: set testing.visibility_delay_us = 0 for speed"});
    }
  } else {
    findings.push_back({Severity::kOk, "backend", input.backend + " backend", ""});
    CheckGpus(input, findings);
  }
  if (input.verify_plans) {
    findings.push_back({Severity::kNote, "verify_plans",
                        "every plan is proved by the verifier before it is handed out",
                        "costs milliseconds a plan; testing.verify_plans = false switches it off"});
  }
}

void CheckTopology(const DoctorInput& input, Findings& findings) {
  const Topology& topology = input.topology;
  for (const std::string& failed : input.failed_links) {
    findings.push_back(
        {Severity::kFailure, "link_probe", failed,
         "the link is not used; look for IOMMU or ACS settings, and at the GPU's and NVLinks' errors"});
  }
  if (SharesDevice(topology)) {
    findings.push_back({Severity::kWarning, "engines_per_gpu",
                        "several engines share a GPU: times mean nothing",
                        "it is for tests; set testing.engines_per_gpu = 1 for anything else"});
  }
  for (int i = 0; i < topology.size(); ++i) {
    const GpuInfo& gpu = topology.gpus[i];
    if (gpu.mig_enabled) {
      findings.push_back({Severity::kFailure, "mig",
                          "GPU " + gpu.uuid + " is in MIG mode: it has no peer access",
                          "nvidia-smi -i " + std::string(DeviceUuid(gpu.uuid)) + " -mig 0"});
    }
    const bool under_mps = static_cast<size_t>(i) < input.engines.size() && input.engines[i].mps.answers;
    if (gpu.compute_mode == ComputeMode::kExclusiveProcess && !under_mps) {
      findings.push_back({Severity::kWarning, "compute_mode",
                          "GPU " + gpu.uuid + " is in exclusive mode: only the engine gets a context",
                          "nvidia-smi -i " + std::string(DeviceUuid(gpu.uuid)) + " -c DEFAULT, or run MPS"});
    }
    if (gpu.compute_mode == ComputeMode::kProhibited) {
      findings.push_back({Severity::kFailure, "compute_mode", "GPU " + gpu.uuid + " prohibits contexts",
                          "nvidia-smi -i " + std::string(DeviceUuid(gpu.uuid)) + " -c DEFAULT"});
    }
    for (int j = i + 1; j < topology.size(); ++j) {
      if (topology.HasPeerAccess(i, j)) continue;
      findings.push_back({Severity::kWarning, "p2p",
                          "no peer access between " + gpu.uuid + " and " + topology.gpus[j].uuid,
                          "groups with both use NCCL; look for IOMMU or ACS settings that forbid it"});
    }
  }
}

void CheckEngines(const DoctorInput& input, Findings& findings) {
  size_t ready = 0, idle = 0;
  for (size_t gpu = 0; gpu < input.engines.size(); ++gpu) {
    const EngineStatus& engine = input.engines[gpu];
    const std::string name = EngineName(input.topology, gpu);
    std::string last = engine.last_exit.empty() ? "" : "; last end: " + engine.last_exit;
    switch (engine.state) {
      case EngineState::kReady:
        if (gpu < input.silent.size() && !input.silent[gpu].empty()) {
          const bool stopped = input.silent[gpu].find("is stopped") != std::string::npos;
          findings.push_back(
              {Severity::kFailure, "engine_silent", name + " " + input.silent[gpu],
               stopped
                   ? "kill -CONT " + std::to_string(engine.pid) + " lets it go on; tandemd ends it otherwise"
                   : "tandemd ends it and starts another one if it stays silent; see the log"});
        } else {
          ++ready;
        }
        if (engine.own_memory_bytes > kMuchOwnMemory) {
          findings.push_back(
              {Severity::kNote, "engine_memory",
               name + " takes " + Gib(engine.own_memory_bytes) + " of the GPU's memory for itself",
               "contexts and loaded kernels, for as long as the engine runs (supervisor.engine_idle_ms)"});
        }
        if (engine.start_seconds > kSlowStartSeconds) {
          findings.push_back({Severity::kNote, "engine_start", name + " was ready after " + engine.start,
                              "the driver's part grows with the GPUs of the machine, and is longest where "
                              "nothing keeps them awake "
                              "(nvidia-persistenced)"});
        }
        if (engine.restarts > 0) {
          findings.push_back(
              {Severity::kNote, "engine_restarts",
               name + " has been restarted " + std::to_string(engine.restarts) + " times" + last,
               "look at the log around the ends"});
        }
        break;
      case EngineState::kIdle: ++idle; break;
      case EngineState::kStarting:
        findings.push_back(
            {Severity::kWarning, "engine", name + " is starting" + last, "wait; see the log if it lasts"});
        break;
      case EngineState::kDown:
        if (!engine.blocked.empty()) break;  // CheckGpus reports more
        if (!engine.lingers.empty()) {
          findings.push_back({Severity::kFailure, "engine",
                              name + " is down and cannot be started: " + engine.lingers + last,
                              "the driver holds it: see the kernel's log (Xid); if it does not end, the GPU "
                              "must be reset or the "
                              "node started again; the other GPUs are served meanwhile"});
          break;
        }
        findings.push_back({Severity::kFailure, "engine", name + " is down" + last,
                            "it is started again by itself; groups with that GPU wait for it"});
        break;
      case EngineState::kCrashLooped:
        findings.push_back({Severity::kFailure, "engine", name + " keeps ending and is held down" + last,
                            "remove the cause (see the log), then tandemctl reset " + std::to_string(gpu)});
        break;
    }
  }
  if (ready + idle == input.engines.size()) {
    findings.push_back({Severity::kOk, "engine",
                        "all " + std::to_string(ready + idle) + " engines are ready" +
                            (idle == 0 ? "" : ", " + std::to_string(idle) + " of them idle until used"),
                        ""});
  }
}

void CheckLimits(const DoctorInput& input, Findings& findings) {
  const ProcessInfo& process = input.process;
  if (process.descriptor_limit != 0 && process.descriptor_limit < 8192) {
    findings.push_back({Severity::kWarning, "descriptor_limit",
                        "tandemd may open " + std::to_string(process.descriptor_limit) + " descriptors only",
                        "raise LimitNOFILE (systemd) or ulimit -n to 65536"});
  }
  if (process.descriptor_limit != 0 && process.descriptors * 10 > process.descriptor_limit * 8) {
    findings.push_back({Severity::kFailure, "descriptors",
                        std::to_string(process.descriptors) + " of " +
                            std::to_string(process.descriptor_limit) + " descriptors are in use",
                        "raise the limit, or evict sessions that hold many (tandemctl sessions)"});
  }
  if (input.backend == "host" && input.machine.total_bytes != 0) {
    uint64_t wanted = 0;
    for (const auto& gpu : input.topology.gpus) wanted += gpu.memory_bytes;
    if (wanted > input.machine.total_bytes) {
      findings.push_back({Severity::kNote, "emulated_memory",
                          "the emulated GPUs' memory (" + Gib(wanted) + ") exceeds the machine's (" +
                              Gib(input.machine.total_bytes) + ")",
                          "it is allocated as it is used; lower emulated_memory_bytes to be safe"});
    }
    if (input.machine.available_bytes * 20 < input.machine.total_bytes) {
      findings.push_back({Severity::kWarning, "machine_memory",
                          Gib(input.machine.available_bytes) + " of memory are left on this machine",
                          "end jobs, or lower emulated_memory_bytes"});
    }
  }
  for (const auto& pool : input.pools) {
    if (pool.memory_bytes != 0 && pool.segment_bytes * 10 > pool.memory_bytes * 9) {
      findings.push_back({Severity::kWarning, "pool",
                          "the pool of " + pool.gpu_uuid + " takes " + Gib(pool.segment_bytes) + " of " +
                              Gib(pool.memory_bytes),
                          "see tandemctl pools for who holds it"});
    }
  }
  if (!input.socket_group_exists) {
    findings.push_back(
        {Severity::kWarning, "socket_group",
         "the group '" + input.socket_group + "' does not exist: only tandemd's own group may connect",
         "groupadd --system " + input.socket_group + ", or set socket_group"});
  }
}

void CheckListeners(const DoctorInput& input, Findings& findings) {
  for (const auto& [table, error] : input.listen_errors) {
    const std::string advice =
        table == "http" ? "mend the files that [http] names, then reload tandemd; everything else works"
                        : "free the address, protect it by [http] or set another " + table +
                              ".listen, then reload tandemd; everything else works";
    findings.push_back({Severity::kWarning, table, error, advice});
  }
}

void CheckSockets(const DoctorInput& input, Findings& findings) {
  for (const SocketFinding& socket : input.sockets) {
    if (!socket.error.empty()) {
      findings.push_back(
          {Severity::kFailure, "socket",
           socket.path + " has been removed or replaced, and cannot be made again: " + socket.error,
           "nobody can connect there; remove the cause, and tandemd makes it again by itself"});
      continue;
    }
    findings.push_back({Severity::kWarning, "socket",
                        socket.path + " was removed or replaced " + std::to_string(socket.repairs) +
                            " times and made again: meanwhile nobody could connect",
                        "exclude the directory from what cleans temporary files"});
  }
}

void CheckTuning(const DoctorInput& input, Findings& findings) {
  for (const std::string& refused : input.refused_tuning) {
    findings.push_back({Severity::kWarning, "tuning", "a tuning file is not used: " + refused,
                        "plans are chosen without it; mend or remove it, then restart tandemd, or tune again "
                        "(tandemctl tune)"});
  }
}

void CheckGpuHealth(const DoctorInput& input, Findings& findings) {
  for (size_t gpu = 0; gpu < input.gpus.size(); ++gpu) {
    for (const auto& [kind, text] : FaultsOf(input.gpus[gpu])) {
      const bool degraded = kind == GpuFault::kLinks || kind == GpuFault::kClocks;
      std::string advice = "reset or replace it: `dmesg | grep -i xid` and `nvidia-smi -q` have more";
      if (kind == GpuFault::kXid)
        advice += "; tandemctl cordon --undo --gpu " + std::to_string(gpu) + " forgets the XID";
      if (kind == GpuFault::kClocks) advice = "look at its temperature, fans and power supply";
      findings.push_back({degraded ? Severity::kWarning : Severity::kFailure, "gpu_health",
                          GpuText(input.topology, gpu) + " " + text, advice});
    }
  }
  for (const auto& [gpu, why] : input.control.cordoned_gpus) {
    findings.push_back({Severity::kNote, "gpu_cordoned",
                        GpuText(input.topology, static_cast<size_t>(gpu)) + " takes no new groups: " + why,
                        "tandemctl cordon --undo --gpu " + std::to_string(gpu) + " ends it"});
  }
}

void CheckWork(const DoctorInput& input, Findings& findings) {
  if (input.control.admission == Admission::kDraining) {
    findings.push_back({Severity::kNote, "draining", "the node drains: no new sessions and groups",
                        "tandemctl drain --undo ends it"});
  }
  const bool containers = std::any_of(input.sessions.begin(), input.sessions.end(), [](const auto& session) {
    return session.owner.find("kubepods") != std::string::npos;
  });
  if (containers && input.control.open_to_all) {
    findings.push_back({Severity::kWarning, "allow",
                        "pods attach, and nothing binds them to GPUs of their own",
                        "tables [[allow]] in tandemd.toml admit users and cgroups to GPUs"});
  }
  if (input.control.admission == Admission::kCordoned) {
    findings.push_back({Severity::kNote, "cordoned", "the node is cordoned: no new sessions and groups",
                        "tandemctl cordon --undo ends it"});
  }
  for (const auto& group : input.groups) {
    if (group.state == "broken") {
      findings.push_back({Severity::kWarning, "group",
                          "group '" + group.name + "' is broken: " + group.state_reason,
                          "its ranks leave and join again; evict sessions that do not"});
    }
  }
  for (const auto& late : input.late) {
    std::string ranks;
    for (int rank : late.ranks) ranks += (ranks.empty() ? "" : ", ") + std::to_string(rank);
    char seconds[32];
    std::snprintf(seconds, sizeof(seconds), "%.1f s", late.seconds);
    findings.push_back({Severity::kWarning, "late_rank",
                        "group '" + late.group_name + "', plan " + std::to_string(late.plan_id) +
                            " waits since " + seconds + " for rank " + ranks,
                        "look at what those ranks do; the launch ends by its deadline"});
  }
}

}  // namespace

std::vector<DoctorFinding> Diagnose(const DoctorInput& input) {
  Findings findings;
  CheckBackend(input, findings);
  CheckTopology(input, findings);
  CheckEngines(input, findings);
  CheckLimits(input, findings);
  CheckListeners(input, findings);
  CheckSockets(input, findings);
  CheckTuning(input, findings);
  CheckGpuHealth(input, findings);
  CheckWork(input, findings);
  return findings;
}

}  // namespace tandem::daemon
