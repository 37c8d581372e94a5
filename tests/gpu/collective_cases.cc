#include "tests/gpu/collective_cases.h"

#include <cmath>
#include <cstring>
#include <utility>

#include "common/op_tables.h"
#include "kernels/host/reduce.h"

namespace tandem::runtime {
namespace {

Operand MakeOperand(Role role, std::vector<int64_t> shape, const CollectiveCase& test) {
  Operand operand;
  operand.role = role;
  operand.spec.dtype = test.dtype;
  operand.spec.shape = std::move(shape);
  operand.symmetric = test.symmetric;
  return operand;
}

// The part of `whole` (pieces of `test.piece` along dim) that belongs to `index`, or its place when `write`.
void MovePiece(const CollectiveCase& test, int world, int index, std::vector<std::byte>* whole,
               std::vector<std::byte>* piece, bool write) {
  size_t outer = 1, inner = DTypeBytes(test.dtype);
  for (size_t d = 0; d < test.piece.size(); ++d) {
    (d < static_cast<size_t>(test.dim) ? outer : inner) *= static_cast<size_t>(test.piece[d]);
  }
  for (size_t o = 0; o < outer; ++o) {
    std::byte* in_whole =
        whole->data() + (o * static_cast<size_t>(world) + static_cast<size_t>(index)) * inner;
    std::byte* in_piece = piece->data() + o * inner;
    std::memcpy(write ? in_whole : in_piece, write ? in_piece : in_whole, inner);
  }
}

}  // namespace

std::vector<std::byte> Sum(const Buffers& parts, DType dtype, float scale, ReduceOp reduce_op) {
  std::vector<std::byte> sum(parts[0].size());
  std::vector<const std::byte*> sources;
  for (const auto& part : parts) sources.push_back(part.data());
  host::ReduceContiguous(sources, sum.data(), dtype, static_cast<int64_t>(sum.size() / DTypeBytes(dtype)),
                         reduce_op, scale);
  return sum;
}

std::vector<OpRequest> Requests(const CollectiveCase& test, int world) {
  OpRequest request;
  request.op = test.op;
  request.algorithm = test.algorithm;
  request.dim = test.dim;
  request.reduce_op = test.reduce_op;
  request.root = world - 1;
  std::vector<int64_t> whole = test.piece;
  whole[static_cast<size_t>(test.dim)] *= world;
  const bool gathers = test.op == Op::kAllGather;
  const bool scatters = test.op == Op::kReduceScatter || test.op == Op::kAllToAll;
  request.operands = {
      MakeOperand(Role::kInput, scatters ? whole : test.piece, test),
      MakeOperand(Role::kOutput, gathers || test.op == Op::kAllToAll ? whole : test.piece, test)};
  if (test.in_place) request.operands[1].alias_of = 0;
  return std::vector<OpRequest>(static_cast<size_t>(world), request);
}

Buffers Expected(const CollectiveCase& test, Buffers in, const KernelGroup& group) {
  const int world = group.world_size();
  const float scale = test.reduce_op == ReduceOp::kAvg ? 1.0f / static_cast<float>(world) : 1.0f;
  const ReduceOp combine = test.reduce_op == ReduceOp::kAvg ? ReduceOp::kSum : test.reduce_op;
  Buffers out(in.size());
  for (int rank = 0; rank < world; ++rank) {
    auto r = static_cast<size_t>(rank);
    switch (test.op) {
      case Op::kAllReduce: out[r] = Sum(in, test.dtype, scale, combine); break;
      case Op::kBroadcast: out[r] = in.back(); break;
      case Op::kReduce:
        if (rank == world - 1) out[r] = Sum(in, test.dtype, scale, combine);
        break;
      case Op::kReduceScatter: {
        Buffers pieces;
        for (auto& whole : in) {
          pieces.emplace_back(whole.size() / in.size());
          MovePiece(test, world, rank, &whole, &pieces.back(), false);
        }
        out[r] = Sum(pieces, test.dtype, scale, combine);
        break;
      }
      case Op::kAllGather:
        out[r].resize(in[0].size() * in.size());
        for (int s = 0; s < world; ++s) MovePiece(test, world, s, &out[r], &in[static_cast<size_t>(s)], true);
        break;
      default:  // all-to-all
        out[r].resize(in[0].size());
        for (int s = 0; s < world; ++s) {
          std::vector<std::byte> piece(in[0].size() / in.size());
          MovePiece(test, world, rank, &in[static_cast<size_t>(s)], &piece, false);
          MovePiece(test, world, s, &out[r], &piece, true);
        }
    }
  }
  return out;
}

std::vector<std::byte> RandomElements(DType dtype, size_t bytes, std::mt19937* random, bool special) {
  std::vector<std::byte> data(bytes);
  const size_t count = bytes / DTypeBytes(dtype);
  std::uniform_real_distribution<float> values(-2, 2);
  for (size_t i = 0; i < count; ++i) {
    if (!IsFloating(dtype)) {
      const uint64_t value = (uint64_t{(*random)()} << 32) | (*random)();
      std::memcpy(data.data() + i * DTypeBytes(dtype), &value, DTypeBytes(dtype));
      continue;
    }
    float value = values(*random);
    if (special && (*random)() % 16 == 0) {
      constexpr float kSpecial[] = {NAN, INFINITY, -INFINITY, -0.0f, 0.0f, 1e-40f, 3e38f};
      value = kSpecial[(*random)() % 7];
    }
    StoreFromFloat(data.data(), dtype, i, value);
  }
  return data;
}

testing::AssertionResult Same(const std::vector<std::byte>& got, const std::vector<std::byte>& expected,
                              DType dtype) {
  if (got == expected) return testing::AssertionSuccess();
  const size_t size = DTypeBytes(dtype);
  for (size_t i = 0; i * size < expected.size(); ++i) {
    if (std::memcmp(got.data() + i * size, expected.data() + i * size, size) == 0) continue;
    if (IsFloating(dtype)) {
      const float a = LoadAsFloat(got.data(), dtype, i), b = LoadAsFloat(expected.data(), dtype, i);
      if (std::isnan(a) && std::isnan(b)) continue;
      return testing::AssertionFailure() << "element " << i << " is " << a << ", not " << b;
    }
    return testing::AssertionFailure() << "element " << i << " differs";
  }
  return testing::AssertionSuccess();
}

std::string Name(const CollectiveCase& test, int world) {
  std::string name = std::string(OpName(test.op)) + " " + std::string(AlgorithmName(test.algorithm)) + " " +
                     std::string(DTypeName(test.dtype)) + " W=" + std::to_string(world) + " [";
  for (int64_t extent : test.piece) name += std::to_string(extent) + " ";
  return name + "] dim " + std::to_string(test.dim) + (test.in_place ? " in place" : "") +
         (test.symmetric ? " symmetric" : "") + (test.shift != 0 ? " shifted" : "") +
         (test.reduce_op != ReduceOp::kSum ? " " + std::string(NameOf(test.reduce_op)) : "");
}

void SetInput(const CollectiveCase& test, KernelGroup* group, int rank, int launch,
              std::vector<std::byte> in) {
  if (!test.in_place || test.op != Op::kAllGather) return group->Set(rank, 0, launch, in);
  std::vector<std::byte> whole(group->Bytes(rank, 0), std::byte{0x6b});
  MovePiece(test, group->world_size(), rank, &whole, &in, true);
  group->Set(rank, 0, launch, whole);
}
std::vector<std::byte> GetOutput(const CollectiveCase& test, KernelGroup* group, int rank, int launch) {
  if (!test.in_place || test.op != Op::kReduceScatter) return group->Get(rank, 1, launch);
  std::vector<std::byte> whole = group->Get(rank, 0, launch);
  std::vector<std::byte> out(whole.size() / static_cast<size_t>(group->world_size()));
  MovePiece(test, group->world_size(), rank, &whole, &out, false);
  return out;
}

}  // namespace tandem::runtime
