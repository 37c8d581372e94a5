// Happens-before by vector clocks (Fidge, Mattern 1988) over the events of back-to-back launches.
#include <algorithm>
#include <string>
#include <utility>

#include "program/verifier/graph.h"

namespace tandem::plan::verify {
namespace {

struct Place {
  int launch = 0;
  const GraphEvent* event = nullptr;
};

Place PlaceOf(const History& history, uint32_t event) {
  auto next = std::upper_bound(history.base.begin(), history.base.end(), event);
  int launch = static_cast<int>(next - history.base.begin()) - 1;
  return {launch, &history.launches[launch]->events[event - history.base[launch]]};
}

std::string DescribeEvent(const History& history, uint32_t event) {
  Place place = PlaceOf(history, event);
  return Describe(history.launches[place.launch]->programs, place.event->rank, place.event->step,
                  place.launch);
}

// Names a cycle among the events that never became ready (`missing` > 0). Every such event has a predecessor
// that did not happen either, so walking back must come round.
Status ExplainCycle(const History& history, const std::vector<Edge>& edges, const std::vector<bool>& done) {
  const uint32_t count = static_cast<uint32_t>(done.size());
  std::vector<uint32_t> blame(count, UINT32_MAX);  // the edge from an event that did not happen
  for (uint32_t e = 0; e < edges.size(); ++e) {
    uint32_t to = edges[e].to;
    if (done[to] || done[edges[e].from]) continue;
    // Prefer an edge between ranks: it makes the more useful message.
    if (blame[to] == UINT32_MAX || edges[e].kind != EdgeKind::kProgram) blame[to] = e;
  }
  uint32_t at = 0;
  while (done[at]) ++at;
  std::vector<uint32_t> visit(count, 0);
  uint32_t turn = 0;
  while (visit[at] == 0) {
    visit[at] = ++turn;
    at = edges[blame[at]].from;
  }
  bool transfers = false, others = false;
  std::string queue, chain;
  const uint32_t start = at;
  int named = 0;
  do {
    const Edge& edge = edges[blame[at]];
    switch (edge.kind) {
      case EdgeKind::kTransfer:
      case EdgeKind::kPeerStart: transfers = true; break;
      case EdgeKind::kSignal:
      case EdgeKind::kNccl:
      case EdgeKind::kIssue: others = true; break;
      case EdgeKind::kQueue: queue = " (lanes share a hardware queue)"; break;
      case EdgeKind::kProgram: break;
    }
    if (edge.kind != EdgeKind::kProgram && named++ < 6) {
      if (!chain.empty()) chain += "; ";
      chain += DescribeEvent(history, edge.to) + " needs " + DescribeEvent(history, edge.from);
    }
    at = edge.from;
  } while (at != start);
  if (chain.empty()) chain = DescribeEvent(history, start) + " needs itself";
  if (transfers && !others) {
    return Refuse("UNCOALESCED",
                  "transfers that wait crosswise are not in one transfer group: " + chain + queue);
  }
  return Refuse("DEADLOCK", "cannot end: " + chain + queue);
}

}  // namespace

Result<History> OrderLaunches(std::vector<const LaunchGraph*> launches, uint32_t chains, bool bulk_turns) {
  History history;
  history.launches = std::move(launches);
  history.chains = chains;
  std::vector<Edge> edges;
  std::vector<uint32_t> length(chains, 0);
  int last_bulk = -1;
  for (size_t n = 0; n < history.launches.size(); ++n) {
    const LaunchGraph& graph = *history.launches[n];
    const uint32_t base = static_cast<uint32_t>(history.chain.size());
    history.base.push_back(base);
    for (const GraphEvent& event : graph.events) {
      history.chain.push_back(event.chain);
      history.position.push_back(length[event.chain]++);
    }
    for (const Edge& edge : graph.edges) edges.push_back({edge.from + base, edge.to + base, edge.kind});
    for (size_t rank = 0; rank < graph.begin.size() && n > 0; ++rank) {
      edges.push_back({history.launches[n - 1]->end[rank] + history.base[n - 1], graph.begin[rank] + base});
    }
    if (bulk_turns && graph.uses_bulk) {
      // The engines start a bulk program only when all ranks have ended the area's last user.
      for (size_t from = 0; from < graph.begin.size() && last_bulk >= 0; ++from) {
        for (size_t to = 0; to < graph.begin.size(); ++to) {
          edges.push_back(
              {history.launches[last_bulk]->end[from] + history.base[last_bulk], graph.begin[to] + base});
        }
      }
      last_bulk = static_cast<int>(n);
    }
  }

  const uint32_t count = static_cast<uint32_t>(history.chain.size());
  std::vector<uint32_t> missing(count, 0), first(count + 1, 0);
  for (const Edge& edge : edges) {
    ++missing[edge.to];
    ++first[edge.from + 1];
  }
  for (uint32_t e = 0; e < count; ++e) first[e + 1] += first[e];
  std::vector<std::pair<uint32_t, EdgeKind>> next(edges.size());
  std::vector<uint32_t> fill(first.begin(), first.end() - 1);
  for (const Edge& edge : edges) next[fill[edge.from]++] = {edge.to, edge.kind};

  history.clocks.assign(static_cast<size_t>(count) * chains, 0);
  std::vector<uint32_t> ready;
  std::vector<bool> done(count, false);
  for (uint32_t e = 0; e < count; ++e) {
    if (missing[e] == 0) ready.push_back(e);
  }
  uint32_t finished = 0;
  while (!ready.empty()) {
    uint32_t event = ready.back();
    ready.pop_back();
    done[event] = true;
    ++finished;
    uint32_t* clock = &history.clocks[static_cast<size_t>(event) * chains];
    clock[history.chain[event]] = history.position[event] + 1;
    for (uint32_t e = first[event]; e < first[event + 1]; ++e) {
      auto [to, kind] = next[e];
      if (!IsOrderOnly(kind)) {
        uint32_t* other = &history.clocks[static_cast<size_t>(to) * chains];
        for (uint32_t c = 0; c < chains; ++c) other[c] = std::max(other[c], clock[c]);
      }
      if (--missing[to] == 0) ready.push_back(to);
    }
  }
  if (finished != count) return ExplainCycle(history, edges, done);
  return history;
}

Status CheckClosed(const History& history, int period) {
  for (int n = 0; n < period && n < static_cast<int>(history.launches.size()); ++n) {
    const LaunchGraph& graph = *history.launches[n];
    const uint32_t base = history.base[n];
    for (size_t rank = 0; rank < graph.end.size(); ++rank) {
      for (size_t peer = 0; peer < graph.begin.size(); ++peer) {
        if (history.Before(graph.begin[peer] + base, graph.end[rank] + base)) continue;
        return Refuse("NOT_CLOSED", "rank " + std::to_string(rank) + " launch " + std::to_string(n) +
                                        " may be done before rank " + std::to_string(peer) + " has started");
      }
    }
    for (const Access& access : graph.accesses) {
      if (access.space != Space::kOperand) continue;
      if (history.Before(access.last + base, graph.end[access.owner] + base)) continue;
      return Refuse("NOT_CLOSED", DescribeEvent(history, access.last + base) + " may touch operand " +
                                      std::to_string(access.slot) + " of rank " +
                                      std::to_string(access.owner) + " after that rank is done");
    }
  }
  return {};
}

}  // namespace tandem::plan::verify
