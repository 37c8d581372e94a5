// File: event_stream.h
//
// `EventStream`: the thread that reads the daemon's events for a session, from one daemon after the other.
#pragma once

#include <grpcpp/grpcpp.h>

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

#include "client/grpc_plugin/daemon_calls.h"
#include "client/grpc_plugin/lease.h"
#include "client/lib/base/control_api.h"
#include "tandem/status.h"

namespace tandem::client {

// Thread-safe after Start.
class EventStream {
 public:
  // Both outlive this.
  EventStream(Lease& lease, DaemonCalls& calls) : lease_(lease), calls_(calls) {}
  ~EventStream() { Stop(); }
  EventStream(const EventStream&) = delete;
  EventStream& operator=(const EventStream&) = delete;

  // `on_event` is called from the thread.
  Status Start(std::function<void(const ControlEvent&)> on_event);
  // Ends the stream that is read, and returns then. The thread opens the next one when the lease, which is paused,
  // goes on.
  void Break();
  // No event comes from here on.
  void Silence();
  // The same, and the thread has ended. The lease has stopped.
  void Stop();

 private:
  void Read();

  Lease& lease_;
  DaemonCalls& calls_;
  std::function<void(const ControlEvent&)> on_event_;
  std::mutex mutex_;
  std::condition_variable changed_;
  grpc::ClientContext* context_ = nullptr;  // guarded: of the stream that is read
  bool stopping_ = false;                   // guarded
  std::thread thread_;
};

}  // namespace tandem::client
