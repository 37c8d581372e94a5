#include "daemon/planner/tests/reference/reference_interpreter.h"

#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <unordered_map>

#include "daemon/planner/tests/reference/reference_ops.h"

namespace tandem::plan {
namespace {

// One indivisible action of a queue.
struct Action {
  enum Kind {
    kNothing,
    kCopy,
    kSignal,
    kWait,
    kMatmul,
    kReduce,
    kNorm,
    kNcclBegin,
    kNcclEnd
  } kind = kNothing;
  const View* src = nullptr;
  const View* dst = nullptr;
  int peer = 0, index = 0;
  const MatmulStep* matmul = nullptr;
  const ReduceStep* reduce = nullptr;
  const NormStep* norm = nullptr;
  const NcclStep* nccl = nullptr;  // index: its number in the program
};

struct CompiledStep {
  std::vector<uint32_t> deps;
  std::vector<Action> actions;
};

class Interpreter {
 public:
  Interpreter(std::span<const RankProgram> programs, const VerifyContext& context,
              std::vector<LaunchOperands>& operands, const InterpretOptions& options)
      : programs_(programs),
        context_(context),
        operands_(operands),
        options_(options),
        random_(options.seed),
        world_(static_cast<int>(programs.size())) {
    words_.assign(static_cast<size_t>(world_) * world_ * kSignalsPerWriter, 0);
    ranks_.resize(world_);
    for (int rank = 0; rank < world_; ++rank) {
      for (auto& half : ranks_[rank].workspace) half.assign(programs[rank].workspace_bytes, 0xc5);
      ranks_[rank].bulk.assign(programs[rank].bulk_bytes, 0xc5);
      CompileRank(rank);
      Begin(rank);
    }
    priorities_.resize(static_cast<size_t>(world_) * kMaxLanes);
    for (uint32_t& priority : priorities_) priority = static_cast<uint32_t>(random_());
  }

  Status Run() {
    const int launches = static_cast<int>(operands_.size());
    struct Task {
      int rank, queue;
    };
    std::vector<Task> ready;
    while (true) {
      ready.clear();
      bool finished = true;
      for (int rank = 0; rank < world_; ++rank) {
        Rank& state = ranks_[rank];
        if (state.launch == launches) continue;
        finished = false;
        if (state.left == 0 && MayBegin(rank)) ready.push_back({rank, -1});
        for (size_t q = 0; q < state.queues.size() && state.left > 0; ++q) {
          if (IsReady(rank, static_cast<int>(q))) ready.push_back({rank, static_cast<int>(q)});
        }
      }
      if (finished) return {};
      if (ready.empty()) {
        StatusDetail detail;
        detail.reason = "DEADLOCK";
        return Status(Code::kInternal, "no step can run", detail);
      }
      size_t pick = random_() % ready.size();
      if (options_.seed % 2 == 0) {
        // Priorities let a rank or lane run far ahead or fall far behind, which uniform choice hardly ever
        // does.
        if (random_() % 24 == 0)
          priorities_[random_() % priorities_.size()] = static_cast<uint32_t>(random_());
        for (size_t i = 0; i < ready.size(); ++i) {
          if (Priority(ready[i].rank, ready[i].queue) > Priority(ready[pick].rank, ready[pick].queue))
            pick = i;
        }
      }
      auto [rank, queue] = ready[pick];
      if (queue < 0) {
        ++ranks_[rank].launch;
        Begin(rank);
      } else {
        Advance(rank, queue);
      }
    }
  }

 private:
  struct Queue {
    std::vector<uint32_t> steps;
    size_t step = 0, action = 0;
  };
  struct Rank {
    std::vector<uint8_t> workspace[2], bulk;
    std::vector<CompiledStep> steps;
    std::vector<std::vector<uint32_t>> order;  // steps of each queue
    std::vector<Queue> queues;
    std::vector<bool> done;
    size_t left = 0;
    int launch = 0;
    // [launch][call], as they were at the call's start.
    std::vector<std::vector<std::vector<uint8_t>>> nccl_inputs;
    std::vector<std::vector<bool>> nccl_started;
    int nccl_calls = 0;
  };

