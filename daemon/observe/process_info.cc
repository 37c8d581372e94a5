#include "daemon/observe/process_info.h"

#include <dirent.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string>

namespace tandem::daemon {
namespace {

// The start of this process in seconds since the epoch, from the machine's start and the process's ticks
// since then.
double StartTime() {
  std::ifstream stat("/proc/self/stat");
  std::string text;
  std::getline(stat, text, '\0');
  // The command, in parentheses, may hold anything; 20 fields behind it are the ticks.
  std::istringstream fields(text.substr(std::min(text.rfind(')') + 1, text.size())));
  std::string field;
  for (int i = 0; i < 19; ++i) fields >> field;
  double ticks = 0, boot = 0;
  if (!(fields >> ticks)) return 0;
  std::ifstream machine("/proc/stat");
  while (machine >> field) {
    if (field == "btime") machine >> boot;
    std::getline(machine, text);
  }
  return boot == 0 ? 0 : boot + ticks / static_cast<double>(::sysconf(_SC_CLK_TCK));
}

}  // namespace

ProcessInfo ReadProcessInfo() {
  ProcessInfo info;
  std::ifstream statm("/proc/self/statm");
  uint64_t size = 0, resident = 0;
  if (statm >> size >> resident) {
    const auto page = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
    info.rss_bytes = resident * page;
    info.virtual_bytes = size * page;
  }
  rusage usage{};
  if (::getrusage(RUSAGE_SELF, &usage) == 0) {
    for (const timeval& time : {usage.ru_utime, usage.ru_stime})
      info.cpu_seconds += static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  }
  info.start_time_seconds = StartTime();
  if (DIR* folder = ::opendir("/proc/self/fd")) {
    while (dirent* entry = ::readdir(folder)) {
      if (entry->d_name[0] != '.') ++info.descriptors;
    }
    ::closedir(folder);
    --info.descriptors;  // the folder's own
  }
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
    info.descriptor_limit = limit.rlim_cur;
  }
  if (::getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
    info.locked_limit_bytes = limit.rlim_cur;
  }
  return info;
}

MachineMemory ReadMachineMemory() {
  MachineMemory memory;
  std::ifstream file("/proc/meminfo");
  std::string key, unit;
  uint64_t kib;
  while (file >> key >> kib) {
    std::getline(file, unit);
    if (key == "MemTotal:") memory.total_bytes = kib << 10;
    if (key == "MemAvailable:") memory.available_bytes = kib << 10;
  }
  return memory;
}

void RaiseDescriptorLimit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == limit.rlim_max) return;
  limit.rlim_cur = limit.rlim_max;
  (void)::setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace tandem::daemon
