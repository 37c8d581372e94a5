#include "daemon/config/config_keys.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <type_traits>
#include <vector>

#include "common/cli/nearest_name.h"
#include "common/toml/toml_text.h"
#include "common/utf8.h"

namespace tandem {
namespace {

constexpr std::array<std::string_view, 3> kBackends = {"auto", "host", "cuda"};
constexpr std::array<std::string_view, 2> kFusedUses = {"explicit", "auto"};
constexpr std::array<std::string_view, 3> kPlacementUses = {"auto", "engine", "client"};
constexpr std::array<std::string_view, 3> kDeterminisms = {"off", "run", "batch"};
constexpr std::array<std::string_view, 2> kShownSessions = {"own", "all"};
constexpr std::array<std::string_view, 5> kLogLevels = {"trace", "debug", "info", "warning", "error"};
constexpr std::array<std::string_view, 5> kLogFormats = {"auto", "text", "logfmt", "json", "journal"};

}  // namespace

std::string_view BackendName(BackendKind backend) {
  auto index = static_cast<size_t>(backend);
  return index < kBackends.size() ? kBackends[index] : "invalid";
}

std::string_view LogLevelName(LogLevel level) {
  auto index = static_cast<size_t>(level);
  return index < kLogLevels.size() ? kLogLevels[index] : "invalid";
}

namespace config {
namespace {

constexpr int64_t kDayMs = 24 * 3600 * 1000;
constexpr int64_t kMiB = int64_t{1} << 20;
constexpr int64_t kTiB = int64_t{1} << 40;

// A captureless lambda that points at one member.
#define TANDEM_FIELD(member) [](Config& config) -> FieldRef { return &config.member; }

constexpr KeySpec Text(std::string_view name, FieldRef (*field)(Config&), std::string_view doc) {
  return {name, KeyType::kString, field, 0, 0, {}, doc};
}
constexpr KeySpec Integer(std::string_view name, FieldRef (*field)(Config&), int64_t min, int64_t max,
                          std::string_view doc) {
  return {name, KeyType::kInteger, field, min, max, {}, doc};
}
constexpr KeySpec Bytes(std::string_view name, FieldRef (*field)(Config&), int64_t min, int64_t max,
                        std::string_view doc) {
  return {name, KeyType::kBytes, field, min, max, {}, doc};
}
constexpr KeySpec Bool(std::string_view name, FieldRef (*field)(Config&), std::string_view doc) {
  return {name, KeyType::kBool, field, 0, 0, {}, doc};
}
constexpr KeySpec Choice(std::string_view name, FieldRef (*field)(Config&),
                         std::span<const std::string_view> choices, std::string_view doc) {
  return {name, KeyType::kChoice, field, 0, 0, choices, doc};
}

constexpr KeySpec Live(KeySpec key) {
  key.live = true;
  return key;
}

constexpr KeySpec WithOldName(std::string_view old_name, KeySpec key) {
  key.old_name = old_name;
  return key;
}

// Sockets, files and who may use them.
std::vector<KeySpec> PlaceKeys() {
  return {
      Text("runtime_dir", TANDEM_FIELD(runtime_dir),
           "Directory of the clients' sockets lease.sock and client.sock. Absolute. Containers mount it."),
      Text("admin_dir", TANDEM_FIELD(admin_dir),
           "Directory of the administrators' socket admin.sock. Absolute. Neither runtime_dir nor a "
           "directory below it. Empty: runtime_dir with -admin appended, /run/tandem-admin."),
      Text("state_dir", TANDEM_FIELD(state_dir),
           "Directory of the tuning table and of the probe's results, which outlive a restart. Absolute."),
      Text("tuning_dir", TANDEM_FIELD(tuning_dir),
           "Directory of the tuning tables that come with Tandem. Empty: ../share/tandem/tuning beside "
           "tandemd."),
      Text("socket_group", TANDEM_FIELD(socket_group),
           "Group whose members may use Tandem: a name or a gid. Empty: the group that tandemd runs as."),
      Live(Choice(
          "show_sessions", TANDEM_FIELD(show_sessions), kShownSessions,
          "Whose sessions, groups and plans a user sees on the clients' socket. own: those of its uid. "
          "Root and tandemd's own user see all.")),
      Live(Text("show_sessions_group", TANDEM_FIELD(show_sessions_group),
                "Group whose members see all users' sessions: a name or a gid. Empty: none.")),
      Text("engine_path", TANDEM_FIELD(engine_path),
           "The tandem-engine program. Empty: the one beside tandemd."),
  };
}

// GPUs, groups and plans.
std::vector<KeySpec> PlanKeys() {
  return {
      Choice("backend", TANDEM_FIELD(backend), kBackends,
             "host emulates GPUs on the CPU; auto takes cuda where there is a GPU, else host."),
      Text("topology_file", TANDEM_FIELD(topology_file),
           "Topology to use instead of what the machine reports (docs/topology.md). Empty: none."),
      Integer("emulated_gpus", TANDEM_FIELD(emulated_gpus), 1, 8,
              "GPUs of the host backend. With a topology_file, the file's GPUs count instead."),
      Bytes("emulated_memory_bytes", TANDEM_FIELD(emulated_memory_bytes), 64 * kMiB, kTiB,
            "Memory of each emulated GPU; taken from the machine only as it is used."),
      Integer("hardware_queues", TANDEM_FIELD(hardware_queues), 1, 32,
              "In-order queues of one GPU that lanes and client streams share, as "
              "CUDA_DEVICE_MAX_CONNECTIONS has it."),
      Integer("launch_deadline_ms", TANDEM_FIELD(launch_deadline_ms), 1, 7 * kDayMs,
              "A launch fails if a rank has not arrived this long after the first one. Groups and launches "
              "may set another time."),
      Integer("join_deadline_ms", TANDEM_FIELD(join_deadline_ms), 1, 7 * kDayMs,
              "The longest wait of a join, a rendezvous or a prepare for the other ranks."),
      Integer("suspension_limit_ms", TANDEM_FIELD(suspension_limit_ms), 0, 30 * kDayMs,
              "A group that its ranks have suspended for so long ends (docs/suspend.md). 0: it may sleep for "
              "ever."),
      WithOldName("native", Choice("fused_kernels", TANDEM_FIELD(fused), kFusedUses,
                                   "explicit: plans take the fused kernels only if they ask for them. auto: "
                                   "plans also take them where they are predicted to be the fastest.")),
      Bool("autotune", TANDEM_FIELD(autotune),
           "Requests and groups may ask for a measurement while they prepare, and this node keeps the times. "
           "Wrong times make other users' plans slower, never wrong."),
      Choice(
          "placement", TANDEM_FIELD(placement), kPlacementUses,
          "Where the plans of groups without the option placement run: on engines, or on the ranks' own "
          "streams. auto takes the client on CUDA for the plans that are faster there, and else the engine."),
      Choice("determinism", TANDEM_FIELD(determinism), kDeterminisms,
             "What groups without the option determinism promise: equal bits in every run, or batch."),
      WithOldName("prelaunch",
                  Bool("speculative_launch", TANDEM_FIELD(speculative_launch),
                       "The first kernel of the expected next launch waits on its lane for the start, "
                       "which saves some microseconds. It is cancelled when another launch comes first.")),
  };
}

// Readiness, log, metrics and web page.
std::vector<KeySpec> OperatingKeys() {
  return {
      Integer("trace_records", TANDEM_FIELD(trace_records), 0, 1048576,
              "Launches kept for `tandemctl trace`. 0: none."),
      Live(Text(
          "ready_with_engines", TANDEM_FIELD(ready_with_engines),
          "How many GPUs' engines must work for the node to be ready (docs/monitoring.md): all, any, or a "
          "number from 1 to 8. A number above that of the GPUs: all.")),
      Live(Bool("cordoned", TANDEM_FIELD(cordoned),
                "The node takes no new sessions and groups, as after `tandemctl cordon`.")),
      Live(Bool("cordon_gpu_on_xid", TANDEM_FIELD(cordon_gpu_on_xid),
                "A GPU that had an XID which is a fault of the GPU takes no new groups, as after `tandemctl "
                "cordon --gpu`.")),
      Live(Integer("stop_grace_ms", TANDEM_FIELD(stop_grace_ms), 0, kDayMs,
                   "How long a stop waits for the groups to end. The unit's TimeoutStopSec must be longer.")),
      Integer(
          "restart_grace_ms", TANDEM_FIELD(restart_grace_ms), 0, kDayMs,
          "How long engines and sessions go on without tandemd, until the next tandemd takes them over. 0: "
          "jobs end with tandemd."),
      Live(Choice("log_level", TANDEM_FIELD(log_level), kLogLevels,
                  "Least severity that is logged to stderr.")),
      Live(Choice("log_format", TANDEM_FIELD(log_format), kLogFormats,
                  "Form of the log (docs/monitoring.md). auto: the journal's own fields where tandemd runs "
                  "under the journal, else text.")),
      Live(
          Text("metrics.listen", TANDEM_FIELD(metrics_listen),
               "Address and port that serve Prometheus metrics, for example 127.0.0.1:9464 (port 0: any free "
               "one), or off.")),
      Live(Bool("metrics.per_plan", TANDEM_FIELD(metrics_per_plan),
                "Series of each live plan too: its rate, and that as a part of its slowest link.")),
      Live(Text(
          "web.listen", TANDEM_FIELD(web_listen),
          "Address and port that serve a page about the node, for example 127.0.0.1:9465 (port 0: any "
          "free one), or off. It shows all users' sessions to everybody who reaches the address, and has "
          "the password where there is one.")),
      Live(Text("http.certificate", TANDEM_FIELD(http.certificate),
                "PEM file of the certificate that metrics.listen and web.listen serve TLS with, and of those "
                "that vouch for it. Absolute. A reload reads it again. Empty: no TLS.")),
      Live(Text("http.key", TANDEM_FIELD(http.key),
                "PEM file of the certificate's private key. Absolute. Only root or tandemd's user may read "
                "it.")),
      Live(Text("http.user", TANDEM_FIELD(http.user),
                "Name that metrics.listen and web.listen ask for, with the password of http.password_file. "
                "Empty: none is asked for.")),
      Live(
          Text("http.password_file", TANDEM_FIELD(http.password_file),
               "File with the password. Absolute. Only root or tandemd's user may read it. A reload reads it "
               "again.")),
      Live(Bool("http.allow_plain", TANDEM_FIELD(http.allow_plain),
                "Serve addresses other than the loopback without TLS or a password too: for a node where "
                "something else protects them.")),
  };
}

// Bounds of one user and of one cgroup.
std::vector<KeySpec> QuotaKeys() {
  return {
      Integer("quotas.sessions", TANDEM_FIELD(quotas.sessions), 1, 65536, "Sessions of the whole node."),
      Live(Integer("quotas.sessions_per_uid", TANDEM_FIELD(quotas.sessions_per_uid), 1, 65536,
                   "Sessions of one uid.")),
      Live(Integer("quotas.groups", TANDEM_FIELD(quotas.groups), 1, 1048576, "Groups of one uid.")),
      Live(Integer("quotas.plans", TANDEM_FIELD(quotas.plans), 1, 1048576, "Plans of one uid.")),
      Live(Bytes("quotas.plan_bytes", TANDEM_FIELD(quotas.plan_bytes), 4096, 1024 * kTiB,
                 "Memory in which tandemd keeps the plans of one uid.")),
      Live(Integer("quotas.tensors", TANDEM_FIELD(quotas.tensors), 1, 16777216,
                   "Symmetric tensors and registrations of one uid.")),
      Live(Integer("quotas.descriptors", TANDEM_FIELD(quotas.descriptors), 1, 1048576,
                   "Open descriptors that tandemd holds for one uid.")),
      Live(Bytes("quotas.segment_bytes", TANDEM_FIELD(quotas.segment_bytes), 2 * kMiB, 1024 * kTiB,
                 "Symmetric memory of one uid, all GPUs together.")),
      Live(Bytes("quotas.registered_bytes", TANDEM_FIELD(quotas.registered_bytes), 2 * kMiB, 1024 * kTiB,
                 "Memory that one uid has registered, all GPUs together.")),
      Integer("quotas.calls_per_uid", TANDEM_FIELD(quotas.calls_per_uid), 1, 65536,
              "Calls of one uid at a time, beyond the two that each session always has. The whole node may "
              "have twice as many. A call that waits has a thread of tandemd."),
      Live(Integer("quotas.cgroup_sessions", TANDEM_FIELD(quotas.cgroup_sessions), 0, 65536,
                   "Sessions of one cgroup, whatever their uids. 0: as many as of one uid.")),
      Live(Integer(
          "quotas.cgroup_groups", TANDEM_FIELD(quotas.cgroup_groups), 0, 1048576,
          "Groups of one cgroup. A group counts for the cgroup of rank 0. 0: as many as of one uid.")),
      Live(Integer("quotas.cgroup_plans", TANDEM_FIELD(quotas.cgroup_plans), 0, 1048576,
                   "Plans of the groups of one cgroup. 0: as many as of one uid.")),
      Live(Bytes("quotas.cgroup_plan_bytes", TANDEM_FIELD(quotas.cgroup_plan_bytes), 0, 1024 * kTiB,
                 "Memory in which tandemd keeps the plans of one cgroup. 0: as much as of one uid.")),
      Live(Integer("quotas.cgroup_tensors", TANDEM_FIELD(quotas.cgroup_tensors), 0, 16777216,
                   "Symmetric tensors and registrations of one cgroup. 0: as many as of one uid.")),
      Live(Integer("quotas.cgroup_descriptors", TANDEM_FIELD(quotas.cgroup_descriptors), 0, 1048576,
                   "Open descriptors that tandemd holds for one cgroup. 0: as many as of one uid.")),
      Live(Bytes("quotas.cgroup_segment_bytes", TANDEM_FIELD(quotas.cgroup_segment_bytes), 0, 1024 * kTiB,
                 "Symmetric memory of one cgroup, all GPUs together. 0: as many as of one uid.")),
      Live(Bytes("quotas.cgroup_registered_bytes", TANDEM_FIELD(quotas.cgroup_registered_bytes), 0,
                 1024 * kTiB, "Registered memory of one cgroup. 0: as many as of one uid.")),
      Live(Integer("quotas.cgroup_calls", TANDEM_FIELD(quotas.cgroup_calls), 0, 65536,
                   "Calls of one cgroup at a time, beyond the two that each session always has. 0: as many "
                   "as of one uid.")),
  };
}

// Engines, MPS and tests.
std::vector<KeySpec> ProcessKeys() {
  return {
      Integer("supervisor.backoff_initial_ms", TANDEM_FIELD(supervisor.backoff_initial_ms), 1, kDayMs,
              "Wait before an engine's first restart; doubles with each further crash."),
      Integer("supervisor.backoff_max_ms", TANDEM_FIELD(supervisor.backoff_max_ms), 1, kDayMs,
              "The longest wait before a restart."),
      Integer(
          "supervisor.crash_loop_count", TANDEM_FIELD(supervisor.crash_loop_count), 1, 1000,
          "An engine that crashes this often within crash_loop_window_ms stays down until an operator acts."),
      Integer("supervisor.crash_loop_window_ms", TANDEM_FIELD(supervisor.crash_loop_window_ms), 1, 7 * kDayMs,
              "Time within which crashes count as a loop."),
      Integer("supervisor.engine_idle_ms", TANDEM_FIELD(supervisor.engine_idle_ms), 0, kDayMs,
              "An engine that no session has used for so long ends, until the next use. 0: engines stay."),
      Text("mps.pipe_directory", TANDEM_FIELD(mps.pipe_directory),
           "MPS pipe directory of the engines. Clients that need short launches use the same directory. "
           "Empty: CUDA_MPS_PIPE_DIRECTORY as tandemd has it, else /tmp/nvidia-mps. A directory without a "
           "server: no MPS."),
      Text("mps.spare_pipe_directory", TANDEM_FIELD(mps.spare_pipe_directory),
           "MPS pipe directory for an engine after a fault, while its server waits for other processes to "
           "end. The engine shares no server with the clients then. Empty: the engine waits too."),
      WithOldName("engines_per_gpu",
                  Integer("testing.engines_per_gpu", TANDEM_FIELD(testing.engines_per_gpu), 1, 8,
                          "CUDA: engines that share each GPU, for more ranks than GPUs. Tandem takes each "
                          "engine for a separate GPU. "
                          "Such ranks cannot use NCCL, and times mean nothing. 1: each GPU has one engine.")),
      WithOldName("visibility_delay_us", Integer("testing.visibility_delay_us",
                                                 TANDEM_FIELD(testing.visibility_delay_us), 0, 1000000,
                                                 "Host backend: copies and signals become visible up to this "
                                                 "many microseconds later, at random. Missing "
                                                 "waits show that way. 0: off.")),
      WithOldName("debug.verify_plans", Bool("testing.verify_plans", TANDEM_FIELD(testing.verify_plans),
                                             "Every plan is proved by the verifier before it is handed out. "
                                             "A plan takes a few milliseconds more.")),
      Text(
          "testing.gpu_health_file", TANDEM_FIELD(testing.gpu_health_file),
          "Host backend: file with the faults of the emulated GPUs, one in a line: `0 xid 79`. Empty: none."),
      Bool("testing.emulated_fused", TANDEM_FIELD(testing.emulated_fused),
           "Host backend: engines claim the fused kernels, and run these programs step by step."),
  };
}

// In the order of the documentation.
const std::vector<KeySpec>& Table() {
  static const std::vector<KeySpec> table = [] {
    std::vector<KeySpec> all;
    for (const auto& part : {PlaceKeys(), PlanKeys(), OperatingKeys(), QuotaKeys(), ProcessKeys()})
      all.insert(all.end(), part.begin(), part.end());
    return all;
  }();
  return table;
}

#undef TANDEM_FIELD

std::string Flag(std::string_view name) {
  std::string flag = "--" + std::string(name);
  std::replace(flag.begin(), flag.end(), '.', '-');
  std::replace(flag.begin(), flag.end(), '_', '-');
  return flag;
}

std::string Show(const KeyValue& value) {
  if (const auto* text = std::get_if<std::string>(&value)) return QuoteToml(*text);
  if (const auto* number = std::get_if<int64_t>(&value)) return std::to_string(*number);
  return std::get<bool>(value) ? "true" : "false";
}

Status WrongType(const KeySpec& key, const KeyValue& value, std::string_view wanted) {
  return InvalidArgument(std::string(key.name) + " = " + Show(value) + " must be " + std::string(wanted));
}

Status SetNumber(const KeySpec& key, int64_t number, Config& config) {
  if (number < key.min || number > key.max) {
    bool bytes = key.type == KeyType::kBytes;
    auto print = [bytes](int64_t n) { return bytes && n >= 0 ? PrintBytes(n) : std::to_string(n); };
    return OutOfRange(std::string(key.name) + " = " + print(number) + " is out of range; the limits are " +
                      print(key.min) + " to " + print(key.max));
  }
  *std::get<int64_t*>(key.field(config)) = number;
  return Status::Ok();
}

Status SetChoice(const KeySpec& key, std::string_view text, Config& config) {
  for (size_t i = 0; i < key.choices.size(); ++i) {
    if (key.choices[i] != text) continue;
    FieldRef field = key.field(config);
    std::visit(
        [i](auto* member) {
          using Member = std::remove_pointer_t<decltype(member)>;
          if constexpr (std::is_enum_v<Member>) *member = static_cast<Member>(i);
        },
        field);
    return Status::Ok();
  }
  std::string choices;
  for (std::string_view choice : key.choices) choices += (choices.empty() ? "" : ", ") + std::string(choice);
  return InvalidArgument(std::string(key.name) + " = " + QuoteToml(text) + " is none of " + choices);
}

Result<int64_t> ParseInteger(std::string_view text) {
  int64_t number = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) {
    return InvalidArgument("'" + std::string(text) + "' is no integer");
  }
  return number;
}

struct Unit {
  std::string_view name;
  int shift;
};
constexpr std::array<Unit, 5> kUnits = {{{"TiB", 40}, {"GiB", 30}, {"MiB", 20}, {"KiB", 10}, {"B", 0}}};

}  // namespace

std::span<const KeySpec> Keys() { return Table(); }

const KeySpec* FindKey(std::string_view name) {
  for (const KeySpec& key : Table()) {
    if (key.name == name || (!key.old_name.empty() && key.old_name == name)) return &key;
  }
  return nullptr;
}

std::string_view NearestKey(std::string_view name) {
  if (name.size() > 64) return "";
  std::string_view nearest;
  size_t best = std::numeric_limits<size_t>::max();
  for (const KeySpec& key : Table()) {
    // A key in the wrong table, or without its table, is near as well.
    size_t key_dot = key.name.rfind('.');
    size_t name_dot = name.rfind('.');
    std::string_view key_leaf = key.name.substr(key_dot == std::string_view::npos ? 0 : key_dot + 1);
    std::string_view name_leaf = name.substr(name_dot == std::string_view::npos ? 0 : name_dot + 1);
    size_t distance = std::min(cli::EditDistance(name, key.name), cli::EditDistance(name_leaf, key_leaf) + 1);
    if (distance < best) {
      best = distance;
      nearest = key.name;
    }
  }
  return cli::IsNear(best, name.size()) ? nearest : std::string_view();
}

std::string FlagName(const KeySpec& key) { return Flag(key.name); }

std::string OldFlagName(const KeySpec& key) {
  return key.old_name.empty() ? std::string() : Flag(key.old_name);
}

std::string OldNameNote(std::string_view old_name, std::string_view name) {
  return std::string(old_name) + " is now " + std::string(name) + "; the next version refuses the old name";
}

Status SetKey(const KeySpec& key, const KeyValue& value, Config& config) {
  const auto* text = std::get_if<std::string>(&value);
  const auto* number = std::get_if<int64_t>(&value);
  const auto* boolean = std::get_if<bool>(&value);
  switch (key.type) {
    case KeyType::kString:
      if (text == nullptr) return WrongType(key, value, "a string");
      if (text->find('\0') != std::string::npos) return WrongType(key, value, "text without NUL");
      if (!IsUtf8(*text)) return InvalidArgument(std::string(key.name) + " is not UTF-8");
      *std::get<std::string*>(key.field(config)) = *text;
      return Status::Ok();
    case KeyType::kInteger:
      if (number == nullptr) return WrongType(key, value, "an integer");
      return SetNumber(key, *number, config);
    case KeyType::kBytes: {
      if (number != nullptr) return SetNumber(key, *number, config);
      if (text == nullptr) return WrongType(key, value, "a number of bytes, for example \"2 GiB\"");
      Result<int64_t> bytes = ParseBytes(*text);
      if (!bytes.ok()) return bytes.status().WithContext(key.name);
      return SetNumber(key, *bytes, config);
    }
    case KeyType::kBool:
      if (boolean == nullptr) return WrongType(key, value, "true or false");
      *std::get<bool*>(key.field(config)) = *boolean;
      return Status::Ok();
    case KeyType::kChoice:
      if (text == nullptr) return WrongType(key, value, "a string");
      return SetChoice(key, *text, config);
  }
  return Internal("key " + std::string(key.name) + " has no type");
}

Status SetKeyFromText(const KeySpec& key, std::string_view text, Config& config) {
  if (key.type == KeyType::kInteger) {
    Result<int64_t> number = ParseInteger(text);
    if (!number.ok()) return number.status().WithContext(key.name);
    return SetKey(key, *number, config);
  }
  if (key.type == KeyType::kBool && (text == "true" || text == "false"))
    return SetKey(key, text == "true", config);
  return SetKey(key, std::string(text), config);
}

std::string PrintValue(const KeySpec& key, const Config& config) {
  // The table's accessors take a mutable Config; nothing is written through this one.
  FieldRef field = key.field(const_cast<Config&>(config));
  switch (key.type) {
    case KeyType::kString: return QuoteToml(*std::get<std::string*>(field));
    case KeyType::kInteger: return std::to_string(*std::get<int64_t*>(field));
    case KeyType::kBytes: return QuoteToml(PrintBytes(*std::get<int64_t*>(field)));
    case KeyType::kBool: return *std::get<bool*>(field) ? "true" : "false";
    case KeyType::kChoice:
      return std::visit(
          [&key](auto* member) {
            using Member = std::remove_pointer_t<decltype(member)>;
            if constexpr (!std::is_enum_v<Member>)
              return std::string();
            else
              return QuoteToml(key.choices[static_cast<size_t>(*member)]);
          },
          field);
  }
  return "";
}

Result<int64_t> ParseBytes(std::string_view text) {
  std::string shown = "'" + std::string(text.substr(0, 64)) + "'";
  int64_t number = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  std::string_view unit = text.substr(static_cast<size_t>(end - text.data()));
  if (error == std::errc::result_out_of_range) return InvalidArgument(shown + " overflows 64 bits");
  if (error != std::errc() || number < 0) {
    return InvalidArgument(shown + " is no number of bytes, for example \"2 GiB\"");
  }
  if (unit.empty()) return number;
  if (unit.front() == ' ') unit.remove_prefix(1);
  for (const Unit& known : kUnits) {
    if (known.name != unit) continue;
    if (number > (std::numeric_limits<int64_t>::max() >> known.shift)) {
      return InvalidArgument(shown + " overflows 64 bits");
    }
    return number << known.shift;
  }
  return InvalidArgument(shown + " has none of the units B, KiB, MiB, GiB, TiB");
}

std::string PrintBytes(int64_t bytes) {
  for (const Unit& unit : kUnits) {
    if (bytes != 0 && (bytes & ((int64_t{1} << unit.shift) - 1)) == 0) {
      return std::to_string(bytes >> unit.shift) + " " + std::string(unit.name);
    }
  }
  return std::to_string(bytes) + " B";
}

}  // namespace config
}  // namespace tandem
