#include "client/tandemctl/support.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <utility>
#include <vector>

#include "client/tandemctl/json.h"
#include "client/tandemctl/views.h"
#include "common/build/build_version.h"

namespace tandem::ctl {
namespace {

using admin::v1::Admin;
using Parts = std::map<std::string, std::string>;

// Bytes of the journal and of a program's output.
constexpr size_t kMaxPart = size_t{16} << 20;
constexpr int kCommandSeconds = 20;
// Added to the time limit: an archive is worth waiting for.
constexpr std::chrono::seconds kWaitBudget{20};
// Shorter names would be found within other words.
constexpr size_t kShortestName = 3;

// The reply as JSON, or why there is none.
template <typename Request, typename Reply>
std::string JsonOf(const Connection& connection,
                   grpc::Status (Admin::Stub::*method)(grpc::ClientContext*, const Request&, Reply*)) {
  const Result<Reply> reply = connection.Ask(method, {}, kWaitBudget);
  if (!reply.ok()) return reply.status().ToString() + "\n";
  const Result<std::string> text = MessageJson(*reply);
  return text.ok() ? *text : text.status().ToString() + "\n";
}

std::string ReadFile(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return "cannot be read\n";
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

void AddConfiguration(const LocalNode& node, Parts& parts) {
  const std::filesystem::path folder = node.root + "/etc/tandem";
  parts["config/tandemd.toml"] = ReadFile(folder / "tandemd.toml");
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(folder / "config.d", ignored)) {
    if (entry.path().extension() == ".toml")
      parts["config/config.d/" + entry.path().filename().string()] = ReadFile(entry.path());
  }
  parts["config/in-force.toml"] = node.run("tandemd --print-config") + "\n";
}

void AddMachine(const LocalNode& node, Parts& parts) {
  const std::pair<const char*, const char*> commands[] = {
      {"machine/uname.txt", "uname -a"},
      {"machine/os-release.txt", "cat /etc/os-release"},
      {"machine/memory.txt", "free -m; ulimit -a; df -h /dev/shm /run"},
      {"machine/units.txt", "systemctl status --no-pager -l tandemd tandem-mps nvidia-fabricmanager"},
      {"machine/devices.txt", "ls -l /dev/nvidia* /run/tandem /run/tandem-admin"},
      {"gpu/nvidia-smi.txt", "nvidia-smi"},
      {"gpu/nvidia-smi-q.txt", "nvidia-smi -q"},
      {"gpu/topology.txt", "nvidia-smi topo -m"},
      {"journal.txt", "journalctl -u tandemd -u tandem-mps --no-pager -n 20000"},
  };
  for (const auto& [name, command] : commands) parts[name] = node.run(command) + "\n";
}

// Each distinct name once, with the word for it.
class Words {
 public:
  void Add(const std::string& kind, const std::string& name) {
    if (name.size() < kShortestName || words_.contains(name)) return;
    words_[name] = kind + "-" + std::to_string(++counts_[kind]);
  }
  // The longest first: a name may be a part of another.
  std::vector<std::pair<std::string, std::string>> Ordered() const {
    std::vector<std::pair<std::string, std::string>> ordered(words_.begin(), words_.end());
    std::stable_sort(ordered.begin(), ordered.end(),
                     [](const auto& a, const auto& b) { return a.first.size() > b.first.size(); });
    return ordered;
  }

 private:
  std::map<std::string, std::string> words_;
  std::map<std::string, int> counts_;
};

void ReplaceAll(const std::string& from, const std::string& to, std::string* text) {
  for (size_t at = 0; (at = text->find(from, at)) != std::string::npos; at += to.size())
    text->replace(at, from.size(), to);
}

// A new folder below the temporary one, removed at the end.
class ScratchFolder {
 public:
  ScratchFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "tandem-support-XXXXXX").string();
    if (::mkdtemp(pattern.data()) != nullptr) path_ = pattern;
  }
  ~ScratchFolder() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

std::string DefaultName() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  ::gmtime_r(&now, &utc);
  std::array<char, 32> text{};
  std::strftime(text.data(), text.size(), "%Y%m%dT%H%M%SZ", &utc);
  return "tandem-support-" + std::string(text.data()) + ".tar.gz";
}

