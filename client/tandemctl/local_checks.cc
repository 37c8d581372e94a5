#include "client/tandemctl/local_checks.h"

#include <grp.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <utility>
#include <vector>

#include "common/unique_fd.h"

namespace tandem::ctl {
namespace {

using admin::v1::Finding;

class Findings {
 public:
  void Add(Finding::Severity severity, const char* check, std::string message, std::string advice = {}) {
    Finding* finding = reply_.add_findings();
    finding->set_severity(severity);
    finding->set_check(check);
    finding->set_message(std::move(message));
    finding->set_advice(std::move(advice));
  }
  admin::v1::DoctorReply Take() { return std::move(reply_); }

 private:
  admin::v1::DoctorReply reply_;
};

bool Exists(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::exists(path, ignored);
}

// 0 if somebody accepts there, else errno.
int Connect(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) return ENAMETOOLONG;
  path.copy(address.sun_path, path.size());
  UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket.valid()) return errno;
  return ::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0 ? 0 : errno;
}

// The unit's state by systemd; empty where systemd does not run.
std::string UnitState(const LocalNode& node, const std::string& unit) {
  if (!Exists(node.root + "/run/systemd/system")) return "";
  return node.run("systemctl is-active " + unit);
}

void CheckUnit(const LocalNode& node, Findings& findings) {
  const std::string state = UnitState(node, "tandemd");
  if (state.empty()) {
    findings.Add(Finding::NOTE, "unit", "systemd does not run here: no unit is checked");
  } else if (state == "active") {
    findings.Add(Finding::OK, "unit", "the unit tandemd is active");
  } else if (state == "failed") {
    findings.Add(
        Finding::FAILURE, "unit", "the unit tandemd has failed",
        "journalctl -u tandemd -n 50 has the reason; then systemctl reset-failed tandemd && systemctl "
        "start tandemd");
  } else {
    findings.Add(Finding::FAILURE, "unit", "the unit tandemd is " + state, "systemctl enable --now tandemd");
  }
}

// The socket's group admits this user.
bool MayConnect(const struct stat& socket) {
  if (::geteuid() == 0 || ::geteuid() == socket.st_uid || ::getegid() == socket.st_gid) return true;
  std::vector<gid_t> groups(static_cast<size_t>(std::max(::getgroups(0, nullptr), 0)));
  const int count = ::getgroups(static_cast<int>(groups.size()), groups.data());
  for (int i = 0; i < count; ++i) {
    if (groups[static_cast<size_t>(i)] == socket.st_gid) return true;
  }
  return false;
}

void CheckSocket(const std::string& path, Findings& findings) {
  struct stat file {};
  if (::stat(path.c_str(), &file) != 0) {
    if (errno == EACCES) {
      findings.Add(Finding::WARNING, "socket", "this user may not look at " + path, "sudo tandemctl doctor");
    } else {
      findings.Add(Finding::FAILURE, "socket", "there is no " + path,
                   "start tandemd; with another directory set TANDEM_RUNTIME_DIR or --runtime-dir");
    }
    return;
  }
  switch (const int error = Connect(path)) {
    case 0: findings.Add(Finding::OK, "socket", "a daemon answers at " + path); break;
    case ECONNREFUSED:
      findings.Add(Finding::FAILURE, "socket", path + " was left by a tandemd that has ended",
                   "start tandemd");
      break;
    case EACCES:
    case EPERM: {
      const group* owner = MayConnect(file) ? nullptr : ::getgrgid(file.st_gid);
      const std::string name = owner == nullptr ? std::to_string(file.st_gid) : owner->gr_name;
      findings.Add(Finding::FAILURE, "socket",
                   "this user may not use " + path + ", which is of group " + name,
                   "usermod -aG " + name + " USER, then log in again");
      break;
    }
    default: findings.Add(Finding::FAILURE, "socket", path + " cannot be used: " + std::strerror(error));
  }
}

void CheckGroup(const LocalNode& node, Findings& findings) {
  std::ifstream file(node.root + "/etc/group");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("tandem:")) {
      findings.Add(Finding::OK, "group", "the group tandem exists");
      return;
    }
  }
  findings.Add(Finding::WARNING, "group", "there is no group tandem",
               "systemd-sysusers makes it; another socket_group needs none");
}

