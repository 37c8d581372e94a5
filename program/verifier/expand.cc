// From programs to primitive events, edges and accesses.
#include <algorithm>
#include <string>
#include <unordered_map>
#include <utility>

#include "program/step_fields.h"
#include "program/verifier/graph.h"

namespace tandem::plan::verify {
namespace {

constexpr uint32_t kNone = UINT32_MAX;

class Expander {
 public:
  Expander(std::span<const RankProgram> programs, const VerifyContext& context, const VerifyOptions& options,
           ChainTable& chains)
      : context_(context), options_(options), chains_(chains), world_(static_cast<int>(programs.size())) {
    graph_.programs = programs;
    signal_.assign(static_cast<size_t>(world_) * world_ * kSignalsPerWriter, {});
    nccl_.resize(world_);
  }

  Result<LaunchGraph> Run() {
    size_t steps = 0;
    for (const RankProgram& program : graph_.programs) steps += program.steps.size();
    // For most programs; a graph that grows piece by piece is copied often.
    graph_.events.reserve(2 * steps);
    graph_.edges.reserve(4 * steps);
    graph_.boxes.reserve(2 * steps);
    graph_.accesses.reserve(2 * steps);
    for (const RankProgram& program : graph_.programs) TANDEM_RETURN_IF_ERROR(AddRank(program));
    TANDEM_RETURN_IF_ERROR(JoinSignals());
    TANDEM_RETURN_IF_ERROR(JoinNccl());
    return std::move(graph_);
  }

 private:
  struct Signal {
    uint32_t event = kNone;
    uint32_t group_begin = kNone, group_end = kNone;  // of the transfer group that sends it
  };
  struct Wait {
    size_t word = 0;
    uint32_t event = 0;
    bool transfer = false;
    uint32_t group_begin = kNone, group_end = kNone;
  };
  struct Collective {
    uint32_t begin = 0, end = 0, step = 0;
    const NcclStep* work = nullptr;
  };

  size_t Word(int reader, int writer, int index) const {
    return (static_cast<size_t>(reader) * world_ + writer) * kSignalsPerWriter + index;
  }

  uint32_t NewEvent(uint32_t chain) {
    graph_.events.push_back({chain, step_, static_cast<uint8_t>(rank_)});
    return static_cast<uint32_t>(graph_.events.size() - 1);
  }

  void Link(uint32_t from, uint32_t to, EdgeKind kind = EdgeKind::kProgram) {
    graph_.edges.push_back({from, to, kind});
  }

  // The next event of the step's lane.
  uint32_t Advance() {
    uint32_t event = NewEvent(lane_chain_);
    if (tail_ != kNone) Link(tail_, event);
    if (head_ == kNone) head_ = event;
    tail_ = event;
    return event;
  }

  std::string Here() const { return Describe(graph_.programs, rank_, step_, -1); }

  Status AddRank(const RankProgram& program) {
    rank_ = program.rank;
    step_ = kBeginOfLaunch;
    const uint32_t first_chain = chains_.Of(rank_, 0, 0);
    const uint32_t begin = NewEvent(first_chain);
    graph_.begin.push_back(begin);
    std::vector<uint32_t> lane_tail(program.lanes, begin), done(program.steps.size());
    struct QueueTail {
      uint32_t event = kNone;
      int lane = -1;
    };
    std::vector<QueueTail> queues(std::max(options_.hardware_queues, 0));
    for (size_t s = 0; s < program.steps.size(); ++s) {
      const Step& step = program.steps[s];
      step_ = static_cast<uint32_t>(s);
      lane_ = step.lane;
      lane_chain_ = chains_.Of(rank_, lane_, 0);
      head_ = kNone;
      tail_ = lane_tail[lane_];
      TANDEM_RETURN_IF_ERROR(AddWork(step));
      if (head_ == kNone) Advance();
      for (uint32_t dep : step.deps) Link(done[dep], head_);
      if (!queues.empty()) {
        QueueTail& queue = queues[lane_ % queues.size()];
        if (queue.event != kNone && queue.lane != lane_) Link(queue.event, head_, EdgeKind::kQueue);
        queue = {tail_, lane_};
      }
      done[s] = lane_tail[lane_] = tail_;
    }
    step_ = kEndOfLaunch;
    const uint32_t end = NewEvent(first_chain);
    graph_.end.push_back(end);
    for (uint32_t tail : lane_tail) Link(tail, end);
    return {};
  }