  uint32_t Priority(int rank, int queue) const { return priorities_[rank * kMaxLanes + std::max(queue, 0)]; }

  void CompileStep(Rank& rank, const Step& step, std::vector<Action>& out) {
    Action action;
    if (auto* copy = std::get_if<CopyStep>(&step.work)) {
      action.kind = Action::kCopy;
      action.src = &copy->src;
      action.dst = &copy->dst;
    } else if (auto* signal = std::get_if<SignalStep>(&step.work)) {
      action.kind = Action::kSignal;
      action.peer = signal->to_rank;
      action.index = signal->index;
    } else if (auto* wait = std::get_if<WaitStep>(&step.work)) {
      action.kind = Action::kWait;
      action.peer = wait->from_rank;
      action.index = wait->index;
    } else if (auto* matmul = std::get_if<MatmulStep>(&step.work)) {
      action.kind = Action::kMatmul;
      action.matmul = matmul;
    } else if (auto* reduce = std::get_if<ReduceStep>(&step.work)) {
      action.kind = Action::kReduce;
      action.reduce = reduce;
    } else if (auto* norm = std::get_if<NormStep>(&step.work)) {
      action.kind = Action::kNorm;
      action.norm = norm;
    } else if (auto* nccl = std::get_if<NcclStep>(&step.work)) {
      action.nccl = nccl;
      action.index = rank.nccl_calls++;
      action.kind = Action::kNcclBegin;
      out.push_back(action);
      action.kind = Action::kNcclEnd;
    } else if (auto* group = std::get_if<TransferGroupStep>(&step.work)) {
      std::vector<const TransferPart*> parts;
      for (const TransferPart& part : group->parts) parts.push_back(&part);
      std::shuffle(parts.begin(), parts.end(), random_);
      std::stable_partition(parts.begin(), parts.end(), [](const TransferPart* part) { return part->send; });
      for (const TransferPart* part : parts) {
        if (part->send) {
          out.push_back({Action::kCopy, &part->src, &part->dst, 0, 0, nullptr, nullptr, nullptr});
        }
        out.push_back({part->send ? Action::kSignal : Action::kWait, nullptr, nullptr, part->peer,
                       part->index, nullptr, nullptr, nullptr});
      }
      return;
    } else if (auto* collective = std::get_if<CollectiveStep>(&step.work)) {
      for (const Step& inner : collective->expansion) CompileStep(rank, inner, out);
      return;
    }
    out.push_back(action);
  }

  void CompileRank(int index) {
    Rank& rank = ranks_[index];
    const RankProgram& program = programs_[index];
    const int queues = options_.hardware_queues > 0 ? options_.hardware_queues : kMaxLanes;
    rank.order.resize(queues);
    for (size_t s = 0; s < program.steps.size(); ++s) {
      CompiledStep& compiled = rank.steps.emplace_back();
      compiled.deps = program.steps[s].deps;
      CompileStep(rank, program.steps[s], compiled.actions);
      if (compiled.actions.empty()) compiled.actions.push_back({});
      rank.order[program.steps[s].lane % queues].push_back(static_cast<uint32_t>(s));
      // Deps across lanes of one queue are met by its order; those of one lane must hold by program order as
      // well.
    }
    rank.nccl_inputs.assign(operands_.size(), std::vector<std::vector<uint8_t>>(rank.nccl_calls));
    rank.nccl_started.assign(operands_.size(), std::vector<bool>(rank.nccl_calls, false));
  }

  void Begin(int index) {
    Rank& rank = ranks_[index];
    rank.queues.clear();
    for (const auto& steps : rank.order) rank.queues.push_back({steps, 0, 0});
    rank.done.assign(rank.steps.size(), false);
    rank.left = rank.steps.size();
  }

  bool MayBegin(int index) const {
    if (programs_[index].bulk_bytes == 0) return true;
    for (const Rank& rank : ranks_) {
      if (rank.launch < ranks_[index].launch || (rank.launch == ranks_[index].launch && rank.left > 0))
        return false;
    }
    return true;
  }

  uint64_t& Word(int reader, int writer, int index) {
    return words_[(static_cast<size_t>(reader) * world_ + writer) * kSignalsPerWriter + index];
  }

