#include "tests/conformance/stress.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "tests/conformance/compare.h"
#include "tests/conformance/matrix.h"

namespace tandem::conformance {
namespace {

using nlohmann::json;

constexpr int kVariants = 3;  // operand sets of a plan, bound in turn
constexpr int kStreams = 3;   // for launches; one more replays the graph
constexpr int kBlock = 200;   // launches between two waits: fewer than a channel's ring holds
constexpr int kBlocksPerCheck = 8;
constexpr int kDelayOneIn = 400;            // launches before which one rank sleeps …
constexpr int kDelayMicroseconds = 3000;    // … up to so long
constexpr int kPoisonOneIn = 6;             // launches before which the operands are written anew
constexpr Milliseconds kFailsWithin(4000);  // a launch that a rank leaves out

// A plan with one set of operands.
struct OperandSet {
  Case test;                                 // the plan's, or with other rows
  int64_t rows = LaunchOptions::kBoundRows;  // of a family
  Layout layout;
  AllInputs inputs;
  std::vector<Binding> bindings;
  ArenaBytes begin, end;  // the plan's place in the arenas
  bool launched = false;
};
struct StressPlan {
  const Case* test = nullptr;
  std::shared_ptr<Plan> plan;
  std::vector<OperandSet> sets;
  int stream = 0;
  int launches = 0;
};

// Places one operand set behind another.
void MoveBehind(Layout* layout, ArenaBytes* used) {
  for (Place& place : layout->places) place.offset += place.symmetric ? used->symmetric : used->own;
  const auto round = [](size_t bytes) { return (bytes + kGuardBytes - 1) / kGuardBytes * kGuardBytes; };
  used->own += round(layout->own_bytes);
  used->symmetric += round(layout->symmetric_bytes);
}

class Stress {
 public:
  Stress(Rank& rank, int launches)
      : rank_(rank),
        launches_(launches),
        world_(rank.options().world),
        cases_(StressCases(world_, rank.options().in_client())),
        common_(Mix(rank.options().seed, 77)),
        // Client-placed launches are in one order on all ranks; engines match them.
        own_(Mix(rank.options().seed, 1000 + (rank.options().in_client() ? 0 : rank.options().rank))) {}

  Status Run(json* report) {
    TANDEM_RETURN_IF_ERROR(Prepare());
    const auto start = std::chrono::steady_clock::now();
    for (int block = 0; made_ < launches_; ++block) {
      TANDEM_RETURN_IF_ERROR(RunBlock());
      const int every = rank_.options().renew_every;
      if (every > 0 && block % every == every - 1) TANDEM_RETURN_IF_ERROR(FailAndRenew());
      if (block % kBlocksPerCheck == kBlocksPerCheck - 1) TANDEM_RETURN_IF_ERROR(Check());
    }
    TANDEM_RETURN_IF_ERROR(Check());
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    *report = {{"status", "ok"},    {"launches", made_}, {"seconds", seconds},    {"delays", delays_},
               {"checks", checks_}, {"fused", fused_},   {"renewals", renewals_}, {"families", families_}};
    graph_.reset();
    for (StressPlan& plan : plans_) TANDEM_RETURN_IF_ERROR(plan.plan->Release());
    return Status::Ok();
  }

 private:
  int rank() const { return rank_.options().rank; }
  Milliseconds deadline() const { return rank_.options().deadline; }

