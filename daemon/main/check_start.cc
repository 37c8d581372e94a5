#include "daemon/main/check_start.h"

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "common/log.h"
#include "common/unique_fd.h"
#include "common/unix_group.h"
#include "daemon/main/instance_lock.h"
#include "daemon/observe/http_security.h"
#include "daemon/supervisor/supervisor.h"

namespace tandem::daemon {
namespace {

Status CheckEngine(const std::string& configured) {
  Result<std::string> program = FindEngineProgram(configured);
  if (!program.ok()) return program.status();
  std::error_code error;
  if (std::filesystem::is_regular_file(*program, error) && ::access(program->c_str(), X_OK) == 0)
    return Status::Ok();
  return NotFound(*program + " is not an executable program");
}

Status CheckReadableDirectory(const std::string& directory) {
  std::error_code error;
  if (!std::filesystem::is_directory(directory, error)) return NotFound(directory + " is no directory");
  if (::access(directory.c_str(), R_OK | X_OK) != 0) return PermissionDenied(directory + " cannot be read");
  return Status::Ok();
}

// The start makes it if it is absent.
Status CheckWritableDirectory(const std::string& directory) {
  std::error_code error;
  std::filesystem::path there = directory;
  while (!std::filesystem::exists(there, error) && there != there.parent_path()) there = there.parent_path();
  if (!std::filesystem::is_directory(there, error)) return NotFound(there.string() + " is no directory");
  if (::access(there.c_str(), W_OK | X_OK) == 0) return Status::Ok();
  return PermissionDenied(there.string() + " cannot be written: " + std::strerror(errno));
}

// The host has an address, and this machine has it.
Status CheckListen(const std::string& listen) {
  std::string host = listen.substr(0, listen.rfind(':'));
  if (host.size() > 2 && host.front() == '[') host = host.substr(1, host.size() - 2);
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (const int error = ::getaddrinfo(host.c_str(), "0", &hints, &found); error != 0) {
    return NotFound("the host '" + host + "' has no address: " + ::gai_strerror(error));
  }
  UniqueFd socket(::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const bool bound = socket.valid() && ::bind(socket.get(), found->ai_addr, found->ai_addrlen) == 0;
  const int error = errno;
  ::freeaddrinfo(found);
  return bound ? Status::Ok() : SystemError("listen at the address of '" + host + "'", error);
}

}  // namespace

std::vector<std::string> CheckStart(const Config& config, const NodeSources& sources) {
  std::vector<std::string> problems;
  const auto check = [&problems](const char* key, const Status& status) {
    if (!status.ok()) problems.push_back(std::string(key) + ": " + status.message());
  };
  check("engine_path", CheckEngine(config.engine_path));
  check("backend", ChooseNode(config, sources).status());
  if (!config.tuning_dir.empty()) check("tuning_dir", CheckReadableDirectory(config.tuning_dir));
  check("runtime_dir", CheckWritableDirectory(config.runtime_dir));
  check("admin_dir", CheckAdminDirectory(AdminDirectory(config), config.runtime_dir));
  check("admin_dir", CheckWritableDirectory(AdminDirectory(config)));
  check("state_dir", CheckWritableDirectory(config.state_dir));
  check("log_format", log::CheckFormat(static_cast<log::Format>(config.log_format)));
  if (!config.socket_group.empty()) check("socket_group", FindGroup(config.socket_group).status());
  check("http", HttpSecurity::Load(
                    {config.http.certificate, config.http.key, config.http.user, config.http.password_file})
                    .status());
  for (const auto& [key, listen] :
       {std::pair("metrics.listen", &config.metrics_listen), std::pair("web.listen", &config.web_listen)}) {
    const Status allowed = CheckExposure(config.http, *listen);
    check(key, allowed.ok() && *listen != "off" ? CheckListen(*listen) : allowed);
  }
  return problems;
}

}  // namespace tandem::daemon
