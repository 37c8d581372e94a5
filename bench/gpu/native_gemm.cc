// The native GEMM beside cuBLASLt's best candidate on one GPU: correctness on awkward shapes, then time by
// variant. Four operand sets in turn, so that no operand stays in L2 from launch to launch; arms alternate in
// random order.
//   native_gemm list                     the variants, one a line
//   native_gemm check VARIANT…           of exact ones also sums over a long K
//   native_gemm time ROUNDS VARIANT…     those of the first one's types, beside cuBLASLt in the same mode of accumulation
// "kept" arms have their tables in device memory.
// A variant is its number in the list; `exact` are all that sum fp8 exactly, `all` are all.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "bench/gpu/native_gemm.h"
#include "bench/gpu/native_rig.h"
#include "kernels/cuda/native/native_matmul.h"

namespace tandem::bench {
namespace {

constexpr int kSets = 4;

std::string Name(DType type) { return std::string(DTypeName(type)); }

void Time(Gpu& gpu, void* state, const Shape& s, const GemmTypes& types, int rounds, const std::vector<size_t>& chosen) {
  std::vector<Operands> sets(kSets);
  for (Operands& o : sets) {
    o.a = gpu.Random(types.BytesOfA(s), types.a);
    o.b = gpu.Random(types.BytesOfB(s), types.b);
    o.c = gpu.Zero(types.BytesOfC(s));
    o.reference = o.c;
  }
  Must(gpu.backend().PrepareMatmul(LtArgs(types, s, sets[0])), "prepare");
  std::vector<Arm> arms;
  arms.push_back({"cublasLt",
                  [&] {
                    gpu.Start();
                    for (int i = 0; i < 2 * kSets; ++i) {
                      Must(gpu.lane().Matmul(LtArgs(types, s, sets[static_cast<size_t>(i % kSets)])), "matmul");
                    }
                    return gpu.Stop() / (2 * kSets);
                  },
                  {}});
  for (size_t number : chosen) {
    const cuda::FusedVariant& variant = cuda::FusedVariants()[number];
    if (GemmTypes(variant) != types) continue;
    for (int ctas : {132, 128}) {
      for (int band : {8, 16, 32}) {
        if (ctas == 132 && band != 16) continue;
        if (band > 8 && s.m <= (band / 2) * 128) continue;
        std::vector<cuda::FusedMatmulParams> params;
        for (const Operands& o : sets) {
          cuda::FusedMatmul matmul = NativeArgs(types, s, o, 1, state);
          matmul.tiling.band_tiles = band;
          params.push_back(Must(cuda::MakeFusedParams(matmul, variant), "parameters"));
        }
        std::string name = std::to_string(variant.cluster_m) + "x" + std::to_string(variant.cluster_n) +
                           (variant.sums ? "s" : "") + " tn" + std::to_string(variant.tile_n) + " ctas" +
                           std::to_string(ctas) + " band" + std::to_string(band);
        arms.push_back(
            {name,
             [&gpu, &variant, params, ctas] {
               gpu.Start();
               for (int i = 0; i < 2 * kSets; ++i) {
                 Must(cuda::LaunchFused(params[static_cast<size_t>(i % kSets)], variant, ctas, gpu.stream()),
                      "launch");
               }
               return gpu.Stop() / (2 * kSets);
             },
             {}});
        if (ctas != 132) continue;
        std::vector<cuda::FusedKept> kept;
        for (const cuda::FusedMatmulParams& each : params) {
          auto* tables = reinterpret_cast<cuda::FusedTables*>(gpu.Zero(sizeof(cuda::FusedTables)));
          Must(cuda::KeepFusedTables(each, tables, gpu.stream()), "copy of the tables");
          kept.push_back({each, tables});
        }
        arms.push_back(
            {name + " kept",
             [&gpu, &variant, kept, ctas] {
               gpu.Start();
               for (int i = 0; i < 2 * kSets; ++i) {
                 Must(cuda::LaunchFusedKept(kept[static_cast<size_t>(i % kSets)], variant, ctas, gpu.stream()), "launch");
               }
               return gpu.Stop() / (2 * kSets);
             },
             {}});
      }
    }
  }
  Alternate(arms, rounds);
  double lt = Median(arms[0].times);
  std::printf("time %s %s %s%s%s %ldx%ldx%ld: cublasLt %.1f us (%.0f TFLOP/s)\n", Name(types.a).c_str(),
              Name(types.b).c_str(), Name(types.c).c_str(), types.fast ? "" : " exact", types.along_n ? " n" : " k", s.m, s.n, s.k, lt,
              2e-6 * static_cast<double>(s.m) * static_cast<double>(s.n) * static_cast<double>(s.k) / lt);
  std::vector<std::pair<double, std::string>> table;
  for (size_t i = 1; i < arms.size(); ++i) table.push_back({1 / MedianRatio(arms[i], arms[0]), arms[i].name});
  std::sort(table.rbegin(), table.rend());
  for (const auto& [speed, name] : table) std::printf("   %-28s %.3f of cublasLt\n", name.c_str(), speed);
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
      std::printf("%zu %s %s %s%s %s tile_n %d cluster %dx%d sums %d\n", i, Name(types.a).c_str(), Name(types.b).c_str(),
                  Name(types.c).c_str(), v.exact ? " exact" : "", v.b_along_n ? "n" : "k", v.tile_n, v.cluster_m,
                  v.cluster_n, v.sums);
    }
    return 0;
  }
  std::vector<size_t> chosen;
  for (int i = mode == "time" ? 3 : 2; i < argc; ++i) {
    const std::string word = argv[i];
    if (word != "exact" && word != "all") {
      chosen.push_back(static_cast<size_t>(std::atoi(argv[i])));
      continue;
    }
    for (size_t v = 0; v < variants.size(); ++v) {
      if (word == "all" || variants[v].exact) chosen.push_back(v);
    }
  }
  for (size_t number : chosen) {
    if (number >= variants.size()) return 2;
  }
  if (chosen.empty() || (mode != "check" && mode != "time")) return 2;
  Gpu gpu(0), keeper(0);  // the keeper's memory outlives Clear
  void* state = keeper.Zero(tandem::cuda::kFusedStateBytes + sizeof(tandem::cuda::FusedTables));
  if (mode == "check") {
    bool right = true;
    for (size_t number : chosen) {
      const auto& v = variants[number];
      const GemmTypes types(v);
      std::printf("variant %zu: %s %s %s\n", number, Name(types.a).c_str(), Name(types.b).c_str(), Name(types.c).c_str());
      right = CheckVariant(gpu, state, v) && right;
    }
    return right ? 0 : 1;
  }
  int rounds = std::max(2, std::atoi(argv[2]));
  GemmTypes types(variants[chosen[0]]);
  for (bool along_n : {false, true}) {
    types.along_n = along_n;
    for (const Shape& s : {Shape{2048, 7168, 8192}, Shape{4096, 7168, 8192}, Shape{8192, 7168, 8192},
                           Shape{2048, 8192, 7168}, Shape{8192, 8192, 7168}, Shape{8192, 3584, 4096}}) {
      if (along_n && (s.m == 4096 || tandem::IsFloat8(types.a))) continue;
      Time(gpu, state, s, types, rounds, chosen);
    }
  }
  return 0;
}
