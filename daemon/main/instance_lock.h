// File: instance_lock.h
//
// The files of tandemd's sockets: one tandemd per runtime directory, by a lock file that lives as long as its
// process; the administrators' directory apart from the clients'; stale sockets; the sockets' group and mode.
#pragma once

#include <string>

#include "common/unique_fd.h"
#include "tandem/status.h"

namespace tandem::daemon {

// Makes `directory` (0755) if it is absent and takes the lock `directory`/lock. ALREADY_EXISTS with the
// owner's pid if another process holds it. The lock ends with the descriptor.
Result<UniqueFd> LockRuntimeDirectory(const std::string& directory);

// Makes the administrators' `directory` (0700) if it is absent; one that is there keeps its mode.
// FAILED_PRECONDITION if it is the clients' directory or lies below it, symbolic links followed: whoever may
// mount the clients' directory would administer the node. Returns whether it was made. `clients` exists.
Result<bool> PrepareAdminDirectory(const std::string& directory, const std::string& clients);

// Removes a stale socket at `path`. ALREADY_EXISTS if somebody answers there, or if the file is no socket.
Status RemoveStaleSocket(const std::string& path);

// Gives the socket at `path` to `group` (a name or a gid; "" leaves the group) and sets the mode. NOT_FOUND
// if there is no such group: the mode is set nevertheless, and the group stays this process's.
Status ShareSocket(const std::string& path, const std::string& group, unsigned mode);

}  // namespace tandem::daemon
