#include "daemon/planner/cost/cost_model.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "daemon/planner/forms/low_latency.h"
#include "daemon/planner/forms/matmul_notes.h"
#include "daemon/planner/forms/skinny_form.h"
#include "daemon/planner/problem/fused_checks.h"
#include "program/skinny_layout.h"

namespace tandem::plan {
namespace {

// Built-in link figures by class: GB/s of one GPU to its peers, and microseconds from a signal to its wait.
struct ClassFigures {
  double link_gbps;
  double step_latency_us;
};
ClassFigures FiguresOf(TopologyClass topology_class) {
  switch (topology_class) {
    case TopologyClass::kSingle: return {4000, 0.5};
    case TopologyClass::kNvSwitch: return {330, 2.0};
    case TopologyClass::kFullMesh: return {200, 2.0};
    case TopologyClass::kHybridCubeMesh: return {90, 2.5};
    case TopologyClass::kPairs: return {20, 4.0};
    case TopologyClass::kPcieOnly: return {16, 5.0};
    case TopologyClass::kIrregular: return {20, 4.0};
  }
  return {16, 5.0};
}

double BuiltInTflops(DType dtype) {
  if (IsFloat8(dtype)) return 1300;
  return dtype == DType::kF32 ? 50 : 700;
}

// Bytes that a product loads from the GPU's memory in a nanosecond.
double BuiltInMemoryGbps(std::string_view gpu_model) {
  return gpu_model.find("H100") != std::string_view::npos ? 3000 : 4000;
}

// Small copies waste a copy engine's start: microseconds before a chunk moves at full rate.
constexpr double kCopyEngineStartUs = 4.0;
// A matmul of few rows cannot fill the GPU.
constexpr double kMatmulStartUs = 4.0;

// The kernel of any strides, which computes what cuBLASLt refuses, on CUDA cores; rough.
constexpr double kPlainTflops = 10;

double TransferUs(double bytes, double gbps) { return bytes / (gbps * 1e3); }

// Whether the times beyond the model hold.
bool WereMeasured(const GroupContext& group, TopologyClass topology_class) {
  return group.packet_kernels && topology_class == TopologyClass::kNvSwitch;
}

// The same of what the client launches, in graphs on 2 and 4 H200s, bf16.
bool MeasuredInClient(const Problem& problem) {
  return problem.in_client() && WereMeasured(*problem.group, problem.topology_class);
}

// The time in the client of `us`, flops by the model's rate: products of 16 to 1024 rows. cuBLASLt computes
// whole tiles of 128 rows, and is the faster where tiles of 256 columns fill the GPU. Long products gain no
// more than short ones, since the GPU's power slows them.
double ClientFlopsUs(double us, double rows, double n) {
  constexpr double kTileRows = 128, kTileColumns = 256, kFullTiles = 120;
  constexpr double kRate = 1.06, kFullRate = 1.14, kMaxGainUs = 17;
  const double whole_rows = kTileRows * std::ceil(rows / kTileRows);
  const double whole_us = us * whole_rows / std::max(rows, 1.0);
  const bool full = whole_rows * n >= kFullTiles * kTileRows * kTileColumns;
  return std::max(whole_us / (full ? kFullRate : kRate), whole_us - kMaxGainUs);
}

// cuBLASLt's products with scales by blocks beside its others of fp8, in pipelines on H200s and H100s
// (deploy/tuning).
constexpr double kBlockScaledRate = 0.86;

double MatmulUs(const Problem& problem, const MachineModel& machine, double rows, double n, double k) {
  const double flops = 2.0 * rows * n * k / (IsBlockWise(problem.scale_mode) ? kBlockScaledRate : 1.0);
  const DType a = problem.operand(problem.slots.a).spec.dtype;
  const double bytes = (rows * k + k * n) * static_cast<double>(DTypeBytes(a)) + rows * n * 2.0;
  // cuBLASLt takes fp8 with contiguous columns of B alone: each product has B transposed first.
  const View b = problem.Slot(0, problem.slots.b[0]);
  const double transposition = IsFloat8(a) && RunsAlongN(b) ? TransferUs(2 * k * n, machine.memory_gbps) : 0;
  double flops_us = flops / (machine.product_tflops * 1e6);
  if (MeasuredInClient(problem)) flops_us = ClientFlopsUs(flops_us, rows, n);
  return kMatmulStartUs + transposition + std::max(flops_us, TransferUs(bytes, machine.memory_gbps));
}

bool SumsToAll(Op op) { return op == Op::kAllReduce || op == Op::kMatmulAllReduce; }

// A kernel of the client's that sends `sent` bytes in each phase. The link hides local work, except launch
// numbers, which are read apart from the data. Flags take longer from each rank beyond two, and so do
// packets. Dense ones were measured on 2 and 4 H100s too.
double ClientCollectiveUs(const Problem& problem, const MachineModel& machine, Algorithm algorithm,
                          double sent, double local) {
  constexpr double kSmRankUs = 0.75, kTwoShotUs = 1, kTwoShotRankUs = 1.25, kPacketsUs = 2.2;
  constexpr double kDenseUs = 1.6, kDenseRankUs = 0.2, kDenseRate = 0.9;
  // The second shot of dense packets begins before the first one ends.
  constexpr double kBothShots = 0.8;
  const double beyond_two = problem.world_size - 2, latency_us = machine.step_latency_us;
  if (algorithm == Algorithm::kSm) {
    return machine.launch_us + latency_us + kSmRankUs * beyond_two +
           TransferUs(sent, 0.9 * machine.link_gbps);
  }
  if (algorithm == Algorithm::kTwoShot) {
    return machine.launch_us + 2.5 * latency_us + kTwoShotUs + kTwoShotRankUs * beyond_two +
           TransferUs(2 * sent, machine.link_gbps);
  }
  const bool sums = SumsToAll(problem.request->op), two_shot = sums && LowLatencyShots(problem) == 2;
  const double moved = two_shot ? 2 * sent : sums ? sent * problem.world_size : sent;
  const double waits_us = (two_shot ? 1.5 : 0.5) * latency_us;
  if (SendsDensePackets(problem)) {
    return kDenseUs + kDenseRankUs * beyond_two + waits_us +
           TransferUs((two_shot ? kBothShots : 1) * moved, kDenseRate * machine.link_gbps);
  }
  return kPacketsUs + waits_us + TransferUs(2 * moved, machine.link_gbps) + local;
}

double CollectiveUs(const Problem& problem, const MachineModel& machine, Algorithm algorithm) {
  const double bytes = static_cast<double>(problem.message_bytes);
  const double world = problem.world_size;
  const double others = world - 1;
  const double local = TransferUs(2 * bytes, machine.memory_gbps);
  if (problem.world_size == 1) return machine.launch_us + local;
  const Op op = problem.request->op;
  const bool all_reduce = SumsToAll(op);
  // Bytes that one GPU sends when every element crosses a link once, and how often.
  double sent = bytes * others / world;
  if (op == Op::kBroadcast) sent = bytes * others;
  if (op == Op::kReduce) sent = bytes;
  const bool refined =
      algorithm == Algorithm::kSm || algorithm == Algorithm::kTwoShot || algorithm == Algorithm::kLowLatency;
  if (refined && MeasuredInClient(problem))
    return ClientCollectiveUs(problem, machine, algorithm, sent, local);
  switch (algorithm) {
    case Algorithm::kOneShot:
      return machine.launch_us + machine.step_latency_us + TransferUs(bytes * others, machine.link_gbps) +
             local;
    case Algorithm::kLowLatency: {
      // Half of the link carries launch numbers, save by dense packets; there is no fence and no separate
      // flag.
      const bool two_shot = all_reduce && LowLatencyShots(problem) == 2;
      const double moved = !all_reduce ? sent : two_shot ? 2 * sent : bytes * others;
      return machine.launch_us + (two_shot ? 1.5 : 0.5) * machine.step_latency_us +
             TransferUs((SendsDensePackets(problem) ? 1 : 2) * moved, machine.link_gbps) + local;
    }
    case Algorithm::kTwoShot:
      return machine.launch_us + 2.5 * machine.step_latency_us + TransferUs(2 * sent, machine.link_gbps) +
             local;
    case Algorithm::kHybridCubeMesh:
      // Three copies over the quad's links, one over the mate's.
      return machine.launch_us + 2 * machine.step_latency_us + TransferUs(4 * bytes, machine.link_gbps) +
             local;
    case Algorithm::kSm:
      return machine.launch_us + machine.step_latency_us + TransferUs(sent, 0.9 * machine.link_gbps) + local;
    case Algorithm::kCopyEngine:
      if (all_reduce) {
        return 2 * others * kCopyEngineStartUs + 2.5 * machine.step_latency_us +
               TransferUs(2 * sent, 1.1 * machine.link_gbps) + local;
      }
      return others * kCopyEngineStartUs + machine.step_latency_us +
             TransferUs(sent, 1.1 * machine.link_gbps) + local;
    case Algorithm::kNccl: {
      const double nccl_sent = op == Op::kBroadcast ? bytes : all_reduce ? 2 * sent : sent;
      return machine.nccl_latency_us + TransferUs(nccl_sent, machine.link_gbps);
    }
    default: return machine.launch_us + 2 * machine.step_latency_us;
  }
}

// Time of plans beyond the model on 2 and 4 H200s (bench/results/gpu-*xH200.jsonl): a lane's driver calls,
// products that run slower beside copies, and the time that no product hides. `hidden` is the time of a
// transfer beside products.
double MeasuredExtraUs(const Problem& problem, Algorithm algorithm, double hidden) {
  const bool gather = problem.request->op == Op::kAllGatherMatmul;
  switch (algorithm) {
    case Algorithm::kPipeline:
      return gather ? 28 : 40;  // a gather's first product does not wait for the pushes' calls
    case Algorithm::kRing: return 40 + (gather ? 1.0 : 0.4) * hidden;
    case Algorithm::kTiledTwoShot: return 0.6 * hidden + 2 * problem.world_size * 20.0;
    case Algorithm::kFused:
      if (gather) return 20;
      if (problem.world_size == 2) return problem.request->op == Op::kMatmulAllReduce ? 15 : 10;
      return problem.request->op == Op::kMatmulAllReduce ? 45 + 0.35 * hidden
                                                         : 30;  // of a version that did not carry tiles
    default: return 0;
  }
}

// The hand-over of a plan of one kernel.
constexpr double kSkinnyExtraUs = 16;

// A width of the fused kernel's tiles, and its rate beside cuBLASLt's: what predicts whole plans best, on
// H200s. Where the GPU's power is the limit, that is not the kernel's rate alone.
struct TileWidth {
  double columns, rate;
};
// bf16 was measured; that fp8 summed fast runs at all of cuBLASLt's rate is a conjecture.
constexpr TileWidth kWideTiles = {256, 0.975}, kCarriedTiles = {256, 0.985}, kNarrowTiles = {224, 0.95},
                    kFastTiles = {256, 1.0};
// fp8 summed exactly, and so with scales by blocks.
constexpr TileWidth kExactWideTiles = {256, 0.93}, kExactMiddleTiles = {224, 0.90},
                    kExactNarrowTiles = {192, 1.01};
constexpr TileWidth kBlockWideTiles = {256, 0.825}, kBlockNarrowTiles = {192, 0.865};

// The widths that there are kernels of (kernels/cuda/fused/CMakeLists.txt): one where partial sums are added.
std::vector<TileWidth> TileWidthsFor(const Problem& problem) {
  const bool gather = problem.request->op == Op::kAllGatherMatmul;
  const auto type_of = [&](int slot) { return problem.operand(slot).spec.dtype; };
  const DType a = type_of(problem.slots.a);
  const bool to_bf16 = gather && type_of(problem.slots.c[0]) == DType::kBf16;
  if (!IsFloat8(a)) {
    if (!gather) return {problem.world_size == 2 ? kCarriedTiles : kWideTiles};
    return a == DType::kBf16 ? std::vector{kWideTiles, kNarrowTiles} : std::vector{kWideTiles};
  }
  if (IsBlockWise(problem.scale_mode))
    return to_bf16 ? std::vector{kBlockWideTiles, kBlockNarrowTiles} : std::vector{kBlockWideTiles};
  if (problem.request->fast_accumulation) return {kFastTiles};
  std::vector<TileWidth> widths = {kExactWideTiles};
  if (to_bf16) widths.push_back(kExactNarrowTiles);
  if (to_bf16 && a == DType::kF8E4M3 && type_of(problem.slots.b[0]) == a) widths.push_back(kExactMiddleTiles);
  return widths;
}

struct FusedWaves {
  double waves, us;  // of all of them
};

// The fused kernel computes tiles of 128 rows, one an SM, in whole waves on `ctas` SMs of a Hopper GPU, of
// the width whose waves are over first (kernels/cuda/fused/tiling.h). `rate`: beside the widths' rates.
FusedWaves FastestWaves(const Problem& problem, const MachineModel& machine, double ctas, double rate) {
  constexpr double kTileRows = 128, kSms = 128;
  const double world = problem.world_size;
  double tile_rows = world * std::ceil(static_cast<double>(problem.rows) / world / kTileRows);
  if (problem.request->op == Op::kMatmulAllReduce) {
    const FusedTileCut cut = CutFusedTiles(problem.rows, problem.n, problem.world_size);
    const int64_t whole = problem.rows / cut.rows, end = problem.rows % cut.rows;
    const auto high_in_tiles = [](int64_t rows) { return std::ceil(static_cast<double>(rows) / kTileRows); };
    tile_rows = static_cast<double>(whole) * high_in_tiles(cut.rows) + high_in_tiles(end);
  }
  FusedWaves fastest = {0, 0};
  for (const TileWidth& width : TileWidthsFor(problem)) {
    const double tiles = tile_rows * std::ceil(static_cast<double>(problem.n) / width.columns);
    const double waves = std::max(1.0, std::ceil(tiles / ctas));
    const double tile_us = 2 * kTileRows * width.columns * static_cast<double>(problem.k) * kSms /
                           (rate * width.rate * machine.tflops * 1e6);
    if (fastest.waves == 0 || waves * tile_us < fastest.us) fastest = {waves, waves * tile_us};
  }
  return fastest;
}

double FusedKernelUs(const Problem& problem, const MachineModel& machine, double wire) {
  constexpr double kCtas = 128;
  const bool reduce = problem.request->op == Op::kMatmulAllReduce,
             gather = problem.request->op == Op::kAllGatherMatmul;
  const FusedWaves all = FastestWaves(problem, machine, kCtas, 1.0);
  // Beside one wave nothing is hidden. Later only the last part's partial sums are not, and of an all-reduce
  // what the last wave sends: most of that are sums, which go to all ranks. On two ranks tiles are carried as
  // they end, and what is left is the less, the shorter all of it is beside the product.
  if (all.waves == 1) return std::max(all.us, wire) + wire;
  double last = gather ? 0 : reduce ? 2 * wire / all.waves : wire / problem.world_size;
  if (problem.world_size == 2) last = reduce ? last / 2 : last * std::min(1.0, 4 * wire / all.us);
  return std::max(all.us, wire) + last;
}

// The same launched by the client, in graphs on two and four H200s, bf16 of 512 to 4096 rows. `wire`: what a
// rank sends when every element crosses a link once. The last wave's partial sums are not hidden, nor is a
// part of what an all-reduce sends back. A gather's first pieces come later than the first wave begins, the
// later, the longer their rows are.
double ClientFusedUs(const Problem& problem, const MachineModel& machine, double wire) {
  constexpr double kMeetingUs = 5, kCtas = 130, kRate = 1.07, kMaxReturnUs = 80;
  constexpr double kPieceUs = 13, kLongRows = 8192;
  const double piece_us = kPieceUs * std::min(1.0, static_cast<double>(problem.k) / kLongRows);
  const FusedWaves all = FastestWaves(problem, machine, kCtas, kRate);
  double us = kMeetingUs + std::max(all.us, wire);
  if (problem.request->op != Op::kAllGatherMatmul) {
    us += wire / all.waves;
  } else if (all.waves > 1) {
    us += std::min(wire, piece_us * (problem.world_size - 1));
  }
  if (problem.request->op == Op::kMatmulAllReduce) us += std::min(wire, kMaxReturnUs);
  return us;
}

// One wave of tiles on layout.ctas() SMs, or B's way through the memory; before it the first columns of the
// peers' shards, or after it the partial sums, and the sums that an all-reduce returns (2 H200s).
double SkinnyUs(const Problem& problem, const MachineModel& machine, const SkinnyLayout& layout,
                double wire) {
  constexpr double kCtas = 128, kFirstColumnsUs = 6, kSumUs = 5;
  MachineModel taken = machine;
  taken.product_tflops = machine.tflops * std::min(1.0, static_cast<double>(layout.ctas()) / kCtas);
  const double product = MatmulUs(problem, taken, static_cast<double>(problem.rows),
                                  static_cast<double>(problem.n), static_cast<double>(problem.k));
  if (layout.kind == SkinnyKind::kGather) return product + kFirstColumnsUs;
  return product + kSumUs * (layout.kind == SkinnyKind::kAllReduce ? 2 : 1) + wire;
}

// The same launched by the client, on two H100s and two H200s: 1024 to 16384 columns, 8 to 512 rows, K of
// 1024 to 16384. A stage has 128 bytes of K. It takes as long as its SM loads it, or as a load's latency. A
// gather's stage also pushes its rows.
double ClientSkinnyUs(const Problem& problem, const MachineModel& machine, const SkinnyLayout& layout,
                      double wire) {
  constexpr double kStartUs = 5, kMaxCtas = 128, kLatencyUs = 0.25, kSmGbps = 92;
  constexpr double kMemoryStartUs = 2.9, kMemoryRate = 1.06, kMaxPushUs = 0.41;
  constexpr double kRate = 1.12;  // beside the model's, as those of ClientFlopsUs
  // What tiles of 224 columns or more take to begin and to end.
  constexpr double kWideUs = 5.5;
  // The time of sums, and of an all-reduce's return, for each rank beyond two (4 H200s).
  constexpr double kSumUs = 0.75, kReturnUs = 2.5;
  const bool gather = layout.kind == SkinnyKind::kGather;
  const double tile_rows = layout.segment * layout.world;
  const double loads_us = TransferUs((tile_rows + layout.tile_n) * 128, kSmGbps);
  const double row_us = layout.world == 2 ? 0.0036 : 0.0027;
  const double pushes_us =
      gather ? std::min(kMaxPushUs, 0.22 + row_us * static_cast<double>(layout.rows)) : 0;
  const double stage_us = std::max({kLatencyUs, loads_us, pushes_us});
  const double n = static_cast<double>(problem.n), k = static_cast<double>(problem.k);
  const double bytes = (static_cast<double>(problem.rows) * k + k * n) * layout.element_bytes;
  const double flops = 2 * tile_rows * layout.tiles_m * layout.tile_n * layout.tiles_n * k;
  // All SMs that load B reach the memory's rate after a while, and then more than the model's.
  const double memory_us = kMemoryStartUs + TransferUs(bytes, kMemoryRate * machine.memory_gbps);
  const double busy = std::min(1.0, layout.ctas() / kMaxCtas);
  const double flops_us =
      flops / (kRate * machine.tflops * busy * 1e6) + (layout.tile_n >= 224 ? kWideUs : 0);
  const double product = std::max({layout.k_blocks() * stage_us, memory_us, flops_us});
  if (gather) return kStartUs + product;
  const double rank_us = kSumUs + (layout.kind == SkinnyKind::kAllReduce ? kReturnUs : 0);
  return kStartUs + product + wire + rank_us * (layout.world - 2);
}

// A product and then `collective`, or before it; `extra` beyond the model.
double BesideUs(const Problem& problem, const MachineModel& machine, double whole, Algorithm collective,
                bool measured) {
  const double us = whole + CollectiveUs(problem, machine, collective);
  if (collective == Algorithm::kNccl) {
    const double extra = problem.scales_travel() ? 60 : 30;  // two calls where scales travel
    return us + machine.launch_us + (measured ? extra : 0);
  }
  if (collective == Algorithm::kCopyEngine) {
    // A gather's pieces land where the product reads them, and the own one is copied meanwhile.
    const double copies =
        problem.request->op == Op::kAllGatherMatmul
            ? TransferUs(2 * static_cast<double>(problem.message_bytes), machine.memory_gbps)
            : 0;
    return us - copies + machine.launch_us + (measured ? 40 : 0);
  }
  constexpr double kByEngineUs = 25;
  if (!measured) return us;
  // In the client both kernels take as long as each alone (2 and 4 H200s).
  return problem.in_client() ? us : us + kByEngineUs;
}

double FusedUs(const Problem& problem, const MachineModel& machine, Algorithm algorithm,
               Algorithm collective) {
  const double world = problem.world_size;
  const double rows = static_cast<double>(problem.rows), n = static_cast<double>(problem.n);
  const double k = static_cast<double>(problem.k);
  const double whole = MatmulUs(problem, machine, rows, n, k);
  if (problem.world_size == 1) return whole;
  // The pieces of a matmul in W steps, cut along the gathered or scattered dimension.
  const bool gather = problem.request->op == Op::kAllGatherMatmul;
  const bool cut_k = gather && problem.last_dim();
  const bool cut_n = problem.request->op == Op::kMatmulReduceScatter && problem.last_dim();
  const double piece = MatmulUs(problem, machine, cut_k || cut_n ? rows : rows / world, cut_n ? n / world : n,
                                cut_k ? k / world : k);
  const double sent = static_cast<double>(problem.message_bytes) * (world - 1) / world;
  const double copies = (world - 1) * (kCopyEngineStartUs + machine.step_latency_us);
  const double sum =
      gather ? 0 : TransferUs(static_cast<double>(problem.message_bytes), machine.memory_gbps) + 5;
  const bool measured = WereMeasured(*problem.group, problem.topology_class);
  const auto extra = [&](double wire) {
    return measured ? MeasuredExtraUs(problem, algorithm, std::min((world - 1) * piece, wire)) : 0;
  };
  switch (algorithm) {
    case Algorithm::kUnfused:
    case Algorithm::kLowLatency:
    case Algorithm::kNccl: return BesideUs(problem, machine, whole, collective, measured);
    case Algorithm::kFused: {
      const double twice = problem.request->op == Op::kMatmulAllReduce ? 2 : 1;
      if (const auto layout = SkinnyFor(problem)) {
        const double wire = twice * TransferUs(sent, machine.link_gbps);
        if (problem.in_client()) return ClientSkinnyUs(problem, machine, *layout, wire);
        const double us = SkinnyUs(problem, machine, *layout, wire);
        if (!measured) return us;
        // The kernel loads and pushes no faster for an engine.
        return std::max(us, ClientSkinnyUs(problem, machine, *layout, wire)) + kSkinnyExtraUs;
      }
      if (MeasuredInClient(problem))
        return ClientFusedUs(problem, machine, TransferUs(sent, machine.link_gbps));
      const double wire = twice * (copies + TransferUs(sent, machine.link_gbps));
      return FusedKernelUs(problem, machine, wire) +
             (measured ? MeasuredExtraUs(problem, algorithm, wire) : 0);
    }
    case Algorithm::kPipeline: {
      const double wire = copies + TransferUs(sent, machine.link_gbps);
      return piece + std::max((world - 1) * piece, wire) + sum + 2 * machine.launch_us + extra(wire);
    }
    case Algorithm::kRing: {
      // Each step waits for the neighbour's: one more hop of latency a step. Where links are not a switch, a
      // ring uses only one link a GPU at its full rate, while all-to-all traffic contends.
      const bool switched = problem.topology_class == TopologyClass::kNvSwitch ||
                            problem.topology_class == TopologyClass::kFullMesh;
      const double wire =
          1.5 * copies + TransferUs(sent, switched ? machine.link_gbps : 1.5 * machine.link_gbps);
      return piece + std::max((world - 1) * piece, wire) + sum + 2 * machine.launch_us + extra(wire);
    }
    case Algorithm::kTiledTwoShot: {
      const double wire = 2 * copies + TransferUs(2 * sent, machine.link_gbps);
      return piece + std::max((world - 1) * piece, wire) + sum + 2 * machine.launch_us + extra(wire);
    }
    default: return whole;
  }
}

}  // namespace

std::string PredictionModel(const Topology& topology, bool emulated) {
  std::string model = "model of H100 and H200 GPUs";
  if (emulated) return model + "; the GPUs here are emulated";
  for (const GpuInfo& gpu : topology.gpus) {
    const bool same = gpu.model.empty() || gpu.model.find("H100") != std::string::npos ||
                      gpu.model.find("H200") != std::string::npos;
    if (!same) return model + "; the GPUs here are " + gpu.model;
  }
  return model;
}

bool PredictsHandOver(Op op, const GroupContext& group) {
  return IsFusedOp(op) && WereMeasured(group, Classify(group.topology));
}

MachineModel ModelOf(const Problem& problem) {
  const GroupContext& group = *problem.group;
  const ClassFigures figures = FiguresOf(problem.topology_class);
  MachineModel machine;
  machine.link_gbps = group.link_gbps > 0 ? group.link_gbps : figures.link_gbps;
  machine.memory_gbps = group.memory_gbps > 0 ? group.memory_gbps : BuiltInMemoryGbps(group.gpu_model);
  const int a = problem.slots.a;
  machine.tflops =
      group.tflops > 0 ? group.tflops : BuiltInTflops(a >= 0 ? problem.operand(a).spec.dtype : DType::kF32);
  machine.product_tflops =
      WhyPlain(problem).empty() ? machine.tflops : std::min(machine.tflops, kPlainTflops);
  machine.step_latency_us = group.step_latency_us > 0 ? group.step_latency_us : figures.step_latency_us;
  // NCCL 2.28's small collectives took 9 us on 4 GPUs and 15 us on 8.
  machine.nccl_latency_us = 3.0 + 0.75 * machine.step_latency_us * problem.world_size;
  machine.launch_us = 3.0;
  return machine;
}

double PredictUs(const Problem& problem, Algorithm algorithm, Algorithm collective) {
  const MachineModel machine = ModelOf(problem);
  if (IsFusedOp(problem.request->op)) return FusedUs(problem, machine, algorithm, collective);
  if (problem.request->op == Op::kAsyncInputMatmul) {
    return MatmulUs(problem, machine, static_cast<double>(problem.rows), static_cast<double>(problem.n),
                    static_cast<double>(problem.k));
  }
  return CollectiveUs(problem, machine, algorithm);
}

}  // namespace tandem::plan
