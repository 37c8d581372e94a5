// Races: pairs of unordered accesses to the same bytes.
#include <algorithm>
#include <string>
#include <unordered_map>

#include "program/verifier/graph.h"

namespace tandem::plan::verify {
namespace {

// One access of one launch.
struct Touch {
  uint64_t begin = 0, end = 0;
  const Access* access = nullptr;
  const ByteBox* box = nullptr;
  uint32_t first = 0, last = 0;  // events of the history
  int launch = 0;
};

bool Ordered(const History& history, const Touch& a, const Touch& b) {
  return a.first == b.first || history.Before(a.last, b.first) || history.Before(b.last, a.first);
}

Status Report(const History& history, const Touch& a, const Touch& b, bool alternate_parity) {
  auto step = [&history](const Touch& touch) {
    const LaunchGraph& graph = *history.launches[touch.launch];
    const GraphEvent& event = graph.events[touch.access->last];
    return Describe(graph.programs, event.rank, event.step, touch.launch) +
           (touch.access->write ? " writes" : " reads") + " bytes [" + std::to_string(touch.begin) + ", " +
           std::to_string(touch.end) + ")";
  };
  return Refuse("RACE", step(a) + " and " + step(b) + " of " +
                            PlaceName(*a.access, alternate_parity ? a.launch % 2 : 0) + " in no order");
}

}  // namespace

std::string PlaceName(const Access& access, int half) {
  std::string owner = " of rank " + std::to_string(access.owner);
  switch (access.space) {
    case Space::kOperand: return "operand " + std::to_string(access.slot) + owner;
    case Space::kWorkspace: return "workspace half " + std::to_string(half) + owner;
    case Space::kBulk: return "the bulk area" + owner;
  }
  return owner;
}

Status CheckRaces(const History& history, int period, bool alternate_parity) {
  // Operands are shared by all launches of one program set, since the same memory may be bound again. The
  // operands of another set (P and Q) are other slots, but symmetric ones may lie anywhere in the peers'
  // symmetric memory.
  std::unordered_map<uint64_t, std::vector<Touch>> regions;
  std::unordered_map<uint64_t, std::vector<Touch>> symmetric;
  std::vector<const LaunchGraph*> sets;
  for (size_t n = 0; n < history.launches.size(); ++n) {
    const LaunchGraph& graph = *history.launches[n];
    size_t set = std::find(sets.begin(), sets.end(), &graph) - sets.begin();
    if (set == sets.size()) sets.push_back(&graph);
    for (const Access& access : graph.accesses) {
      const ByteBox& box = graph.boxes[access.box];
      uint64_t part = 0;
      if (access.space == Space::kOperand) part = (set << 16) | access.slot;
      if (access.space == Space::kWorkspace) part = alternate_parity ? n % 2 : 0;
      uint64_t key =
          (static_cast<uint64_t>(access.space) << 56) | (static_cast<uint64_t>(access.owner) << 48) | part;
      Touch touch{box.begin,
                  box.end,
                  &access,
                  &box,
                  access.first + history.base[n],
                  access.last + history.base[n],
                  static_cast<int>(n)};
      regions[key].push_back(touch);
      if (access.symmetric) symmetric[access.owner].push_back(touch);
    }
  }
  for (auto& [key, touches] : regions) {
    std::sort(touches.begin(), touches.end(),
              [](const Touch& a, const Touch& b) { return a.begin < b.begin; });
    for (size_t i = 0; i < touches.size(); ++i) {
      const Touch& a = touches[i];
      for (size_t j = i + 1; j < touches.size() && touches[j].begin < a.end; ++j) {
        const Touch& b = touches[j];
        if (!a.access->write && !b.access->write) continue;
        if (std::min(a.launch, b.launch) >= period || Ordered(history, a, b)) continue;
        if (Intersect(*a.box, *b.box)) return Report(history, a, b, alternate_parity);
      }
    }
  }
  if (sets.size() < 2) return {};
  for (auto& [owner, touches] : symmetric) {
    for (size_t i = 0; i < touches.size(); ++i) {
      for (size_t j = i + 1; j < touches.size(); ++j) {
        const Touch &a = touches[i], &b = touches[j];
        if (history.launches[a.launch] == history.launches[b.launch]) continue;
        if (!a.access->write && !b.access->write) continue;
        if (std::min(a.launch, b.launch) >= period || Ordered(history, a, b)) continue;
        return Report(history, a, b, alternate_parity);
      }
    }
  }
  return {};
}

}  // namespace tandem::plan::verify
