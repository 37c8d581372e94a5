#include "daemon/planner/bounds.h"

#include "daemon/planner/choice.h"

namespace tandem::plan {
namespace {

constexpr uint64_t kKiB = 1 << 10, kMiB = 1 << 20;

}  // namespace

Bounds BoundsOf(Op op, int world, TopologyClass topology, bool packet_kernels) {
  Bounds bounds{.one_shot = kOneShotMaxBytes, .two_shot = kTwoShotMaxBytes, .sm = kSmMaxBytes};
  if (!packet_kernels || topology != TopologyClass::kNvSwitch || (world != 2 && world != 4)) return bounds;
  if (op != Op::kAllReduce && op != Op::kAllGather && op != Op::kReduceScatter) return bounds;
  bounds.measured = true;
  if (op == Op::kAllReduce) {
    // Packets win by 2 us and more up to here, and were behind nowhere. NCCL was behind two-shot at the largest size tried.
    bounds.low_latency = 64 * kKiB;
    bounds.one_shot = world == 2 ? kMiB : 256 * kKiB;
    bounds.two_shot = 16 * kMiB;
  } else {
    bounds.low_latency = world == 2 ? 64 * kKiB : 256 * kKiB;
    // Two GPUs' reduce-scatter: 77.6 us by SMs, 69.5 by copy engine at 16 MiB. Four GPUs at 64 MiB: all-gather 215 and 244,
    // reduce-scatter 221 and 214.
    const bool gathers = op == Op::kAllGather;
    bounds.sm = world == 2 && !gathers ? kSmMaxBytes : (world == 4 && gathers ? 64 : 16) * kMiB;
  }
  return bounds;
}

Bounds BoundsOf(const Problem& problem) {
  return BoundsOf(problem.request->op, problem.world_size, problem.topology_class, problem.group->packet_kernels);
}

Algorithm FasterBesideProduct(const Problem& collective) {
  const uint64_t bytes = collective.message_bytes;
  if (!BoundsOf(collective).measured || collective.world_size != 4 || bytes <= 16 * kMiB) return Algorithm::kAuto;
  switch (collective.request->op) {
    // 32 MiB by copy engine took 123 us beyond the product, by NCCL 148.
    case Op::kAllGather: return Algorithm::kCopyEngine;
    // 32 MiB by NCCL 152 and by copy engine 181, 64 MiB 224 to 242 and 239 to 266, 128 MiB as long.
    case Op::kReduceScatter: return bytes <= 64 * kMiB ? Algorithm::kNccl : Algorithm::kAuto;
    default: return Algorithm::kAuto;
  }
}

}  // namespace tandem::plan
