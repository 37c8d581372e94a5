#include "common/descriptor_reserve.h"

#include <sys/resource.h>

#include <algorithm>
#include <limits>

namespace tandem {
namespace {

constexpr rlim_t kMaxReserved = 1024;

}  // namespace

bool LeavesReserve(int fd, DescriptorUse use) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return true;
  // Two reserves lie above each other: clients leave both, leases leave the upper one.
  const rlim_t reserve = std::min(limit.rlim_cur / 8, kMaxReserved);
  switch (use) {
    case DescriptorUse::kClient: return static_cast<rlim_t>(fd) < limit.rlim_cur - 2 * reserve;
    case DescriptorUse::kLease: return static_cast<rlim_t>(fd) < limit.rlim_cur - reserve;
    case DescriptorUse::kOperator: return true;
  }
  return true;
}

unsigned long long DescriptorsOfOneUser() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_max == RLIM_INFINITY)
    return std::numeric_limits<unsigned long long>::max();
  return limit.rlim_max / 4;
}

}  // namespace tandem
