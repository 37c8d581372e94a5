#include "daemon/admin/page_state.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>
#include <vector>

#include "common/log.h"
#include "daemon/admin/engine_queues.h"
#include "tandem/engine/v1/engine.pb.h"
#include "tandem/v1/types.pb.h"

namespace tandem::daemon {
namespace {

using nlohmann::json;

// Entries of the trace that are read for each launch; a sampled launch has an entry for each step too.
constexpr uint64_t kRecordsPerLaunch = 16;
// A launch that has waited for longer waits for a late rank, as `tandemctl queue` and the metrics count.
constexpr double kLateSeconds = 1;

const char* AdmissionName(Admission admission) {
  switch (admission) {
    case Admission::kOpen: return "open";
    case Admission::kCordoned: return "cordoned";
    case Admission::kDraining: return "draining";
  }
  return "open";
}

std::string HostName() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "";
}

json TopologyOf(const AdminSources& sources, const ControlSnapshot& control) {
  const std::vector<GpuCondition> conditions =
      sources.gpu_watch == nullptr ? std::vector<GpuCondition>() : sources.gpu_watch->Conditions();
  const Topology& topology = sources.topology;
  json gpus = json::array(), links = json::array();
  for (int i = 0; i < topology.size(); ++i) {
    const GpuInfo& gpu = topology.gpus[static_cast<size_t>(i)];
    json faults = json::array();
    if (static_cast<size_t>(i) < conditions.size()) {
      for (const auto& [kind, text] : FaultsOf(conditions[static_cast<size_t>(i)])) faults.push_back(text);
    }
    const auto cordoned = control.cordoned_gpus.find(i);
    gpus.push_back({{"gpu", i},
                    {"uuid", gpu.uuid},
                    {"model", gpu.model},
                    {"numa_node", gpu.numa_node},
                    {"memory_bytes", gpu.memory_bytes},
                    {"switch_links", gpu.switch_links},
                    {"faults", std::move(faults)},
                    {"cordoned", cordoned == control.cordoned_gpus.end() ? "" : cordoned->second}});
  }
  std::map<std::pair<std::string, std::string>, double> rates;
  for (const LinkRate& link : sources.links) rates[{link.from, link.to}] = link.gb_per_second;
  const auto rate = [&](int from, int to) {
    auto found = rates.find(
        {topology.gpus[static_cast<size_t>(from)].uuid, topology.gpus[static_cast<size_t>(to)].uuid});
    return found == rates.end() ? json(nullptr) : json(found->second);
  };
  for (int i = 0; i < topology.size(); ++i) {
    for (int j = i + 1; j < topology.size(); ++j) {
      const auto a = static_cast<size_t>(i), b = static_cast<size_t>(j);
      links.push_back({{"gpus", {i, j}},
                       {"nvlinks", topology.nvlinks[a][b]},
                       {"pcie", PcieDistanceName(topology.pcie[a][b])},
                       {"peer_access", topology.HasPeerAccess(i, j)},
                       {"gb_per_second", {rate(i, j), rate(j, i)}}});
    }
  }
  return {{"class", TopologyClassName(Classify(topology))},
          {"gpus", std::move(gpus)},
          {"links", std::move(links)},
          {"failed_links", sources.failed_links}};
}

json EnginesOf(const AdminSources& sources, const std::vector<EngineQueue>& queues) {
  json engines = json::array();
  for (size_t gpu = 0; gpu < queues.size(); ++gpu) {
    const EngineStatus& status = queues[gpu].status;
    const StatsArea& area = sources.stats[gpu];
    engines.push_back({{"gpu", gpu},
                       {"state", EngineStateName(status.state)},
                       {"why", log::OneLine(queues[gpu].why_none)},
                       {"pid", status.pid},
                       {"restarts", status.restarts},
                       {"last_exit", log::OneLine(status.last_exit)},
                       {"launches", area.Launches()},
                       {"failures", area.Failures()},
                       {"late_launches", area.Late()},
                       {"busy_seconds", static_cast<double>(area.BusyNs()) * 1e-9}});
  }
  return engines;
}

json PoolsOf(const AdminSources& sources) {
  json pools = json::array();
  for (const PoolSnapshot& pool : sources.control->SnapshotPools()) {
    pools.push_back({{"gpu", pool.gpu},
                     {"memory_bytes", pool.memory_bytes},
                     {"segment_bytes", pool.segment_bytes},
                     {"used_bytes", pool.used_bytes},
                     {"registered_bytes", pool.registered_bytes}});
  }
  return pools;
}

// The entries that find a place, and whether that are all.
class Bounded {
 public:
  explicit Bounded(size_t most) : most_(most) {}
  void Add(json entry) {
    if (entries_.size() < most_) {
      entries_.push_back(std::move(entry));
    } else {
      cut_ = true;
    }
  }
  json Take(bool& truncated) {
    truncated |= cut_;
    return std::move(entries_);
  }

