#include "client/nccl/session.h"

#include <sys/random.h>
#include <sys/stat.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "tandem/deadlines.h"

namespace tandem::nccl {
namespace {

std::string RuntimeDirectory() {
  const char* given = std::getenv("TANDEM_RUNTIME_DIR");
  return given != nullptr && *given != '\0' ? given : "/run/tandem";
}

Result<std::string> IdentifyDaemon() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string boot;
  std::getline(file, boot);
  const std::string socket = RuntimeDirectory() + "/lease.sock";
  struct stat status {};
  if (::stat(socket.c_str(), &status) != 0) return SystemError("stat " + socket, errno);
  return boot + ":" + std::to_string(status.st_dev) + ":" + std::to_string(status.st_ino);
}

}  // namespace

Result<Session> Connect() {
  Session session;
  TANDEM_ASSIGN_OR_RETURN(session.library, LoadTandem());
  tandem_client* client = nullptr;
  TANDEM_RETURN_IF_ERROR(session.library->Take(
      session.library->tandem_connect(nullptr, nullptr, TANDEM_DEFAULT_CONNECT_DEADLINE_MS, &client)));
  session.client.reset(client);
  TANDEM_ASSIGN_OR_RETURN(session.daemon, IdentifyDaemon());
  return session;
}

std::string RandomKey() {
  std::array<unsigned char, 16> bytes{};
  if (::getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) return {};
  std::string text;
  for (const unsigned char byte : bytes) {
    std::array<char, 3> digits{};
    std::snprintf(digits.data(), digits.size(), "%02x", byte);
    text += digits.data();
  }
  return text;
}

const std::string& ProcessIdentity() {
  static const auto* const identity = new std::string(RandomKey());
  return *identity;
}

}  // namespace tandem::nccl
