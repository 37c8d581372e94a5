#include "daemon/config/config.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/un.h>

#include <charconv>
#include <filesystem>
#include <string>
#include <utility>

#include "daemon/config/allow_rules.h"
#include "daemon/config/config_keys.h"

namespace tandem {
namespace {

std::string JoinPath(const std::string& directory, std::string_view name) {
  std::string path = directory;
  if (path.empty() || path.back() != '/') path += '/';
  return path + std::string(name);
}

Status CheckAbsolute(std::string_view key, const std::string& path) {
  if (!path.empty() && path.front() == '/') return Status::Ok();
  return InvalidArgument(std::string(key) + " = \"" + path + "\" must be an absolute path");
}

Status CheckSocketPath(std::string_view key, const std::string& directory, const std::string& socket) {
  constexpr size_t kMaxSocketPath = sizeof(sockaddr_un{}.sun_path) - 1;
  if (socket.size() <= kMaxSocketPath) return Status::Ok();
  return InvalidArgument(std::string(key) + " = \"" + directory + "\" is too long: the path of " +
                         socket.substr(socket.rfind('/') + 1) + " in it has " +
                         std::to_string(socket.size()) + " bytes, a socket's may have " +
                         std::to_string(kMaxSocketPath));
}

// By the names alone; the start compares the directories themselves (PrepareAdminDirectory).
bool IsAtOrBelow(const std::string& path, const std::string& directory) {
  const auto normal = [](const std::string& text) {
    return (std::filesystem::path(text) / "").lexically_normal().string();
  };
  return normal(path).starts_with(normal(directory));
}

Status CheckListenAddress(std::string_view key, const std::string& address) {
  if (address == "off") return Status::Ok();
  Status bad = InvalidArgument(std::string(key) + " = \"" + address +
                               "\" must be address:port, for example 127.0.0.1:9464, or off");
  size_t colon = address.rfind(':');
  if (colon == std::string::npos || colon == 0) return bad;
  std::string_view host = std::string_view(address).substr(0, colon);
  // An IPv6 address has colons, and therefore brackets.
  bool bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
  if (!bracketed && host.find_first_of(":[]") != std::string_view::npos) return bad;
  if (address.find_first_of(" \t\n/") != std::string::npos) return bad;
  int port = -1;
  const char* last = address.data() + address.size();
  auto [end, error] = std::from_chars(address.data() + colon + 1, last, port);
  if (error != std::errc() || end != last || port < 0 || port > 65535) return bad;
  return Status::Ok();
}

Status CheckHttp(const HttpConfig& http) {
  const auto both = [](const char* a, const std::string& x, const char* b, const std::string& y) {
    if (x.empty() == y.empty()) return Status::Ok();
    return InvalidArgument(std::string(x.empty() ? b : a) + " is of no use without " + (x.empty() ? a : b));
  };
  TANDEM_RETURN_IF_ERROR(both("http.certificate", http.certificate, "http.key", http.key));
  TANDEM_RETURN_IF_ERROR(both("http.user", http.user, "http.password_file", http.password_file));
  for (const auto& [key, path] :
       {std::pair("http.certificate", &http.certificate), std::pair("http.key", &http.key),
        std::pair("http.password_file", &http.password_file)}) {
    if (!path->empty()) TANDEM_RETURN_IF_ERROR(CheckAbsolute(key, *path));
  }
  for (const char c : http.user) {
    if (c != ':' && static_cast<unsigned char>(c) >= 0x20 && c != 0x7f) continue;
    return InvalidArgument("http.user must have neither a colon nor control characters");
  }
  return Status::Ok();
}

// One comment line per 100 columns.
std::string Comment(std::string_view text) {
  std::string out = "#";
  size_t column = 1;
  while (!text.empty()) {
    size_t space = text.find(' ');
    std::string_view word = text.substr(0, space);
    text.remove_prefix(space == std::string_view::npos ? text.size() : space + 1);
    if (column + 1 + word.size() > 100) {
      out += "\n#";
      column = 1;
    }
    out += ' ';
    out += word;
    column += 1 + word.size();
  }
  return out + "\n";
}

std::string Limits(const config::KeySpec& key) {
  switch (key.type) {
    case config::KeyType::kInteger:
      return " Between " + std::to_string(key.min) + " and " + std::to_string(key.max) + ".";
    case config::KeyType::kBytes:
      return " Between " + config::PrintBytes(key.min) + " and " + config::PrintBytes(key.max) + ".";
    case config::KeyType::kChoice: {
      std::string choices;
      for (std::string_view choice : key.choices)
        choices += (choices.empty() ? "" : ", ") + std::string(choice);
      return " One of " + choices + ".";
    }
    default: return "";
  }
}

std::string Print(const Config& config, std::string_view before_key) {
  std::string out;
  std::string_view table;
  for (const config::KeySpec& key : config::Keys()) {
    size_t dot = key.name.find('.');
    std::string_view key_table = dot == std::string_view::npos ? "" : key.name.substr(0, dot);
    std::string_view leaf = dot == std::string_view::npos ? key.name : key.name.substr(dot + 1);
    if (!out.empty()) out += "\n";
    if (key_table != table) {
      if (table.empty()) {
        // Before the tables: a list without rules is a key of none of them.
        out += Comment(std::string(config::kAllowDoc) + " Reloadable.");
        out += config.allow.empty() ? std::string(before_key) + "allow = []\n\n"
                                    : "# The tables are at the end.\n\n";
      }
      out += "[" + std::string(key_table) + "]\n";
      table = key_table;
    }
    out += Comment(std::string(key.doc) + Limits(key) + (key.live ? " Reloadable." : ""));
    out += std::string(before_key) + std::string(leaf) + " = " + config::PrintValue(key, config) + "\n";
  }
  return out + config::PrintAllow(config.allow);
}

}  // namespace

std::string LeaseSocketPath(const Config& config) { return JoinPath(config.runtime_dir, "lease.sock"); }
std::string ClientSocketPath(const Config& config) { return JoinPath(config.runtime_dir, "client.sock"); }
std::string AdminSocketPath(const Config& config) { return JoinPath(AdminDirectory(config), "admin.sock"); }

std::string AdminDirectory(const Config& config) {
  if (!config.admin_dir.empty()) return config.admin_dir;
  const size_t end = config.runtime_dir.find_last_not_of('/');
  return config.runtime_dir.substr(0, end == std::string::npos ? 0 : end + 1) + "-admin";
}

int64_t EnginesNeeded(const Config& config) {
  const std::string& text = config.ready_with_engines;
  if (text == "all") return 0;
  return text == "any" ? 1 : text[0] - '0';
}

bool IsLoopbackAddress(std::string_view listen) {
  std::string host(listen.substr(0, listen.rfind(':')));
  if (host == "localhost") return true;
  if (host.size() > 2 && host.front() == '[') host = host.substr(1, host.size() - 2);
  in_addr v4{};
  if (::inet_pton(AF_INET, host.c_str(), &v4) == 1) return ntohl(v4.s_addr) >> 24 == 127;
  in6_addr v6{};
  return ::inet_pton(AF_INET6, host.c_str(), &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6);
}

Status CheckExposure(const HttpConfig& http, const std::string& listen) {
  if (listen == "off" || IsLoopbackAddress(listen) || http.allow_plain) return Status::Ok();
  std::string missing;
  if (http.certificate.empty()) missing = "http.certificate and http.key";
  if (http.user.empty())
    missing += (missing.empty() ? "" : ", ") + std::string("http.user and http.password_file");
  if (missing.empty()) return Status::Ok();
  return FailedPrecondition("others reach " + listen + ", so " + missing +
                            " must be set, or http.allow_plain where something else protects the address");
}

Status ValidateConfig(const Config& config) {
  TANDEM_RETURN_IF_ERROR(CheckAbsolute("runtime_dir", config.runtime_dir));
  TANDEM_RETURN_IF_ERROR(CheckAbsolute("state_dir", config.state_dir));
  TANDEM_RETURN_IF_ERROR(CheckAbsolute("admin_dir", AdminDirectory(config)));
  if (!config.mps.pipe_directory.empty()) {
    TANDEM_RETURN_IF_ERROR(CheckAbsolute("mps.pipe_directory", config.mps.pipe_directory));
  }
  if (!config.mps.spare_pipe_directory.empty()) {
    TANDEM_RETURN_IF_ERROR(CheckAbsolute("mps.spare_pipe_directory", config.mps.spare_pipe_directory));
    if (config.mps.spare_pipe_directory == config.mps.pipe_directory) {
      return InvalidArgument("mps.spare_pipe_directory = \"" + config.mps.spare_pipe_directory +
                             "\" must be another directory than mps.pipe_directory");
    }
  }
  TANDEM_RETURN_IF_ERROR(CheckSocketPath("runtime_dir", config.runtime_dir, ClientSocketPath(config)));
  TANDEM_RETURN_IF_ERROR(CheckSocketPath("admin_dir", AdminDirectory(config), AdminSocketPath(config)));
  if (config.restart_grace_ms > 0) {
    TANDEM_RETURN_IF_ERROR(CheckSocketPath("admin_dir", AdminDirectory(config),
                                           JoinPath(AdminDirectory(config), "engine-0.sock")));
  }
  if (IsAtOrBelow(AdminDirectory(config), config.runtime_dir)) {
    return InvalidArgument("admin_dir = \"" + AdminDirectory(config) + "\" must not be runtime_dir = \"" +
                           config.runtime_dir + "\" or lie below it: containers mount that directory");
  }
  const std::string& ready = config.ready_with_engines;
  if (ready != "all" && ready != "any" && (ready.size() != 1 || ready[0] < '1' || ready[0] > '8')) {
    return InvalidArgument("ready_with_engines = \"" + ready + "\" must be all, any or a number from 1 to 8");
  }
  TANDEM_RETURN_IF_ERROR(CheckListenAddress("metrics.listen", config.metrics_listen));
  TANDEM_RETURN_IF_ERROR(CheckListenAddress("web.listen", config.web_listen));
  TANDEM_RETURN_IF_ERROR(CheckHttp(config.http));
  if (config.supervisor.backoff_initial_ms > config.supervisor.backoff_max_ms) {
    return InvalidArgument(
        "supervisor.backoff_initial_ms = " + std::to_string(config.supervisor.backoff_initial_ms) +
        " must not exceed supervisor.backoff_max_ms = " + std::to_string(config.supervisor.backoff_max_ms));
  }
  if (config.quotas.sessions_per_uid > config.quotas.sessions) {
    return InvalidArgument("quotas.sessions_per_uid = " + std::to_string(config.quotas.sessions_per_uid) +
                           " must not exceed quotas.sessions = " + std::to_string(config.quotas.sessions));
  }
  for (const AllowConfig& rule : config.allow) {
    for (const char* name : {"sessions_per_uid", "cgroup_sessions"}) {
      const auto quota = rule.quotas.find(name);
      if (quota == rule.quotas.end() || quota->second <= config.quotas.sessions) continue;
      return InvalidArgument("allow.quotas." + std::string(name) + " = " + std::to_string(quota->second) +
                             " must not exceed quotas.sessions = " + std::to_string(config.quotas.sessions));
    }
  }
  if (config.quotas.cgroup_sessions > config.quotas.sessions) {
    return InvalidArgument("quotas.cgroup_sessions = " + std::to_string(config.quotas.cgroup_sessions) +
                           " must not exceed quotas.sessions = " + std::to_string(config.quotas.sessions));
  }
  return Status::Ok();
}

std::string PrintConfig(const Config& config) { return Print(config, ""); }

std::string PrintDefaultConfigFile() {
  return "# Configuration of tandemd. Every key is shown with its default; uncomment what you change.\n"
         "# Files in config.d/ beside this one are read after it, in the order of their names; flags go over "
         "all files.\n"
         "# `tandemd --check-config` checks, `tandemd --print-config` shows what is in force.\n"
         "# `systemctl reload tandemd` takes over the keys marked as reloadable; the others need a "
         "restart.\n\n" +
         Print(Config(), "# ");
}

}  // namespace tandem
