#include "common/unix_group.h"

#include <grp.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <limits>
#include <vector>

namespace tandem {

Result<gid_t> FindGroup(const std::string& group) {
  const long hint = ::sysconf(_SC_GETGR_R_SIZE_MAX);
  std::vector<char> buffer(hint > 0 ? static_cast<size_t>(hint) : 1024);
  struct group entry;
  struct group* found = nullptr;
  while (::getgrnam_r(group.c_str(), &entry, buffer.data(), buffer.size(), &found) == ERANGE) {
    buffer.resize(2 * buffer.size());
  }
  if (found != nullptr) return entry.gr_gid;
  gid_t gid = 0;
  const char* end = group.data() + group.size();
  const auto [stop, error] = std::from_chars(group.data(), end, gid);
  // The largest number means "no group" to chown.
  if (error == std::errc() && stop == end && gid != std::numeric_limits<gid_t>::max()) return gid;
  return NotFound("the group '" + group + "' does not exist");
}

}  // namespace tandem
