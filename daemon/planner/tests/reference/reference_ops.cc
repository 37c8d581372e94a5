#include "daemon/planner/tests/reference/reference_ops.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <random>

#include "daemon/planner/tests/reference/reference_interpreter.h"
#include "program/verifier/verifier.h"

namespace tandem::plan {
namespace {

using Values = std::vector<double>;
using Shape = std::vector<int64_t>;

int64_t Count(const Shape& shape) {
  int64_t count = 1;
  for (int64_t extent : shape) count *= extent;
  return count;
}

// In elements from where the slot is bound. In place along a dimension the smaller tensor is a rank's part of
// the larger one.
std::vector<uint64_t> Offsets(const OpRequest& request, int slot, int rank) {
  const TensorSpec& spec = request.operands[slot].spec;
  const Shape strides = StridesOf(request, slot);
  uint64_t first = 0;
  if (slot == PartSlot(request)) {
    const size_t dim =
        static_cast<size_t>(request.dim < 0 ? request.dim + static_cast<int>(strides.size()) : request.dim);
    first = static_cast<uint64_t>(rank * spec.shape[dim] * strides[dim]);
  }
  std::vector<uint64_t> offsets = {first};
  for (size_t d = 0; d < spec.shape.size(); ++d) {
    std::vector<uint64_t> next;
    for (uint64_t offset : offsets) {
      for (int64_t i = 0; i < spec.shape[d]; ++i)
        next.push_back(offset + static_cast<uint64_t>(i * strides[d]));
    }
    offsets.swap(next);
  }
  return offsets;
}

std::vector<int> SlotsOf(const OpRequest& request, Role role) {
  std::vector<int> slots;
  for (size_t s = 0; s < request.operands.size(); ++s) {
    if (request.operands[s].role == role) slots.push_back(static_cast<int>(s));
  }
  return slots;
}
int SlotOf(const OpRequest& request, Role role) {
  auto slots = SlotsOf(request, role);
  return slots.empty() ? -1 : slots[0];
}

// Elements [first, first + length) along `dim`.
Values Cut(const Values& in, const Shape& shape, int dim, int64_t first, int64_t length) {
  const int64_t outer = Count(Shape(shape.begin(), shape.begin() + dim));
  const int64_t inner = Count(Shape(shape.begin() + dim + 1, shape.end()));
  Values out;
  for (int64_t o = 0; o < outer; ++o) {
    auto from = in.begin() + (o * shape[dim] + first) * inner;
    out.insert(out.end(), from, from + length * inner);
  }
  return out;
}

Values Join(const std::vector<const Values*>& shards, const Shape& shape, int dim) {
  const int64_t outer = Count(Shape(shape.begin(), shape.begin() + dim));
  Values out;
  for (int64_t o = 0; o < outer; ++o) {
    for (const Values* shard : shards) {
      const int64_t piece = static_cast<int64_t>(shard->size()) / std::max<int64_t>(outer, 1);
      out.insert(out.end(), shard->begin() + o * piece, shard->begin() + (o + 1) * piece);
    }
  }
  return out;
}

// Whether the scales are by blocks of K: B number `i`'s has more than one row, or fewer columns than B.
bool HasBlocks(const OpRequest& request, size_t i) {
  auto scales = SlotsOf(request, Role::kScaleB);
  if (scales.empty()) return false;
  const Shape& scale = request.operands[scales[i]].spec.shape;
  const int64_t n = request.operands[SlotsOf(request, Role::kB)[i]].spec.shape[1];
  return Count(scale) != 1 && scale != Shape{1, n};
}

// A's shape with its scales' last extent.
Shape ScaleShape(const OpRequest& request, Shape shape) {
  shape.back() = HasBlocks(request, 0) ? (shape.back() + kScaleBlock - 1) / kScaleBlock : 1;
  return shape;
}

class Reference {
 public:
  Reference(std::span<const OpRequest> requests, const TensorValues& inputs)
      : requests_(requests), inputs_(inputs), world_(static_cast<int>(requests.size())) {
    for (const OpRequest& request : requests) out_.emplace_back(request.operands.size());
  }