  Status Prepare() {
    ArenaBytes used;
    for (size_t i = 0; i < cases_.size(); ++i) {
      StressPlan& own = plans_.emplace_back();
      own.test = &cases_[i];
      // The last two are launched by the graph only.
      own.stream = i + 2 >= cases_.size() ? kStreams : static_cast<int>(i) % kStreams;
      OpRequest request = own.test->requests[static_cast<size_t>(rank())];
      const Result<FamilyCase> family = FamilyFor(*own.test, i);
      if (family.ok()) request = family->request;
      if (!rank_.OnOffer(request.op, request.algorithm)) request.algorithm = Algorithm::kAuto;
      Result<std::shared_ptr<Plan>> plan =
          rank_.group().Prepare("stress" + std::to_string(i), request, deadline());
      if (!plan.ok()) return plan.status().WithContext(own.test->name);
      own.plan = *plan;
      fused_ += own.plan->info().algorithm == Algorithm::kFused ? 1 : 0;
      families_ += family.ok() ? 1 : 0;
      for (int variant = 0; variant < kVariants; ++variant) {
        OperandSet& set = own.sets.emplace_back();
        set.test = *own.test;
        if (family.ok()) TANDEM_RETURN_IF_ERROR(TakeRows(*family, variant, &set));
        set.inputs =
            MakeInputs(set.test, Mix(rank_.options().seed, i * kVariants + static_cast<size_t>(variant)));
        TANDEM_ASSIGN_OR_RETURN(set.layout, MakeLayout(set.test, rank()));
        Image image = MakeImage(set.test, set.layout, set.inputs, rank());
        set.begin = used;
        MoveBehind(&set.layout, &used);
        set.end = used;
        image_.own.resize(used.own, std::byte{0x5a});
        image_.symmetric.resize(used.symmetric, std::byte{0x5a});
        std::copy(image.own.begin(), image.own.end(),
                  image_.own.begin() + static_cast<ptrdiff_t>(set.begin.own));
        std::copy(image.symmetric.begin(), image.symmetric.end(),
                  image_.symmetric.begin() + static_cast<ptrdiff_t>(set.begin.symmetric));
        for (const Place& place : set.layout.places) {
          const Arena& arena = place.symmetric ? rank_.symmetric() : rank_.own();
          set.bindings.push_back({arena.memory.get(), place.offset});
        }
      }
    }
    for (int i = 0; i <= kStreams; ++i) {
      TANDEM_ASSIGN_OR_RETURN(auto stream, rank_.device().MakeStream());
      streams_.push_back(std::move(stream));
    }
    std::memcpy(rank_.own().mirror->data(), image_.own.data(), image_.own.size());
    std::memcpy(rank_.symmetric().mirror->data(), image_.symmetric.data(), image_.symmetric.size());
    TANDEM_RETURN_IF_ERROR(rank_.own().mirror->ToDevice(*streams_[0], 0, image_.own.size()));
    TANDEM_RETURN_IF_ERROR(rank_.symmetric().mirror->ToDevice(*streams_[0], 0, image_.symmetric.size()));
    TANDEM_RETURN_IF_ERROR(streams_[0]->Synchronize(deadline()));
    return Capture();
  }

  // The family of every other plan that has one.
  Result<FamilyCase> FamilyFor(const Case& test, size_t number) const {
    if (!rank_.options().families || number % 2 != 0) return NotFound("a plan of one shape");
    return FamilyOf(test, rank(), Mix(rank_.options().seed, 9000 + number));
  }
  // The first operands have all rows of the case, the others fewer.
  Status TakeRows(const FamilyCase& family, int variant, OperandSet* set) {
    const int64_t units = family.rows / family.unit;
    set->rows = variant == 0 ? family.rows : (1 + common_.Below(static_cast<int>(units))) * family.unit;
    TANDEM_ASSIGN_OR_RETURN(set->test, WithRows(set->test, set->rows));
    return Status::Ok();
  }

  // Three launches of the last two plans, the first of them with two operand sets.
  Status Capture() {
    RankStream& stream = *streams_[kStreams];
    StressPlan &first = plans_[plans_.size() - 2], &second = plans_.back();
    first.sets[0].launched = second.sets[1].launched = first.sets[2].launched = true;
    if (!rank_.options().captures) return Status::Ok();
    TANDEM_RETURN_IF_ERROR(stream.BeginCapture());
    Status status = LaunchThree(stream, first, second);
    Result<std::unique_ptr<RankGraph>> captured = stream.EndCapture();
    TANDEM_RETURN_IF_ERROR(status.WithContext("capture"));
    TANDEM_ASSIGN_OR_RETURN(graph_, std::move(captured));
    return Status::Ok();
  }
  static Status LaunchThree(RankStream& stream, StressPlan& first, StressPlan& second) {
    TANDEM_RETURN_IF_ERROR(LaunchSet(stream, first, first.sets[0]));
    TANDEM_RETURN_IF_ERROR(LaunchSet(stream, second, second.sets[1]));
    return LaunchSet(stream, first, first.sets[2]);
  }
  static Status LaunchSet(RankStream& stream, StressPlan& plan, const OperandSet& set,
                          Milliseconds deadline = Milliseconds(0)) {
    return plan.plan->Launch(stream.ref(), set.bindings, {.deadline = deadline, .rows = set.rows});
  }

