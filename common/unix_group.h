// File: unix_group.h
//
// Groups of this machine's users, by name or number.
#pragma once

#include <sys/types.h>

#include <string>

#include "tandem/status.h"

namespace tandem {

// The gid of `group`: the name of a group, or a gid in decimal. A gid needs no entry in the group database: a
// container's group may have none on the host. NOT_FOUND for an unknown name, and for a number that is no
// gid. Thread-safe.
Result<gid_t> FindGroup(const std::string& group);

}  // namespace tandem