  TensorValues Run() {
    for (int rank = 0; rank < world_; ++rank) {
      OneRank(rank);
      Norm(rank);
    }
    return std::move(out_);
  }

 private:
  const OpRequest& Request() const { return requests_[0]; }
  const Shape& ShapeOf(int rank, int slot) const { return requests_[rank].operands[slot].spec.shape; }
  int Dim(const Shape& shape) const {
    return Request().dim < 0 ? Request().dim + static_cast<int>(shape.size()) : Request().dim;
  }

  Values SumOf(int slot) const {
    Values sum = inputs_[0][slot];
    for (int rank = 1; rank < world_; ++rank) {
      for (size_t i = 0; i < sum.size(); ++i)
        sum[i] = Combined(Request().reduce_op, sum[i], inputs_[rank][slot][i]);
    }
    return Averaged(std::move(sum));
  }
  Values Averaged(Values sum) const {
    if (Request().reduce_op == ReduceOp::kAvg) {
      for (double& value : sum) value /= world_;
    }
    return sum;
  }

  // A of any leading dimensions times B number `i` of `rank`, scaled, no epilogue.
  Values Product(int rank, size_t i, const Values& a, const Values& scale_a) const {
    const int b_slot = SlotsOf(requests_[rank], Role::kB)[i];
    const int64_t k = ShapeOf(rank, b_slot)[0], n = ShapeOf(rank, b_slot)[1];
    const int64_t rows = Count(ShapeOf(rank, SlotsOf(requests_[rank], Role::kA)[0])) == 0 && k == 0
                             ? 0
                             : (k == 0 ? 0 : static_cast<int64_t>(a.size()) / k);
    const Values& b = inputs_[rank][b_slot];
    auto scale_slots = SlotsOf(requests_[rank], Role::kScaleB);
    const Values one = {1.0};
    const Values& scale_b = scale_slots.empty() ? one : inputs_[rank][scale_slots[i]];
    const bool blocks = HasBlocks(requests_[rank], i);
    const int64_t k_blocks = (k + kScaleBlock - 1) / kScaleBlock;
    const int64_t n_factors = blocks ? static_cast<int64_t>(scale_b.size()) / k_blocks : n;
    Values c(rows * n, 0.0);
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t j = 0; j < n; ++j) {
        double sum = 0;
        for (int64_t block = 0; block < k_blocks && blocks; ++block) {
          double part = 0;
          for (int64_t x = block * kScaleBlock; x < std::min(k, (block + 1) * kScaleBlock); ++x)
            part += a[r * k + x] * b[x * n + j];
          sum += part * scale_a[r * k_blocks + block] *
                 scale_b[block * n_factors + (n_factors == n ? j : j / kScaleBlock)];
        }
        if (blocks) {
          c[r * n + j] = sum;
          continue;
        }
        for (int64_t x = 0; x < k; ++x) sum += a[r * k + x] * b[x * n + j];
        sum *= scale_a.empty() ? 1.0 : scale_a[scale_a.size() == 1 ? 0 : r];
        c[r * n + j] = sum * scale_b[scale_b.size() == 1 ? 0 : j];
      }
    }
    return c;
  }

  double ResultScale(int rank, size_t i) const {
    auto slots = SlotsOf(requests_[rank], Role::kResultScale);
    return slots.empty() ? 1.0 : inputs_[rank][slots[i]][0];
  }
  double Bias(int rank, size_t i, size_t column) const {
    auto slots = SlotsOf(requests_[rank], Role::kBias);
    return slots.empty() ? 0.0 : inputs_[rank][slots[i]][column];
  }
  void LocalEpilogue(int rank, size_t i, Values& c) const {
    const size_t n = static_cast<size_t>(ShapeOf(rank, SlotsOf(requests_[rank], Role::kB)[i])[1]);
    for (size_t e = 0; e < c.size(); ++e) c[e] = (c[e] + Bias(rank, i, e % n)) * ResultScale(rank, i);
  }

