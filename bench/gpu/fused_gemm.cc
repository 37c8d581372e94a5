// The fused GEMM beside cuBLASLt's best candidate on one GPU: correctness on awkward shapes, then time by
// variant. Four operand sets in turn, so that no operand stays in L2 from launch to launch; arms alternate in
// random order.
//   fused_gemm list                     the variants, one a line
//   fused_gemm check VARIANT…           results; for exact variants also sums over a long K
//   fused_gemm time ROUNDS VARIANT…     variants of the first variant's types, beside cuBLASLt in the same
//                                        mode of accumulation
//   fused_gemm once M N K VARIANT…      for a profiler, three launches each: cuBLASLt's best, then variants
// "guard" arms have a guard that is not raised; in "shared" ones the last tiles are shared by all clusters
// (fused_stream_k.h), where that pays. A variant is its number in the list; `exact` are all that sum fp8
// exactly, `blocks` those with scales by blocks, `all` are all. Beside an arm's speed stand the SMs' clock
// and the part of what their tensor cores could do at that clock.
#include "bench/gpu/fused_gemm.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "bench/gpu/fused_rig.h"
#include "bench/gpu/sm_clock.h"
#include "kernels/cuda/fused/fused_launch.h"

namespace tandem::bench {
namespace {

constexpr int kSets = 4;

std::string Name(DType type) { return std::string(DTypeName(type)); }

// An arm's launches between two stamps of the clock.
class Clocked {
 public:
  // `stamps`: device memory for two.
  Clocked(Gpu& gpu, ClockStamp* stamps) : gpu_(gpu), stamps_(stamps) {}
  // Runs `launches` between Start and Stop; microseconds. `clock` takes the clock.
  template <class Launches>
  double Run(std::vector<double>& clock, const Launches& launches) {
    gpu_.Enter();
    Must(StampClock(stamps_, gpu_.stream()), "stamp");
    gpu_.Start();
    launches();
    const double us = gpu_.Stop();
    Must(StampClock(stamps_ + 1, gpu_.stream()), "stamp");
    ClockStamp stamp[2];
    gpu_.Download(stamp, stamps_, sizeof(stamp));
    if (const double mhz = Megahertz(stamp[0], stamp[1]); mhz > 0) clock.push_back(mhz);
    return us;
  }

