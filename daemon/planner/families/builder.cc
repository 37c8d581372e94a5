#include "daemon/planner/families/builder.h"

#include <algorithm>
#include <cassert>
#include <utility>

#include "daemon/planner/forms/row_products.h"
#include "program/text.h"

namespace tandem::plan {
namespace {

uint64_t NcclBytesSent(const NcclStep& nccl, int rank, uint64_t world) {
  switch (nccl.kind) {
    case NcclKind::kAllReduce: return 2 * Bytes(nccl.in) * (world - 1) / world;
    case NcclKind::kAllGather: return Bytes(nccl.in) * (world - 1);
    case NcclKind::kReduceScatter: return Bytes(nccl.out) * (world - 1);
    case NcclKind::kAllToAll: return Bytes(nccl.in) * (world - 1) / world;
    case NcclKind::kBroadcast: return rank == nccl.root && world > 1 ? Bytes(nccl.in) : 0;
    case NcclKind::kReduce: return rank != nccl.root ? Bytes(nccl.in) : 0;
    case NcclKind::kBarrier: return 0;
  }
  return 0;
}

// Where views of too many dimensions are cut into rows: in as few as can be, and never along the last
// dimension.
int DimToCut(const View& view) {
  int cut = -1;
  for (int d = 0; d + 1 < static_cast<int>(view.extent.size()); ++d) {
    if (view.extent[d] > 1 && (cut < 0 || view.extent[d] < view.extent[cut])) cut = d;
  }
  return cut;
}

View Row(const View& view, int dim, int64_t index) { return DropDim(Slice(view, dim, index, 1), dim); }

uint64_t BytesSentBy(const std::vector<Step>& steps, const RankProgram& program) {
  uint64_t bytes = 0;
  for (const Step& step : steps) {
    if (const auto* copy = std::get_if<CopyStep>(&step.work)) {
      if (copy->dst.ref.rank != program.rank) bytes += Bytes(copy->src);
    } else if (const auto* group = std::get_if<TransferGroupStep>(&step.work)) {
      for (const TransferPart& part : group->parts) {
        if (part.send) bytes += Bytes(part.src);
      }
    } else if (const auto* nccl = std::get_if<NcclStep>(&step.work)) {
      bytes += NcclBytesSent(*nccl, program.rank, static_cast<uint64_t>(program.world_size));
    } else if (const auto* collective = std::get_if<CollectiveStep>(&step.work)) {
      bytes += BytesSentBy(collective->expansion, program);
    }
  }
  return bytes;
}

}  // namespace

uint64_t BytesSent(const RankProgram& program) { return BytesSentBy(program.steps, program); }

Builder::Builder(int world_size, int lanes, int steps, bool in_client)
    : world_size_(world_size), lanes_(lanes), in_client_(in_client), ranks_(world_size) {
  for (int r = 0; r < world_size; ++r) {
    ranks_[r].program.rank = r;
    ranks_[r].program.world_size = world_size;
    ranks_[r].program.lanes = lanes;
    ranks_[r].program.steps.reserve(static_cast<size_t>(steps));
    ranks_[r].last.assign(lanes, kNone);
  }
}

uint64_t Builder::Take(uint64_t bytes, uint64_t* end) const {
  assert(!sealed_);
  const uint64_t offset = *end;
  *end += (bytes + kWorkspaceAlignment - 1) / kWorkspaceAlignment * kWorkspaceAlignment;
  return offset;
}

uint64_t Builder::Reserve(uint64_t bytes) { return Take(bytes, &reserved_); }

uint64_t Builder::ReserveSteady(uint64_t bytes) { return Take(bytes, in_client_ ? &steady_ : &reserved_); }

int Builder::Signals(int count) {
  const int first = signals_;
  signals_ += count;
  return first;
}

bool Builder::InBulk() {
  sealed_ = true;
  return in_bulk_ || reserved_ > kMaxWorkspaceBytes;
}

Ref Builder::Workspace(int rank, uint64_t offset) {
  Ref ref;
  ref.space = InBulk() ? Space::kBulk : Space::kWorkspace;
  ref.rank = static_cast<uint8_t>(rank);
  ref.offset = offset;
  return ref;
}

Ref Builder::Steady(int rank, uint64_t offset) {
  Ref ref = Workspace(rank, offset);
  if (!in_client_) return ref;
  if (ref.space == Space::kBulk) ref.offset += reserved_;
  ref.space = Space::kBulk;
  return ref;
}

uint32_t Builder::Add(int rank, int lane, Work work, std::string label, std::vector<uint32_t> deps) {
  RankState& state = ranks_[rank];
  Step step;
  step.lane = static_cast<uint16_t>(lane);
  step.work = std::move(work);
  step.label = std::move(label);
  if (state.collective_lane >= 0) {  // one lane, in order: deps say nothing more
    step.lane = static_cast<uint16_t>(state.collective_lane);
    state.expansion.push_back(std::move(step));
    return kNone;
  }
  if (state.last[lane] == kNone && state.entry != kNone) deps.push_back(state.entry);
  std::sort(deps.begin(), deps.end());
  deps.erase(std::unique(deps.begin(), deps.end()), deps.end());
  for (uint32_t dep : deps) {
    if (dep != kNone && state.program.steps[dep].lane != lane) step.deps.push_back(dep);
  }
  state.program.steps.push_back(std::move(step));
  return state.last[lane] = static_cast<uint32_t>(state.program.steps.size() - 1);
}

uint32_t Builder::Copy(int rank, int lane, const View& src, const View& dst, bool copy_engine,
                       std::string label, std::vector<uint32_t> deps) {
  if (Elements(src) == 0 || src == dst) return Last(rank, lane);
  const View* const views[] = {&src, &dst};
  if (JoinedDims(views) > kMaxDims) {
    const int cut = DimToCut(src);
    for (int64_t i = 0; i < src.extent[cut]; ++i) {
      Copy(rank, lane, Row(src, cut, i), Row(dst, cut, i), copy_engine, label, deps);
    }
    return Last(rank, lane);
  }
  return Add(rank, lane, CopyStep{src, dst, copy_engine}, std::move(label), std::move(deps));
}

uint32_t Builder::Multiply(int rank, int lane, const MatmulStep& product, const std::string& label,
                           const std::vector<uint32_t>& deps) {
  if (Elements(product.c) == 0) return Last(rank, lane);
  for (MatmulStep& part : RowProducts(product)) Add(rank, lane, std::move(part), label, deps);
  return Last(rank, lane);
}

uint32_t Builder::Reduce(int rank, int lane, ReduceStep reduce, std::string label,
                         std::vector<uint32_t> deps) {
  if (Elements(reduce.dst) == 0) return Last(rank, lane);
  std::vector<const View*> views = {&reduce.dst};
  for (const View& source : reduce.sources) views.push_back(&source);
  if (JoinedDims(views) > kMaxDims) {
    const int cut = DimToCut(reduce.dst);
    for (int64_t i = 0; i < reduce.dst.extent[cut]; ++i) {
      ReduceStep row = reduce;
      row.dst = Row(reduce.dst, cut, i);
      for (View& source : row.sources) source = Row(source, cut, i);
      Reduce(rank, lane, std::move(row), label, deps);
    }
    return Last(rank, lane);
  }
  return Add(rank, lane, std::move(reduce), std::move(label), std::move(deps));
}

uint32_t Builder::Signal(int rank, int lane, int to, int index, std::string label) {
  return Add(rank, lane, SignalStep{static_cast<uint8_t>(to), static_cast<uint16_t>(index)},
             std::move(label));
}

uint32_t Builder::Wait(int rank, int lane, int from, int index, std::string label) {
  return Add(rank, lane, WaitStep{static_cast<uint8_t>(from), static_cast<uint16_t>(index)},
             std::move(label));
}

void Builder::Enter(const std::function<bool(int, int)>& linked) {
  if (world_size_ == 1) return;
  const std::vector<uint32_t> last = ExchangeEntries(0, linked);
  for (int r = 0; r < world_size_; ++r) ranks_[r].entry = last[r];
}

void Builder::EnterOn(int lane) {
  if (world_size_ > 1) ExchangeEntries(lane, {});
}

std::vector<uint32_t> Builder::ExchangeEntries(int lane, const std::function<bool(int, int)>& linked) {
  const int index = Signals();
  std::vector<uint32_t> waits;
  for (int r = 0; r < world_size_; ++r) {
    for (int j = 1; j < world_size_; ++j) {
      const int peer = (r + j) % world_size_;
      if (!linked || linked(r, peer)) Signal(r, lane, peer, index, "entered");
    }
    uint32_t last = kNone;
    for (int j = 1; j < world_size_; ++j) {
      const int peer = (r + j) % world_size_;
      if (!linked || linked(r, peer)) last = Wait(r, lane, peer, index, "entry");
    }
    waits.push_back(last);
  }
  return waits;
}

void Builder::AnnounceStart(int rank, int lane) {
  if (world_size_ == 1) return;
  if (start_signal_ < 0) start_signal_ = Signals();
  for (int j = 1; j < world_size_; ++j)
    Signal(rank, lane, (rank + j) % world_size_, start_signal_, "started");
}

void Builder::AwaitStarts(int rank, int lane) {
  for (int j = 1; j < world_size_; ++j) Wait(rank, lane, (rank + j) % world_size_, start_signal_, "close");
}

void Builder::BeginCollective(int rank, int lane, Algorithm algorithm, Op op, View in, View out,
                              ReduceOp reduce_op, int shots, bool dense) {
  RankState& state = ranks_[rank];
  state.collective = CollectiveStep{};
  state.collective.algorithm = algorithm;
  state.collective.op = op;
  state.collective.in = std::move(in);
  state.collective.out = std::move(out);
  state.collective.reduce_op = reduce_op;
  state.collective.shots = static_cast<uint8_t>(shots);
  state.collective.dense = dense && algorithm == Algorithm::kLowLatency;
  state.expansion.clear();
  state.collective_lane = lane;
}

void Builder::EndCollective(int rank, int blocks) {
  RankState& state = ranks_[rank];
  state.collective.blocks = static_cast<uint16_t>(blocks);
  state.collective.expansion = std::move(state.expansion);
  state.collective.signal_count = static_cast<uint16_t>(signals_);
  const int lane = state.collective_lane;
  state.collective_lane = -1;
  state.expansion = {};
  std::string label(AlgorithmName(state.collective.algorithm));
  Add(rank, lane, std::move(state.collective), std::move(label));
}

uint32_t Builder::Last(int rank, int lane) const { return ranks_[rank].last[lane]; }

std::vector<uint32_t> Builder::LastOfOthers(int rank, int lane) const {
  std::vector<uint32_t> out;
  for (int other = 0; other < lanes_; ++other) {
    if (other != lane && ranks_[rank].last[other] != kNone) out.push_back(ranks_[rank].last[other]);
  }
  return out;
}

Status Builder::Finish(OperationPlan* plan) {
  if (signals_ > kSignalsPerWriter) {
    return ResourceExhausted(Text("the programs need ", signals_,
                                  " signal words for each pair of ranks; there are ", kSignalsPerWriter));
  }
  const bool bulk = InBulk();
  plan->lanes = lanes_;
  plan->workspace_bytes = bulk ? 0 : reserved_;
  plan->bulk_bytes = (bulk ? reserved_ : 0) + steady_;
  plan->bytes_moved = 0;
  plan->programs.clear();
  plan->programs.reserve(world_size_);
  for (RankState& state : ranks_) {
    state.program.workspace_bytes = plan->workspace_bytes;
    state.program.bulk_bytes = plan->bulk_bytes;
    state.program.signal_count = signals_;
    plan->bytes_moved = std::max(plan->bytes_moved, BytesSent(state.program));
    plan->programs.push_back(std::move(state.program));
  }
  return Status::Ok();
}

}  // namespace tandem::plan