  // Scales of a shard, which cannot be taken out of the sum: the rows' along K, or one for the whole shard.
  static Values ScaledShards(const std::vector<const Values*>& shards,
                             const std::vector<const Values*>& scales, const Shape& shape, int dim) {
    std::vector<Values> scaled;
    for (size_t peer = 0; peer < shards.size(); ++peer) {
      scaled.push_back(*shards[peer]);
      const auto k = static_cast<size_t>(shape.back());
      for (size_t e = 0; e < scaled.back().size(); ++e)
        scaled.back()[e] *= scales[peer]->size() == 1 ? scales[peer]->front() : (*scales[peer])[e / k];
    }
    std::vector<const Values*> parts;
    for (const Values& values : scaled) parts.push_back(&values);
    return Join(parts, shape, dim);
  }

  void GatherMatmul(int rank) {
    const OpRequest& request = requests_[rank];
    const int a_slot = SlotOf(request, Role::kA), scale_slot = SlotOf(request, Role::kScaleA);
    const Shape& shape = ShapeOf(rank, a_slot);
    const int dim = Dim(shape);
    std::vector<const Values*> shards, scales;
    for (int peer = 0; peer < world_; ++peer) {
      shards.push_back(&inputs_[peer][a_slot]);
      if (scale_slot >= 0) scales.push_back(&inputs_[peer][scale_slot]);
    }
    Values a = Join(shards, shape, dim);
    Values scale, factors = a;
    if (scale_slot >= 0) {
      const Shape sharded = ScaleShape(request, shape);
      const bool travels = ShapeOf(rank, scale_slot) == sharded;
      const bool one = Count(ShapeOf(rank, scale_slot)) == 1;
      if (!HasBlocks(request, 0) && (one || (travels && dim + 1 == static_cast<int>(shape.size())))) {
        factors = ScaledShards(shards, scales, shape, dim);
      } else {
        scale = travels ? Join(scales, sharded, dim) : inputs_[rank][scale_slot];
      }
    }
    auto c_slots = SlotsOf(request, Role::kC);
    for (size_t i = 0; i < c_slots.size(); ++i) {
      Values c = Product(rank, i, factors, scale);
      LocalEpilogue(rank, i, c);
      out_[rank][c_slots[i]] = std::move(c);
    }
    if (int slot = SlotOf(request, Role::kGatheredA); slot >= 0) out_[rank][slot] = std::move(a);
  }

  void MatmulReduce(int rank) {
    Values sum;
    for (int peer = 0; peer < world_; ++peer) {
      const int scale = SlotOf(requests_[peer], Role::kScaleA);
      Values part = Product(peer, 0, inputs_[peer][SlotOf(requests_[peer], Role::kA)],
                            scale < 0 ? Values() : inputs_[peer][scale]);
      if (sum.empty()) sum.assign(part.size(), 0.0);
      for (size_t i = 0; i < sum.size(); ++i) sum[i] += part[i];
    }
    sum = Averaged(std::move(sum));
    const OpRequest& request = requests_[rank];
    Shape shape = ShapeOf(rank, SlotOf(request, Role::kA));
    shape.back() = ShapeOf(rank, SlotOf(request, Role::kB))[1];
    for (size_t e = 0; e < sum.size(); ++e) {
      sum[e] = (sum[e] + Bias(rank, 0, e % static_cast<size_t>(shape.back()))) * ResultScale(rank, 0);
    }
    if (request.op == Op::kMatmulReduceScatter) {
      const int dim = Dim(shape);
      sum = Cut(sum, shape, dim, rank * (shape[dim] / world_), shape[dim] / world_);
    }
    out_[rank][SlotOf(request, Role::kC)] = std::move(sum);
  }

