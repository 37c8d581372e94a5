#include "tests/conformance/reference.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <utility>

#include "tests/conformance/reference_matmul.h"
#include "tests/conformance/reference_norm.h"

namespace tandem::conformance {
namespace {

using Bytes = std::vector<std::byte>;
using Shape = std::vector<int64_t>;

// Elements [first, first + length) along `dim`.
Bytes Cut(const Bytes& in, const Shape& shape, int dim, int64_t first, int64_t length, size_t width) {
  const int64_t outer = CountOf(Shape(shape.begin(), shape.begin() + dim));
  const int64_t inner = CountOf(Shape(shape.begin() + dim + 1, shape.end())) * static_cast<int64_t>(width);
  Bytes out;
  out.reserve(static_cast<size_t>(outer * length * inner));
  for (int64_t o = 0; o < outer; ++o) {
    const auto from = in.begin() + (o * shape[static_cast<size_t>(dim)] + first) * inner;
    out.insert(out.end(), from, from + length * inner);
  }
  return out;
}

// Shards of equal size, one behind the other along `dim` of `shape`, which is one shard's.
Bytes Join(const std::vector<Bytes>& shards, const Shape& shape, int dim) {
  const int64_t outer = CountOf(Shape(shape.begin(), shape.begin() + dim));
  Bytes out;
  if (outer == 0) return out;
  out.reserve(shards.size() * shards[0].size());
  for (int64_t o = 0; o < outer; ++o) {
    for (const Bytes& shard : shards) {
      const int64_t piece = static_cast<int64_t>(shard.size()) / outer;
      out.insert(out.end(), shard.begin() + o * piece, shard.begin() + (o + 1) * piece);
    }
  }
  return out;
}

class Reference {
 public:
  Reference(const Case& test, const AllInputs& inputs, int rank)
      : test_(test), inputs_(inputs), rank_(rank), world_(static_cast<int>(test.requests.size())) {}

  Expected Output(int slot) {
    const OpRequest& request = Request(rank_);
    if (!HasNorm(request)) return OfSum(slot);
    const int c = FindSlot(request, Role::kC);
    return NormReference(request, inputs_[At(rank_)], slot,
                         OfSum(c >= 0 ? c : FindSlot(request, Role::kOutput)));
  }

 private:
  // For a request with a norm: the sum alone.
  Expected OfSum(int slot) {
    const OpRequest& request = Request(rank_);
    Expected expected;
    switch (request.op) {
      case Op::kAllReduce:
      case Op::kReduce: Sum(&expected, 0, 1); break;
      case Op::kReduceScatter: Sum(&expected, rank_, world_); break;
      case Op::kAllGather: expected.bytes = Gathered(Role::kInput); break;
      case Op::kBroadcast:
        expected.bytes = inputs_[At(request.root)][At(FindSlot(request, Role::kInput))];
        break;
      case Op::kAllToAll: expected.bytes = Exchanged(); break;
      case Op::kSendReceive: expected.bytes = Received(slot); break;
      default:
        if (request.operands[At(slot)].role == Role::kGatheredA) {
          expected.bytes = Gathered(Role::kA);
        } else {
          expected = MatmulReference(test_, inputs_, rank_, slot);
        }
    }
    return expected;
  }

  static size_t At(int index) { return static_cast<size_t>(index); }
  const OpRequest& Request(int rank) const { return test_.requests[At(rank)]; }

  Bytes Gathered(Role role) const {
    const OpRequest& request = Request(rank_);
    const int slot = FindSlot(request, role);
    const Shape& shape = request.operands[At(slot)].spec.shape;
    std::vector<Bytes> shards;
    for (int peer = 0; peer < world_; ++peer) shards.push_back(inputs_[At(peer)][At(slot)]);
    return Join(shards, shape, FrontDim(request, shape.size()));
  }

  Bytes Exchanged() const {
    const OpRequest& request = Request(rank_);
    const int slot = FindSlot(request, Role::kInput);
    const TensorSpec& spec = request.operands[At(slot)].spec;
    const int dim = FrontDim(request, spec.shape.size());
    Shape piece = spec.shape;
    piece[At(dim)] /= world_;
    std::vector<Bytes> pieces;
    for (int peer = 0; peer < world_; ++peer) {
      pieces.push_back(Cut(inputs_[At(peer)][At(slot)], spec.shape, dim, rank_ * piece[At(dim)],
                           piece[At(dim)], DTypeBytes(spec.dtype)));
    }
    return Join(pieces, piece, dim);
  }