  uint64_t BytesOf(const Ref& ref) const {
    if (ref.space == Space::kWorkspace) return graph_.programs[rank_].workspace_bytes;
    if (ref.space == Space::kBulk) return graph_.programs[rank_].bulk_bytes;
    return context_.operand_bytes[ref.rank][ref.slot];
  }
  static std::string NameOf(const Ref& ref) {
    if (ref.space == Space::kWorkspace) return "workspace";
    if (ref.space == Space::kBulk) return "bulk area";
    return "operand " + std::to_string(ref.slot) + " of rank " + std::to_string(ref.rank);
  }

  Status AddAccess(const View& view, bool write, uint32_t first, uint32_t last) {
    TANDEM_ASSIGN_OR_RETURN(ByteBox box, BoxOf(view));
    if (box.empty()) return {};
    const Ref& ref = view.ref;
    Access access{first, last, static_cast<uint32_t>(graph_.boxes.size()), ref.slot, ref.space, ref.rank,
                  write, false};
    switch (ref.space) {
      case Space::kOperand:
        if (ref.rank != rank_ && !context_.symmetric[ref.slot]) {
          return Refuse("BOUNDS", Here() + " touches " + NameOf(ref) + ", which is not symmetric");
        }
        // Aliases may form chains; a cycle ends after as many hops as there are slots.
        for (size_t hop = 0; hop < context_.alias.size() && context_.alias[access.slot] >= 0; ++hop) {
          access.slot = static_cast<uint16_t>(context_.alias[access.slot]);
        }
        access.symmetric = context_.symmetric[ref.slot];
        if (write && access.slot < context_.read_only.size() && context_.read_only[access.slot]) {
          return Refuse("INPUT_WRITTEN",
                        Here() + " writes " + NameOf(ref) + ", an input that must stay as it is");
        }
        break;
      case Space::kWorkspace: break;
      case Space::kBulk: graph_.uses_bulk = true; break;
    }
    if (box.end > BytesOf(ref)) {
      return Refuse("BOUNDS", Here() + " touches bytes [" + std::to_string(box.begin) + ", " +
                                  std::to_string(box.end) + ") of " + NameOf(ref) + ", which has " +
                                  std::to_string(BytesOf(ref)));
    }
    graph_.boxes.push_back(box);
    graph_.accesses.push_back(access);
    return {};
  }

  bool SameMemory(const View& a, const View& b) const {
    if (a.ref.space != b.ref.space || a.ref.rank != b.ref.rank) return false;
    auto root = [this](uint16_t slot) {
      for (size_t hop = 0; hop < context_.alias.size() && context_.alias[slot] >= 0; ++hop) {
        slot = static_cast<uint16_t>(context_.alias[slot]);
      }
      return slot;
    };
    return a.ref.space != Space::kOperand || root(a.ref.slot) == root(b.ref.slot);
  }

  // A step may read what it writes only element by element in place.
  Status CheckOverlap(const View& read, const View& written, bool may_be_in_place) const {
    if (!SameMemory(read, written) || !Intersect(*BoxOf(read), *BoxOf(written))) return {};
    if (may_be_in_place && read.ref.offset == written.ref.offset && read.extent == written.extent &&
        read.stride == written.stride && DTypeBytes(read.dtype) == DTypeBytes(written.dtype)) {
      return {};
    }
    return Refuse("RACE", Here() + " reads bytes that it writes");
  }

  static bool MayBeInPlace(const MatmulStep&, const View&, const View&) { return false; }
  static bool MayBeInPlace(const ReduceStep& sum, const View& read, const View&) {
    return &read != &sum.bias && &read != &sum.result_scale;
  }
  static bool MayBeInPlace(const NormStep& norm, const View& read, const View& written) {
    return (&read == &norm.sum && &written == &norm.out) ||
           (&read == &norm.residual && &written == &norm.residual_out);
  }
  template <class Move>
  static bool MayBeInPlace(const Move&, const View&, const View&) {
    return true;
  }

