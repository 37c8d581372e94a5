#include "client/nccl/messages.h"

#include <unistd.h>

#include <mutex>
#include <set>

namespace tandem::nccl {
namespace {

std::mutex& TheMutex() {
  static auto* const mutex = new std::mutex;
  return *mutex;
}
std::string& TheLastError() {
  static auto* const text = new std::string;
  return *text;
}

}  // namespace

void Say(std::string_view text) {
  const std::string line = "tandem: " + std::string(text) + "\n";
  // One write keeps the lines of several ranks apart.
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
}

void SayOnce(std::string_view text) {
  static auto* const said = new std::set<std::string, std::less<>>;
  {
    const std::lock_guard lock(TheMutex());
    if (!said->emplace(text).second) return;
  }
  Say(text);
}

void SetLastError(std::string text) {
  const std::lock_guard lock(TheMutex());
  TheLastError() = std::move(text);
}

const char* LastError() {
  thread_local std::string mine;
  const std::lock_guard lock(TheMutex());
  mine = TheLastError();
  return mine.c_str();
}

std::string Describe(const Status& status) {
  std::string text = status.message();
  const std::string& who = status.detail().who;
  if (!who.empty() && text.find(who) == std::string::npos) text += " (" + who + ")";
  return text;
}

}  // namespace tandem::nccl
