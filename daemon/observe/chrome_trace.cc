#include "daemon/observe/chrome_trace.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <utility>

#include "tandem/status.h"

namespace tandem::daemon {
namespace {

using nlohmann::json;

json Slice(const std::string& name, const char* category, size_t gpu, uint64_t plan, uint64_t base,
           uint64_t from, uint64_t to) {
  return {{"ph", "X"},
          {"name", name},
          {"cat", category},
          {"pid", gpu},
          {"tid", plan},
          {"ts", (from - base) / 1e3},
          {"dur", (to - from) / 1e3}};
}

json Name(const char* kind, size_t gpu, uint64_t plan, const std::string& name) {
  return {{"ph", "M"}, {"name", kind}, {"pid", gpu}, {"tid", plan}, {"args", {{"name", name}}}};
}

// A row for each lane of a plan: beside the plan's own, and not another plan's.
uint64_t LaneRow(uint64_t plan, int lane) { return (plan << 8) | static_cast<uint64_t>(0x80 + lane); }

json StepSlice(const TraceRecord& record, const TracePlan& plan, size_t gpu, uint64_t base) {
  const auto step = static_cast<size_t>(record.step);
  auto names = plan.steps.find(gpu);
  std::string name = names != plan.steps.end() && step < names->second.size()
                         ? names->second[step]
                         : "step " + std::to_string(record.step);
  json slice = Slice(name, "step", gpu, LaneRow(record.plan_id, record.lane), base, record.start_ns,
                     std::max(record.start_ns, record.end_ns));
  slice["args"] = {
      {"plan", record.plan_id}, {"launch", record.launch}, {"step", record.step}, {"lane", record.lane}};
  return slice;
}

// The earliest moment of a record that the clock has seen.
uint64_t Begin(const TraceRecord& record) {
  uint64_t begin = record.end_ns;
  if (record.start_ns != 0) begin = std::min(begin, record.start_ns);
  if (record.arrive_ns != 0) begin = std::min(begin, record.arrive_ns);
  return begin;
}

std::string Text(const json& event) { return event.dump(-1, ' ', false, json::error_handler_t::replace); }

// One GPU's records that have been asked for, taken from the latest launch on.
struct Cursor {
  std::span<const TraceRecord> records;
  size_t left = 0;  // records before the launches that have been taken

  // Where the latest launch that is left begins: its steps come before it.
  size_t Begin() const {
    size_t first = left;
    while (first > 0 && (first == left || records[first - 1].step >= 0)) --first;
    return first;
  }
};

// The events of one GPU's rows. Appends to `events`.
class TraceRows {
 public:
  TraceRows(size_t gpu, uint64_t base, const std::map<uint64_t, TracePlan>& plans)
      : gpu_(gpu), base_(base), plans_(plans) {}

  void Add(const TraceRecord& record, std::vector<std::string>& events) {
    static const TracePlan kUnknown;
    const auto found = plans_.find(record.plan_id);
    const TracePlan& plan = found != plans_.end() ? found->second : kUnknown;
    const std::string title = plan.summary.empty() ? "plan " + std::to_string(record.plan_id) : plan.summary;
    if (named_.insert(record.plan_id).second) {
      const std::string group =
          plan.group_name.empty() ? "group " + std::to_string(record.group_id) : plan.group_name;
      events.push_back(Text(Name("thread_name", gpu_, record.plan_id, group + ": " + title)));
    }
    if (record.step >= 0) {
      const uint64_t row = LaneRow(record.plan_id, record.lane);
      if (named_.insert(row).second) {
        events.push_back(
            Text(Name("thread_name", gpu_, row, title + ", lane " + std::to_string(record.lane))));
      }
      events.push_back(Text(StepSlice(record, plan, gpu_, base_)));
      return;
    }
    if (record.arrive_ns != 0 && record.start_ns > record.arrive_ns) {
      events.push_back(
          Text(Slice("wait", "wait", gpu_, record.plan_id, base_, record.arrive_ns, record.start_ns)));
    }
    const uint64_t from = record.start_ns != 0 ? record.start_ns : Begin(record);
    json slice = Slice(title, record.code == 0 ? "launch" : "failed", gpu_, record.plan_id, base_, from,
                       std::max(from, record.end_ns));
    slice["args"] = {{"plan", record.plan_id},
                     {"group", record.group_id},
                     {"launch", record.launch},
                     {"algorithm", plan.algorithm},
                     {"status", std::string(CodeName(static_cast<Code>(record.code)))}};
    events.push_back(Text(slice));
  }

 private:
  const size_t gpu_;
  const uint64_t base_;
  const std::map<uint64_t, TracePlan>& plans_;
  std::set<uint64_t> named_;
};

constexpr std::string_view kHead = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[";
constexpr std::string_view kTail = "]}";
constexpr std::string_view kCutTail = "],\"otherData\":{\"truncated\":\"older launches did not fit\"}}";

}  // namespace

ChromeTraceText ChromeTrace(std::span<const std::vector<TraceRecord>> records,
                            std::span<const std::string> gpu_names,
                            const std::map<uint64_t, TracePlan>& plans, uint32_t last, size_t max_bytes) {
  std::vector<Cursor> cursors;
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
    cursors.push_back({view, view.size()});
  }
  std::vector<std::string> events;
  std::vector<TraceRows> rows;
  for (size_t gpu = 0; gpu < cursors.size(); ++gpu) {
    rows.emplace_back(gpu, base, plans);
    events.push_back(Text(Name("process_name", gpu, 0, gpu_names[gpu])));
  }
  size_t bytes = kHead.size() + kCutTail.size();
  for (const std::string& event : events) bytes += event.size() + 1;
  ChromeTraceText text;
  for (;;) {
    // The latest launch of all GPUs.
    Cursor* latest = nullptr;
    for (Cursor& cursor : cursors) {
      if (cursor.left == 0) continue;
      if (latest == nullptr ||
          cursor.records[cursor.left - 1].end_ns > latest->records[latest->left - 1].end_ns)
        latest = &cursor;
    }
    if (latest == nullptr) break;
    const size_t begin = latest->Begin(), before = events.size();
    for (const TraceRecord& record : latest->records.subspan(begin, latest->left - begin)) {
      rows[static_cast<size_t>(latest - cursors.data())].Add(record, events);
    }
    latest->left = begin;
    for (size_t i = before; i < events.size(); ++i) bytes += events[i].size() + 1;
    if (bytes > max_bytes) {
      events.resize(before);
      text.truncated = true;
      break;
    }
  }
  text.json = kHead;
  for (size_t i = 0; i < events.size(); ++i) {
    if (i > 0) text.json += ',';
    text.json += events[i];
  }
  text.json += text.truncated ? kCutTail : kTail;
  return text;
}

}  // namespace tandem::daemon
