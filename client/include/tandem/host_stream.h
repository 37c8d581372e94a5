// File: host_stream.h
//
// The client's stream on the host backend: an in-order queue of work for an emulated GPU, with events, and
// with capture into graphs that can be replayed. It behaves as a CUDA stream does. Streams alias onto a
// limited number of hardware queues. A wait for a word has no time-out. Only Synchronize waits for a stream.
//
// Threads: HostStream, HostEvent and HostGraphExec are thread-safe. Fork: the queues' threads do not outlive
// a fork. In the child of a process that has made a stream, no work on streams runs.
//
// Example:
//   auto stream = tandem::HostStream::Create();
//   (*stream)->Enqueue([&] { Fill(tensor); });
//   (*stream)->Synchronize(std::chrono::seconds(10));
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "tandem/status.h"

#if defined(__GNUC__) && !defined(TANDEM_API)
#define TANDEM_API __attribute__((visibility("default")))
#endif

namespace tandem {

class HostStream;

namespace host {
class HostQueue;
struct CaptureState;
struct EventState;
struct GraphState;
struct GraphExecState;
struct StreamState;
}  // namespace host

// How many hardware queues the streams of this process alias onto: 1 to 32. Default: the environment variable
// TANDEM_HOST_QUEUES, else 8. FAILED_PRECONDITION once a stream or an executable graph exists.
TANDEM_API Status SetHostQueues(int count);
// The number in force.
TANDEM_API int HostQueues();

// A point in a stream's work. Record it, then wait for it in other streams or on the CPU. Thread-safe. Record
// an event on one stream at a time: of records made on unordered streams the first reached counts for both.
class TANDEM_API HostEvent {
 public:
  HostEvent();
  ~HostEvent();
  HostEvent(const HostEvent&) = delete;
  HostEvent& operator=(const HostEvent&) = delete;

  // Returns true when the latest record has been reached, or none was made.
  bool Query() const;
  // Waits for that; DEADLINE_EXCEEDED after `timeout`.
  Status Synchronize(std::chrono::nanoseconds timeout) const;
  // CLOCK_MONOTONIC nanoseconds at which the latest record was reached; 0 before.
  int64_t TimeNs() const;

 private:
  friend class HostStream;
  std::shared_ptr<host::EventState> state_;
};

// A graph that can be launched any number of times. Launches of one executable graph run one after another.
// Destroying it while a launch is in flight is allowed: what it holds lives on until that launch has ended.
// Thread-safe.
class TANDEM_API HostGraphExec {
 public:
  HostGraphExec(HostGraphExec&&) noexcept;
  HostGraphExec& operator=(HostGraphExec&&) noexcept;
  ~HostGraphExec();

  // Enqueues one replay on `stream`. FAILED_PRECONDITION if the stream is capturing.
  Status Launch(HostStream& stream);

 private:
  friend class HostGraph;
  explicit HostGraphExec(std::shared_ptr<host::GraphExecState> state);
  std::shared_ptr<host::GraphExecState> state_;
};

// A recorded capture. Not thread-safe.
class TANDEM_API HostGraph {
 public:
  HostGraph(HostGraph&&) noexcept;
  HostGraph& operator=(HostGraph&&) noexcept;
  ~HostGraph();

  // Hands `object` to the graph: it is released when this graph, every executable graph made from it, and
  // their launches in flight are gone. Its destructor may run on a queue's thread; it must not block or call
  // a stream. RESOURCE_EXHAUSTED, reason NO_MEMORY: the graph does not have it.
  Status RetainUserObject(std::shared_ptr<void> object);
  Result<HostGraphExec> Instantiate() const;
  // Recorded operations, records and waits of events included.
  size_t node_count() const;

 private:
  friend class HostStream;
  explicit HostGraph(std::shared_ptr<host::GraphState> state);
  std::shared_ptr<host::GraphState> state_;
};

// An in-order stream. Thread-safe; each call enqueues and returns at once, Synchronize aside. While the
// stream captures, calls are recorded and nothing runs. Destroying a stream does not wait for its work, which
// runs on.
class TANDEM_API HostStream {
 public:
  // `priority`: lower is more urgent, 0 the highest.
  static Result<std::unique_ptr<HostStream>> Create(int priority = 1);
  HostStream(const HostStream&) = delete;
  HostStream& operator=(const HostStream&) = delete;
  ~HostStream();

  // Runs `function` in stream order. It must not throw, and not call functions of this library that wait.
  Status Enqueue(std::function<void()> function);
  // Stores `value` into *word with release order, after all earlier work of the stream.
  Status WriteWord(std::atomic<uint64_t>* word, uint64_t value);
  // Holds the stream until *word has reached `value` by cyclic comparison: (int64_t)(*word - value) >= 0. No
  // time-out.
  Status WaitWord(const std::atomic<uint64_t>* word, uint64_t value);

  // `event` is reached when all earlier work of this stream is done.
  Status Record(HostEvent& event);
  // Holds the stream until the latest record of `event` made before this call is reached. Waiting for an
  // event that was recorded in a capture draws this stream into that capture.
  Status Wait(HostEvent& event);
  // The same while the stream captures, at each launch of the graph instead: the graph's launch records the
  // event, or waits for its latest record, as a call would that is made at that time. The event stays outside
  // of the capture. Use one of these pairs for an event, not both.
  Status RecordExternal(HostEvent& event);
  Status WaitExternal(HostEvent& event);

  // Names this stream among all streams of the process, for ever: unlike its address, never given to another.
  // Not 0.
  uint64_t id() const;
  // True when all work enqueued so far is done.
  bool Query() const;
  // Waits for that: DEADLINE_EXCEEDED after `timeout`, FAILED_PRECONDITION while capturing.
  Status Synchronize(std::chrono::nanoseconds timeout) const;

  // From here to EndCapture the stream's calls are recorded into a graph. FAILED_PRECONDITION if it captures
  // already.
  Status BeginCapture();
  // Ends the capture that was begun on this stream and returns its graph. FAILED_PRECONDITION if none was, or
  // if work of a stream drawn in has not been joined back (the capture is over all the same).
  Result<HostGraph> EndCapture();
  bool IsCapturing() const;
  // HostGraph::RetainUserObject for the graph under capture; FAILED_PRECONDITION if the stream does not
  // capture.
  Status RetainInCapture(std::shared_ptr<void> object);

 private:
  friend class HostGraphExec;
  explicit HostStream(std::shared_ptr<host::StreamState> state);
  std::shared_ptr<host::StreamState> state_;
};

}  // namespace tandem
