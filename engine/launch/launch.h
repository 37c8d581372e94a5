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
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/launch/forecast.h"
#include "engine/launch/launch_state.h"
#include "engine/launch/launch_times.h"
#include "engine/memory/memory_table.h"
#include "ipc/arrival_table.h"
#include "ipc/channel.h"
#include "ipc/order_log.h"
#include "ipc/stats_area.h"
#include "kernels/backend.h"
#include "runtime/executor/executor.h"

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
  bool under_way = false;           // a launch has arrived and not ended: the next cannot arrive
  uint64_t ended_ns = 0;    // when the engine saw its last launch's end, until the next one arrives; 0 then
  uint64_t ended_plan = 0;  // that launch's
  bool ended = false;       // its client broke the protocol, or it was closed
  std::array<std::unique_ptr<CapturedLaunch>, kCapturedSlots> captured;
  int captured_live = 0;
  std::shared_ptr<Forecast> after =
      std::make_shared<Forecast>(0);  // of launches in the ring: that the first waiting one starts next
};

// Where a launch came from, hence where its end is reported.
struct Origin {
  enum class Kind { kChannel, kCaptured, kDirect } kind = Kind::kDirect;
  std::shared_ptr<Channel> channel;  // kept mapped until the launch has ended
  uint64_t id = 0;                   // sequence, replay number, or the direct launch's id
  int slot = -1;
  uint64_t session_id = 0;
};

struct InstalledPlan;

// A launch that arrives now.
struct LaunchRequest {
  Origin origin;
  uint64_t plan_id = 0;
  uint64_t group_generation = 0;
  uint64_t deadline_ns = 0;  // relative; 0: the group's
  uint64_t tag_digest = 0;
  std::span<const LaunchBinding> bindings;
};

// Around a launch on lane 0; both or none.
struct TimingEvents {
  std::unique_ptr<Event> start, end;
  explicit operator bool() const { return start != nullptr; }
};

// Why a launch fails; OK: it does not.
struct Failure {
  Status status;
  int who_rank = -1;
};

// A failure whose detail has this reason, and names the rank that caused it (-1: none in particular).
Failure MakeFailure(std::string reason, const Status& status, int who_rank);

// A rank that seems to have made another call instead of a launch: launch_desync.cc.
struct Suspicion {
  int rank = -1;       // none
  uint64_t looks = 0;  // of the rank's engine then
  uint64_t own_looks = 0;
  uint64_t plan_id = 0;  // that it has made
};

// A plan's launch on this rank, from its arrival to its end. Its vectors keep their memory for the plan's
// next launch.
struct Launch {
  LaunchProgress progress;
  Origin origin;
  uint64_t count = 0;  // of the plan on this rank, from 1; equal on all ranks
  uint64_t arrive_ns = 0, deadline_ns = 0, next_late_ns = 0;
  uint64_t next_order_ns = 0;  // the next look for a rank that has made another call
  Suspicion suspicion;
  uint64_t start_ns = 0;
  uint64_t run_limit_ns = 0;                // how long it may run: see RunLimitNs
  uint64_t held_ns = 0, next_chunk_ns = 0;  // of a launch that is kHeld: since when, and its next look
  int chunk = 0;                            // the first one that is not known to be there
  uint64_t digest = 0;
  Failure failure;  // of a launch that is kFailing
  uint64_t launch_number = 0;
  uint64_t ticket = 0;       // the engine's completion word reaches it when the lanes are through
  bool alone = false;        // no program was on the lanes when it was enqueued
  bool speculative = false;  // its first kernel was on lane 0 already
  TimingEvents events;       // of a launch that is timed by events, else none
  std::vector<runtime::StepEvents> step_events;  // of a sampled launch, else empty; they are the plan's
  std::vector<runtime::SlotAddress> slots;
  std::vector<std::shared_ptr<Registration>> pins;

  bool Is(LaunchState state) const { return progress.state() == state; }
  // Its program is on lanes.
  bool Started() const { return Is(LaunchState::kStarted) || Is(LaunchState::kFailing); }
};

// Workspace and bulk area of one generation of a group, by rank. Plans keep the one they were added under, so
// that all ranks change over at the same plan.
struct Workspace {
  std::array<std::array<std::byte*, plan::kMaxWorldSize>, 2> half{};
  std::array<std::byte*, plan::kMaxWorldSize> bulk{};
  uint64_t half_bytes = 0, bulk_bytes = 0;
  std::vector<std::shared_ptr<Segment>> pins;
};

// How far a group's break is on this engine: group_breaker.h has the table.
enum class BreakState : uint8_t { kWhole, kAnnounced, kMarked, kReleased };

