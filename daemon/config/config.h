// File: config.h
//
// `Config`: every setting of tandemd. Defaults are the members' initial values; a TOML file
// goes over them, then the files of the drop-in directory, then command-line flags. There is one table of
// keys (config_keys.h), so the file, the flags, --print-config and the documentation cannot disagree.
//
// Example:
//   Result<DaemonCommandLine> line = ParseCommandLine(argc, argv);      // command_line.h
//   Result<Config> config = LoadConfig("/etc/tandem/tandemd.toml");  // config_file.h
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/deadline.h"
#include "tandem/op_request.h"
#include "tandem/status.h"

namespace tandem {

enum class BackendKind : uint8_t {
  kAuto = 0,  // CUDA where NVML finds a GPU, else host
  kHost = 1,  // emulated GPUs on the CPU
  kCuda = 2,
};
// "auto", "host", "cuda".
std::string_view BackendName(BackendKind backend);

enum class LogLevel : uint8_t { kTrace = 0, kDebug = 1, kInfo = 2, kWarning = 3, kError = 4 };
// "trace", "debug", "info", "warning", "error".
std::string_view LogLevelName(LogLevel level);

// Form of the log (common/log.h): "auto", "text", "logfmt", "json", "journal".
enum class LogFormat : uint8_t { kAuto = 0, kText = 1, kLogfmt = 2, kJson = 3, kJournal = 4 };

// Whose sessions those see who may read but do not operate the node: "own", "all".
enum class ShowSessions : uint8_t { kOwn = 0, kAll = 1 };

// When plans run by the fused kernels: "explicit", "auto".
enum class FusedUse : uint8_t {
  kExplicit = 0,  // when a request asks for them
  kAuto = 1,      // also where they are predicted to be the fastest
};

// Where plans run of groups that have no option "placement": "auto", "engine", "client".
enum class PlacementUse : uint8_t { kAuto = 0, kEngine = 1, kClient = 2 };

// Limits beyond which tandemd answers RESOURCE_EXHAUSTED; of one uid unless a member's comment names
// something else.
struct QuotaConfig {
  int64_t sessions = 256;  // of the whole node
  int64_t sessions_per_uid = 128;
  int64_t groups = 1024;
  int64_t plans = 16384;
  int64_t plan_bytes = int64_t{4} << 30;
  int64_t tensors = 65536;                      // symmetric tensors and registrations
  int64_t descriptors = 4096;                   // open descriptors that tandemd holds for it
  int64_t segment_bytes = int64_t{256} << 30;   // symmetric memory
  int64_t registered_bytes = int64_t{2} << 40;  // the clients' own memory
  int64_t calls_per_uid = 512;  // under way beyond two of each session; of the whole node twice as many
  // Of one control group (cgroup), in all its uids; 0: as many as of one uid.
  int64_t cgroup_sessions = 0;
  int64_t cgroup_groups = 0;
  int64_t cgroup_plans = 0;
  int64_t cgroup_plan_bytes = 0;
  int64_t cgroup_tensors = 0;
  int64_t cgroup_descriptors = 0;
  int64_t cgroup_segment_bytes = 0;
  int64_t cgroup_registered_bytes = 0;
  int64_t cgroup_calls = 0;
};

// How tandemd restarts engines.
struct SupervisorConfig {
  int64_t backoff_initial_ms = 100;  // wait before the first restart; doubles with each crash in the window
  int64_t backoff_max_ms = 10000;    // and never exceeds this
  int64_t crash_loop_count = 5;      // so many crashes …
  // … within this time, and the engine stays down until an operator acts.
  int64_t crash_loop_window_ms = 60000;
  int64_t engine_idle_ms = 60000;  // an engine that nobody has used for so long rests; 0: none does
};

// The MPS servers that engines are clients of; see docs/operations.md.
struct MpsConfig {
  std::string pipe_directory;        // "": tandemd's own CUDA_MPS_PIPE_DIRECTORY, or /tmp/nvidia-mps
  std::string spare_pipe_directory;  // while the first one's server accepts nobody; "": wait for it
};

// One rule of [[allow]]: sessions that fit every selector that is set may use these GPUs. The first rule that
// fits decides. Without any rule everybody may use all GPUs; with rules a session that none fits is refused.
struct AllowConfig {
  std::optional<int64_t> uid, gid;
  std::string cgroup;                                           // this one and all below it; "": any
  std::optional<std::vector<std::string>> gpus = std::nullopt;  // UUIDs or indexes; none: all GPUs
  // Instead of those of [quotas], by their names there: {"plans", 100}. Not `sessions`, which is the node's.
  std::map<std::string, int64_t> quotas = {};
  bool operator==(const AllowConfig&) const = default;
};

// Modes for tests of Tandem itself. No node that serves jobs sets them.
struct TestingConfig {
  int64_t engines_per_gpu = 1;      // CUDA: ranks that share each GPU; 8 in all
  int64_t visibility_delay_us = 0;  // host backend: copies and signals appear up to this much later; 0: off
  bool verify_plans = false;        // prove every plan with the verifier before it is handed out
  std::string gpu_health_file;      // host backend: faults of the emulated GPUs; "": none
  bool emulated_fused = false;  // host backend: engines claim the fused kernels, and run them step by step
};

// TLS and password of the TCP addresses, the page's and the metrics'. "": not asked for.
struct HttpConfig {
  std::string certificate = {}, key = {};     // PEM files; absolute
  std::string user = {}, password_file = {};  // the name, and a file with the password; absolute
  bool allow_plain = false;                   // addresses beyond the loopback without TLS or password, too
};

struct Config {
  std::string runtime_dir = "/run/tandem";  // the clients' sockets lease.sock and client.sock; absolute
  std::string admin_dir;  // admin.sock; "": AdminDirectory; absolute, and apart from runtime_dir
  std::string state_dir = "/var/lib/tandem";  // tuning table, probe results; absolute
  std::string tuning_dir;  // shipped tuning tables; "": ../share/tandem/tuning beside tandemd's own
  std::string socket_group =
      "tandem";  // group (name or gid) of lease.sock and client.sock; "": tandemd's own
  ShowSessions show_sessions = ShowSessions::kOwn;
  std::string show_sessions_group;  // a group (name or gid) whose members see all sessions; "": none
  std::string engine_path;          // the tandem-engine program; "": beside tandemd's own
  BackendKind backend = BackendKind::kAuto;
  std::string topology_file;  // topology to use instead of NVML's or the emulated default; "": none
  int64_t emulated_gpus = 4;  // 1 to 8; a topology file's GPUs count instead if there is one
  int64_t emulated_memory_bytes = int64_t{2} << 30;  // memory of each emulated GPU, allocated as it is used
  int64_t hardware_queues = 8;  // in-order queues of a GPU that lanes and streams alias onto; 1 to 32
  int64_t launch_deadline_ms =
      kDefaultLaunchDeadline.count();  // from the first rank's arrival, where group and launch set none
  int64_t join_deadline_ms = 300000;   // longest wait for all ranks of a join, rendezvous or prepare
  int64_t suspension_limit_ms = 0;     // a group that sleeps so long ends; 0: it may sleep for ever
  FusedUse fused = FusedUse::kAuto;    // fused kernels: when asked for, or also by choice
  bool autotune = true;                // clients' times go into the node's tuning table
  PlacementUse placement = PlacementUse::kAuto;  // of plans: engines or the ranks' own streams
  Determinism determinism = Determinism::kOff;   // of plans in groups without an option of that name
  bool speculative_launch = true;  // an expected launch's first kernel waits on its lane for the start
  int64_t trace_records = 65536;   // launches kept for `tandemctl trace`; 0: no trace
  std::string ready_with_engines = "all";  // "all", "any", or how many
  bool cordoned = false;                   // no new sessions and groups
  bool cordon_gpu_on_xid = false;          // a GPU that had an XID takes no new groups
  int64_t stop_grace_ms = 30000;           // how long a stop waits for groups to end
  int64_t restart_grace_ms = 0;  // how long jobs wait for the next tandemd; 0: they end with this one
  LogLevel log_level = LogLevel::kInfo;
  LogFormat log_format = LogFormat::kAuto;
  std::string metrics_listen =
      "off";                       // "address:port" that serves Prometheus metrics (port 0: any), or "off"
  bool metrics_per_plan = false;   // series of each live plan
  std::string web_listen = "off";  // "address:port" that serves the node's page, or "off"
  HttpConfig http;
  QuotaConfig quotas;
  SupervisorConfig supervisor;
  MpsConfig mps;
  TestingConfig testing;
  std::vector<AllowConfig> allow;      // a file that has rules replaces those of files before it
  std::vector<std::string> old_names;  // one sentence for each old name of a key that a file or a flag used
};

// The clients' sockets, in the runtime directory.
std::string LeaseSocketPath(const Config& config);   // attach and descriptors (SOCK_SEQPACKET)
std::string ClientSocketPath(const Config& config);  // gRPC: clients and read-only administration
// The administrators' socket, in AdminDirectory(config).
std::string AdminSocketPath(const Config& config);  // gRPC: changes by operators
// `admin_dir`, or the runtime directory's name with "-admin" appended. Containers mount the runtime
// directory: a socket in there would let root of a container administer the node.
std::string AdminDirectory(const Config& config);

// The engines that must work for the node to be ready; 0: all.
int64_t EnginesNeeded(const Config& config);

// Whether an address that a key names, "address:port", is one that this machine alone reaches. Any name but
// localhost may lead elsewhere.
bool IsLoopbackAddress(std::string_view listen);

// Whether the page or the metrics may be served at `listen`: beyond the loopback with TLS and a password
// only, but for http.allow_plain. FAILED_PRECONDITION names the keys that are missing.
Status CheckExposure(const HttpConfig& http, const std::string& listen);

// Checks what no key can check alone: paths that are absolute and short enough for a socket, orders between
// keys. INVALID_ARGUMENT names the keys, their values and the limits.
Status ValidateConfig(const Config& config);

// The configuration as TOML with each key's documentation as a comment above it. ParseConfigText of it over
// any Config gives `config` back.
std::string PrintConfig(const Config& config);
// The same for the defaults with every key commented out: the text of deploy/config/tandemd.toml.
std::string PrintDefaultConfigFile();

}  // namespace tandem
