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

// FAILED_PRECONDITION if the administrators' `directory` is the clients' or lies below it, symbolic links
// followed. Root of a container that mounts the clients' directory would administer the node. Neither needs
// to exist.
Status CheckAdminDirectory(const std::string& directory, const std::string& clients);

// CheckAdminDirectory, then makes `directory` (0700) if it is absent. A directory that is there keeps its
// mode: the socket's own mode admits its owner only. Returns whether it was made.
Result<bool> PrepareAdminDirectory(const std::string& directory, const std::string& clients);

// Removes a stale socket at `path`. ALREADY_EXISTS if somebody answers there, or if the file is no socket.
Status RemoveStaleSocket(const std::string& path);

// Gives the socket at `path` to `group` (a name or a gid; "" leaves the group) and sets the mode. NOT_FOUND
// if there is no such group: the mode is set nevertheless, and the group stays this process's.
Status ShareSocket(const std::string& path, const std::string& group, unsigned mode);

}  // namespace tandem::daemon