  bool IsReady(int index, int q) {
    Rank& rank = ranks_[index];
    const Queue& queue = rank.queues[q];
    if (queue.step == queue.steps.size()) return false;
    const CompiledStep& step = rank.steps[queue.steps[queue.step]];
    if (queue.action == 0) {
      for (uint32_t dep : step.deps) {
        if (!rank.done[dep]) return false;
      }
    }
    const Action& action = step.actions[queue.action];
    if (action.kind == Action::kWait) {
      return Word(index, action.peer, action.index) >= static_cast<uint64_t>(rank.launch) + 1;
    }
    if (action.kind == Action::kNcclEnd) {
      for (const Rank& peer : ranks_) {
        if (!peer.nccl_started[rank.launch][action.index]) return false;
      }
    }
    return true;
  }

  void Advance(int index, int q) {
    Rank& rank = ranks_[index];
    Queue& queue = rank.queues[q];
    const uint32_t s = queue.steps[queue.step];
    Do(index, rank.steps[s].actions[queue.action]);
    if (++queue.action < rank.steps[s].actions.size()) return;
    queue.action = 0;
    ++queue.step;
    rank.done[s] = true;
    --rank.left;
  }

  uint8_t* Base(const Ref& ref, int launch) {
    if (ref.space == Space::kBulk) return ranks_[ref.rank].bulk.data() + ref.offset;
    if (ref.space == Space::kWorkspace) {
      return ranks_[ref.rank].workspace[options_.alternate_parity ? launch % 2 : 0].data() + ref.offset;
    }
    int slot = ref.slot;
    while (context_.alias[slot] >= 0) slot = context_.alias[slot];
    return operands_[launch][ref.rank][slot].data() + ref.offset;
  }

  // Element offsets of a view, row-major.
  const std::vector<uint32_t>& Elements(const View& view) {
    std::vector<uint32_t>& offsets = elements_[&view];
    if (!offsets.empty()) return offsets;
    offsets.push_back(0);
    for (size_t d = 0; d < view.extent.size(); ++d) {
      std::vector<uint32_t> next;
      for (uint32_t offset : offsets) {
        for (int64_t i = 0; i < view.extent[d]; ++i)
          next.push_back(static_cast<uint32_t>(offset + i * view.stride[d]));
      }
      offsets.swap(next);
    }
    return offsets;
  }

  float Load(const View& view, int launch, size_t element) {
    return LoadAsFloat(Base(view.ref, launch), view.dtype, Elements(view)[element]);
  }

  void Do(int index, const Action& action) {
    const int launch = ranks_[index].launch;
    switch (action.kind) {
      case Action::kNothing:
      case Action::kWait: break;
      case Action::kCopy: Copy(*action.src, *action.dst, launch); break;
      case Action::kSignal: Word(action.peer, index, action.index) = static_cast<uint64_t>(launch) + 1; break;
      case Action::kMatmul: Matmul(*action.matmul, launch); break;
      case Action::kReduce: Reduce(*action.reduce, launch); break;
      case Action::kNorm: Norm(*action.norm, launch); break;
      case Action::kNcclBegin: NcclBegin(index, action, launch); break;
      case Action::kNcclEnd: NcclEnd(index, action, launch); break;
    }
  }

  void Copy(const View& src, const View& dst, int launch) {
    const auto &from = Elements(src), &to = Elements(dst);
    const size_t item = DTypeBytes(src.dtype);
    const uint8_t* in = Base(src.ref, launch);
    uint8_t* out = Base(dst.ref, launch);
    for (size_t i = 0; i < from.size(); ++i) std::memmove(out + to[i] * item, in + from[i] * item, item);
  }

  float BlockFactor(const MatmulStep& m, int launch, size_t row, size_t block, size_t column) {
    const auto of_k = static_cast<size_t>(m.scale_a.extent.back()),
               of_n = static_cast<size_t>(m.scale_b.extent[1]);
    const bool each = of_n == static_cast<size_t>(m.b.extent[1]);
    const size_t at =
        each ? column : (static_cast<size_t>(m.first_column) + column) / static_cast<size_t>(kScaleBlock);
    return Load(m.scale_a, launch, row * of_k + block) * Load(m.scale_b, launch, block * of_n + at);
  }

