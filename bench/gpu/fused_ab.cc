// The fused kernels of several revisions in turn, beside cuBLASLt's best candidate, on one GPU: see the
// script of that name, which makes the two files that are included here. All on all SMs; four operand sets in
// turn, eight launches at a time, arms in random order.
//   fused_ab ROUNDS
// Prints by variant and shape the speed of each revision to cuBLASLt's (1: as fast), the median over the
// rounds of the ratio.
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "bench/gpu/fused_gemm.h"
#include "bench/gpu/fused_rig.h"
#include "declarations.inc"
#include "kernels/cuda/fused/fused_launch.h"

namespace tandem::bench {
namespace {

struct Kind {
  const char* revision;
  const char* variant;
  cuda::FusedVariant (*make)();
  bool splits;  // clusters may share tiles

  // A revision's variant may end earlier than the present type.
  cuda::FusedVariant Make() const {
    cuda::FusedVariant variant = make();
    variant.splits = splits && !variant.blocks;
    return variant;
  }
};
constexpr Kind kKinds[] = {
#include "kinds.inc"
};
constexpr size_t kSets = 4;

// Microseconds a launch.
template <class Launch>
double RunInTurn(Gpu& gpu, const Launch& launch) {
  gpu.Enter();
  gpu.Start();
  for (size_t i = 0; i < 2 * kSets; ++i) launch(i % kSets);
  return gpu.Stop() / (2 * kSets);
}

void Compare(Gpu& gpu, const cuda::FusedMemory& memory, const Shape& s, const std::vector<const Kind*>& kinds,
             int rounds) {
  const GemmTypes types(kinds[0]->Make());
  const std::vector<Operands> sets = OperandSets(gpu, types, s, kSets);
  Must(gpu.backend().PrepareMatmul(LtArgs(types, s, sets[0])), "prepare");
  std::vector<Arm> arms;
  arms.push_back({"cublasLt",
                  [&] {
                    return RunInTurn(gpu, [&](size_t set) {
                      Must(gpu.lane().Matmul(LtArgs(types, s, sets[set])), "matmul");
                    });
                  },
                  {}});
  for (const Kind* kind : kinds) {
    const cuda::FusedVariant variant = kind->Make();
    Must(cuda::LoadFusedKernel(variant), "load");
    for (const bool shared : {false, true}) {
      const cuda::FusedMemory of = {.state = memory.state, .partials = shared ? memory.partials : nullptr};
      std::vector<cuda::FusedMatmulParams> params;
      for (const Operands& o : sets)
        params.push_back(Must(cuda::MakeFusedParams(FusedArgs(types, s, o, 1, of), variant), "parameters"));
      if (shared && params[0].split.units == 0) continue;
      arms.push_back({std::string(kind->revision) + (shared ? " shared" : ""),
                      [&gpu, variant, params] {
                        return RunInTurn(gpu, [&](size_t set) {
                          Must(cuda::LaunchFused(params[set], variant, 0, gpu.stream()), "launch");
                        });
                      },
                      {}});
    }
  }
  Alternate(arms, rounds);
  std::printf("%s %ldx%ldx%ld: cublasLt %.1f us", kinds[0]->variant, s.m, s.n, s.k, Median(arms[0].times));
  for (size_t i = 1; i < arms.size(); ++i)
    std::printf(", %s %.4f", arms[i].name.c_str(), 1 / MedianRatio(arms[i], arms[0]));
  std::printf("\n");
  std::fflush(stdout);
  gpu.Clear();
}

}  // namespace
}  // namespace tandem::bench

int main(int argc, char** argv) {
  using namespace tandem::bench;
  const int rounds = argc == 2 ? std::atoi(argv[1]) : 0;
  if (rounds < 1) {
    std::fprintf(stderr, "usage: fused_ab ROUNDS\n");
    return 2;
  }
  Gpu gpu(0), keeper(0);  // the keeper's memory outlives Clear
  const tandem::cuda::FusedMemory memory = MemoryOf(keeper);
  std::vector<const Kind*> same;  // the revisions of a variant
  for (const Kind& first : kKinds) {
    if (std::string(first.revision) != kKinds[0].revision) continue;
    same.clear();
    for (const Kind& kind : kKinds) {
      if (std::string(kind.variant) == first.variant) same.push_back(&kind);
    }
    for (const Shape& s : kTimedShapes) Compare(gpu, memory, s, same, rounds);
  }
  return 0;
}