  // The reads and writes of a step's work at `event`; none may meet another one's writes.
  template <class Work>
  Status AddAccesses(const Work& work, uint32_t event) {
    std::vector<const View*> written;
    TANDEM_RETURN_IF_ERROR(ForEachView(
        [&](const char*, ViewUse use, const View& view) {
          if (use == ViewUse::kWrite) written.push_back(&view);
          return Status::Ok();
        },
        work));
    for (size_t i = 1; i < written.size(); ++i) {
      for (size_t k = 0; k < i; ++k) TANDEM_RETURN_IF_ERROR(CheckOverlap(*written[i], *written[k], false));
    }
    TANDEM_RETURN_IF_ERROR(ForEachView(
        [&](const char*, ViewUse use, const View& view) -> Status {
          if (use == ViewUse::kWrite) return {};
          for (const View* to : written)
            TANDEM_RETURN_IF_ERROR(CheckOverlap(view, *to, MayBeInPlace(work, view, *to)));
          return AddAccess(view, false, event, event);
        },
        work));
    for (const View* to : written) TANDEM_RETURN_IF_ERROR(AddAccess(*to, true, event, event));
    return {};
  }

  Status AddSignal(int to, int index, Signal signal) {
    Signal& word = signal_[Word(to, rank_, index)];
    if (word.event != kNone) {
      return Refuse("SIGNAL", Here() + " writes word " + std::to_string(index) + " of rank " +
                                  std::to_string(to) + " a second time in the launch");
    }
    word = signal;
    return {};
  }

  // Sends run beside one another: the first on the lane's chain, the others on chains of their own.
  Status AddWork(const TransferGroupStep& group) {
    const uint32_t begin = Advance();
    std::vector<uint32_t> others, signals;
    int sends = 0;
    for (const TransferPart& part : group.parts) {
      if (!part.send) continue;
      uint32_t copy = 0, signal = 0;
      if (sends++ == 0) {
        copy = Advance();
        signal = Advance();
      } else {
        const uint32_t chain = chains_.Of(rank_, lane_, sends - 1);
        copy = NewEvent(chain);
        Link(begin, copy);
        signal = NewEvent(chain);
        Link(copy, signal);
        others.push_back(signal);
      }
      TANDEM_RETURN_IF_ERROR(AddAccesses(part, copy));
      TANDEM_RETURN_IF_ERROR(AddSignal(part.peer, part.index, {signal, begin, kNone}));
      signals.push_back(static_cast<uint32_t>(Word(part.peer, rank_, part.index)));
    }
    const size_t first_wait = waits_.size();
    for (const TransferPart& part : group.parts) {
      if (!part.send) waits_.push_back({Word(rank_, part.peer, part.index), Advance(), true, begin, kNone});
    }
    const uint32_t end = Advance();
    for (uint32_t other : others) Link(other, end);
    for (uint32_t word : signals) signal_[word].group_end = end;
    for (size_t w = first_wait; w < waits_.size(); ++w) waits_[w].group_end = end;
    return {};
  }

  Status AddWork(const NcclStep& n) {
    const uint32_t begin = Advance(), end = Advance();
    nccl_[rank_].push_back({begin, end, step_, &n});
    const bool reads = n.Reads(rank_), writes = n.Writes(rank_);
    if (reads) TANDEM_RETURN_IF_ERROR(AddAccess(n.in, false, begin, end));
    if (writes) TANDEM_RETURN_IF_ERROR(AddAccess(n.out, true, begin, end));
    if (!reads || !writes || !SameMemory(n.in, n.out) || !Intersect(*BoxOf(n.in), *BoxOf(n.out))) return {};
    // NCCL's own rules for working in place.
    TANDEM_ASSIGN_OR_RETURN(ByteBox in, BoxOf(n.in));
    TANDEM_ASSIGN_OR_RETURN(ByteBox out, BoxOf(n.out));
    bool allowed = in.begin == out.begin;
    if (n.kind == NcclKind::kAllGather) allowed = in.begin == out.begin + rank_ * (in.end - in.begin);
    if (n.kind == NcclKind::kReduceScatter) allowed = out.begin == in.begin + rank_ * (out.end - out.begin);
    if (n.kind == NcclKind::kAllToAll) allowed = false;
    return allowed ? Status() : Refuse("RACE", Here() + " reads bytes that it writes");
  }

