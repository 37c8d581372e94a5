// File: capture_hold.h
//
// `CaptureHold`: keeps what the client-placed launches in one CUDA graph need, in the graph's place.
//
// Without a hold the graph keeps them by a user object, which is always safe. But CUDA does not enqueue a
// replay of a graph with a user object before the replay before it has ended. With a hold, replays run ahead
// of the GPU as those of any other graph do.
#pragma once

#include <memory>

#include "tandem/client.h"

namespace tandem {

// Thread-safe. Destroyed after the graph's last replay has been enqueued, and after the graph and its
// executable graphs are destroyed or never used again. Replays that still run then are waited for in the
// background.
class CaptureHold {
 public:
  // Holds for the capture that `stream` is in: launches that are captured from here on, on any of the
  // capture's streams. Launches in engines stay with the graph. On the host backend the hold has no effect:
  // replays run ahead there anyway. FAILED_PRECONDITION: the stream does not capture, or its capture has a
  // hold. UNIMPLEMENTED: a CUDA stream, and the library was built without CUDA.
  static Result<std::unique_ptr<CaptureHold>> Begin(StreamRef stream);

  virtual ~CaptureHold() = default;
};

}  // namespace tandem
