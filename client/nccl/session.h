// File: session.h
//
// `Session`: this process's session with the node's daemon, shared by its communicators.
#pragma once

#include <string>

#include "client/nccl/tandem_library.h"

namespace tandem::nccl {

struct Session {
  const TandemLibrary* library = nullptr;
  tandem_client* client = nullptr;
  std::string daemon;  // equal for processes of one daemon: the machine's boot, and the socket's inode
};

// Connects on first use, and again on a later use where no daemon has answered. UNAVAILABLE says why. A child
// of a fork cannot use its parent's. Thread-safe.
Result<Session> ThisSession();

// A number of this process, 32 hexadecimal digits. Processes of several containers may have one process id.
const std::string& ProcessIdentity();

// 32 hexadecimal digits that nobody can guess.
std::string RandomKey();

}  // namespace tandem::nccl