void CheckConfiguration(const LocalNode& node, Findings& findings) {
  const std::string text = node.run("tandemd --check-config --strict");
  if (text == "configuration is valid") {
    findings.Add(Finding::OK, "configuration", "tandemd accepts its configuration");
  } else if (text.starts_with("sh: ") && text.ends_with("not found")) {
    findings.Add(Finding::FAILURE, "configuration", "there is no program tandemd in PATH",
                 "install the package tandem-daemon");
  } else {
    findings.Add(Finding::FAILURE, "configuration",
                 text.empty() ? "tandemd --check-config --strict prints nothing" : text,
                 "correct it, then start tandemd");
  }
}

void CheckDevices(const LocalNode& node, Findings& findings) {
  std::ifstream version(node.root + "/proc/driver/nvidia/version");
  std::string driver;
  if (!std::getline(version, driver)) {
    findings.Add(Finding::NOTE, "driver", "NVIDIA's driver is not loaded: tandemd would emulate GPUs",
                 "on a machine with GPUs: modprobe nvidia");
    return;
  }
  findings.Add(Finding::OK, "driver", driver);
  for (const char* name : {"nvidiactl", "nvidia-uvm", "nvidia0"}) {
    const std::string path = node.root + "/dev/" + name;
    if (!Exists(path)) {
      findings.Add(Finding::FAILURE, "device", path + " is missing",
                   "systemctl start tandem-nvidia, or nvidia-modprobe -u -c 0");
    } else if (::access(path.c_str(), R_OK | W_OK) != 0) {
      findings.Add(Finding::WARNING, "device", "this user may not use " + path,
                   "clients need it too: see the driver's option NVreg_DeviceFileMode");
    }
  }
  if (Exists(node.root + "/dev/nvidia-nvswitchctl") || Exists(node.root + "/proc/driver/nvidia-nvswitch")) {
    const std::string state = UnitState(node, "nvidia-fabricmanager");
    if (state != "active" && !state.empty()) {
      findings.Add(Finding::FAILURE, "fabric", "NVSwitches are here and nvidia-fabricmanager is " + state,
                   "systemctl enable --now nvidia-fabricmanager");
    }
  }
}

void CheckMps(const LocalNode& node, Findings& findings) {
  const std::string state = UnitState(node, "tandem-mps");
  if (state == "active") findings.Add(Finding::OK, "mps", "the unit tandem-mps is active");
  if (state == "failed") {
    findings.Add(Finding::WARNING, "mps", "the unit tandem-mps has failed: engines would run without MPS",
                 "journalctl -u tandem-mps -n 50 has the reason");
  }
}

}  // namespace

std::string RunCommand(const std::string& command, int seconds) {
  // The inner shell's own errors are output too: a program that is missing is named.
  const std::string line =
      "timeout -k 1 " + std::to_string(seconds) + " sh -c '" + command + "' 2>&1 </dev/null";
  FILE* pipe = ::popen(line.c_str(), "re");
  if (pipe == nullptr) return "";
  std::string output;
  std::array<char, 4096> buffer{};
  size_t length = 0;
  while ((length = std::fread(buffer.data(), 1, buffer.size(), pipe)) > 0)
    output.append(buffer.data(), length);
  ::pclose(pipe);
  while (!output.empty() && output.back() == '\n') output.pop_back();
  return output;
}

LocalNode ThisNode(std::string runtime_dir, std::string admin_dir) {
  return {.root = "",
          .runtime_dir = std::move(runtime_dir),
          .admin_dir = std::move(admin_dir),
          .run = [](const std::string& command) { return RunCommand(command, 10); }};
}

admin::v1::DoctorReply CheckLocally(const LocalNode& node, Code answer) {
  Findings findings;
  const char* reported =
      answer == Code::kPermissionDenied ? "this user may not use the daemon at " : "no daemon answers at ";
  findings.Add(Finding::FAILURE, "daemon", reported + node.runtime_dir,
               "the findings below are of this machine alone");
  CheckUnit(node, findings);
  CheckConfiguration(node, findings);
  CheckGroup(node, findings);
  for (const char* name : {"/client.sock", "/lease.sock"}) {
    // lease.sock is of another type (SOCK_SEQPACKET): whoever may not use the one may not use the other.
    if (std::string(name) == "/client.sock" || !Exists(node.runtime_dir + name))
      CheckSocket(node.runtime_dir + name, findings);
  }
  CheckDevices(node, findings);
  CheckMps(node, findings);
  return findings.Take();
}

}  // namespace tandem::ctl