  void Matmul(const MatmulStep& m, int launch) {
    const size_t k = static_cast<size_t>(m.b.extent[0]), n = static_cast<size_t>(m.b.extent[1]);
    const auto &a = Elements(m.a), &b = Elements(m.b), &c = Elements(m.c);
    std::vector<float> fa(a.size()), fb(b.size());
    for (size_t i = 0; i < a.size(); ++i) fa[i] = LoadAsFloat(Base(m.a.ref, launch), m.a.dtype, a[i]);
    for (size_t i = 0; i < b.size(); ++i) fb[i] = LoadAsFloat(Base(m.b.ref, launch), m.b.dtype, b[i]);
    for (size_t e = 0; e < c.size(); ++e) {
      const size_t row = e / n, column = e % n;
      float sum = 0;
      const size_t block = m.block_scales ? static_cast<size_t>(kScaleBlock) : k;
      for (size_t begin = 0; begin < k; begin += block) {
        float part = 0;
        for (size_t i = begin; i < std::min(k, begin + block); ++i)
          part += fa[row * k + i] * fb[i * n + column];
        sum += m.block_scales ? part * BlockFactor(m, launch, row, begin / block, column) : part;
      }
      sum *= m.alpha;
      if (m.has_scale_a && !m.block_scales)
        sum *= Load(m.scale_a, launch, Elements(m.scale_a).size() == 1 ? 0 : row);
      if (m.has_scale_b && !m.block_scales)
        sum *= Load(m.scale_b, launch, Elements(m.scale_b).size() == 1 ? 0 : column);
      if (m.accumulate) sum += LoadAsFloat(Base(m.c.ref, launch), m.c.dtype, c[e]);
      if (m.has_bias) sum += Load(m.bias, launch, column);
      if (m.has_result_scale) sum *= Load(m.result_scale, launch, 0);
      StoreFromFloat(Base(m.c.ref, launch), m.c.dtype, c[e], sum);
    }
  }

  void Reduce(const ReduceStep& r, int launch) {
    const auto& dst = Elements(r.dst);
    for (size_t e = 0; e < dst.size(); ++e) {
      float sum = Load(r.sources[0], launch, e);
      for (size_t s = 1; s < r.sources.size(); ++s)
        sum = Combined(r.reduce_op, sum, Load(r.sources[s], launch, e));
      sum *= r.scale;
      if (r.has_bias) sum += Load(r.bias, launch, e % static_cast<size_t>(r.dst.extent.back()));
      if (r.has_result_scale) sum *= Load(r.result_scale, launch, 0);
      StoreFromFloat(Base(r.dst.ref, launch), r.dst.dtype, dst[e], sum);
    }
  }

  void Norm(const NormStep& n, int launch) {
    const size_t columns = static_cast<size_t>(n.out.extent.back()), count = Elements(n.out).size();
    const View& normed = n.has_residual ? n.residual_out : n.sum;
    for (size_t e = 0; n.has_residual && e < count; ++e) {
      StoreFromFloat(Base(normed.ref, launch), normed.dtype, Elements(normed)[e],
                     Load(n.sum, launch, e) + Load(n.residual, launch, e));
    }
    for (size_t row = 0; row < count; row += columns) {
      float squares = 0;
      for (size_t i = row; i < row + columns; ++i)
        squares += Load(normed, launch, i) * Load(normed, launch, i);
      const float root = std::sqrt(squares / static_cast<float>(columns) + n.epsilon);
      for (size_t i = row; i < row + columns; ++i) {
        StoreFromFloat(Base(n.out.ref, launch), n.out.dtype, Elements(n.out)[i],
                       Load(normed, launch, i) / root * Load(n.weight, launch, i - row));
      }
    }
    if (n.has_quantized) Quantize(n, launch);
  }

