// File: builder.h
//
// `Builder`: writes all ranks' programs of one plan. It lays out the workspace and the signal words, alike
// on every rank, and keeps the rules that every program obeys:
//   - A word has one writer and is written once a launch: an index from Signals() is used once per pair of
//     ranks.
//   - Peers write only into workspace and, after an entry exchange, into symmetric slots and the bulk area.
//     Workspace needs no entry exchange: its halves alternate by the parity of launch numbers.
//     Every program closes, so launch n + 2 starts nowhere before launch n has ended everywhere. Peers may then
//     write into the half of launch n.
//   - Tensors around a client's kernel lie at one address in every launch, in the bulk area: a graph has the
//     address, and the half is known on the device alone (docs/client-placement-safety.md).
//   - In program order a program runs on a single in-order queue without deadlock: every signal that a peer
//     waits for is listed before the wait that depends on that peer.
//
// Use: first Reserve and Signals (the layout), then steps; Finish at the end.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "daemon/planner/types/operation_plan.h"
#include "program/program.h"
#include "program/views.h"
#include "tandem/status.h"

namespace tandem::plan {

// Alignment of everything reserved in workspace.
inline constexpr uint64_t kWorkspaceAlignment = 256;

class Builder {
 public:
  using Work = decltype(Step::work);

  // `steps` is about how many each rank's program will have: a ring's hundreds, moved each time that they
  // outgrow their place, would take most of the planning's time. `in_client`: the programs are for the ranks'
  // own streams.
  Builder(int world_size, int lanes, int steps = 32, bool in_client = false);

  // Layout: `bytes` in every rank's workspace at the same offset; call before the first step.
  uint64_t Reserve(uint64_t bytes);
  // The same for tensors of a rank's products, copies and sums outside of a collective: for engines in
  // workspace, in a client's programs at one address in every launch.
  uint64_t ReserveSteady(uint64_t bytes);
  // The whole layout lies in the bulk area, however small it is. Before the first step.
  void PutInBulk() { in_bulk_ = true; }
  // Layout: `count` signal indexes of every writer on every reader; returns the first.
  int Signals(int count = 1);
  // True when the layout is over kMaxWorkspaceBytes, so that it lies in the bulk area and peers may write
  // there only after an entry exchange. Ends the layout.
  bool InBulk();
  // A place in `rank`'s workspace (or bulk area). Ends the layout.
  Ref Workspace(int rank, uint64_t offset);
  // A place that ReserveSteady has given. Ends the layout.
  Ref Steady(int rank, uint64_t offset);
  // True when peers may write to steady places only after an entry exchange.
  bool SteadyInBulk() { return in_client_ || InBulk(); }

  // Appends a step; returns its index. `deps` are indexes of earlier steps; those on the same lane are
  // dropped.
  uint32_t Add(int rank, int lane, Work work, std::string label = {}, std::vector<uint32_t> deps = {});
  // Appends a copy. Nothing is appended for no elements or identical source and destination; the result then
  // is the lane's last step (or kNone). One of more dimensions than backends take becomes several, as does a
  // sum; the result is the last of them.
  uint32_t Copy(int rank, int lane, const View& src, const View& dst, bool copy_engine,
                std::string label = {}, std::vector<uint32_t> deps = {});
  // Appends a product, in several of matrices where its rows lie at no common pitch (row_products.h); the
  // result is the last of them. Nothing is appended for no elements.
  uint32_t Multiply(int rank, int lane, const MatmulStep& product, const std::string& label = {},
                    const std::vector<uint32_t>& deps = {});
  // Appends a sum unless it has no elements.
  uint32_t Reduce(int rank, int lane, ReduceStep reduce, std::string label = {},
                  std::vector<uint32_t> deps = {});
  uint32_t Signal(int rank, int lane, int to, int index, std::string label = {});
  uint32_t Wait(int rank, int lane, int from, int index, std::string label = {});

  // Entry exchange on lane 0: every rank signals to its peers that its launch has begun, and waits for their
  // signals. Afterwards peers' symmetric slots and bulk area may be written; other lanes start after it. It
  // also closes the program. `linked(a, b)`, when given, limits it to pairs of ranks for which it holds (it
  // must be symmetric).
  void Enter(const std::function<bool(int, int)>& linked = {});
  // The same on `lane`, and no other lane waits for it: for programs that touch peers on this one only.
  void EnterOn(int lane);
  // The same in two halves, for programs whose data flow does not close them and which need not wait at the
  // start: AnnounceStart early, AwaitStarts at the end of the lane.
  void AnnounceStart(int rank, int lane);
  void AwaitStarts(int rank, int lane);

  // Between these two, steps of `rank` become the expansion of one CollectiveStep on `lane`.
  void BeginCollective(int rank, int lane, Algorithm algorithm, Op op, View in, View out, ReduceOp reduce_op,
                       int shots = 1, bool dense = false);
  // `blocks`: the number of blocks of a kernel whose expansion does not show it; 0: PlanKernels finds it.
  void EndCollective(int rank, int blocks = 0);

  // The index of the last step of `lane`, or kNone.
  static constexpr uint32_t kNone = UINT32_MAX;
  uint32_t Last(int rank, int lane) const;
  // The last steps of all lanes but `lane`: the deps of a join.
  std::vector<uint32_t> LastOfOthers(int rank, int lane) const;

  int world_size() const { return world_size_; }
  int lanes() const { return lanes_; }

  // Moves the programs and what follows from them (workspace, bulk, lanes, bytes moved) into `plan`.
  // RESOURCE_EXHAUSTED when more signal words are needed than a writer has.
  Status Finish(OperationPlan* plan);

 private:
  struct RankState {
    RankProgram program;
    std::vector<uint32_t> last;  // by lane
    uint32_t entry = kNone;      // last step of the entry exchange
    CollectiveStep collective;
    std::vector<Step> expansion;
    int collective_lane = -1;  // -1: none open
  };
  // `bytes` behind *end, which moves on.
  uint64_t Take(uint64_t bytes, uint64_t* end) const;
  // The last wait of each rank.
  std::vector<uint32_t> ExchangeEntries(int lane, const std::function<bool(int, int)>& linked);

  int world_size_;
  int lanes_;
  bool in_client_;
  bool in_bulk_ = false;
  uint64_t reserved_ = 0;
  uint64_t steady_ = 0;  // of a client's programs: behind `reserved_` if that is in bulk
  int signals_ = 0;
  bool sealed_ = false;
  int start_signal_ = -1;
  std::vector<RankState> ranks_;
};

// The bytes that one rank's program sends to peers; an NCCL step counts what a ring sends.
uint64_t BytesSent(const RankProgram& program);

}  // namespace tandem::plan