  void Norm(int rank) {
    const OpRequest& request = requests_[rank];
    const int weight = SlotOf(request, Role::kNormWeight), residual = SlotOf(request, Role::kResidual);
    if (weight < 0) return;
    const int c = SlotOf(request, Role::kC);
    Values& out = out_[rank][c >= 0 ? c : SlotOf(request, Role::kOutput)];
    if (residual >= 0) {
      for (size_t i = 0; i < out.size(); ++i) out[i] += inputs_[rank][residual][i];
      out_[rank][SlotOf(request, Role::kResidualOutput)] = out;
    }
    const Values& weights = inputs_[rank][weight];
    for (size_t row = 0; row < out.size(); row += weights.size()) {
      double squares = 0;
      for (size_t i = 0; i < weights.size(); ++i) squares += out[row + i] * out[row + i];
      const double root = std::sqrt(squares / static_cast<double>(weights.size()) +
                                    static_cast<double>(request.norm_epsilon));
      for (size_t i = 0; i < weights.size(); ++i) out[row + i] *= weights[i] / root;
    }
  }

  void SendReceive(int rank) {
    // The i-th send from a to b meets the i-th receive on b from a.
    std::map<int, int> received;
    for (const Transfer& transfer : requests_[rank].transfers) {
      if (transfer.send) continue;
      int nth = received[transfer.peer]++;
      for (const Transfer& sent : requests_[transfer.peer].transfers) {
        if (!sent.send || sent.peer != rank || nth-- != 0) continue;
        out_[rank][transfer.slot] = inputs_[transfer.peer][sent.slot];
        break;
      }
    }
  }

  void OneRank(int rank) {
    const OpRequest& request = requests_[rank];
    const int in = SlotOf(request, Role::kInput), out = SlotOf(request, Role::kOutput);
    std::vector<const Values*> shards;
    for (int peer = 0; peer < world_ && in >= 0; ++peer) shards.push_back(&inputs_[peer][in]);
    switch (request.op) {
      case Op::kAllReduce: out_[rank][out] = SumOf(in); break;
      case Op::kAllGather: out_[rank][out] = Join(shards, ShapeOf(rank, in), Dim(ShapeOf(rank, in))); break;
      case Op::kReduceScatter: {
        const Shape& shape = ShapeOf(rank, in);
        const int dim = Dim(shape);
        out_[rank][out] = Cut(SumOf(in), shape, dim, rank * (shape[dim] / world_), shape[dim] / world_);
        break;
      }
      case Op::kAllToAll: {
        const Shape& shape = ShapeOf(rank, in);
        const int dim = Dim(shape);
        std::vector<Values> pieces;
        for (const Values* shard : shards) {
          pieces.push_back(Cut(*shard, shape, dim, rank * (shape[dim] / world_), shape[dim] / world_));
        }
        std::vector<const Values*> pointers;
        for (const Values& piece : pieces) pointers.push_back(&piece);
        out_[rank][out] = Join(pointers, shape, dim);
        break;
      }
      case Op::kBroadcast: out_[rank][out] = *shards[request.root]; break;
      case Op::kReduce:
        if (rank == request.root) out_[rank][out] = SumOf(in);
        break;
      case Op::kAllGatherMatmul: GatherMatmul(rank); break;
      case Op::kMatmulReduceScatter:
      case Op::kMatmulAllReduce: MatmulReduce(rank); break;
      case Op::kAsyncInputMatmul: {
        const int scale = SlotOf(request, Role::kScaleA);
        Values c = Product(rank, 0, inputs_[rank][SlotOf(request, Role::kA)],
                           scale < 0 ? Values() : inputs_[rank][scale]);
        LocalEpilogue(rank, 0, c);
        out_[rank][SlotOf(request, Role::kC)] = std::move(c);
        break;
      }
      case Op::kSendReceive: SendReceive(rank); break;
      case Op::kBarrier:
      case Op::kEmpty: break;
    }
  }