Status WriteArchive(const Parts& parts, const std::string& output) {
  const ScratchFolder scratch;
  if (scratch.path().empty()) return Internal("there is no folder for temporary files");
  const std::filesystem::path top = scratch.path() / "tandem-support";
  for (const auto& [name, text] : parts) {
    std::error_code failed;
    std::filesystem::create_directories((top / name).parent_path(), failed);
    std::ofstream file(top / name, std::ios::binary);
    file.write(text.data(), static_cast<std::streamsize>(std::min(text.size(), kMaxPart)));
    file.close();
    if (!file) return Internal("cannot write " + (top / name).string());
  }
  const mode_t before = ::umask(0077);
  const std::string packed =
      RunCommand("tar -C " + scratch.path().string() + " -czf " + scratch.path().string() +
                     "/archive tandem-support && echo packed",
                 120);
  ::umask(before);
  if (packed != "packed") return Internal("tar: " + packed);
  std::error_code failed;
  std::filesystem::copy_file(scratch.path() / "archive", output,
                             std::filesystem::copy_options::overwrite_existing, failed);
  if (failed) return Internal("cannot write " + output + ": " + failed.message());
  return Status::Ok();
}

}  // namespace

Parts CollectSupport(const Connection& connection, const LocalNode& node) {
  Parts parts;
  parts["version.txt"] =
      std::string("tandemctl ") + BuildVersion() + "\n" + node.run("tandemd --version") + "\n";
  const auto doctor = connection.Ask(&Admin::Stub::Doctor, {}, kWaitBudget);
  parts["doctor.txt"] = DoctorText(doctor.ok() ? *doctor : CheckLocally(node, doctor.status().code()));
  parts["health.json"] = JsonOf(connection, &Admin::Stub::GetHealth);
  parts["stats.json"] = JsonOf(connection, &Admin::Stub::GetStats);
  parts["topology.json"] = JsonOf(connection, &Admin::Stub::GetTopology);
  parts["sessions.json"] = JsonOf(connection, &Admin::Stub::ListSessions);
  parts["groups.json"] = JsonOf(connection, &Admin::Stub::ListGroups);
  parts["pools.json"] = JsonOf(connection, &Admin::Stub::ListPools);
  parts["plans.json"] = JsonOf(connection, &Admin::Stub::ListPlans);
  parts["queue.json"] = JsonOf(connection, &Admin::Stub::GetQueue);
  parts["tuning.json"] = JsonOf(connection, &Admin::Stub::ListTuning);
  const auto trace = connection.Ask(&Admin::Stub::GetTrace, {}, kWaitBudget);
  parts["trace.json"] = trace.ok() ? trace->chrome_trace_json() : trace.status().ToString() + "\n";
  AddConfiguration(node, parts);
  AddMachine(node, parts);
  return parts;
}

void Redact(const admin::v1::ListSessionsReply& sessions, const admin::v1::ListGroupsReply& groups,
            const std::string& host, Parts* parts) {
  Words words;
  for (const auto& session : sessions.sessions()) {
    words.Add("session-name", session.name());
    words.Add("command", session.command());
    words.Add("cgroup", session.cgroup());
    words.Add("owner", session.owner());
  }
  for (const auto& group : groups.groups()) words.Add("group-name", group.name());
  parts->erase("journal.txt");
  for (auto& [name, text] : *parts) {
    for (const auto& [from, to] : words.Ordered()) ReplaceAll(from, to, &text);
    if (host.size() >= kShortestName) ReplaceAll(host, "host", &text);
  }
}

Status WriteSupport(const Connection& connection, const LocalNode& node, const SupportOptions& options) {
  Parts parts = CollectSupport(connection, node);
  if (options.redact) {
    const auto sessions = connection.Ask(&Admin::Stub::ListSessions, {}, kWaitBudget);
    const auto groups = connection.Ask(&Admin::Stub::ListGroups, {}, kWaitBudget);
    std::array<char, 256> host{};
    ::gethostname(host.data(), host.size() - 1);
    Redact(sessions.ok() ? *sessions : admin::v1::ListSessionsReply(),
           groups.ok() ? *groups : admin::v1::ListGroupsReply(), host.data(), &parts);
  }
  const std::string output = options.output.empty() ? DefaultName() : options.output;
  TANDEM_RETURN_IF_ERROR(WriteArchive(parts, output));
  std::printf("%s\n", output.c_str());
  return Status::Ok();
}

}  // namespace tandem::ctl
