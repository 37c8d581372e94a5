// File: session.h
//
// `Session`: a session with the node's daemon. Each communicator has its own, so that an abort ends its launches
// and no others.
#pragma once

#include <string>

#include "client/nccl/tandem_library.h"

namespace tandem::nccl {

struct Session {
  const TandemLibrary* library = nullptr;
  OwnedClient client;
  std::string daemon;  // equal for processes of one daemon: the machine's boot, and the socket's inode
};

// UNAVAILABLE says why there is no session.
Result<Session> Connect();

// A number of this process, 32 hexadecimal digits. Processes of several containers may have one process id.
const std::string& ProcessIdentity();

// 32 hexadecimal digits that nobody can guess.
std::string RandomKey();

}  // namespace tandem::nccl
