// File: doctor.h
//
// The doctor: findings about this node, each with advice. A pure function of collected input, so that a test
// of a finding need not provoke the fault.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "daemon/control/base/snapshot.h"
#include "daemon/observe/gpu_health.h"
#include "daemon/observe/gpu_processes.h"
#include "daemon/observe/process_info.h"
#include "daemon/supervisor/engines.h"
#include "daemon/topology/topology.h"

namespace tandem::daemon {

enum class Severity { kOk = 1, kNote = 2, kWarning = 3, kFailure = 4 };

struct DoctorFinding {
  Severity severity = Severity::kOk;
  std::string check;  // stable, for programs: "backend", "engine", "late_rank"
  std::string message;
  std::string advice;  // empty where nothing is to be done
};

// A launch that has waited for a rank for over a second.
struct LateLaunch {
  std::string gpu_uuid;
  std::string group_name;
  uint64_t plan_id = 0;
  double seconds = 0;
  std::vector<int> ranks;  // not arrived
};

// A file of tandemd's, a socket or the lock, that somebody had removed or replaced.
struct SocketFinding {
  std::string path;
  int repairs = 0;    // how often it has been made again
  std::string error;  // why it cannot be made again; empty: it is there
};

struct DoctorInput {
  std::string backend;  // "host" or "cuda"
  Topology topology;
  std::vector<std::string> failed_links;    // found by probing pairs of GPUs with data; one sentence each
  std::vector<std::string> refused_tuning;  // files of measured times that cannot be used: path and why
  std::vector<EngineStatus> engines;        // by GPU
  std::vector<GpuCondition> gpus;           // by GPU; empty: nobody looks
  // By GPU: why a ready engine did not answer when it was asked; empty: it answered.
  std::vector<std::string> silent;
  // Why something is not served by HTTP although it is configured, by the table's name ("metrics").
  std::map<std::string, std::string> listen_errors;
  std::vector<SocketFinding> sockets;
  ControlSnapshot control;
  std::vector<GroupSnapshot> groups;
  std::vector<PoolSnapshot> pools;
  std::vector<LateLaunch> late;
  ProcessInfo process;
  MachineMemory machine;
  bool verify_plans = false;
  int64_t visibility_delay_us = 0;
  // cuda only
  std::vector<SessionSnapshot> sessions;
  std::vector<std::vector<GpuProcess>> gpu_processes;  // by GPU; empty where the driver has no list
  std::string socket_group;                            // configured
  bool socket_group_exists = true;
  std::string runtime_dir;
};

// Findings about GPUs and MPS (doctor_gpu.cc). Diagnose calls it on the CUDA backend.
void CheckGpus(const DoctorInput& input, std::vector<DoctorFinding>& findings);

std::vector<DoctorFinding> Diagnose(const DoctorInput& input);

}  // namespace tandem::daemon
