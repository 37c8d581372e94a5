// File: instance_lock.h
//
// One tandemd per runtime directory: a lock file that lives as long as its process, and the check that a
// socket's file is stale before it is replaced.
#pragma once

#include <string>

#include "common/unique_fd.h"
#include "tandem/status.h"

namespace tandem::daemon {

// Makes `directory` (0755) if it is absent and takes the lock `directory`/lock. ALREADY_EXISTS with the
// owner's pid if another process holds it. The lock ends with the descriptor.
Result<UniqueFd> LockRuntimeDirectory(const std::string& directory);

// Removes a stale socket at `path`. ALREADY_EXISTS if somebody answers there, or if the file is no socket.
Status RemoveStaleSocket(const std::string& path);

// Gives the socket at `path` to `group` (by name; "" leaves the group) and sets its mode. NOT_FOUND if there
// is no such group: the mode is set all the same, the group stays this process's.
Status ShareSocket(const std::string& path, const std::string& group, unsigned mode);

}  // namespace tandem::daemon
