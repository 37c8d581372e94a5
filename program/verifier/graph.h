// File: verifier_graph.h
//
// The verifier's model: one launch of all ranks' programs as primitive events, the edges among them, and the
// bytes they touch. Launches of the same programs are copies of one LaunchGraph.
//
// Since every word is written once a launch, by one writer whose launches are in order, a wait for a launch's
// launch number is over exactly when that launch's signal has happened. Happens-before is therefore a fixed
// graph, and a deadlock is a cycle in it; nothing need be simulated.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "program/byte_box.h"
#include "program/program.h"
#include "program/verifier/verifier.h"
#include "tandem/status.h"

namespace tandem::plan::verify {

enum class EdgeKind : uint8_t {
  kProgram = 0,   // a lane's order, a dependency, the start or end of a launch
  kSignal = 1,    // a signal and its wait
  kTransfer = 2,  // a send of a transfer group and its receive
  kNccl = 3,      // a rank's start of a collective and each rank's end of it
  // The kinds from here on hold back execution but publish no bytes: they count for deadlocks only.
  kQueue = 4,      // two lanes on one hardware queue
  kPeerStart = 5,  // a transfer group ends only when its peers' groups have started, as NCCL's may
  kIssue = 6,      // collectives of one communicator run in the order of their issue
};
constexpr bool IsOrderOnly(EdgeKind kind) { return kind >= EdgeKind::kQueue; }

struct Edge {
  uint32_t from = 0;
  uint32_t to = 0;
  EdgeKind kind = EdgeKind::kProgram;
};

inline constexpr uint32_t kBeginOfLaunch = UINT32_MAX - 1;
inline constexpr uint32_t kEndOfLaunch = UINT32_MAX;

struct GraphEvent {
  uint32_t chain = 0;  // events of a chain are totally ordered
  uint32_t step = 0;   // index in the rank's program, kBeginOfLaunch or kEndOfLaunch
  uint8_t rank = 0;
};

// Bytes touched between event `first` and event `last` (the same event for all but NCCL collectives).
struct Access {
  uint32_t first = 0;
  uint32_t last = 0;
  uint32_t box = 0;
  uint16_t slot = 0;  // kOperand: the slot on which it lies, aliases resolved
  Space space = Space::kWorkspace;
  uint8_t owner = 0;  // the rank whose memory it is
  bool write = false;
  bool symmetric = false;
};

// Chains are shared by all launches of all programs under test: (rank, lane, 0) for lanes, (rank, lane, k)
// for the k-th send of transfer groups, since sends of one group are not ordered among themselves.
class ChainTable {
 public:
  uint32_t Of(int rank, int lane, int send);
  uint32_t size() const { return next_; }

 private:
  std::map<std::array<int, 3>, uint32_t> chains_;
  uint32_t next_ = 0;
};

struct LaunchGraph {
  std::span<const RankProgram> programs;
  std::vector<GraphEvent> events;  // in the order of their chains
  std::vector<Edge> edges;
  std::vector<ByteBox> boxes;
  std::vector<Access> accesses;
  std::vector<uint32_t> begin, end;  // events, by rank
  bool uses_bulk = false;
};

// An INTERNAL status with detail.reason `reason`.
Status Refuse(std::string_view reason, std::string message);

// "rank 1 launch 0 step 12 (push to 2)"; `launch` below 0 leaves the launch out.
std::string Describe(std::span<const RankProgram> programs, int rank, uint32_t step, int launch);

// The name of an access's memory: "operand 2 of rank 1", "workspace half 0 of rank 1", "the bulk area of rank
// 1".
std::string PlaceName(const Access& access, int half);

// Checks what needs no order (shapes, lanes, dependencies, ranks, signal indexes): "MALFORMED" or "SIGNAL".
Status CheckPrograms(std::span<const RankProgram> programs, const VerifyContext& context);

// Expands checked programs; "BOUNDS", "SIGNAL", "MALFORMED", or "RACE" within one step.
Result<LaunchGraph> ExpandLaunch(std::span<const RankProgram> programs, const VerifyContext& context,
                                 const VerifyOptions& options, ChainTable& chains);

// A sequence of launches with its happens-before relation.
struct History {
  std::vector<const LaunchGraph*> launches;
  std::vector<uint32_t> base;      // first event of each launch
  std::vector<uint32_t> position;  // of each event in its chain
  std::vector<uint32_t> chain;     // of each event
  std::vector<uint32_t>
      clocks;  // events x chains: how many of a chain's events happened before or at the event
  uint32_t chains = 0;

  // Event a has happened, its effects visible, when b starts (or a is b).
  bool Before(uint32_t a, uint32_t b) const {
    return clocks[static_cast<size_t>(b) * chains + chain[a]] > position[a];
  }
};

// Orders `launches` back to back; "DEADLOCK" or "UNCOALESCED" if they cannot all end. `bulk_turns`: a launch
// that uses the bulk area begins only when all ranks have ended the previous one that did.
Result<History> OrderLaunches(std::vector<const LaunchGraph*> launches, uint32_t chains, bool bulk_turns);

// Checks that every launch closes and leaves its peers' operands in peace: "NOT_CLOSED".
Status CheckClosed(const History& history, int period);

// Checks that no rank touches a peer's bulk area or symmetric operands before that peer has begun the same
// launch: "NO_ENTRY".
Status CheckEntries(const History& history, int period);

// Checks that each word that a peer writes in a client's fused kernel is awaited in the same launch:
// "UNAWAITED". A rank zeroes these words when the next launch begins, and a late one would be lost or found
// there.
Status CheckZeroedWords(std::span<const RankProgram> programs);

// Checks that no two unordered events touch the same bytes, one of them writing: "RACE". By symmetry only
// pairs whose earlier launch is one of the first `period` are looked at.
Status CheckRaces(const History& history, int period, bool alternate_parity);

}  // namespace tandem::plan::verify
