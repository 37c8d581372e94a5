#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "daemon/observe/chrome_trace.h"
#include "daemon/observe/doctor.h"
#include "daemon/observe/plan_totals.h"
#include "daemon/topology/shared_gpus.h"
#include "drivers/nvml/mock_nvml.h"

namespace tandem::daemon {
namespace {

using testing::HasSubstr;

PlanStats Row(uint64_t plan, uint64_t launches, int64_t us) {
  PlanStats row;
  row.plan_id = plan;
  row.group_id = 9;
  row.launches = launches;
  row.bytes_moved = launches * 100;
  row.run_ns = launches * us * 1000;
  row.max_ns = us * 1000;
  row.histogram[DurationBucket(us * 1000)] = launches;
  return row;
}

TEST(PlanTotalsTest, CountsALaunchOnceAndSumsBytes) {
  std::vector<std::vector<PlanStats>> gpus{{Row(1, 10, 100)}, {Row(1, 9, 300)}, {Row(2, 1, 5)}};
  auto totals = SumPlans(gpus);
  EXPECT_EQ(totals[1].launches, 10u);
  EXPECT_EQ(totals[1].bytes_moved, 1900u);
  EXPECT_NEAR(totals[1].mean_us, (10 * 100 + 9 * 300) / 19.0, 0.01);
  EXPECT_DOUBLE_EQ(totals[1].max_us, 300);
  EXPECT_LE(totals[1].p99_us, 300);
  EXPECT_GT(totals[1].p99_us, 250);
  EXPECT_LT(totals[1].p50_us, 130);
}

TEST(PlanTotalsTest, RowsOfARestartedEngineCountTogether) {
  std::vector<std::vector<PlanStats>> gpus{{Row(1, 10, 100), Row(1, 5, 100)}};
  EXPECT_EQ(SumPlans(gpus)[1].launches, 15u);
}

TEST(ChromeTraceTest, HasOneRowAPlanOnEachGpuAndSlicesForWaitAndRun) {
  TraceRecord good{7, 3, 1, 1000000, 1500000, 2500000, 0};
  TraceRecord bad{8, 3, 2, 2000000, 0, 9000000, 4};
  std::vector<std::vector<TraceRecord>> records{{good, bad}, {good}};
  std::vector<std::string> names{"GPU 0", "GPU 1"};
  auto trace = nlohmann::json::parse(
      ChromeTrace(records, names, {{7, {"tp", "all_reduce 4x4 f32", "one_shot"}}}, 0, SIZE_MAX).json);
  int waits = 0, launches = 0, failed = 0;
  for (const auto& event : trace["traceEvents"]) {
    if (event["ph"] != "X") continue;
    if (event["cat"] == "wait") ++waits;
    if (event["cat"] == "launch") {
      ++launches;
      EXPECT_EQ(event["name"], "all_reduce 4x4 f32");
      EXPECT_DOUBLE_EQ(event["ts"], 500.0);
      EXPECT_DOUBLE_EQ(event["dur"], 1000.0);
      EXPECT_EQ(event["args"]["algorithm"], "one_shot");
    }
    if (event["cat"] == "failed") {
      ++failed;
      EXPECT_EQ(event["args"]["status"], "DEADLINE_EXCEEDED");
      EXPECT_EQ(event["name"], "plan 8");
      EXPECT_DOUBLE_EQ(event["dur"], 7000.0);
    }
  }
  EXPECT_EQ(waits, 2);
  EXPECT_EQ(launches, 2);
  EXPECT_EQ(failed, 1);
  auto last = nlohmann::json::parse(ChromeTrace(records, names, {}, 1, SIZE_MAX).json);
  EXPECT_EQ(std::count_if(last["traceEvents"].begin(), last["traceEvents"].end(),
                          [](const auto& event) { return event["ph"] == "X" && event["cat"] != "wait"; }),
            2);
}

// Without room, launches are left out from the oldest on, on all GPUs alike; a launch goes with its steps.
TEST(ChromeTraceTest, KeepsTheLatestLaunchesThatFit) {
  constexpr int kLaunches = 200;
  std::vector<std::vector<TraceRecord>> records(2);
  for (uint64_t launch = 1; launch <= kLaunches; ++launch) {
    for (auto& gpu : records) {
      TraceRecord record{7, 3, launch, launch * 10000, launch * 10000 + 100, launch * 10000 + 5000, 0};
      TraceRecord step = record;
      step.step = 0;
      gpu.push_back(step);
      gpu.push_back(record);
    }
  }
  const std::vector<std::string> names{"GPU 0", "GPU 1"};
  const std::map<uint64_t, TracePlan> plans{{7, {"tp", "all_reduce 4x4 f32", "one_shot", {}}}};
  const ChromeTraceText whole = ChromeTrace(records, names, plans, 0, SIZE_MAX);
  EXPECT_FALSE(whole.truncated);
  EXPECT_FALSE(ChromeTrace(records, names, plans, 0, whole.json.size() + 100).truncated);
  for (const size_t most : {size_t{1000}, whole.json.size() / 3, whole.json.size() - 100}) {
    const ChromeTraceText cut = ChromeTrace(records, names, plans, 0, most);
    EXPECT_TRUE(cut.truncated);
    EXPECT_LE(cut.json.size(), most);
    const auto trace = nlohmann::json::parse(cut.json);
    EXPECT_TRUE(trace["otherData"].contains("truncated"));
    std::map<size_t, std::multiset<uint64_t>> launches, steps;
    for (const auto& event : trace["traceEvents"]) {
      if (event["ph"] != "X" || event["cat"] == "wait") continue;
      (event["cat"] == "step" ? steps : launches)[event["pid"]].insert(
          event["args"]["launch"].get<uint64_t>());
    }
    EXPECT_EQ(launches, steps);
    size_t kept = 0;
    for (const auto& [gpu, ids] : launches) {
      kept += ids.size();
      EXPECT_EQ(*ids.rbegin(), uint64_t{kLaunches});
      EXPECT_EQ(*ids.rbegin() - *ids.begin() + 1, ids.size());  // without a gap
    }
    EXPECT_GT(kept, 0u);
    if (launches.size() == 2) {
      EXPECT_NEAR(static_cast<double>(launches[0].size()), static_cast<double>(launches[1].size()), 1);
    }
  }
  // Less than the frame: nothing but the frame, and `truncated` is set.
  const ChromeTraceText none = ChromeTrace(records, names, plans, 0, 1);
  EXPECT_TRUE(none.truncated);
  EXPECT_TRUE(nlohmann::json::accept(none.json));
}

DoctorInput Healthy() {
  DoctorInput input;
  input.backend = "host";
  input.topology = EmulatedTopology(2, 1 << 20);
  input.engines.resize(2);
  for (auto& engine : input.engines) engine.state = EngineState::kReady;
  input.process.descriptor_limit = 65536;
  return input;
}

std::vector<DoctorFinding> Of(const DoctorInput& input, const std::string& check) {
  std::vector<DoctorFinding> findings;
  for (const auto& finding : Diagnose(input)) {
    if (finding.check == check) findings.push_back(finding);
  }
  return findings;
}

TEST(DoctorTest, HealthyNodeHasNoWarning) {
  for (const auto& finding : Diagnose(Healthy()))
    EXPECT_LT(finding.severity, Severity::kWarning) << finding.message;
  EXPECT_EQ(Of(Healthy(), "engine").at(0).severity, Severity::kOk);
}

TEST(DoctorTest, NamesTuningFilesThatAreNotUsed) {
  DoctorInput input = Healthy();
  EXPECT_TRUE(Of(input, "tuning").empty());
  input.refused_tuning = {"/var/lib/tandem/tuning.toml: format 7"};
  ASSERT_EQ(Of(input, "tuning").size(), 1u);
  EXPECT_EQ(Of(input, "tuning")[0].severity, Severity::kWarning);
  EXPECT_THAT(Of(input, "tuning")[0].message, HasSubstr("/var/lib/tandem/tuning.toml: format 7"));
  EXPECT_THAT(Of(input, "tuning")[0].advice, HasSubstr("tandemctl tune"));
}

TEST(DoctorTest, NamesWhatIsWrong) {
  DoctorInput input = Healthy();
  input.engines[1].state = EngineState::kCrashLooped;
  input.engines[1].last_exit = "signal 11";
  EXPECT_EQ(Of(input, "engine").at(0).severity, Severity::kFailure);
  EXPECT_THAT(Of(input, "engine").at(0).message, HasSubstr("signal 11"));
  EXPECT_THAT(Of(input, "engine").at(0).advice, HasSubstr("tandemctl reset 1"));

  input = Healthy();
  input.silent = {"", "does not run: its process 4711 is stopped (SIGSTOP)"};
  input.engines[1].pid = 4711;
  ASSERT_EQ(Of(input, "engine_silent").size(), 1u);
  EXPECT_EQ(Of(input, "engine_silent")[0].severity, Severity::kFailure);
  EXPECT_THAT(Of(input, "engine_silent")[0].message,
              HasSubstr("engine of GPU 1 (EMU-0000-0001) does not run"));
  EXPECT_THAT(Of(input, "engine_silent")[0].advice, HasSubstr("kill -CONT 4711"));
  EXPECT_TRUE(Of(input, "engine").empty()) << "not all engines are ready";

  input = Healthy();
  input.listen_errors["metrics"] = "metrics cannot be served: cannot listen at 127.0.0.1:9464: taken";
  EXPECT_EQ(Of(input, "metrics").at(0).severity, Severity::kWarning);
  input.listen_errors["http"] = "TLS or the password of the page and the metrics: open /p: no such file";
  EXPECT_EQ(Of(input, "http").at(0).severity, Severity::kWarning);
  EXPECT_THAT(Of(input, "http").at(0).advice, HasSubstr("files that [http] names"));

  input = Healthy();
  input.gpus.resize(2);
  GpuReading reading;
  reading.xids = {79};
  Update(reading, &input.gpus[1]);
  reading.xids = {};
  reading.clock_limits = kNvmlHwSlowdown;
  Update(reading, &input.gpus[1]);
  input.control.cordoned_gpus[1] = "XID 79";
  ASSERT_EQ(Of(input, "gpu_health").size(), 2u);
  EXPECT_EQ(Of(input, "gpu_health")[0].severity, Severity::kFailure);
  EXPECT_THAT(Of(input, "gpu_health")[0].message, HasSubstr("GPU 1 (EMU-0000-0001) had XID 79"));
  EXPECT_THAT(Of(input, "gpu_health")[0].advice, HasSubstr("--undo --gpu 1"));
  EXPECT_EQ(Of(input, "gpu_health")[1].severity, Severity::kWarning);
  EXPECT_EQ(Of(input, "gpu_cordoned").at(0).severity, Severity::kNote);

  input = Healthy();
  input.topology.p2p[0][1] = input.topology.p2p[1][0] = false;
  EXPECT_THAT(Of(input, "p2p").at(0).message, HasSubstr(input.topology.gpus[1].uuid));

  input = Healthy();
  input.process.descriptor_limit = 1024;
  EXPECT_EQ(Of(input, "descriptor_limit").size(), 1u);
  input.process.descriptors = 1000;
  EXPECT_EQ(Of(input, "descriptors").at(0).severity, Severity::kFailure);

  input = Healthy();
  input.late.push_back({"EMU", "tp", 5, 2.5, {1, 3}});
  EXPECT_THAT(Of(input, "late_rank").at(0).message, HasSubstr("rank 1, 3"));

  input = Healthy();
  input.control.admission = Admission::kDraining;
  EXPECT_EQ(Of(input, "draining").size(), 1u);

  input = Healthy();
  input.socket_group = "tandem";
  input.socket_group_exists = false;
  EXPECT_EQ(Of(input, "socket_group").size(), 1u);
}

// Two GPUs whose engines (pids 100 and 101) run under one MPS server.
DoctorInput HealthyGpus() {
  DoctorInput input = Healthy();
  input.backend = "cuda";
  for (size_t gpu = 0; gpu < 2; ++gpu) {
    input.engines[gpu].pid = static_cast<int>(100 + gpu);
    input.engines[gpu].mps = {.directory = "/run/tandem-mps", .answers = true, .device = 1, .inode = 7};
    input.gpu_processes.push_back(
        {{.pid = 99, .command = "nvidia-cuda-mps", .is_mps_server = true},
         {.pid = input.engines[gpu].pid, .command = "tandem-engine", .under_mps = true}});
  }
  SessionSnapshot session;
  session.id = 5;
  session.pid = 200;
  session.command = "python3";
  session.mps = input.engines[0].mps;
  input.sessions.push_back(session);
  input.gpu_processes[0].push_back({.pid = 200, .uid = 1000, .command = "python3", .under_mps = true});
  return input;
}

TEST(DoctorTest, ASharedMpsServerIsHealthy) {
  for (const auto& finding : Diagnose(HealthyGpus()))
    EXPECT_EQ(finding.severity, Severity::kOk) << finding.message;
  EXPECT_THAT(Of(HealthyGpus(), "mps").at(0).message, HasSubstr("/run/tandem-mps"));
  EXPECT_THAT(Of(HealthyGpus(), "mps").at(0).advice, HasSubstr("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"));
}

TEST(DoctorTest, SaysWhatASlowStartTook) {
  DoctorInput input = HealthyGpus();
  input.engines[1].start = "8.70 s: process 0.10 s, driver 8.00 s";
  input.engines[1].start_seconds = 4.9;
  EXPECT_TRUE(Of(input, "engine_start").empty());
  input.engines[1].start_seconds = 8.7;
  ASSERT_EQ(Of(input, "engine_start").size(), 1u);
  EXPECT_EQ(Of(input, "engine_start")[0].severity, Severity::kNote);
  EXPECT_THAT(Of(input, "engine_start")[0].message,
              HasSubstr("was ready after 8.70 s: process 0.10 s, driver 8.00 s"));
}

TEST(DoctorTest, NamesAProcessThatDoesNotEnd) {
  DoctorInput input = HealthyGpus();
  input.engines[1].state = EngineState::kDown;
  input.engines[1].lingers = "its process 101 has not ended 35 s after SIGKILL";
  const auto findings = Of(input, "engine");
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_EQ(findings[0].severity, Severity::kFailure);
  EXPECT_THAT(findings[0].message, HasSubstr("GPU 1"));
  EXPECT_THAT(findings[0].message, HasSubstr("its process 101 has not ended 35 s after SIGKILL"));
  EXPECT_THAT(findings[0].advice, HasSubstr("the driver holds it"));
}

TEST(DoctorTest, SaysWhoPaysForNotSharingMps) {
  DoctorInput input = HealthyGpus();
  input.engines[1].mps.answers = false;
  EXPECT_EQ(Of(input, "mps").at(0).severity, Severity::kWarning);
  EXPECT_THAT(Of(input, "mps").at(0).message, HasSubstr("GPU 1"));
  EXPECT_THAT(Of(input, "mps").at(0).message, HasSubstr("290 us"));

  input = HealthyGpus();
  input.sessions[0].mps = {.directory = "/tmp/nvidia-mps"};
  EXPECT_THAT(Of(input, "mps_sharing").at(0).message,
              HasSubstr("session 5 (pid 200, python3) at /tmp/nvidia-mps"));
  EXPECT_THAT(Of(input, "mps_sharing").at(0).advice, HasSubstr("CUDA_MPS_PIPE_DIRECTORY=/run/tandem-mps"));
}

TEST(DoctorTest, NamesWhoKeepsAnEngineFromStarting) {
  DoctorInput input = HealthyGpus();
  input.engines[0].state = EngineState::kDown;
  input.engines[0].pid = 0;
  input.engines[0].blocked = "it refused to start: cuInit: CUDA_ERROR_MPS_SERVER_NOT_READY (807)";
  input.gpu_processes[0] = {{.pid = 99, .command = "nvidia-cuda-mps", .is_mps_server = true},
                            {.pid = 200, .uid = 1000, .command = "python3", .under_mps = true}};
  auto findings = Of(input, "engine_blocked");
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_EQ(findings[0].severity, Severity::kFailure);
  EXPECT_THAT(findings[0].message, HasSubstr("MPS_SERVER_NOT_READY"));
  EXPECT_THAT(findings[0].message, HasSubstr("pid 200 (python3, uid 1000)"));
  EXPECT_THAT(findings[0].message, testing::Not(HasSubstr("pid 99")));
  EXPECT_THAT(findings[0].advice, HasSubstr("tandemctl evict --gpu 0"));
  EXPECT_TRUE(Of(input, "engine").empty()) << "one finding is enough";
}

TEST(DoctorTest, NamesStrangersUnderTheSameServer) {
  DoctorInput input = HealthyGpus();
  input.gpu_processes[1].push_back({.pid = 300, .uid = 7, .command = "notebook", .under_mps = true});
  input.gpu_processes[1].push_back({.pid = 301, .uid = 7, .command = "without-mps"});
  ASSERT_EQ(Of(input, "mps_strangers").size(), 1u);
  EXPECT_THAT(Of(input, "mps_strangers")[0].message, HasSubstr("pid 300 (notebook, uid 7)"));
  EXPECT_THAT(Of(input, "mps_strangers")[0].message, testing::Not(HasSubstr("301")));
}

TEST(DoctorTest, SaysWhatIsWrongWithGpus) {
  DoctorInput input = HealthyGpus();
  input.topology.gpus[1].fabric_state = "in_progress";
  EXPECT_EQ(Of(input, "fabric").at(0).severity, Severity::kFailure);
  input.topology.gpus[1].fabric_state = "completed";
  EXPECT_TRUE(Of(input, "fabric").empty());

  input.sessions[0].device_max_connections = 1;
  EXPECT_THAT(Of(input, "max_connections").at(0).message, HasSubstr("session 5"));
  input.sessions[0].device_max_connections = 32;
  EXPECT_TRUE(Of(input, "max_connections").empty());

  input.engines[0].context_lost = true;
  input.engines[0].last_exit = "cuStreamQuery: CUDA_ERROR_ILLEGAL_ADDRESS (700); exit 3";
  EXPECT_THAT(Of(input, "gpu_context_lost").at(0).message, HasSubstr("ILLEGAL_ADDRESS"));
}

TEST(DoctorTest, EnginesOfASharedGpuAreNoStrangers) {
  DoctorInput input = HealthyGpus();
  GpuProcess other;
  other.pid = input.engines[1].pid;
  other.under_mps = true;
  input.gpu_processes[0].push_back(other);
  EXPECT_EQ(Of(input, "mps_strangers").size(), 0u);
  input.gpu_processes[0].back().pid = 999999;
  EXPECT_EQ(Of(input, "mps_strangers").size(), 1u);
}

TEST(DoctorTest, WarnsOfSharedGpus) {
  DoctorInput input = Healthy();
  EXPECT_TRUE(Of(input, "engines_per_gpu").empty());
  input.topology = *ShareGpus(input.topology, 2);
  ASSERT_EQ(Of(input, "engines_per_gpu").size(), 1u);
  EXPECT_EQ(Of(input, "engines_per_gpu")[0].severity, Severity::kWarning);
}

TEST(DoctorTest, NamesPairsWhoseDataDoesNotArrive) {
  DoctorInput input = Healthy();
  EXPECT_TRUE(Of(input, "link_probe").empty());
  input.failed_links = {"data from EMU-0 to EMU-1 is not transferred right: word 3 differs",
                        "data from EMU-2 is lost"};
  const auto findings = Of(input, "link_probe");
  ASSERT_EQ(findings.size(), 2u);
  EXPECT_EQ(findings[0].severity, Severity::kFailure);
  EXPECT_THAT(findings[0].message, HasSubstr("from EMU-0 to EMU-1"));
  EXPECT_THAT(findings[0].message, HasSubstr("word 3 differs"));
  EXPECT_THAT(findings[0].advice, HasSubstr("the link is not used"));
  EXPECT_THAT(findings[0].advice, HasSubstr("IOMMU"));
  EXPECT_THAT(findings[1].message, HasSubstr("from EMU-2"));
}

TEST(DoctorTest, NamesGpusInMigMode) {
  DoctorInput input = HealthyGpus();
  EXPECT_TRUE(Of(input, "mig").empty());
  input.topology.gpus[1].mig_enabled = true;
  const auto findings = Of(input, "mig");
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_EQ(findings[0].severity, Severity::kFailure);
  EXPECT_THAT(findings[0].message, HasSubstr(input.topology.gpus[1].uuid));
  EXPECT_THAT(findings[0].message, HasSubstr("no peer access"));
  EXPECT_THAT(findings[0].advice, HasSubstr("-mig 0"));
}

TEST(DoctorTest, ExclusiveModeIsFineUnderMpsOnly) {
  DoctorInput input = HealthyGpus();
  EXPECT_TRUE(Of(input, "compute_mode").empty());
  input.topology.gpus[0].compute_mode = input.topology.gpus[1].compute_mode = ComputeMode::kExclusiveProcess;
  EXPECT_TRUE(Of(input, "compute_mode").empty()) << "the MPS server is the one process";
  input.engines[1].mps.answers = false;
  const auto findings = Of(input, "compute_mode");
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_EQ(findings[0].severity, Severity::kWarning);
  EXPECT_THAT(findings[0].message, HasSubstr(input.topology.gpus[1].uuid));
  EXPECT_THAT(findings[0].message, HasSubstr("exclusive"));
  EXPECT_THAT(findings[0].advice, HasSubstr("-c DEFAULT, or run MPS"));
}

TEST(DoctorTest, ProhibitedModeFailsAlsoUnderMps) {
  DoctorInput input = HealthyGpus();
  input.topology.gpus[0].compute_mode = ComputeMode::kProhibited;
  const auto findings = Of(input, "compute_mode");
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_EQ(findings[0].severity, Severity::kFailure);
  EXPECT_THAT(findings[0].message, HasSubstr(input.topology.gpus[0].uuid + " prohibits contexts"));
  EXPECT_THAT(findings[0].advice, HasSubstr("-c DEFAULT"));
}

TEST(DoctorTest, TellsOfAnEngineThatTakesMuchMemory) {
  DoctorInput input = HealthyGpus();
  input.engines[1].own_memory_bytes = uint64_t{700} << 20;
  EXPECT_TRUE(Of(input, "engine_memory").empty());
  input.engines[1].own_memory_bytes = uint64_t{1536} << 20;
  const auto findings = Of(input, "engine_memory");
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_EQ(findings[0].severity, Severity::kNote);
  EXPECT_THAT(findings[0].message,
              HasSubstr("engine of GPU 1 (" + input.topology.gpus[1].uuid + ") takes 1.5 GiB"));
  EXPECT_THAT(findings[0].advice, HasSubstr("contexts and loaded kernels"));
  input.engines[1].state = EngineState::kStarting;
  EXPECT_TRUE(Of(input, "engine_memory").empty()) << "it is not known yet";
}

// Processes as NVML has them, of this very process.
TEST(GpuProcessesTest, JoinsNvmlsListsAndWhatTheKernelKnows) {
  auto nvml = std::make_unique<testing::NiceMock<MockNvml>>(2);
  const int self = ::getpid();
  ON_CALL(*nvml, ComputeProcesses).WillByDefault([self](NvmlDevice device) {
    std::vector<NvmlProcess> processes;
    if (MockNvml::Index(device) == 1) processes = {{self, 0}, {self + 1000000, 5}};
    return Result<std::vector<NvmlProcess>>(processes);
  });
  ON_CALL(*nvml, MpsProcesses).WillByDefault([self](NvmlDevice device) {
    std::vector<NvmlProcess> processes;
    if (MockNvml::Index(device) == 1) processes = {{self, 4096}, {self + 2000000, 0}};
    return Result<std::vector<NvmlProcess>>(processes);
  });
  GpuProcesses processes(std::move(nvml));
  EXPECT_TRUE(processes.On("GPU-0")->empty());
  auto found = processes.On("GPU-1");
  ASSERT_TRUE(found.ok()) << found.status().ToString();
  ASSERT_EQ(found->size(), 2u);
  EXPECT_EQ((*found)[0].pid, self);
  EXPECT_EQ((*found)[0].uid, ::getuid());
  EXPECT_EQ((*found)[0].memory_bytes, 4096u);
  EXPECT_TRUE((*found)[0].under_mps);
  EXPECT_THAT(GpuProcessText((*found)[0]), HasSubstr("observe_test"));
  EXPECT_FALSE((*found)[1].under_mps);
  EXPECT_EQ(processes.On("GPU-9").status().code(), Code::kNotFound);
}

}  // namespace
}  // namespace tandem::daemon