 private:
  const size_t most_;
  json entries_ = json::array();
  bool cut_ = false;
};

json SessionsOf(const AdminSources& sources, bool& truncated) {
  Bounded sessions(kPageSessions);
  for (const SessionSnapshot& session : sources.control->SnapshotSessions()) {
    sessions.Add({{"id", session.id},
                  {"uid", session.uid},
                  {"pid", session.pid},
                  {"name", log::OneLine(session.name)},
                  {"command", log::OneLine(session.command)},
                  {"owner", log::OneLine(session.owner)},
                  {"age_seconds", session.age_seconds},
                  {"groups", session.groups},
                  {"channels", session.channels},
                  {"tensor_bytes", session.bytes},
                  {"registered_bytes", session.registered_bytes}});
  }
  return sessions.Take(truncated);
}

json GroupsOf(const std::vector<GroupSnapshot>& snapshots, bool& truncated) {
  Bounded groups(kPageGroups);
  for (const GroupSnapshot& group : snapshots) {
    json members = json::array();
    for (const MemberSnapshot& member : group.members) {
      members.push_back({{"rank", member.rank},
                         {"gpu", member.gpu},
                         {"pid", member.pid},
                         {"session", member.session_id},
                         {"left", member.left}});
    }
    groups.Add({{"id", group.id},
                {"name", log::OneLine(group.name)},
                {"uid", group.uid},
                {"state", group.state},
                {"state_reason", log::OneLine(group.state_reason)},
                {"world_size", group.world_size},
                {"plans", group.plans},
                {"members", std::move(members)}});
  }
  return groups.Take(truncated);
}

// A plan's names for people. A plan that has been released has none.
struct PlanName {
  std::string group, summary;
};

std::map<uint64_t, PlanName> NamesOf(const AdminSources& sources, const std::set<uint64_t>& plans) {
  std::map<uint64_t, PlanName> names;
  for (const PlanSnapshot& plan : sources.control->SnapshotPlans(PlanQuery{.only = &plans}).plans) {
    v1::PlanInfo info;
    if (info.ParseFromString(plan.info))
      names[plan.plan_id] = {log::OneLine(plan.group_name), log::OneLine(info.summary())};
  }
  return names;
}

// The figures of the page, which has counters without "_total".
json CountsOf(const ControlSnapshot& control) {
  json counts;
  const auto add = [&](const auto& figure) {
    constexpr std::string_view kTotal = "_total";
    std::string_view name = figure.name();
    if (name.ends_with(kTotal)) name.remove_suffix(kTotal.size());
    if (figure.on_page) counts[std::string(name)] = control.*figure.value;
  };
  std::for_each(std::begin(kNodeGauges), std::end(kNodeGauges), add);
  std::for_each(std::begin(kNodeCounters), std::end(kNodeCounters), add);
  return counts;
}

json QueueOf(const std::vector<EngineQueue>& queues, std::map<uint64_t, PlanName>& names, bool& truncated) {
  Bounded entries(kPageQueue);
  for (size_t gpu = 0; gpu < queues.size(); ++gpu) {
    if (queues[gpu].queue == nullptr) continue;
    for (const auto& item : queues[gpu].queue->items()) {
      entries.Add({{"gpu", gpu},
                   {"plan", item.plan_id()},
                   {"group", item.group_id()},
                   {"group_name", names[item.plan_id()].group},
                   {"summary", names[item.plan_id()].summary},
                   {"launch", item.launch()},
                   {"state", item.started() ? "started" : "waiting"},
                   {"since_seconds", item.since_seconds()},
                   {"awaits", item.awaits()},
                   {"missing_ranks", item.missing_ranks()}});
    }
  }
  return entries.Take(truncated);
}

// Each rank once that launches have waited for, with the longest wait.
json LateRanksOf(const std::vector<EngineQueue>& queues, const std::vector<GroupSnapshot>& groups) {
  std::map<std::pair<uint64_t, int>, std::pair<double, uint64_t>> late;  // by group and rank: since, plan
  for (const EngineQueue& engine : queues) {
    if (engine.queue == nullptr) continue;
    for (const auto& item : engine.queue->items()) {
      if (item.started() || item.since_seconds() < kLateSeconds) continue;
      for (const int rank : item.missing_ranks()) {
        auto& longest = late[{item.group_id(), rank}];
        longest = std::max(longest, std::pair(item.since_seconds(), uint64_t{item.plan_id()}));
      }
    }
  }
  json ranks = json::array();
  for (const auto& [place, wait] : late) {
    json entry = {{"group", place.first}, {"rank", place.second}, {"since_seconds", wait.first},
                  {"plan", wait.second},  {"group_name", ""},     {"pid", 0},
                  {"gpu", nullptr}};
    for (const GroupSnapshot& group : groups) {
      if (group.id != place.first) continue;
      entry["group_name"] = log::OneLine(group.name);
      for (const MemberSnapshot& member : group.members) {
        if (member.rank != place.second) continue;
        entry["pid"] = member.pid;
        entry["gpu"] = member.gpu;
      }
    }
    ranks.push_back(std::move(entry));
  }
  return ranks;
}

json TimelineOf(const std::vector<std::vector<TraceRecord>>& traces, std::map<uint64_t, PlanName>& names,
                uint64_t now_ns) {
  // Microseconds before now, negative; null where the launch did not get so far.
  const auto at = [now_ns](uint64_t ns) {
    return ns == 0 ? json(nullptr) : json(-static_cast<double>(now_ns - std::min(now_ns, ns)) * 1e-3);
  };
  json launches = json::array();
  for (size_t gpu = 0; gpu < traces.size(); ++gpu) {
    for (const TraceRecord& record : traces[gpu]) {
      launches.push_back({{"gpu", gpu},
                          {"plan", record.plan_id},
                          {"group", record.group_id},
                          {"group_name", names[record.plan_id].group},
                          {"summary", names[record.plan_id].summary},
                          {"launch", record.launch},
                          {"arrive_us", at(record.arrive_ns)},
                          {"start_us", at(record.start_ns)},
                          {"end_us", at(record.end_ns)},
                          {"code", CodeName(static_cast<Code>(record.code))}});
    }
  }
  return launches;
}

// The latest launches, without steps.
std::vector<TraceRecord> LatestOf(const StatsArea& area) {
  std::vector<TraceRecord> records = area.ReadTrace(kPageLaunches * kRecordsPerLaunch);
  std::erase_if(records, [](const TraceRecord& record) { return record.step >= 0; });
  if (records.size() > kPageLaunches)
    records.erase(records.begin(), records.end() - static_cast<ptrdiff_t>(kPageLaunches));
  return records;
}

}  // namespace