 private:
  Gpu& gpu_;
  ClockStamp* stamps_;
};

// Three launches of each, on operands that the launch before has not left in L2: a profiler takes the last
// ones.
void Once(Gpu& gpu, const cuda::FusedMemory& memory, const Shape& s, const GemmTypes& types,
          const std::vector<size_t>& chosen) {
  constexpr int kLaunches = 3;
  const std::vector<Operands> sets = OperandSets(gpu, types, s, kLaunches);
  Must(gpu.backend().PrepareMatmul(LtArgs(types, s, sets[0])), "prepare");
  for (const Operands& o : sets) Must(gpu.lane().Matmul(LtArgs(types, s, o)), "matmul");
  for (size_t number : chosen) {
    const cuda::FusedVariant& variant = cuda::FusedVariants()[number];
    if (GemmTypes(variant) != types) continue;
    for (const Operands& o : sets) {
      const auto params =
          Must(cuda::MakeFusedParams(FusedArgs(types, s, o, 1, memory), variant), "parameters");
      Must(cuda::LaunchFused(params, variant, 0, gpu.stream()), "launch");
    }
  }
  gpu.Clear();
}

void Time(Gpu& gpu, const cuda::FusedMemory& memory, ClockStamp* stamps, const Shape& s,
          const GemmTypes& types, int rounds, const std::vector<size_t>& chosen) {
  Clocked clocked(gpu, stamps);
  std::vector<std::vector<double>> clocks(1 + 12 * chosen.size());  // by arm
  const std::vector<Operands> sets = OperandSets(gpu, types, s, kSets);
  Must(gpu.backend().PrepareMatmul(LtArgs(types, s, sets[0])), "prepare");
  std::vector<Arm> arms;
  arms.push_back({"cublasLt",
                  [&] {
                    return clocked.Run(clocks[0], [&] {
                      for (int i = 0; i < 2 * kSets; ++i) {
                        Must(gpu.lane().Matmul(LtArgs(types, s, sets[static_cast<size_t>(i % kSets)])),
                             "matmul");
                      }
                    }) / (2 * kSets);
                  },
                  {}});
  for (size_t number : chosen) {
    const cuda::FusedVariant& variant = cuda::FusedVariants()[number];
    if (GemmTypes(variant) != types) continue;
    for (int ctas : {132, 128}) {
      const auto make = [&](int band, const cuda::FusedMemory& of) {
        std::vector<cuda::FusedMatmulParams> params;
        for (const Operands& o : sets) {
          cuda::FusedMatmul matmul = FusedArgs(types, s, o, 1, of);
          matmul.tiling.band_tiles = band;
          matmul.tiling.ctas = ctas;
          params.push_back(Must(cuda::MakeFusedParams(matmul, variant), "parameters"));
        }
        return params;
      };
      const auto add = [&](const std::string& name, const std::vector<cuda::FusedMatmulParams>& params) {
        const auto run = [&gpu, &clocked, &clock = clocks[arms.size()], &variant, params, ctas] {
          return clocked.Run(clock, [&] {
            for (int i = 0; i < 2 * kSets; ++i) {
              Must(cuda::LaunchFused(params[static_cast<size_t>(i % kSets)], variant, ctas, gpu.stream()),
                   "launch");
            }
          }) / (2 * kSets);
        };
        arms.push_back({name, run, {}});
      };
      for (int band : {8, 16, 32}) {
        if (ctas == 132 && band != 16) continue;
        if (band > 8 && s.m <= (band / 2) * 128) continue;
        std::vector<cuda::FusedMatmulParams> params = make(band, memory);
        const std::string name = std::to_string(variant.cluster_m) + "x" + std::to_string(variant.cluster_n) +
                                 (variant.sums ? "s" : "") + " tn" + std::to_string(variant.tile_n) +
                                 " ctas" + std::to_string(ctas) + " band" + std::to_string(band);
        add(name + (params[0].split.units > 0 ? " shared" : ""), params);
        if (params[0].split.units > 0) add(name, make(band, {.state = memory.state}));
        if (ctas != 132) continue;
        const auto* guard = reinterpret_cast<const uint64_t*>(gpu.Zero(sizeof(uint64_t)));
        for (cuda::FusedMatmulParams& each : params) {
          each.guard_word = guard;
          each.guard_value = 1;
        }
        add(name + " guard", params);
      }
    }
  }
  Alternate(arms, rounds);
  const double lt = Median(arms[0].times);
  const double gigaflop =
      2e-9 * static_cast<double>(s.m) * static_cast<double>(s.n) * static_cast<double>(s.k);
  // A Hopper SM's tensor cores multiply and add 4096 pairs of 8 bits or 2048 of 16 a cycle.
  const double flop_a_cycle = 2.0 * 4096 / DTypeBytes(types.a) * cuda::SmCount();
  auto clock = [&](size_t arm) {
    char text[64] = "";
    if (!clocks[arm].empty()) {
      const double mhz = Median(clocks[arm]);
      std::snprintf(text, sizeof(text), "%4.0f MHz, %4.1f %% of them", mhz,
                    1e11 * gigaflop / (Median(arms[arm].times) * mhz * flop_a_cycle));
    }
    return std::string(text);
  };
  std::printf("time %s %s %s%s%s %ldx%ldx%ld: cublasLt %.1f us (%.0f TFLOP/s) %s\n", Name(types.a).c_str(),
              Name(types.b).c_str(), Name(types.c).c_str(),
              types.blocks ? " blocks"
              : types.fast ? ""
                           : " exact",
              types.along_n ? " n" : " k", s.m, s.n, s.k, lt, 1e3 * gigaflop / lt, clock(0).c_str());
  std::vector<std::pair<double, std::string>> table;
  for (size_t i = 1; i < arms.size(); ++i) {
    std::string name = arms[i].name;
    name.resize(std::max<size_t>(name.size(), 28), ' ');
    char speed[16];
    std::snprintf(speed, sizeof(speed), "%.3f", 1 / MedianRatio(arms[i], arms[0]));
    table.push_back({1 / MedianRatio(arms[i], arms[0]), name + " " + speed + " of cublasLt  " + clock(i)});
  }
  std::sort(table.rbegin(), table.rend());
  for (const auto& [speed, line] : table) std::printf("   %s\n", line.c_str());
  std::fflush(stdout);
  gpu.Clear();
}

}  // namespace
}  // namespace tandem::bench

