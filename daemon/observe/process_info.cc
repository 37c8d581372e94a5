#include "daemon/observe/process_info.h"

#include <dirent.h>
#include <sys/resource.h>
#include <unistd.h>

#include <fstream>
#include <string>

namespace tandem::daemon {

ProcessInfo ReadProcessInfo() {
  ProcessInfo info;
  std::ifstream statm("/proc/self/statm");
  uint64_t size = 0, resident = 0;
  if (statm >> size >> resident) info.rss_bytes = resident * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
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