  // The i-th send from a to b meets the i-th receive on b from a.
  Bytes Received(int slot) const {
    std::map<int, int> received;
    for (const Transfer& transfer : Request(rank_).transfers) {
      if (transfer.send) continue;
      int nth = received[transfer.peer]++;
      if (transfer.slot != slot) continue;
      for (const Transfer& sent : Request(transfer.peer).transfers) {
        if (sent.send && sent.peer == rank_ && nth-- == 0) return inputs_[At(transfer.peer)][At(sent.slot)];
      }
    }
    return {};
  }

  static bool IsOther(ReduceOp op) { return op != ReduceOp::kSum && op != ReduceOp::kAvg; }

  // One more rank's values. A result with a NaN is a NaN.
  static void AddFloats(ReduceOp op, const std::vector<double>& values, bool first, Expected* expected) {
    if (first) expected->values = values;
    for (size_t i = 0; i < values.size(); ++i) {
      double& result = expected->values[i];
      if (first || std::isnan(result)) continue;
      if (op == ReduceOp::kProduct) {
        result *= values[i];
      } else if (std::isnan(values[i]) || (op == ReduceOp::kMin) == (values[i] < result)) {
        result = values[i];
      }
    }
    expected->parts.assign(values.size(), 0.0);
    for (size_t i = 0; i < values.size(); ++i) expected->parts[i] = std::fabs(expected->values[i]);
  }

  // The same of integers' bytes, whose values here are never negative.
  static void AddIntegers(ReduceOp op, const Bytes& own, size_t width, Expected* expected) {
    const bool first = expected->bytes.empty();
    if (first) expected->bytes = own;
    for (size_t at = 0; at < own.size() && !first; at += width) {
      uint64_t result = 0, value = 0;
      std::memcpy(&result, &expected->bytes[at], width);
      std::memcpy(&value, &own[at], width);
      switch (op) {
        case ReduceOp::kMin: result = std::min(result, value); break;
        case ReduceOp::kMax: result = std::max(result, value); break;
        case ReduceOp::kProduct: result *= value; break;
        case ReduceOp::kBitAnd: result &= value; break;
        case ReduceOp::kBitOr: result |= value; break;
        default: result ^= value; break;
      }
      std::memcpy(&expected->bytes[at], &result, width);
    }
  }

  // Chunk `part` of `parts` along the request's dimension of the sum over ranks.
  void Sum(Expected* expected, int part, int parts) const {
    const OpRequest& request = Request(rank_);
    const int slot = FindSlot(request, Role::kInput);
    const TensorSpec& spec = request.operands[At(slot)].spec;
    for (int peer = 0; peer < world_; ++peer) {
      Bytes own = inputs_[At(peer)][At(slot)];
      if (parts > 1) {
        const int dim = FrontDim(request, spec.shape.size());
        const int64_t length = spec.shape[At(dim)] / parts;
        own = Cut(own, spec.shape, dim, part * length, length, DTypeBytes(spec.dtype));
      }
      const std::vector<double> values = ToDoubles(own, spec.dtype);
      if (IsOther(request.reduce_op)) {
        IsFloating(spec.dtype) ? AddFloats(request.reduce_op, values, peer == 0, expected)
                               : AddIntegers(request.reduce_op, own, DTypeBytes(spec.dtype), expected);
        continue;
      }
      expected->values.resize(values.size(), 0.0);
      expected->parts.resize(values.size(), 0.0);
      for (size_t i = 0; i < values.size(); ++i) {
        expected->values[i] += values[i];
        expected->parts[i] += std::fabs(values[i]);
      }
    }
    expected->terms = expected->parts;
    if (request.reduce_op != ReduceOp::kAvg) return;
    for (double& value : expected->values) value /= world_;
  }

  const Case& test_;
  const AllInputs& inputs_;
  const int rank_;
  const int world_;
};

}  // namespace

AllInputs MakeInputs(const Case& test, uint64_t seed) {
  AllInputs inputs(test.requests.size());
  for (size_t rank = 0; rank < inputs.size(); ++rank) {
    const OpRequest& request = test.requests[rank];
    for (size_t slot = 0; slot < request.operands.size(); ++slot) {
      const bool read = IsInput(request, static_cast<int>(slot), static_cast<int>(rank)) ||
                        request.operands[slot].role == Role::kInput;  // in place: what is overwritten
      inputs[rank].push_back(read ? MakeValues(test, static_cast<int>(rank), static_cast<int>(slot), seed)
                                  : Bytes());
    }
  }
  return inputs;
}

Expected ComputeExpected(const Case& test, const AllInputs& inputs, int rank, int slot) {
  return Reference(test, inputs, rank).Output(slot);
}

}  // namespace tandem::conformance
