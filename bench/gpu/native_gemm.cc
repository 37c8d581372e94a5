// The native GEMM beside cuBLASLt's best candidate on one GPU: correctness on awkward shapes, then time by
// variant. Four operand sets in turn, so that no operand stays in L2 from launch to launch; arms alternate in
// random order.
//   native_gemm list                     the variants, one a line
//   native_gemm check VARIANT
//   native_gemm time ROUNDS VARIANT…     by number in the list
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "bench/gpu/native_rig.h"
#include "kernels/cuda/native/native_matmul.h"

namespace tandem::bench {
namespace {

struct Shape {
  int64_t m, n, k;
};
constexpr int kSets = 4;
constexpr DType kOut = DType::kBf16;
DType type = DType::kBf16;  // of A and B

struct Operands {
  std::byte *a, *b, *c, *reference;
};

MatmulArgs LtArgs(const Shape& s, const Operands& o, bool along_n) {
  MatmulArgs args;
  args.a = Dense(o.a, type, {s.m, s.k});
  args.b = Dense(o.b, type, {s.k, s.n});
  if (!along_n) args.b.stride = {1, s.k};
  args.c = Dense(o.reference, kOut, {s.m, s.n});
  return args;
}

cuda::FusedMatmul Native(const Shape& s, const Operands& o, bool along_n, int pieces, void* state) {
  cuda::FusedMatmul matmul;
  matmul.type = type;
  matmul.out_type = kOut;
  matmul.b_along_n = along_n;
  matmul.rows = s.m / pieces;
  matmul.n = s.n;
  matmul.k = s.k;
  matmul.a[0] = {o.a, s.k, pieces, matmul.rows * s.k};
  matmul.out[0] = {o.c, s.n, pieces, matmul.rows * s.n};
  matmul.b = {o.b, along_n ? s.n : s.k, 1, 0};
  for (int i = 0; i < pieces; ++i) {
    cuda::MatmulPiece piece = {};
    piece.a_slice = piece.out_slice = static_cast<int16_t>(i);
    piece.first_slot = -1;
    matmul.pieces.push_back(piece);
  }
  matmul.runs = {{0, pieces}};
  matmul.state = state;
  return matmul;
}

bool Check(Gpu& gpu, void* state, const cuda::FusedVariant& variant) {
  bool right = true;
  const bool along_n = variant.b_along_n;
  for (const Shape& s :
       {Shape{128, 256, 64}, Shape{256, 256, 128}, Shape{2048, 7168, 1024}, Shape{100, 264, 72},
        Shape{1000, 1000, 1000}, Shape{4096, 3592, 520}, Shape{2040, 8192, 1024}, Shape{8, 8, 8}}) {
    Operands o;
    size_t out_bytes = static_cast<size_t>(s.m * s.n) * 2;
    o.a = gpu.Random(static_cast<size_t>(s.m * s.k) * DTypeBytes(type), type);
    o.b = gpu.Random(static_cast<size_t>(s.n * s.k) * DTypeBytes(type), type);
    o.reference = gpu.Zero(out_bytes);
    if (static_cast<size_t>(s.k) * DTypeBytes(type) % 16 != 0) continue;
    MatmulArgs lt = LtArgs(s, o, along_n);
    Must(gpu.backend().PrepareMatmul(lt), "prepare");
    Must(gpu.lane().Matmul(lt), "matmul");
    std::vector<uint16_t> want(out_bytes / 2), got(out_bytes / 2);
    gpu.Download(want.data(), o.reference, out_bytes);
    for (int pieces : {1, 4}) {
      if (s.m % pieces != 0 || static_cast<size_t>(s.k) * DTypeBytes(type) % 16 != 0) continue;
      o.c = gpu.Zero(out_bytes);
      cuda::FusedMatmul matmul = Native(s, o, along_n, pieces, state);
      auto params = Must(cuda::MakeFusedParams(matmul, variant), "parameters");
      double worst = 0;
      for (int repeat = 0; repeat < 2; ++repeat) {
        Must(cuda::LaunchFused(params, variant, 0, gpu.stream()), "launch");
        gpu.Download(got.data(), o.c, out_bytes);
        worst = std::max(worst, RelativeError(got, want, kOut));
      }
      right = right && worst < 4e-3;
      std::printf("check %s %ldx%ldx%ld pieces %d cluster %dx%d tile_n %d sums %d: error %.2e %s\n",
                  along_n ? "n" : "k", s.m, s.n, s.k, pieces, variant.cluster_m, variant.cluster_n,
                  variant.tile_n, variant.sums, worst, worst < 4e-3 ? "ok" : "WRONG");
    }
    gpu.Clear();
  }
  return right;
}

void Time(Gpu& gpu, void* state, const Shape& s, bool along_n, int rounds,
          const std::vector<size_t>& chosen) {
  std::vector<Operands> sets(kSets);
  for (Operands& o : sets) {
    o.a = gpu.Random(static_cast<size_t>(s.m * s.k) * DTypeBytes(type), type);
    o.b = gpu.Random(static_cast<size_t>(s.n * s.k) * DTypeBytes(type), type);
    o.c = gpu.Zero(static_cast<size_t>(s.m * s.n) * 2);
    o.reference = o.c;
  }
  Must(gpu.backend().PrepareMatmul(LtArgs(s, sets[0], along_n)), "prepare");
  std::vector<Arm> arms;
  arms.push_back({"cublasLt",
                  [&] {
                    gpu.Start();
                    for (int i = 0; i < 2 * kSets; ++i) {
                      Must(gpu.lane().Matmul(LtArgs(s, sets[static_cast<size_t>(i % kSets)], along_n)),
                           "matmul");
                    }
                    return gpu.Stop() / (2 * kSets);
                  },
                  {}});
  for (size_t number : chosen) {
    const cuda::FusedVariant& variant = cuda::FusedVariants()[number];
    if (variant.b_along_n != along_n || variant.type != static_cast<uint8_t>(type)) continue;
    for (int ctas : {132, 128}) {
      for (int band : {8, 16, 32}) {
        if (ctas == 132 && band != 16) continue;
        if (band > 8 && s.m <= (band / 2) * 128) continue;
        std::vector<cuda::FusedMatmulParams> params;
        for (const Operands& o : sets) {
          cuda::FusedMatmul matmul = Native(s, o, along_n, 1, state);
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
      }
    }
  }
  Alternate(arms, rounds);
  double lt = Median(arms[0].times);
  std::printf("time %s %s %ldx%ldx%ld: cublasLt %.1f us (%.0f TFLOP/s)\n",
              std::string(DTypeName(type)).c_str(), along_n ? "n" : "k", s.m, s.n, s.k, lt,
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
      std::printf("%zu %s %s tile_n %d cluster %dx%d sums %d\n", i,
                  std::string(tandem::DTypeName(static_cast<tandem::DType>(v.type))).c_str(),
                  v.b_along_n ? "n" : "k", v.tile_n, v.cluster_m, v.cluster_n, v.sums);
    }
    return 0;
  }
  std::vector<size_t> chosen;
  for (int i = mode == "time" ? 3 : 2; i < argc; ++i)
    chosen.push_back(static_cast<size_t>(std::atoi(argv[i])));
  for (size_t number : chosen) {
    if (number >= variants.size()) return 2;
  }
  if (chosen.empty() || (mode != "check" && mode != "time")) return 2;
  type = static_cast<tandem::DType>(variants[chosen[0]].type);
  Gpu gpu(0), keeper(0);  // the keeper's memory outlives Clear
  void* state = keeper.Zero(tandem::cuda::kFusedStateBytes);
  if (mode == "check") return Check(gpu, state, variants[chosen[0]]) ? 0 : 1;
  int rounds = std::max(2, std::atoi(argv[2]));
  for (bool along_n : {false, true}) {
    for (const Shape& s : {Shape{2048, 7168, 8192}, Shape{4096, 7168, 8192}, Shape{8192, 7168, 8192},
                           Shape{2048, 8192, 7168}, Shape{8192, 8192, 7168}, Shape{8192, 3584, 4096}}) {
      bool float8 = tandem::IsFloat8(type);
      if (along_n && (s.m == 4096 || float8)) continue;
      Time(gpu, state, s, along_n, rounds, chosen);
    }
  }
  return 0;
}