  std::span<const OpRequest> requests_;
  const TensorValues& inputs_;
  const int world_;
  TensorValues out_;
};

// Relative error in the norm that an output may have.
double Tolerance(const OpRequest& request, const TensorSpec& out) {
  double k = 64;
  if (int b = SlotOf(request, Role::kB); b >= 0)
    k += static_cast<double>(request.operands[b].spec.shape[0]) * 8;
  const bool matmul = SlotOf(request, Role::kA) >= 0;
  const bool norm = SlotOf(request, Role::kNormWeight) >= 0;  // which rounds once more than its sum
  switch (out.dtype) {
    case DType::kF32: return 1e-6 * std::sqrt(k);
    case DType::kF16: return matmul ? 2e-3 : 1e-3;
    case DType::kBf16: return matmul ? 8e-3 : norm ? 5e-3 : 4e-3;
    case DType::kF8E4M3: return 0.08;
    case DType::kF8E5M2: return 0.16;
    default: return 0;
  }
}

}  // namespace

std::vector<double> LoadTensor(const OpRequest& request, int slot, int rank,
                               const std::vector<uint8_t>& bytes) {
  const DType dtype = request.operands[slot].spec.dtype;
  Values values;
  for (uint64_t offset : Offsets(request, slot, rank))
    values.push_back(LoadAsFloat(bytes.data(), dtype, offset));
  return values;
}

void StoreTensor(const OpRequest& request, int slot, int rank, const std::vector<double>& values,
                 std::vector<uint8_t>& bytes) {
  const auto offsets = Offsets(request, slot, rank);
  for (size_t i = 0; i < offsets.size(); ++i) {
    StoreFromFloat(bytes.data(), request.operands[slot].spec.dtype, offsets[i],
                   static_cast<float>(values[i]));
  }
}

TensorValues ReferenceOutputs(std::span<const OpRequest> requests, const TensorValues& inputs) {
  return Reference(requests, inputs).Run();
}

TensorValues RandomInputs(std::span<const OpRequest> requests, uint64_t seed) {
  std::mt19937_64 random(seed);
  TensorValues values;
  for (const OpRequest& request : requests) {
    auto& rank = values.emplace_back();
    for (const Operand& operand : request.operands) {
      auto& slot = rank.emplace_back();
      if (IsOutput(operand.role)) continue;
      // Rounded to the dtype, so that the reference computes with what the programs see.
      std::vector<uint8_t> element(8);
      for (int64_t i = 0; i < Count(operand.spec.shape); ++i) {
        double value = std::uniform_real_distribution<double>(-1, 1)(random);
        if (!IsFloating(operand.spec.dtype)) value = static_cast<double>(random() % 23);
        if (operand.role == Role::kChunkSignals) value = 1;
        if (operand.role == Role::kScaleA || operand.role == Role::kScaleB ||
            operand.role == Role::kResultScale) {
          value = 0.5 + 0.5 * std::fabs(value);
        }
        StoreFromFloat(element.data(), operand.spec.dtype, 0, static_cast<float>(value));
        slot.push_back(LoadAsFloat(element.data(), operand.spec.dtype, 0));
      }
      // Owners of an all-reduce's tiles apply the epilogue for all ranks, so it is the same on all.
      if (request.op == Op::kMatmulAllReduce &&
          (operand.role == Role::kBias || operand.role == Role::kResultScale)) {
        slot = values[0][rank.size() - 1];
      }
      if (request.op == Op::kAllGatherMatmul && operand.role == Role::kScaleA) {
        const Shape sharded = ScaleShape(request, request.operands[SlotOf(request, Role::kA)].spec.shape);
        // Replicated scales are the same on all ranks by definition.
        const bool travels = operand.spec.shape == sharded || Count(operand.spec.shape) == 1;
        if (!travels) slot = values[0][rank.size() - 1];
      }
    }
  }
  return values;
}

