// File: instance_lock.h
//
// The directories of tandemd's sockets: one tandemd per runtime directory, by a lock file that lives as long
// as its process; the administrators' directory apart from the clients'.
#pragma once

#include <string>

#include "common/unique_fd.h"
#include "tandem/status.h"

namespace tandem::daemon {

// Makes `directory` (0755) if it is absent and takes the lock `directory`/lock. ALREADY_EXISTS with the
// owner's pid if another process holds it. The lock ends with the descriptor.
Result<UniqueFd> LockRuntimeDirectory(const std::string& directory);

// Whether `lock` is still the directory's lock: somebody may have removed the file, or the directory.
bool IsLockThere(const UniqueFd& lock, const std::string& directory);

// FAILED_PRECONDITION if the administrators' `directory` is the clients' or lies below it, symbolic links
// followed. Root of a container that mounts the clients' directory would administer the node. Neither needs
// to exist.
Status CheckAdminDirectory(const std::string& directory, const std::string& clients);

// CheckAdminDirectory, then makes `directory` (0700) if it is absent. A directory that is there keeps its
// mode: the socket's own mode admits its owner only. Returns whether it was made.
Result<bool> PrepareAdminDirectory(const std::string& directory, const std::string& clients);

}  // namespace tandem::daemon
