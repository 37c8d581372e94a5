// File: launch.h
//
// The records of the launch queue: channels, groups, plans, and the one launch that each plan may have
// arrived with. Plain data of the engine's main thread.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/executor/executor.h"
#include "engine/launch/forecast.h"
#include "engine/launch/launch_times.h"
#include "engine/memory_table.h"
#include "ipc/arrival_table.h"
#include "ipc/channel.h"
#include "ipc/order_log.h"
#include "ipc/stats_area.h"
#include "kernels/backend.h"

namespace tandem::engine {

// A captured launch: its template, served each time its doorbell rings.
struct CapturedLaunch {
  LaunchEntry entry;
  uint64_t replays = 0;
  bool busy = false;  // one replay has arrived and not ended
  std::shared_ptr<Forecast> after =
      std::make_shared<Forecast>();  // whose doorbell rings next (ChannelServer)
};

// One client stream's channel, engine side.
struct Channel {
  uint64_t id = 0;
  uint64_t session_id = 0;
  uint32_t entries = 0;
  ChannelConsumer consumer;
  std::deque<LaunchEntry> waiting;  // taken from the ring, not yet arrived
  uint64_t last_sequence = 0;       // of the last entry taken
  int under_way = 0;  // launches that have arrived, or are parked, and have not ended: the next cannot arrive
  bool latest_started = false;  // the last of them is on the lanes
  bool offered = false;         // the first of `waiting` is offered for parking
  uint64_t ended_ns = 0;    // when the engine saw its last launch's end, until the next one arrives; 0 then
  uint64_t ended_plan = 0;  // that launch's
  bool ended = false;       // its client broke the protocol, or it was closed
  std::array<std::unique_ptr<CapturedLaunch>, kCapturedSlots> captured;
  int captured_live = 0;
  std::shared_ptr<Forecast> after =
      std::make_shared<Forecast>(0);  // of launches in the ring: that the first waiting one starts next
};

// Where a launch came from, hence how its end is told.
struct Origin {
  enum class Kind { kChannel, kCaptured, kDirect } kind = Kind::kDirect;
  std::shared_ptr<Channel> channel;  // kept mapped until the launch has ended
  uint64_t id = 0;                   // sequence, replay number, or the direct launch's id
  int slot = -1;
  uint64_t session_id = 0;
};

struct Plan;

// A launch that arrives now.
struct LaunchRequest {
  Origin origin;
  uint64_t plan_id = 0;
  uint64_t group_generation = 0;
  uint64_t deadline_ns = 0;  // relative; 0: the group's
  uint64_t tag_digest = 0;
  std::span<const LaunchBinding> bindings;
};

// A launch that must not arrive before the engine knows of its plan's last end (held_arrivals.cc), with its
// own bindings.
struct HeldArrival {
  LaunchRequest request;
  std::vector<LaunchBinding> bindings;
};

// How far a launch is that was enqueued before its rank's stream had reached it (parking.cc).
struct Parked {
  bool on_lanes = false;
  bool running = false;  // all ranks have arrived
  std::optional<LogEntry>
      taken_back;      // the log asks for it to be held; of an offer: it has failed, and says so on arrival
  bool tried = false;  // to hold it
  uint64_t taken_back_ns = 0;  // when this engine read that
  uint64_t withdrawn_ns = 0;   // its permit was withdrawn then; 0: never
  bool held = false, acknowledged = false, let_go = false;
  bool stood_in = false;  // the engine has written the request word in the stream's place

  // On the lanes, where it waits for ranks.
  bool Waits() const { return on_lanes && !running; }
};

// Around a launch on lane 0; both or none.
struct TimingEvents {
  std::unique_ptr<Event> start, end;
  explicit operator bool() const { return start != nullptr; }
};

// What is on lane 0 ahead of a launch that is expected (prelaunch.cc): the head of its program.
struct Prelaunched {
  Plan* plan = nullptr;
  uint64_t epoch = 0;
  uint64_t turn = 0;  // the go word's value that lets it go
  uint64_t since_ns = 0;
  std::vector<SlotAddress> slots;
  std::vector<std::shared_ptr<Registration>> pins;
  std::shared_ptr<Forecast> forecast;  // that said so
  TimingEvents events;  // where the launch is to be timed; the first stands between the go word and the head
};

// How a launch ends badly. OK when it does not.
struct Failure {
  Status status;
  int who_rank = -1;
};

// One whose detail has this reason, and names the rank that caused it (-1: none in particular).
Failure MakeFailure(std::string reason, Status status, int who_rank);

// A launch that has arrived, or is offered for parking. One a plan.
struct Launch {
  Origin origin;
  uint64_t count = 0;  // of the plan on this rank, from 1; equal on all ranks
  uint64_t arrive_ns = 0, deadline_ns = 0, next_late_ns = 0;
  uint64_t start_ns = 0;
  uint64_t asked_deadline_ns = 0;  // relative; 0: the group's
  uint64_t run_limit_ns = 0;       // how long it may run: see RunLimitNs
  uint64_t digest = 0;
  bool started = false;
  bool arrived = false;  // else it is only offered or parked
  Parked parked;
  Failure failure;  // set when its group breaks in flight
  uint64_t epoch = 0;
  uint64_t ticket = 0;                  // the engine's completion word reaches it when the lanes are through
  bool alone = false;                   // no program was on the lanes when it was enqueued
  bool prelaunched = false;             // its program's head was on lane 0 already
  TimingEvents events;                  // of a launch that is timed by events, else none
  std::vector<StepEvents> step_events;  // of a sampled launch, else empty; they are the plan's
  std::vector<SlotAddress> slots;
  std::vector<std::shared_ptr<Registration>> pins;
};

// A launch that was timed by events and has ended, until they are read: see launch_events.cc.
struct EndedLaunch {
  Plan* plan = nullptr;
  TraceRecord record;       // its times are estimates
  LaunchObserved observed;  // without what the events say
  TimingEvents events;
  std::vector<StepEvents> steps;  // the plan's
  size_t next_step = 0;           // the first that has not been read
};

// Workspace and bulk area of one generation of a group, by rank. Plans keep the one they were added under, so
// that all ranks change over at the same plan.
struct Workspace {
  std::array<std::array<std::byte*, plan::kMaxWorldSize>, 2> half{};
  std::array<std::byte*, plan::kMaxWorldSize> bulk{};
  uint64_t half_bytes = 0, bulk_bytes = 0;
  std::vector<std::shared_ptr<Segment>> pins;
};

struct Group {
  uint64_t id = 0;
  uint64_t session_id = 0;
  uint64_t generation = 0;
  int rank = 0;
  int world_size = 1;
  uint8_t gpu_mask = 0;
  std::array<uint8_t, plan::kMaxWorldSize> gpus{};  // by rank
  uint64_t deadline_ns = 0;
  ArrivalTable arrivals;
  std::array<Word*, plan::kMaxWorldSize> signals{};
  Word* abort_word = nullptr;
  CommunicatorOptions communicator_options;
  std::unique_ptr<Communicator> communicator;  // made for the first plan that needs it
  std::shared_ptr<Workspace> workspace;
  std::vector<std::shared_ptr<Segment>> pins;

