#include "daemon/observe/chrome_trace.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "tandem/status.h"

namespace tandem::daemon {
namespace {

using nlohmann::json;

json Slice(const std::string& name, const char* category, size_t gpu, uint64_t plan, uint64_t base, uint64_t from,
           uint64_t to) {
  return {{"ph", "X"},    {"name", name},  {"cat", category}, {"pid", gpu}, {"tid", plan},
          {"ts", (from - base) / 1e3}, {"dur", (to - from) / 1e3}};
}

json Name(const char* kind, size_t gpu, uint64_t plan, const std::string& name) {
  return {{"ph", "M"}, {"name", kind}, {"pid", gpu}, {"tid", plan}, {"args", {{"name", name}}}};
}

// A row for each lane of a plan: beside the plan's own, and not another plan's.
uint64_t LaneRow(uint64_t plan, int lane) { return (plan << 8) | static_cast<uint64_t>(0x80 + lane); }

json StepSlice(const TraceRecord& record, const TracePlan& plan, size_t gpu, uint64_t base) {
  const auto step = static_cast<size_t>(record.step);
  auto names = plan.steps.find(gpu);
  std::string name = names != plan.steps.end() && step < names->second.size() ? names->second[step]
                                                                              : "step " + std::to_string(record.step);
  json slice = Slice(name, "step", gpu, LaneRow(record.plan_id, record.lane), base, record.start_ns,
                     std::max(record.start_ns, record.end_ns));
  slice["args"] = {{"plan", record.plan_id}, {"launch", record.launch}, {"step", record.step}, {"lane", record.lane}};
  return slice;
}

// The earliest moment of a record that the clock has seen.
uint64_t Begin(const TraceRecord& record) {
  uint64_t begin = record.end_ns;
  if (record.start_ns != 0) begin = std::min(begin, record.start_ns);
  if (record.arrive_ns != 0) begin = std::min(begin, record.arrive_ns);
  return begin;
}

}  // namespace

std::string ChromeTrace(std::span<const std::vector<TraceRecord>> records, std::span<const std::string> gpu_names,
                        const std::map<uint64_t, TracePlan>& plans, uint32_t last) {
  std::vector<std::span<const TraceRecord>> taken;
  uint64_t base = UINT64_MAX;
  for (const auto& gpu : records) {
    std::span<const TraceRecord> view(gpu);
    // Steps come before their launch and do not count.
    size_t first = view.size();
    for (uint32_t launches = 0; first > 0; --first) {
      if (last != 0 && view[first - 1].step < 0 && ++launches > last) break;
    }
    view = view.subspan(first);
    for (const auto& record : view) base = std::min(base, Begin(record));
    taken.push_back(view);
  }
  json events = json::array();
  for (size_t gpu = 0; gpu < taken.size(); ++gpu) {
    events.push_back(Name("process_name", gpu, 0, gpu_names[gpu]));
    std::set<uint64_t> named;
    for (const auto& record : taken[gpu]) {
      auto found = plans.find(record.plan_id);
      TracePlan plan = found != plans.end() ? found->second : TracePlan{};
      std::string title = plan.summary.empty() ? "plan " + std::to_string(record.plan_id) : plan.summary;
      if (named.insert(record.plan_id).second) {
        std::string group = plan.group_name.empty() ? "group " + std::to_string(record.group_id) : plan.group_name;
        events.push_back(Name("thread_name", gpu, record.plan_id, group + ": " + title));
      }
      if (record.step >= 0) {
        const uint64_t row = LaneRow(record.plan_id, record.lane);
        if (named.insert(row).second) {
          events.push_back(Name("thread_name", gpu, row, title + ", lane " + std::to_string(record.lane)));
        }
        events.push_back(StepSlice(record, plan, gpu, base));
        continue;
      }
      if (record.arrive_ns != 0 && record.start_ns > record.arrive_ns) {
        events.push_back(Slice("wait", "wait", gpu, record.plan_id, base, record.arrive_ns, record.start_ns));
      }
      uint64_t from = record.start_ns != 0 ? record.start_ns : Begin(record);
      json slice = Slice(title, record.code == 0 ? "launch" : "failed", gpu, record.plan_id, base, from,
                         std::max(from, record.end_ns));
      slice["args"] = {{"plan", record.plan_id},
                       {"group", record.group_id},
                       {"launch", record.launch},
                       {"algorithm", plan.algorithm},
                       {"status", std::string(CodeName(static_cast<Code>(record.code)))}};
      events.push_back(std::move(slice));
    }
  }
  return json{{"traceEvents", std::move(events)}, {"displayTimeUnit", "ms"}}.dump(
      -1, ' ', false, json::error_handler_t::replace);
}

}  // namespace tandem::daemon