  // The launches of every stream in this block, alike on all ranks; then the streams' turns, each rank's own.
  Status RunBlock() {
    std::vector<std::vector<uint64_t>> todo(kStreams + 1);
    for (int i = 0; i < kBlock; ++i) {
      const uint64_t draw = common_.Next();
      todo[draw % 16 == 0 ? kStreams : draw / 16 % kStreams].push_back(common_.Next());
    }
    std::vector<size_t> next(todo.size(), 0);
    for (int left = kBlock; left > 0; --left) {
      size_t stream = static_cast<size_t>(own_.Below(kStreams + 1));
      while (next[stream] == todo[stream].size()) stream = (stream + 1) % todo.size();
      TANDEM_RETURN_IF_ERROR(RunOne(static_cast<int>(stream), Draw(todo[stream][next[stream]++])));
    }
    for (auto& stream : streams_) TANDEM_RETURN_IF_ERROR(stream->Synchronize(deadline()));
    for (StressPlan& plan : plans_) {
      TANDEM_RETURN_IF_ERROR(plan.plan->Wait(deadline()).WithContext(plan.test->name));
    }
    return Status::Ok();
  }

  // Client-placed launches: one rank leaves a launch out, the others' ends by its deadline, and all renew the
  // group. No later launch may meet the words, packets and counters that it has left.
  Status FailAndRenew() {
    // Not of the graph's plans: their operands are what the graph has left.
    StressPlan& plan = plans_[static_cast<size_t>(common_.Below(static_cast<int>(plans_.size()) - 2))];
    OperandSet& set = plan.sets[static_cast<size_t>(common_.Below(kVariants))];
    const int late = common_.Below(world_);
    RankStream& stream = *streams_[0];
    if (rank() != late) {
      // The late rank is late, or has begun the renewal already, perhaps before this launch is made.
      Status ended = LaunchSet(stream, plan, set, kFailsWithin);
      if (ended.ok()) {
        TANDEM_RETURN_IF_ERROR(stream.Synchronize(deadline()));
        ended = plan.plan->Wait(deadline());
      }
      const std::vector<uint32_t>& blamed = ended.detail().ranks;
      const bool named = ended.detail().reason == "RANK_LATE" || ended.detail().reason == "RENEWING";
      if (!named || blamed.size() != 1 || static_cast<int>(blamed[0]) != late) {
        return Internal(plan.test->name + " without rank " + std::to_string(late) + ": " + ended.ToString());
      }
    }
    TANDEM_RETURN_IF_ERROR(rank_.group().Renew(deadline()).WithContext("renewal"));
    ++renewals_;
    set.launched = false;  // until its next launch its outputs are undefined
    TANDEM_RETURN_IF_ERROR(WriteAnew(stream, set));
    return stream.Synchronize(deadline());
  }

