// File: counters.h
//
// `NodeCounters`: the counters of the control plane, and `kNodeCounters`, the one list of them. The registry
// holds the counters, and snapshots have a copy. The journal, /metrics and the web page go through the list.
// The journal keeps a counter in the field of the same name of state.proto's Node.
#pragma once

#include <cstdint>
#include <iterator>
#include <string_view>

namespace tandem::daemon {

// Since the start; with the journal, since the first tandemd's. Plain data.
struct NodeCounters {
  uint64_t sessions_total = 0;
  // A session that an operator ended counts as evicted, not as lost.
  uint64_t sessions_lost_total = 0;
  uint64_t sessions_evicted_total = 0;
  uint64_t groups_broken_total = 0;
  uint64_t groups_stalled_total = 0;
  // The registry has those of sessions that have read their events or ended.
  uint64_t events_dropped_total = 0;
  // The registry has those of groups that have ended.
  uint64_t client_launches_total = 0;
};

// A figure for operators. /metrics has it and, with `on_page`, the web page, where its name has no "_total".
template <typename Record>
struct Figure {
  const char* metric;
  const char* help;
  uint64_t Record::*value;
  bool on_page;
  // The field of the record, in the journal too.
  constexpr std::string_view name() const {
    return std::string_view(metric).substr(std::string_view("tandem_").size());
  }
};

// `kept`: by the journal.
struct NodeCounter : Figure<NodeCounters> {
  bool kept;
};
inline constexpr NodeCounter kNodeCounters[] = {
    {{"tandem_sessions_total", "Sessions since the start", &NodeCounters::sessions_total, false}, true},
    {{"tandem_sessions_lost_total", "Sessions that ended with their process, or by its fault",
      &NodeCounters::sessions_lost_total, true},
     true},
    {{"tandem_sessions_evicted_total", "Sessions that an operator ended",
      &NodeCounters::sessions_evicted_total, false},
     true},
    {{"tandem_groups_broken_total", "Groups that have broken", &NodeCounters::groups_broken_total, true},
     true},
    {{"tandem_groups_stalled_total", "Stalls of groups: a rank missed a launch, or made another call",
      &NodeCounters::groups_stalled_total, false},
     true},
    {{"tandem_events_dropped_total", "Events that clients have not read in time",
      &NodeCounters::events_dropped_total, false},
     false},
    {{"tandem_client_launches_total", "Launches that have ended on the ranks' own streams",
      &NodeCounters::client_launches_total, false},
     true},
};
static_assert(sizeof(NodeCounters) == std::size(kNodeCounters) * sizeof(uint64_t),
              "the list has all counters");

}  // namespace tandem::daemon
