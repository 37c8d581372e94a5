#include "common/descriptor_reserve.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

namespace tandem {
namespace {

constexpr rlim_t kMaxReserved = 2048;
// The lease's pidfd, the connection for calls (gRPC's and tandemd's own), and what gRPC opens for the first.
constexpr int kDescriptorsOfAClient = 6;
// tandemd's own; and of an engine: its process, sockets, statistics and pipes, and a share of the order log.
constexpr rlim_t kOwnDescriptors = 64, kDescriptorsOfAnEngine = 16;

rlim_t Limit() {
  rlimit limit{};
  return ::getrlimit(RLIMIT_NOFILE, &limit) == 0 ? limit.rlim_cur : RLIM_INFINITY;
}

// FD_LIMIT with this process's limit. `what` begins the message.
Status OwnLimit(const std::string& what) {
  const auto limit = static_cast<long long>(Limit());
  const pid_t pid = ::getpid();
  return ResourceExhausted(what + ": process " + std::to_string(pid) + " may have " + std::to_string(limit) +
                           " open at most (ulimit -n, LimitNOFILE)")
      .WithDetail({.reason = "FD_LIMIT", .who = "tandemd", .limit = limit, .pid = pid});
}

}  // namespace

bool LeavesReserve(int fd, DescriptorUse use) {
  const rlim_t limit = Limit();
  if (use == DescriptorUse::kOperator || limit == RLIM_INFINITY) return true;
  return static_cast<rlim_t>(fd) < limit - std::min(limit / 4, kMaxReserved);
}

bool HasRoomForClient(int fd) { return LeavesReserve(fd + kDescriptorsOfAClient, DescriptorUse::kClient); }

Status TooFewDescriptors() { return OwnLimit("tandemd has too few descriptors left for clients"); }

Status CheckDescriptorLimit(int gpus) {
  const rlim_t needed = kOwnDescriptors + kDescriptorsOfAnEngine * static_cast<rlim_t>(gpus);
  if (Limit() >= needed) return Status::Ok();
  return OwnLimit("tandemd needs " + std::to_string(needed) + " descriptors for " + std::to_string(gpus) +
                  " GPUs");
}

unsigned long long DescriptorsOfOneUser() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_max == RLIM_INFINITY)
    return std::numeric_limits<unsigned long long>::max();
  return limit.rlim_max / 4;
}

}  // namespace tandem