  Status AddWork(const NopStep&) { return {}; }
  Status AddWork(const SignalStep& signal) {
    return AddSignal(signal.to_rank, signal.index, {Advance(), kNone, kNone});
  }
  Status AddWork(const WaitStep& wait) {
    waits_.push_back({Word(rank_, wait.from_rank, wait.index), Advance(), false, kNone, kNone});
    return {};
  }
  Status AddWork(const CollectiveStep& collective) {
    for (const Step& inner : collective.expansion) TANDEM_RETURN_IF_ERROR(AddWork(inner));
    return {};
  }
  Status AddWork(const CopyStep& copy) { return AddAccesses(copy, Advance()); }
  Status AddWork(const MatmulStep& matmul) { return AddAccesses(matmul, Advance()); }
  Status AddWork(const ReduceStep& sum) { return AddAccesses(sum, Advance()); }
  Status AddWork(const NormStep& norm) { return AddAccesses(norm, Advance()); }
  Status AddWork(const Step& step) {
    return std::visit([this](const auto& work) { return AddWork(work); }, step.work);
  }

  Status JoinSignals() {
    for (const Wait& wait : waits_) {
      const Signal& signal = signal_[wait.word];
      if (signal.event == kNone) {
        const GraphEvent& event = graph_.events[wait.event];
        return Refuse("SIGNAL", Describe(graph_.programs, event.rank, event.step, -1) + " waits for word " +
                                    std::to_string(wait.word % kSignalsPerWriter) + " of rank " +
                                    std::to_string(wait.word / kSignalsPerWriter % world_) +
                                    ", which nobody writes in the launch");
      }
      const bool transfer = wait.transfer && signal.group_begin != kNone;
      Link(signal.event, wait.event, transfer ? EdgeKind::kTransfer : EdgeKind::kSignal);
      if (!transfer) continue;
      Link(wait.group_begin, signal.group_end, EdgeKind::kPeerStart);
      Link(signal.group_begin, wait.group_end, EdgeKind::kPeerStart);
    }
    return {};
  }

  // The k-th collective of each rank is the same one.
  Status JoinNccl() {
    for (int rank = 0; rank < world_; ++rank) {
      if (nccl_[rank].size() != nccl_[0].size()) {
        return Refuse("MALFORMED", "rank " + std::to_string(rank) + " calls " +
                                       std::to_string(nccl_[rank].size()) + " collectives of NCCL, rank 0 " +
                                       std::to_string(nccl_[0].size()));
      }
    }
    for (size_t k = 0; k < nccl_[0].size(); ++k) {
      const Collective& root = nccl_[nccl_[0][k].work->root][k];
      for (int rank = 0; rank < world_; ++rank) {
        const Collective& own = nccl_[rank][k];
        const NcclStep &a = *own.work, &b = *root.work;
        // Each rank's size as the other ranks see it: of the input, or of the broadcast's output.
        const View& mine = a.kind == NcclKind::kBroadcast ? a.out : a.in;
        const View& theirs = b.kind == NcclKind::kBroadcast ? b.out : b.in;
        bool same = a.kind == b.kind && a.root == b.root && a.reduce_op == b.reduce_op;
        if (same && a.kind != NcclKind::kBarrier) {
          same = Elements(mine) == Elements(theirs) && mine.dtype == theirs.dtype;
        }
        if (!same) {
          return Refuse("MALFORMED", Describe(graph_.programs, rank, own.step, -1) + " and " +
                                         Describe(graph_.programs, nccl_[0][k].work->root, root.step, -1) +
                                         " are not the same collective");
        }
        for (int peer = 0; peer < world_; ++peer) {
          if (peer != rank) Link(own.begin, nccl_[peer][k].end, EdgeKind::kNccl);
        }
        if (k > 0) Link(nccl_[rank][k - 1].end, own.begin, EdgeKind::kIssue);
      }
    }
    return {};
  }

  const VerifyContext& context_;
  const VerifyOptions& options_;
  ChainTable& chains_;
  const int world_;
  LaunchGraph graph_;
  std::vector<Signal> signal_;  // by Word()
  std::vector<Wait> waits_;
  std::vector<std::vector<Collective>> nccl_;  // by rank, in program order
  // The step being expanded.
  int rank_ = 0, lane_ = 0;
  uint32_t step_ = 0, lane_chain_ = 0, head_ = kNone, tail_ = kNone;
};

}  // namespace

uint32_t ChainTable::Of(int rank, int lane, int send) {
  auto [place, added] = chains_.try_emplace({rank, lane, send}, next_);
  if (added) ++next_;
  return place->second;
}

Result<LaunchGraph> ExpandLaunch(std::span<const RankProgram> programs, const VerifyContext& context,
                                 const VerifyOptions& options, ChainTable& chains) {
  return Expander(programs, context, options, chains).Run();
}

}  // namespace tandem::plan::verify