  Status RunOne(int stream, Draw draw) {
    RankStream& own = *streams_[static_cast<size_t>(stream)];
    if (draw.OneIn(kDelayOneIn)) {
      ++delays_;
      const std::chrono::microseconds length(draw.Below(kDelayMicroseconds));
      if (draw.Below(world_) == rank()) {
        TANDEM_RETURN_IF_ERROR(own.Enqueue([length] { std::this_thread::sleep_for(length); }));
      }
    }
    if (stream == kStreams) {
      made_ += 3;
      if (graph_ == nullptr) return LaunchThree(own, plans_[plans_.size() - 2], plans_.back());
      return own.Replay(*graph_).WithContext("replay");
    }
    std::vector<StressPlan*> choice;
    for (StressPlan& plan : plans_) {
      if (plan.stream == stream) choice.push_back(&plan);
    }
    StressPlan& plan = *draw.Of(choice);
    OperandSet& set = plan.sets[static_cast<size_t>(draw.Below(kVariants))];
    bool anew = draw.OneIn(kPoisonOneIn);
    for (const Operand& operand : plan.test->requests[0].operands)
      anew |= operand.alias_of >= 0;  // its input is gone
    if (anew) TANDEM_RETURN_IF_ERROR(WriteAnew(own, set));
    set.launched = true;
    ++made_;
    return LaunchSet(own, plan, set).WithContext(plan.test->name);
  }

  // The operand set as it was at the start, outputs poisoned, in stream order.
  Status WriteAnew(RankStream& stream, const OperandSet& set) {
    struct Part {
      const Arena& arena;
      const std::vector<std::byte>& image;
      size_t begin, end;
    };
    for (const Part& part :
         {Part{rank_.own(), image_.own, set.begin.own, set.end.own},
          Part{rank_.symmetric(), image_.symmetric, set.begin.symmetric, set.end.symmetric}}) {
      const size_t bytes = part.end - part.begin;
      if (bytes == 0) continue;
      const std::byte* from = part.image.data() + part.begin;
      std::byte* to = part.arena.mirror->data() + part.begin;
      TANDEM_RETURN_IF_ERROR(stream.Enqueue([from, to, bytes] { std::memcpy(to, from, bytes); }));
      TANDEM_RETURN_IF_ERROR(part.arena.mirror->ToDevice(stream, part.begin, bytes));
    }
    return Status::Ok();
  }

  // All streams are idle. Compares every operand set that was launched, and everything outside the outputs.
  Status Check() {
    ++checks_;
    TANDEM_RETURN_IF_ERROR(rank_.own().mirror->ToHost(*streams_[0], 0, image_.own.size()));
    TANDEM_RETURN_IF_ERROR(rank_.symmetric().mirror->ToHost(*streams_[0], 0, image_.symmetric.size()));
    TANDEM_RETURN_IF_ERROR(streams_[0]->Synchronize(deadline()));
    Image expected = image_;
    for (StressPlan& plan : plans_) {
      for (OperandSet& set : plan.sets) {
        if (!set.launched) continue;
        const OpRequest& request = set.test.requests[static_cast<size_t>(rank())];
        for (int slot = 0; slot < static_cast<int>(request.operands.size()); ++slot) {
          if (!IsOutput(request, slot, rank())) continue;
          const Place& place = set.layout.places[static_cast<size_t>(slot)];
          const Arena& arena = place.symmetric ? rank_.symmetric() : rank_.own();
          const TensorSpec spec = SpecOf(request, slot);
          const std::vector<std::byte> have = Gather(spec, arena.mirror->data() + place.tensor());
          const std::string wrong =
              CompareOutput(set.test, rank(), slot, rank_.ExecutionOf(plan.plan->info()),
                            ComputeExpected(set.test, set.inputs, rank(), slot), have);
          if (!wrong.empty()) {
            return Internal(plan.test->name + ": slot " + std::to_string(slot) + " after " +
                            std::to_string(made_) + " launches: " + wrong);
          }
          Scatter(spec, have, expected.At(place));
        }
      }
    }
    if (std::memcmp(expected.own.data(), rank_.own().mirror->data(), expected.own.size()) != 0 ||
        std::memcmp(expected.symmetric.data(), rank_.symmetric().mirror->data(), expected.symmetric.size()) !=
            0) {
      return Internal("memory outside the outputs has changed after " + std::to_string(made_) + " launches");
    }
    return Status::Ok();
  }