std::string PageStateText(const AdminSources& sources) {
  const ControlSnapshot control = sources.control->Snapshot();
  const Health health = GatherHealth(sources);
  const std::vector<EngineQueue> queues = AskQueues(*sources.engines);
  const std::vector<GroupSnapshot> groups = sources.control->SnapshotGroups();
  std::vector<std::vector<TraceRecord>> traces;
  std::set<uint64_t> plans;
  for (const StatsArea& area : sources.stats) {
    traces.push_back(LatestOf(area));
    for (const TraceRecord& record : traces.back()) plans.insert(record.plan_id);
  }
  const auto now_ns = static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch() /
                                            std::chrono::nanoseconds(1));
  for (const EngineQueue& engine : queues) {
    if (engine.queue == nullptr) continue;
    for (const auto& item : engine.queue->items()) plans.insert(item.plan_id());
  }
  std::map<uint64_t, PlanName> names = NamesOf(sources, plans);
  bool truncated = false;
  json state = {
      {"schema", 1},
      {"node", HostName()},
      {"version", sources.version},
      {"backend", sources.backend},
      {"time", std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count()},
      {"uptime_seconds", control.uptime_seconds},
      {"admission", AdmissionName(control.admission)},
      {"health", {{"live", health.live}, {"ready", health.ready}, {"reasons", health.reasons}}},
      {"counts", CountsOf(control)},
      {"topology", TopologyOf(sources, control)},
      {"engines", EnginesOf(sources, queues)},
      {"queue", QueueOf(queues, names, truncated)},
      {"late_ranks", LateRanksOf(queues, groups)},
      {"timeline", TimelineOf(traces, names, now_ns)},
      {"pools", PoolsOf(sources)},
      {"sessions", SessionsOf(sources, truncated)},
      {"groups", GroupsOf(groups, truncated)}};
  state["truncated"] = truncated;
  // Clients choose names, and may choose bytes that are no UTF-8.
  return state.dump(-1, ' ', false, json::error_handler_t::replace);
}

std::string FreshText::Get() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (made_.time_since_epoch().count() == 0 || std::chrono::steady_clock::now() - made_ >= age_) {
    text_ = make_();
    made_ = std::chrono::steady_clock::now();
  }
  return text_;
}

}  // namespace tandem::daemon
