#include "tests/fuzz/fuzz_request.h"

#include <cstdint>
#include <utility>

#include "common/op_tables.h"
#include "daemon/topology/topology.h"

namespace tandem::fuzz {
namespace {

// A value of the enumeration, by a number.
template <typename Enum>
Enum At(size_t number) {
  return kNamedValues<Enum>[number % kNamedValues<Enum>.size()].value;
}
template <typename Enum>
Enum Take(FuzzInput& input) {
  return At<Enum>(input.Byte());
}

int64_t TakeExtent(FuzzInput& input) {
  static constexpr int64_t kExtents[] = {0,  1,  2,  3,   4,   5,   7,    8,    16,
                                         24, 31, 64, 100, 128, 256, 1000, 4096, 65536};
  return kExtents[input.Byte() % std::size(kExtents)];
}

Operand Make(Role role, DType dtype, std::vector<int64_t> shape) {
  Operand operand;
  operand.role = role;
  operand.spec.dtype = dtype;
  operand.spec.shape = std::move(shape);
  return operand;
}

int64_t Blocks(int64_t extent) { return (extent + kScaleBlock - 1) / kScaleBlock; }

// A @ B with what may come with it, C's rows and columns as given.
void AddMatmul(FuzzInput& input, OpRequest& request, int world, std::vector<int64_t> a, int64_t n,
               int64_t c_scale_up, int64_t c_scale_down) {
  const auto dtype = static_cast<DType>(input.Byte() % 5);
  const DType out = IsFloat8(dtype) ? static_cast<DType>(input.Byte() % 3) : dtype;
  const int64_t k = a.back();
  std::vector<int64_t> c = a;
  c.back() = n;
  const size_t dim = static_cast<size_t>(request.dim) % (a.size() - 1);
  request.dim = static_cast<int>(dim);
  c[dim] = c[dim] * c_scale_up / c_scale_down;
  request.operands.push_back(Make(Role::kA, dtype, a));
  const int count = request.op == Op::kAllGatherMatmul ? 1 + input.Byte() % 3 : 1;
  const uint8_t extras = input.Byte();
  const bool blocks = (extras & 33) == 33;  // scales by blocks
  for (int i = 0; i < count; ++i) {
    request.operands.push_back(Make(Role::kB, dtype, {k, n}));
    request.operands.push_back(Make(Role::kC, out, c));
    if (IsFloat8(dtype)) {
      std::vector<int64_t> scale = {1};
      if (extras & 1) scale = {1, n};
      if (blocks) scale = {Blocks(k), (extras & 64) != 0 ? n : Blocks(n)};
      request.operands.push_back(Make(Role::kScaleB, DType::kF32, scale));
    }
    if (extras & 2) request.operands.push_back(Make(Role::kBias, out, {n}));
  }
  if (IsFloat8(dtype)) {
    std::vector<int64_t> scale = {1};
    if (extras & 1) {
      scale = a;
      scale.back() = blocks ? Blocks(k) : 1;
      if (extras & 8) scale[dim] *= world;
    }
    request.operands.push_back(Make(Role::kScaleA, DType::kF32, scale));
  }
  if (extras & 4) request.operands.push_back(Make(Role::kResultScale, DType::kF32, {1}));
  if ((extras & 16) != 0 && request.op == Op::kAllGatherMatmul) {
    std::vector<int64_t> gathered = a;
    gathered[dim] *= world;
    request.operands.push_back(Make(Role::kGatheredA, dtype, gathered));
  }
}

// The norm of the output, slot `output`, by two bits: with a residual, and that in place.
void AddNorm(OpRequest& request, size_t output, int bits) {
  const TensorSpec out = request.operands[output].spec;
  request.norm_epsilon = 1e-5f;
  request.operands.push_back(Make(Role::kNormWeight, out.dtype, {out.shape.back()}));
  if (bits == 0) return;
  request.operands.push_back(Make(Role::kResidual, out.dtype, out.shape));
  request.operands.push_back(Make(Role::kResidualOutput, out.dtype, out.shape));
  if ((bits & 2) != 0) request.operands.back().alias_of = static_cast<int>(request.operands.size()) - 2;
}

// Two bits quantise the norm of slot `output`: not at all, by a given scale, by scales of rows, or of blocks.
void AddQuantization(OpRequest& request, size_t output, int bits) {
  if (bits == 0) return;
  std::vector<int64_t> shape = request.operands[output].spec.shape;
  request.operands.push_back(Make(Role::kQuantizedOutput, DType::kF8E4M3, shape));
  if (bits == 1) {
    request.operands.push_back(Make(Role::kStaticScale, DType::kF32, {1}));
    return;
  }
  shape.back() = bits == 2 ? 1 : (shape.back() + 127) / 128;
  request.operands.push_back(Make(Role::kScaleOutput, DType::kF32, shape));
}

OpRequest TakeRequest(FuzzInput& input, int world) {
  OpRequest request;
  request.op = Take<Op>(input);
  request.algorithm = Take<Algorithm>(input);
  request.dim = input.Byte() % 3;
  request.reduce_op = Take<ReduceOp>(input);
  const uint8_t root = input.Byte();
  request.root = root % world;
  const uint8_t flags = input.Byte();
  request.wire = flags & 1 ? WireType::kF32 : WireType::kOutput;
  request.low_contention = (flags & 2) != 0;
  request.on_unfused = At<OnUnfused>(flags >> 2);
  request.placement = static_cast<PlanPlacement>(flags >> 6 & 1 ? 0 : (flags >> 7) * 2);
  if (flags & 16) {
    request.steps = input.Byte() % 33;
    request.lanes = input.Byte() % 9;
  }
  std::vector<int64_t> shape(1 + input.Byte() % 3);
  for (int64_t& extent : shape) extent = TakeExtent(input);
  const size_t dim = static_cast<size_t>(request.dim) % shape.size();
  const auto dtype = Take<DType>(input);
  std::vector<int64_t> in = shape, out = shape;
  switch (request.op) {
    case Op::kAllGather: out[dim] *= world; break;
    case Op::kReduceScatter: in[dim] *= world; break;
    case Op::kAllToAll: in[dim] = out[dim] = shape[dim] * world; break;
    default: break;
  }
  switch (request.op) {
    case Op::kBarrier:
    case Op::kEmpty: break;
    case Op::kAllGatherMatmul:
    case Op::kMatmulReduceScatter:
    case Op::kMatmulAllReduce: {
      const int64_t n = TakeExtent(input);
      if (shape.size() == 1) shape.insert(shape.end(), TakeExtent(input));
      const bool gather = request.op == Op::kAllGatherMatmul,
                 scatter = request.op == Op::kMatmulReduceScatter;
      if (scatter) shape[static_cast<size_t>(request.dim) % (shape.size() - 1)] *= world;
      AddMatmul(input, request, world, shape, n, gather ? world : 1, scatter ? world : 1);
      break;
    }
    case Op::kAsyncInputMatmul: {
      const int64_t n = TakeExtent(input);
      if (shape.size() == 1) shape.insert(shape.end(), 8);
      request.dim = 0;
      AddMatmul(input, request, world, shape, n, 1, 1);
      request.operands.push_back(Make(Role::kChunkSignals, DType::kI32, {1 + input.Byte() % 8}));
      request.chunk_pivot = input.Byte() % 8;
      break;
    }
    case Op::kSendReceive:
      request.operands.push_back(Make(Role::kInput, dtype, in));
      request.operands.push_back(Make(Role::kOutput, dtype, out));
      break;
    default:
      request.dim = static_cast<int>(dim);
      request.operands.push_back(Make(Role::kInput, dtype, in));
      request.operands.push_back(Make(Role::kOutput, dtype, out));
      if (flags & 32) request.operands[1].alias_of = 0;
  }
  const bool has_norm = root >= 192 && (request.op == Op::kAllReduce || request.op == Op::kMatmulAllReduce);
  const size_t normed = request.op == Op::kAllReduce ? 1 : 2;
  if (has_norm) AddNorm(request, normed, (root >> 4) & 3);
  if (has_norm) AddQuantization(request, normed, (root >> 2) & 3);
  const uint8_t symmetric = input.Byte();
  for (size_t i = 0; i < request.operands.size(); ++i)
    request.operands[i].symmetric = (symmetric >> (i % 8)) & 1;
  return request;
}

// One change to one field.
void Change(FuzzInput& input, OpRequest& request) {
  const uint8_t what = input.Byte();
  if (request.operands.empty()) return;
  Operand& operand = request.operands[input.Byte() % request.operands.size()];
  TensorSpec& spec = operand.spec;
  switch (what % 10) {
    case 0: operand.role = Take<Role>(input); break;
    case 1: spec.dtype = Take<DType>(input); break;
    case 2:
      if (!spec.shape.empty()) spec.shape[input.Byte() % spec.shape.size()] = TakeExtent(input);
      break;
    case 3: spec.shape.insert(spec.shape.end(), TakeExtent(input)); break;
    case 4:  // wider rows, as in a slice of a larger tensor
      spec.strides = ContiguousStrides(spec.shape);
      for (size_t i = 0; i + 1 < spec.strides.size(); ++i) spec.strides[i] += input.Byte() % 8;
      break;
    case 5:  // transposed
      if (spec.shape.size() == 2) spec.strides = {1, spec.shape[0]};
      break;
    case 6: spec.strides.assign(spec.shape.size(), static_cast<int64_t>(input.Byte() % 4)); break;
    case 7: operand.alias_of = static_cast<int>(input.Byte() % 4) - 1; break;
    case 8: operand.symmetric = !operand.symmetric; break;
    default: request.dim = static_cast<int>(input.Byte() % 17) - 8;
  }
}

}  // namespace

plan::GroupContext TakeGroup(FuzzInput& input) {
  const uint8_t kind = input.Byte();
  const int world = kind % 5 == 2 ? 8 : 1 + input.Byte() % kMaxGpus;
  plan::GroupContext group;
  group.topology = EmulatedTopology(world);
  group.nccl = (kind & 0x80) == 0;
  auto link = [&](int i, int j) { group.topology.nvlinks[i][j] = group.topology.nvlinks[j][i] = 2; };
  if (kind % 5 == 0) return group;
  for (GpuInfo& gpu : group.topology.gpus) gpu.switch_links = 0;
  for (int i = 0; i < world; ++i) {
    for (int j = i + 1; j < world; ++j) {
      const bool linked = kind % 5 == 1 || (kind % 5 == 2 && (i / 4 == j / 4 || j == i + 4)) ||
                          (kind % 5 == 3 && i / 2 == j / 2);
      if (linked) link(i, j);
    }
  }
  return group;
}

std::vector<OpRequest> TakeRequests(FuzzInput& input, int world_size) {
  OpRequest request = TakeRequest(input, world_size);
  const int changes = input.Byte() % 4;
  for (int i = 0; i < changes; ++i) Change(input, request);
  std::vector<OpRequest> requests(static_cast<size_t>(world_size), request);
  if (request.op == Op::kSendReceive) {
    // Pairs of a send and its receive; now and then a lone one.
    const int pairs = input.Byte() % 12;
    for (int i = 0; i < pairs; ++i) {
      const int from = input.Byte() % world_size, to = input.Byte() % world_size;
      const uint8_t slots = input.Byte();
      requests[static_cast<size_t>(from)].transfers.push_back({.send = true, .peer = to, .slot = slots & 1});
      if (slots < 0xf0) {
        requests[static_cast<size_t>(to)].transfers.push_back(
            {.send = false, .peer = from, .slot = (slots >> 1) & 1});
      }
    }
  } else if (input.Byte() >= 0xe0) {
    Change(input, requests[input.Byte() % requests.size()]);
  }
  return requests;
}

}  // namespace tandem::fuzz