  Rank& rank_;
  const int launches_, world_;
  const std::vector<Case> cases_;
  std::vector<StressPlan> plans_;
  std::vector<std::unique_ptr<RankStream>> streams_;
  std::unique_ptr<RankGraph> graph_;
  Image image_;
  Draw common_, own_;
  int made_ = 0, delays_ = 0, checks_ = 0, fused_ = 0, renewals_ = 0, families_ = 0;
};

}  // namespace

std::vector<Case> StressCases(int world, bool in_client) {
  Matrix matrix(world, 1);
  const auto add = [&matrix](Op op, Algorithm algorithm, std::vector<Operand> operands, Values values,
                             int alias_of = -1, int shift = 1) {
    OpRequest request;
    request.op = op;
    request.algorithm = algorithm;
    request.operands = std::move(operands);
    if (alias_of >= 0) request.operands[1].alias_of = alias_of;
    matrix.Add(request, {.values = values, .shift = shift});
  };
  using enum Algorithm;
  const auto pair = [](DType dtype, int64_t in, int64_t out, bool symmetric) {
    return std::vector<Operand>{MakeOperand(Role::kInput, dtype, {in}, symmetric),
                                MakeOperand(Role::kOutput, dtype, {out}, symmetric)};
  };
  const auto product = [](int64_t rows, int64_t k, int64_t n, int64_t c_rows) {
    return std::vector<Operand>{MakeOperand(Role::kA, DType::kF32, {rows, k}),
                                MakeOperand(Role::kB, DType::kF32, {k, n}),
                                MakeOperand(Role::kC, DType::kF32, {c_rows, n})};
  };
  add(Op::kAllReduce, kOneShot, pair(DType::kF32, 257, 257, false), Values::kExact);
  add(Op::kAllReduce, kTwoShot, pair(DType::kBf16, 4099, 4099, true), Values::kExact, 0);
  add(Op::kAllGather, kSm, pair(DType::kF16, 33, 33 * world, true), Values::kBits, 0);
  if (in_client) {
    add(Op::kReduceScatter, kSm, pair(DType::kF32, 65 * world, 65, false), Values::kExact);
    // One kernel that moves and multiplies where there is one, else a product and a collective.
    const auto few = [](int64_t a_rows, int64_t c_rows) {
      return std::vector<Operand>{MakeOperand(Role::kA, DType::kBf16, {a_rows, 48}),
                                  MakeOperand(Role::kB, DType::kBf16, {48, 272}),
                                  MakeOperand(Role::kC, DType::kBf16, {c_rows, 272})};
    };
    add(Op::kAllGatherMatmul, kFused, few(8, 8 * world), Values::kExact, -1, 0);
    add(Op::kMatmulReduceScatter, kFused, few(8 * world, 8), Values::kExact, -1, 0);
    add(Op::kMatmulAllReduce, kFused, few(13, 13), Values::kExact, -1, 0);
    add(Op::kAllToAll, kSm, pair(DType::kI32, 24 * world, 24 * world, false), Values::kBits);
    add(Op::kBroadcast, kSm, pair(DType::kU8, 1001, 1001, true), Values::kBits);
    add(Op::kReduce, kSm, pair(DType::kF32, 301, 301, false), Values::kExact);
    add(Op::kBarrier, kDirect, {}, Values::kRandom);
    add(Op::kAllReduce, kAuto, pair(DType::kBf16, 96, 96, false), Values::kExact);
    // Products before and behind the kernel. Packets where there are any.
    add(Op::kMatmulReduceScatter, kUnfused, product(16 * world, 24, 40, 16), Values::kExact);
    add(Op::kAllGatherMatmul, kLowLatency, product(16, 32, 24, 16 * world), Values::kExact);
    add(Op::kAllGather, kLowLatency, pair(DType::kU8, 20011, 20011 * world, false), Values::kBits);
    add(Op::kMatmulAllReduce, kUnfused, product(10, 24, 40, 10), Values::kExact);
    // Rows that several blocks share, and rows of one block each.
    for (const int64_t rows : {3, 131}) {
      OpRequest normed;
      normed.op = Op::kAllReduce;
      normed.norm_epsilon = 1e-5f;
      for (const Role role :
           {Role::kInput, Role::kOutput, Role::kNormWeight, Role::kResidual, Role::kResidualOutput})
        normed.operands.push_back(
            MakeOperand(role, DType::kBf16, role == Role::kNormWeight ? Shape{2048} : Shape{rows, 2048}));
      matrix.Add(normed, {.values = Values::kRandom});
    }
    // The last two: in the graph.
    add(Op::kAllReduce, kOneShot, pair(DType::kF16, 500, 500, true), Values::kExact);
    add(Op::kAllGatherMatmul, kUnfused, product(8, 16, 24, 8 * world), Values::kExact);
    return matrix.Take();
  }
  add(Op::kReduceScatter, kCopyEngine, pair(DType::kF32, 65 * world, 65, false), Values::kExact);
  add(Op::kAllToAll, kNccl, pair(DType::kI32, 24 * world, 24 * world, false), Values::kBits);
  add(Op::kBroadcast, kSm, pair(DType::kU8, 1001, 1001, true), Values::kBits);
  add(Op::kAllGatherMatmul, kPipeline, product(16, 32, 24, 16 * world), Values::kExact);
  add(Op::kMatmulReduceScatter, kRing, product(16 * world, 24, 40, 16), Values::kExact);
  add(Op::kMatmulAllReduce, kTiledTwoShot, product(10, 24, 40, 10), Values::kExact);
  add(Op::kAllGather, kCopyEngine, pair(DType::kI64, 700, 700 * world, false), Values::kBits);
  add(Op::kBarrier, kDirect, {}, Values::kRandom);
  // One kernel a rank where there are fused ones, else what the daemon prefers: for few rows, and for tiles
  // of several waves.
  for (int64_t rows : {8, 136}) {
    const auto bf16 = [&](int64_t a_rows, int64_t c_rows) {
      return std::vector<Operand>{MakeOperand(Role::kA, DType::kBf16, {a_rows, 48}),
                                  MakeOperand(Role::kB, DType::kBf16, {48, 272}),
                                  MakeOperand(Role::kC, DType::kBf16, {c_rows, 272}, true)};
    };
    add(Op::kAllGatherMatmul, kFused, bf16(rows, rows * world), Values::kExact, -1, 0);
    add(Op::kMatmulReduceScatter, kFused, bf16(rows * world, rows), Values::kExact, -1, 0);
    add(Op::kMatmulAllReduce, kFused, bf16(rows * world, rows * world), Values::kExact, -1, 0);
  }
  add(Op::kAllGather, kLowLatency, pair(DType::kBf16, 40, 40 * world, false), Values::kBits);
  // The daemon's preference: packets where there are any.
  add(Op::kAllReduce, kAuto, pair(DType::kBf16, 96, 96, false), Values::kExact);
  add(Op::kReduceScatter, kAuto, pair(DType::kF32, 40 * world, 40, true), Values::kExact, 0);
  add(Op::kAllGatherMatmul, kAuto, product(32, 64, 48, 32 * world), Values::kExact);
  // The last two: in the graph.
  add(Op::kAllReduce, kOneShot, pair(DType::kF16, 500, 500, true), Values::kExact);
  add(Op::kAllGatherMatmul, kRing, product(8, 16, 24, 8 * world), Values::kExact);
  return matrix.Take();
}

Result<ArenaBytes> StressBytes(int world, bool in_client) {
  ArenaBytes used;
  for (const Case& test : StressCases(world, in_client)) {
    for (int variant = 0; variant < kVariants; ++variant) {
      TANDEM_ASSIGN_OR_RETURN(Layout layout, MakeLayout(test, world - 1));
      MoveBehind(&layout, &used);
    }
  }
  return used;
}

json RunStress(Rank& rank, int launches) {
  json report;
  Status status = Stress(rank, launches).Run(&report);
  if (!status.ok()) report = {{"status", "failed"}, {"message", status.ToString()}};
  return report;
}

}  // namespace tandem::conformance
