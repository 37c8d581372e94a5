// Cases that run on GPUs only: fused kernels, skinny and by tiles, and low-latency packets.
#include "daemon/planner/tests/reference/reference_cases.h"

namespace tandem::plan {
namespace {

OpRequest Product(Op op, int world, int64_t rows, DType out) {
  const int64_t k = 8, n = 16, all = rows * world;
  OpRequest r;
  r.op = op;
  r.algorithm = Algorithm::kFused;
  r.operands = {MakeOperand(Role::kA, DType::kBf16, {op == Op::kAllGatherMatmul ? rows : all, k}),
                MakeOperand(Role::kB, DType::kBf16, {k, n}),
                MakeOperand(Role::kC, out, {op == Op::kMatmulReduceScatter ? rows : all, n},
                            op == Op::kMatmulAllReduce)};
  return r;
}

OpRequest Exchange(Op op, int world, int64_t elements) {
  OpRequest r;
  r.op = op;
  r.algorithm = Algorithm::kLowLatency;
  r.operands = {
      MakeOperand(Role::kInput, DType::kF32, {op == Op::kReduceScatter ? elements * world : elements}),
      MakeOperand(Role::kOutput, DType::kF32, {op == Op::kAllGather ? elements * world : elements})};
  return r;
}

}  // namespace

std::vector<Case> KernelCasesOf(int world) {
  GroupContext group = ReferenceSwitchGroup(world);
  group.fused_kernels = group.packet_kernels = true;
  std::vector<Case> cases;
  const auto add = [&](const std::string& name, const OpRequest& request) {
    cases.push_back({std::string(OpName(request.op)) + " W" + std::to_string(world) + " " + name,
                     std::vector<OpRequest>(static_cast<size_t>(world), request), group});
  };
  for (Op op : {Op::kAllGatherMatmul, Op::kMatmulReduceScatter, Op::kMatmulAllReduce}) {
    // Sums of f32 have no skinny kernel.
    for (DType out : {DType::kBf16, DType::kF32}) {
      for (int64_t rows : {1, 3})
        add("fused to " + std::string(DTypeName(out)) + " " + std::to_string(rows),
            Product(op, world, rows, out));
    }
  }
  for (Op op : {Op::kAllReduce, Op::kAllGather, Op::kReduceScatter}) {
    for (int64_t elements : {5, 64}) {
      OpRequest request = Exchange(op, world, elements);
      add("low_latency " + std::to_string(elements), request);
      request.operands[1].alias_of = 0;
      add("low_latency in place " + std::to_string(elements), request);
    }
  }
  for (const bool residual : {false, true}) {
    const std::string name = residual ? " norm residual" : " norm";
    add("low_latency" + name, WithNorm(Exchange(Op::kAllReduce, world, 24), 1, residual));
    for (int64_t rows : {1, 3})
      add("fused" + name + std::to_string(rows),
          WithNorm(Product(Op::kMatmulAllReduce, world, rows, DType::kBf16), 2, residual));
  }
  return cases;
}

}  // namespace tandem::plan
