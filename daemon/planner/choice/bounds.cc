#include "daemon/planner/choice/bounds.h"

#include "daemon/planner/choice/choice.h"
#include "daemon/planner/forms/low_latency.h"

namespace tandem::plan {
namespace {

constexpr uint64_t kKiB = 1 << 10, kMiB = 1 << 20;

}  // namespace

Bounds BoundsOf(Op op, int world, TopologyClass topology, bool packet_kernels, bool dense) {
  Bounds bounds{.one_shot = kOneShotMaxBytes, .two_shot = kTwoShotMaxBytes, .sm = kSmMaxBytes};
  if (!packet_kernels || topology != TopologyClass::kNvSwitch || (world != 2 && world != 4)) return bounds;
  if (op != Op::kAllReduce && op != Op::kAllGather && op != Op::kReduceScatter) return bounds;
  bounds.measured = true;
  if (op == Op::kAllReduce) {
    // Packets win by 1 to 3 us up to the largest that fits: on four ranks it takes 10.4 us, by one shot 12.1.
    // Dense ones: 8 MiB takes 29.9 us on two H100s, by two shots 33.1, on four 40.2 and 45.1. On two 16 MiB
    // takes 61.9 and 55.9. NCCL was behind two-shot at the largest size tried: of two ranks at 256 MiB by 832
    // us to 939, on four at 16 MiB.
    bounds.low_latency = !dense ? 512 * kKiB : 8 * kMiB;
    // Two ranks took 13.5 us for 2 MiB, and 15.0 by two shots; 21.2 and 21.1 for 4 MiB.
    bounds.one_shot = world == 2 ? 2 * kMiB : 256 * kKiB;
    bounds.two_shot = (world == 2 ? 256 : 16) * kMiB;
  } else {
    // The largest that fits: all-gather of two ranks 7.5 us and 9.4 by phases, of four 9.3 and 10.3;
    // reduce-scatter 7.5 and 8.5, 9.1 and 9.5. Dense ones take 30.2 us for 16 MiB on two H100s, by
    // phases 33.5, on four 46.8 and 46.2; reduce-scatter 31.5 and 40.4, 45.3 and 49.8.
    bounds.low_latency = !dense ? kMiB : 16 * kMiB;
    // Microseconds by SMs and by copy engine, two GPUs. All-gather of 64 MiB 124 and 143, of 256 MiB, the
    // largest tried, 417 and 459. Reduce-scatter of 16 MiB 52.7 and 55.0, of 64 MiB 157 and 145. Four GPUs at
    // 64 MiB: all-gather 215 and 244, reduce-scatter 221 and 214.
    const bool gathers = op == Op::kAllGather;
    bounds.sm = (!gathers ? 16 : world == 2 ? 256 : 64) * kMiB;
  }
  return bounds;
}

Bounds BoundsOf(const Problem& problem) {
  const Op op = problem.request->op;
  const TopologyClass topology = problem.topology_class;
  const bool dense = SendsDensePackets(problem);
  Bounds bounds = BoundsOf(op, problem.world_size, topology, problem.group->packet_kernels, dense);
  const bool moves = op == Op::kAllReduce || op == Op::kAllGather || op == Op::kReduceScatter;
  const bool linked = topology == TopologyClass::kNvSwitch || topology == TopologyClass::kFullMesh;
  if (!bounds.measured && moves && linked && problem.in_client() && problem.group->packet_kernels) {
    // Half of what was best on four GPUs. Two ranks of one H100 took 3.5 us for 256 KiB, and 7.9 by one shot.
    bounds.low_latency = dense ? kMiB : 256 * kKiB;
  }
  return bounds;
}

Algorithm FasterBesideProduct(const Problem& collective) {
  const uint64_t bytes = collective.message_bytes;
  if (!BoundsOf(collective).measured || collective.world_size != 4 || bytes <= 16 * kMiB)
    return Algorithm::kAuto;
  switch (collective.request->op) {
    // 32 MiB by copy engine took 123 us beyond the product, by NCCL 148.
    case Op::kAllGather: return Algorithm::kCopyEngine;
    // 32 MiB by NCCL 152 and by copy engine 181, 64 MiB 224 to 242 and 239 to 266, 128 MiB as long.
    case Op::kReduceScatter: return bytes <= 64 * kMiB ? Algorithm::kNccl : Algorithm::kAuto;
    default: return Algorithm::kAuto;
  }
}

}  // namespace tandem::plan