  uint64_t epoch = 0;            // the last one given to a start
  uint64_t last_bulk_epoch = 0;  // of the last start that uses the bulk area
  uint64_t gpu_time_ns = 0;      // used on this GPU, for fairness
  uint8_t left_mask = 0;         // ranks that have left cleanly
  int arrived = 0;               // launches arrived and not ended
  int in_flight = 0;             // of them, on lanes
  std::optional<Failure> broken;
  uint64_t log_break_ns = 0;  // a BREAK was read in the log then; 0: none
  bool log_told = false;      // this engine has appended BREAK
  uint64_t broken_ns = 0;     // when it broke here
  uint8_t gone_mask = 0;      // ranks without a mark whose engines have ended: looked for once it broke
  uint8_t silent_mask = 0;    // ranks reported by OnPeerSilent
  uint64_t last_look_ns = 0;
  bool lanes_released = false;
  uint64_t last_release_ns = 0;
  bool parking = false;  // its launches may be parked
  bool direct = false;   // launches by message have been made: work that no channel orders
  int broken_stage = 0;  // told to the peers: see ArrivalTable::SetBroken
};

struct Plan {
  uint64_t id = 0;
  Group* group = nullptr;
  uint32_t index = 0;  // row in the group's arrival table
  std::unique_ptr<CompiledProgram> program;
  std::vector<SlotRule> slots;
  std::shared_ptr<Workspace> workspace;
  bool latency_class = false;
  bool takes_epoch = false;  // it meets peers or uses shared memory: it counts among its group's starts
  bool uses_bulk = false;
  std::string never_parked;        // why none of its launches is parked; empty: they may be
  bool never_prelaunched = false;  // its head did not go onto a lane, or uses the word that calls heads off
  uint64_t bytes_moved = 0;
  int stats_row = -1;
  uint64_t arrivals = 0;     // launches that this rank has made: the number of the last
  uint64_t first_count = 0;  // its value when the plan was added
  uint64_t revoked = 0;      // launches up to this one are not parked: some rank has taken its offer back
  LaunchLags lags;
  // Events around each step, made for the first sampled launch: start and end of step i at 2i and 2i + 1.
  std::vector<std::unique_ptr<Event>> step_events;
  std::vector<uint16_t> step_lanes;
  bool has_active = false;
  Launch active;
  // Failures that the log decided for launches that this rank has not made yet.
  std::vector<std::pair<uint64_t, LogEntry>> early;
};

// Where a launch's digest begins.
inline constexpr uint64_t kDigestSeed = 0xcbf29ce484222325;
// Words of a parked launch among those that a writer has on a reader; a program that uses them cannot be
// parked.
inline constexpr int kArrivedSignal = plan::kSignalsPerWriter - 1;
inline constexpr int kGuardSignal = plan::kSignalsPerWriter - 2;  // on the own rank: see LaunchContext::guard
// Call off what is enqueued ahead; likewise. In turns: one that is raised for a head must not reach those
// before it that have been let go and have not begun, which are as many as programs on the lanes.
inline constexpr int kCallOffSignals = 4;
inline constexpr int kFirstCallOffSignal = kGuardSignal - kCallOffSignals;

// Why none of a plan's launches can be parked on a GPU with so many hardware queues; empty if they can.
std::string WhyNeverParked(const Plan& plan, const plan::RankProgram& program, int hardware_queues);

// How long a launch may run that asks for one deadline and whose group has another: the longer of them, but
// what it asks for counts up to an hour only. All groups share the lanes, and a client may write anything
// into its ring.
inline constexpr uint64_t kLongestAskedRunNs = 3'600'000'000'000;
inline constexpr uint64_t RunLimitNs(uint64_t asked_ns, uint64_t groups_ns) {
  return std::max(std::min(asked_ns, kLongestAskedRunNs), groups_ns);
}

// CLOCK_MONOTONIC in nanoseconds.
uint64_t NowNs();

}  // namespace tandem::engine
