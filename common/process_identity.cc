#include "common/process_identity.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "common/unique_fd.h"

namespace tandem {
namespace {

struct ProcessState {
  bool known = false;  // else `missing`: there is none; without it /proc gave no answer
  bool missing = false;
  char state = '?';
  uint64_t start_ticks = 0;
};

ProcessState Look(int pid) {
  ProcessState process;
  UniqueFd fd(::open(("/proc/" + std::to_string(pid) + "/stat").c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) {
    // Without /proc nothing is known of anybody.
    process.missing = errno == ENOENT && ::access("/proc/self/stat", R_OK) == 0;
    return process;
  }
  char text[1024];
  ssize_t length = ::read(fd.get(), text, sizeof(text) - 1);
  if (length <= 0) {
    process.missing = length < 0 && errno == ESRCH;
    return process;
  }
  text[length] = 0;
  // The name, field 2, may hold spaces and parentheses: what follows its last one is field 3, the state.
  // Field 22 is the start.
  const char* field = std::strrchr(text, ')');
  if (field == nullptr || field[1] != ' ') return process;
  field += 2;
  process.state = *field;
  for (int number = 3; number < 22; ++number) {
    field = std::strchr(field, ' ');
    if (field == nullptr) return process;
    ++field;
  }
  process.start_ticks = std::strtoull(field, nullptr, 10);
  process.known = true;
  return process;
}

}  // namespace

ProcessIdentity ProcessIdentity::Of(int pid) { return {.pid = pid, .start_ticks = Look(pid).start_ticks}; }

bool ProcessIdentity::Gone() const {
  if (pid == 0) return false;
  const ProcessState now = Look(pid);
  if (!now.known) return now.missing;
  return (start_ticks != 0 && now.start_ticks != start_ticks) || now.state == 'Z' || now.state == 'X' ||
         now.state == 'x';
}

}  // namespace tandem
