// File: channel_records.h
//
// Records of a session's ways to the engines: channels, and launches by gRPC. Plain data under the registry's
// mutex.
#pragma once

#include <cstdint>

#include "common/unique_fd.h"
#include "tandem/status.h"

namespace tandem::daemon {

struct ChannelRecord {
  int gpu = 0;
  uint32_t entries = 0;
  SharedFd words;
  bool over = false;          // its engine has ended; the client has yet to close it
  bool acknowledged = false;  // the client may have the answer: the next tandemd must know it
};

struct LaunchRecord {
  int gpu = 0;
  bool done = false;
  Status status;
};

}  // namespace tandem::daemon