struct GroupBreak {
  BreakState state = BreakState::kWhole;
  std::optional<Failure> failure;  // what launches of the group end with; none before a reason is known
  bool appended = false;           // this engine has appended BREAK to the log
  uint64_t announced_ns = 0;       // when BREAK was read in the log
  uint64_t marked_ns = 0;          // when the rank was marked
  uint8_t gone_mask = 0;           // ranks without a mark whose engines have ended
  uint8_t silent_mask = 0;         // ranks reported by OnPeerSilent
  uint64_t last_look_ns = 0;       // for engines that have ended
  uint64_t last_release_ns = 0;
};

struct EngineGroup {
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

  uint64_t launch_number = 0;     // the last one given to a start
  uint64_t last_bulk_launch = 0;  // of the last start that uses the bulk area
  uint64_t gpu_time_ns = 0;       // used on this GPU, for fairness
  uint8_t left_mask = 0;          // ranks that have left cleanly
  int arrived = 0;                // launches arrived and not ended
  int in_flight = 0;              // of them, on lanes
  GroupBreak breaking;

  bool stalls = false;             // a launch that a rank misses ends the later ones, too, until a renewal
  bool ordered = false;            // all ranks make all calls of the group in one order (launch_desync.cc)
  std::optional<Failure> stalled;  // what launches end with until a renewal; none: they run
  uint64_t renewals = 0;           // as tandemd counts them
  // Why a launch fails that the log will name, as tandemd has told it.
  struct ReportedFailure {
    uint64_t plan_id = 0, count = 0;
    Failure failure;
  };
  std::optional<ReportedFailure> reported;

  // Its launches end with breaking.failure.
  bool Broken() const { return breaking.failure.has_value(); }
  // Its launches may start.
  bool MayStart() const { return !Broken() && !stalled && breaking.state == BreakState::kWhole; }
};

struct InstalledPlan {
  uint64_t id = 0;
  EngineGroup* group = nullptr;
  uint32_t index = 0;  // row in the group's arrival table
  std::unique_ptr<runtime::CompiledProgram> program;
  std::vector<SlotRule> slots;
  std::shared_ptr<Workspace> workspace;
  bool latency_class = false;
  bool takes_launch_number =
      false;  // it meets peers or uses shared memory: it counts among its group's starts
  bool uses_bulk = false;
  // Its first kernel was refused, or it uses the words that cancel first kernels.
  bool never_speculative = false;
  uint64_t bytes_moved = 0;
  uint32_t op = 0, algorithm = 0;  // what its launches are counted by
  StatsRow stats_row;
  uint64_t arrivals = 0;     // launches that this rank has made: the number of the last
  uint64_t first_count = 0;  // its value when the plan was added
  std::string name;          // operation, first operand and key, for messages
  uint64_t queued = 0;  // launches in channels that this rank's streams have not reached; of ordered groups
  bool in_graphs = false;  // a graph may launch it; of ordered groups
  uint64_t Launched() const { return in_graphs ? kUnknownLaunches : arrivals + queued; }
  LaunchLags lags;
  // Events around each step, made for the first sampled launch: start and end of step i at 2i and 2i + 1.
  std::vector<std::unique_ptr<Event>> step_events;
  std::vector<uint16_t> step_lanes;
  Launch active;
  // Failures that the log decided for launches that this rank has not made yet.
  std::vector<std::pair<uint64_t, LogEntry>> early;
};

// The last words that a rank has on itself cancel speculative launches: they are LaunchContext::guard, in
// turns. A word that is raised for a kernel must not reach kernels before it that were let go and have not
// begun, which are as many as programs on the lanes.
inline constexpr int kCancelSignals = 4;
inline constexpr int kFirstCancelSignal = plan::kSignalsPerWriter - kCancelSignals;

// A launch that has waited for so long is late: its missing ranks are reported.
inline constexpr uint64_t kLateAfterNs = 1'000'000'000;
// In an ordered group a launch that has waited for so long looks, so often, for a rank that has made another
// call.
inline constexpr uint64_t kDesyncAfterNs = 100'000'000;
inline constexpr uint64_t kDesyncEveryNs = 50'000'000;

// How long a launch may run that asks for one deadline and whose group has another: the longer of them, but
// what it asks for counts up to an hour only. All groups share the lanes, and a client may write anything
// into its ring.
inline constexpr uint64_t kLongestAskedRunNs = 3'600'000'000'000;
inline constexpr uint64_t RunLimitNs(uint64_t asked_ns, uint64_t groups_ns) {
  return std::max(std::min(asked_ns, kLongestAskedRunNs), groups_ns);
}

// The context that a launch with this number and these slots is enqueued with, without events, guard and the
// lanes' state.
runtime::LaunchContext ContextOf(const InstalledPlan& plan, uint64_t launch_number,
                                 std::span<const runtime::SlotAddress> slots);

// CLOCK_MONOTONIC in nanoseconds.
uint64_t NowNs();

}  // namespace tandem::engine