std::string CompareWithReference(std::span<const RankProgram> programs, std::span<const OpRequest> requests,
                                 const CheckOptions& options, bool alternate_parity) {
  auto context = ContextOf(requests);
  if (!context.ok()) return context.status().ToString();
  std::vector<TensorValues> inputs, expected;
  std::vector<LaunchOperands> initial(options.launches);
  for (int launch = 0; launch < options.launches; ++launch) {
    inputs.push_back(RandomInputs(requests, 1000 + launch));
    expected.push_back(ReferenceOutputs(requests, inputs.back()));
    for (size_t rank = 0; rank < requests.size(); ++rank) {
      auto& slots = initial[launch].emplace_back();
      for (size_t slot = 0; slot < requests[rank].operands.size(); ++slot) {
        slots.emplace_back(context->operand_bytes[rank][slot], 0xd7);
      }
      for (size_t slot = 0; slot < slots.size(); ++slot) {
        const auto& values = inputs[launch][rank][slot];
        if (values.empty()) continue;
        StoreTensor(requests[rank], static_cast<int>(slot), static_cast<int>(rank), values, slots[slot]);
      }
    }
  }
  for (uint64_t seed : options.seeds) {
    std::vector<LaunchOperands> operands = initial;
    Status status =
        Interpret(programs, *context, operands, {seed, options.interpret_queues, alternate_parity});
    if (!status.ok()) return "interpreter: " + status.ToString();
    for (int launch = 0; launch < options.launches; ++launch) {
      for (size_t rank = 0; rank < requests.size(); ++rank) {
        const std::string wrong = WrongQuantization(requests[rank], operands[launch][rank]);
        if (!wrong.empty()) return "wrong result: rank " + std::to_string(rank) + " " + wrong;
        for (size_t slot = 0; slot < requests[rank].operands.size(); ++slot) {
          const auto& want = expected[launch][rank][slot];
          if (want.empty()) continue;
          const TensorSpec& spec = requests[rank].operands[slot].spec;
          const int alias = context->alias[slot];
          Values have = LoadTensor(requests[rank], static_cast<int>(slot), static_cast<int>(rank),
                                   operands[launch][rank][alias >= 0 ? alias : static_cast<int>(slot)]);
          if (have.size() != want.size()) return "reference has another size";
          double error = 0, norm = 0;
          for (size_t i = 0; i < want.size(); ++i) {
            error += (have[i] - want[i]) * (have[i] - want[i]);
            norm += want[i] * want[i];
          }
          const double relative = std::sqrt(error) / std::max(std::sqrt(norm), 1e-30);
          if (!(relative <= Tolerance(requests[rank], spec) || error == 0)) {
            return "wrong result: launch " + std::to_string(launch) + " rank " + std::to_string(rank) +
                   " slot " + std::to_string(slot) + " seed " + std::to_string(seed) + " relative error " +
                   std::to_string(relative);
          }
        }
      }
    }
  }
  return "";
}

std::string CheckPlan(const OperationPlan& plan, std::span<const OpRequest> requests,
                      const CheckOptions& options) {
  auto context = ContextOf(requests);
  if (!context.ok()) return context.status().ToString();
  for (int queues : options.verify_queues) {
    VerifyOptions verify;
    verify.hardware_queues = queues;
    Status status = VerifyPrograms(plan.programs, *context, verify);
    if (!status.ok()) {
      return "verify with " + std::to_string(queues) + " queues: " + status.detail().reason + " " +
             status.message();
    }
  }
  return options.seeds.empty() ? "" : CompareWithReference(plan.programs, requests, options);
}

std::string CheckRequests(std::span<const OpRequest> requests, const GroupContext& group,
                          const CheckOptions& options, OperationPlan* out) {
  auto plan = MakePlan(requests, group);
  if (!plan.ok()) return "plan: " + plan.status().ToString();
  if (out != nullptr) *out = *plan;
  return CheckPlan(*plan, requests, options);
}

}  // namespace tandem::plan