  void Quantize(const NormStep& n, int launch) {
    const size_t columns = static_cast<size_t>(n.out.extent.back()), count = Elements(n.out).size();
    const size_t blocks = n.has_scales ? static_cast<size_t>(n.scales.extent.back()) : 1;
    for (size_t e = 0; e < count; ++e) {
      const size_t block = blocks == 1 ? 0 : e % columns / kScaleBlock, row = e / columns;
      const size_t first = row * columns + block * kScaleBlock;
      const size_t end =
          blocks == 1 ? (row + 1) * columns : std::min(first + kScaleBlock, (row + 1) * columns);
      if (e == first && n.has_scales) {
        float most = kLeastAmax;
        for (size_t i = first; i < end; ++i) most = std::max(most, std::fabs(Load(n.out, launch, i)));
        StoreFromFloat(Base(n.scales.ref, launch), DType::kF32, Elements(n.scales)[row * blocks + block],
                       most / kMaxE4M3);
      }
      const float scale =
          n.has_scales ? Load(n.scales, launch, row * blocks + block) : Load(n.static_scale, launch, 0);
      StoreFromFloat(Base(n.quantized.ref, launch), DType::kF8E4M3, Elements(n.quantized)[e],
                     Load(n.out, launch, e) / scale);
    }
  }

  void NcclBegin(int index, const Action& action, int launch) {
    const NcclStep& n = *action.nccl;
    if (n.kind != NcclKind::kBarrier && (n.kind != NcclKind::kBroadcast || index == n.root)) {
      const size_t bytes = Elements(n.in).size() * DTypeBytes(n.in.dtype);
      const uint8_t* in = Base(n.in.ref, launch);
      ranks_[index].nccl_inputs[launch][action.index].assign(in, in + bytes);
    }
    ranks_[index].nccl_started[launch][action.index] = true;
  }

  void NcclEnd(int index, const Action& action, int launch) {
    const NcclStep& n = *action.nccl;
    if (n.kind == NcclKind::kBarrier || (n.kind == NcclKind::kReduce && index != n.root)) return;
    auto input = [&](int rank) -> const std::vector<uint8_t>& {
      return ranks_[rank].nccl_inputs[launch][action.index];
    };
    const size_t bytes = Elements(n.out).size() * DTypeBytes(n.out.dtype);
    uint8_t* out = Base(n.out.ref, launch);
    switch (n.kind) {
      case NcclKind::kAllReduce:
      case NcclKind::kReduceScatter:
      case NcclKind::kReduce: {
        const size_t count = Elements(n.out).size();
        const size_t first = n.kind == NcclKind::kReduceScatter ? index * count : 0;
        for (size_t e = 0; e < count; ++e) {
          float sum = LoadAsFloat(input(0).data(), n.in.dtype, first + e);
          for (int rank = 1; rank < world_; ++rank)
            sum = Combined(n.reduce_op, sum, LoadAsFloat(input(rank).data(), n.in.dtype, first + e));
          if (n.reduce_op == ReduceOp::kAvg) sum /= static_cast<float>(world_);
          StoreFromFloat(out, n.out.dtype, e, sum);
        }
        break;
      }
      case NcclKind::kAllGather:
        for (int rank = 0; rank < world_; ++rank) {
          std::copy(input(rank).begin(), input(rank).end(), out + rank * input(rank).size());
        }
        break;
      case NcclKind::kAllToAll:
        for (int rank = 0; rank < world_; ++rank) {
          const size_t chunk = bytes / world_;
          std::copy_n(input(rank).begin() + static_cast<ptrdiff_t>(index * chunk), chunk, out + rank * chunk);
        }
        break;
      case NcclKind::kBroadcast: std::copy(input(n.root).begin(), input(n.root).end(), out); break;
      case NcclKind::kBarrier: break;
    }
  }

  std::span<const RankProgram> programs_;
  const VerifyContext& context_;
  std::vector<LaunchOperands>& operands_;
  const InterpretOptions& options_;
  std::mt19937_64 random_;
  const int world_;
  std::vector<uint64_t> words_;
  std::vector<Rank> ranks_;
  std::vector<uint32_t> priorities_;
  std::unordered_map<const View*, std::vector<uint32_t>> elements_;
};

}  // namespace

Status Interpret(std::span<const RankProgram> programs, const VerifyContext& context,
                 std::vector<LaunchOperands>& operands, const InterpretOptions& options) {
  return Interpreter(programs, context, operands, options).Run();
}

}  // namespace tandem::plan