int main(int argc, char** argv) {
  using namespace tandem::bench;
  const std::string mode = argc > 1 ? argv[1] : "";
  auto variants = tandem::cuda::FusedVariants();
  if (mode == "list") {
    for (size_t i = 0; i < variants.size(); ++i) {
      const auto& v = variants[i];
      const GemmTypes types(v);
      std::printf("%zu %s %s %s%s %s tile_n %d cluster %dx%d sums %d\n", i, Name(types.a).c_str(),
                  Name(types.b).c_str(), Name(types.c).c_str(),
                  v.blocks  ? " blocks"
                  : v.exact ? " exact"
                            : "",
                  v.b_along_n ? "n" : "k", v.tile_n, v.cluster_m, v.cluster_n, v.sums);
    }
    return 0;
  }
  std::vector<size_t> chosen;
  for (int i = mode == "time" ? 3 : mode == "once" ? 5 : 2; i < argc; ++i) {
    const std::string word = argv[i];
    if (word != "exact" && word != "blocks" && word != "all") {
      chosen.push_back(static_cast<size_t>(std::atoi(argv[i])));
      continue;
    }
    for (size_t v = 0; v < variants.size(); ++v) {
      if (word == "all" || (word == "blocks" ? variants[v].blocks : variants[v].exact && !variants[v].blocks))
        chosen.push_back(v);
    }
  }
  for (size_t number : chosen) {
    if (number >= variants.size()) return 2;
  }
  if (chosen.empty() || (mode != "check" && mode != "time" && mode != "once")) return 2;
  Gpu gpu(0), keeper(0);  // the keeper's memory outlives Clear
  const tandem::cuda::FusedMemory memory = MemoryOf(keeper);
  if (mode == "check") {
    bool right = true;
    for (size_t number : chosen) {
      const auto& v = variants[number];
      const GemmTypes types(v);
      std::printf("variant %zu: %s %s %s\n", number, Name(types.a).c_str(), Name(types.b).c_str(),
                  Name(types.c).c_str());
      right = CheckVariant(gpu, memory, v) && right;
    }
    return right ? 0 : 1;
  }
  if (mode == "once") {
    const Shape s{std::atol(argv[2]), std::atol(argv[3]), std::atol(argv[4])};
    Once(gpu, memory, s, GemmTypes(variants[chosen[0]]), chosen);
    return 0;
  }
  auto* stamps = reinterpret_cast<ClockStamp*>(keeper.Zero(2 * sizeof(ClockStamp)));
  int rounds = std::max(2, std::atoi(argv[2]));
  GemmTypes types(variants[chosen[0]]);
  for (bool along_n : {false, true}) {
    types.along_n = along_n;
    for (const Shape& s : kTimedShapes) {
      if (along_n && (s.m == 4096 || tandem::IsFloat8(types.a))) continue;
      Time(gpu, memory, stamps, s, types, rounds, chosen);
    }
  }
  return 0;
}
