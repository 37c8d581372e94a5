// The fused GEMM's results: on awkward shapes beside cuBLASLt's, and over a long K beside exact sums.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <optional>
#include <random>
#include <vector>

#include "bench/gpu/fused_gemm.h"

namespace tandem::bench {
namespace {

constexpr double kMaxError = 4e-3;  // of the norm: roundings to 16 bits

void Launch(Gpu& gpu, const cuda::FusedMatmul& matmul, const cuda::FusedVariant& variant) {
  auto params = Must(cuda::MakeFusedParams(matmul, variant), "parameters");
  Must(cuda::LaunchFused(params, variant, 0, gpu.stream()), "launch");
}

bool CheckBesideLt(Gpu& gpu, const cuda::FusedMemory& memory, const cuda::FusedVariant& variant) {
  bool right = true;
  const GemmTypes types(variant);
  for (const Shape& s :
       {Shape{128, 256, 64}, Shape{256, 256, 128}, Shape{2048, 7168, 1024}, Shape{100, 264, 72},
        Shape{1000, 1000, 1000}, Shape{100, 264, 80}, Shape{4096, 3592, 528}, Shape{2040, 8192, 1024},
        Shape{1000, 1000, 4096}, Shape{8, 8, 8}}) {
    if (static_cast<size_t>(s.k) * DTypeBytes(types.a) % 16 != 0) continue;
    Operands o = {};
    const size_t out_bytes = types.BytesOfC(s);
    o.a = gpu.Random(types.BytesOfA(s), types.a);
    o.b = gpu.Random(types.BytesOfB(s), types.b);
    o.reference = gpu.Zero(out_bytes);
    AddScales(gpu, types, s, &o);
    MatmulArgs lt = LtArgs(types, s, o);
    Must(gpu.backend().PrepareMatmul(lt), "prepare");
    Must(gpu.lane().Matmul(lt), "matmul");
    std::vector<std::byte> want(out_bytes), got(out_bytes);
    gpu.Download(want.data(), o.reference, out_bytes);
    for (int pieces : {1, 4}) {
      if (s.m % pieces != 0) continue;
      o.c = gpu.Zero(out_bytes);
      double worst = 0;
      for (int repeat = 0; repeat < 2; ++repeat) {
        Launch(gpu, FusedArgs(types, s, o, pieces, memory), variant);
        gpu.Download(got.data(), o.c, out_bytes);
        worst = std::max(worst, RelativeError(got, want, types.c));
      }
      right = right && worst < kMaxError;
      std::printf("check %s %ldx%ldx%ld pieces %d cluster %dx%d tile_n %d sums %d exact %d: error %.2e %s\n",
                  types.along_n ? "n" : "k", s.m, s.n, s.k, pieces, variant.cluster_m, variant.cluster_n,
                  variant.tile_n, variant.sums, variant.exact, worst, worst < kMaxError ? "ok" : "WRONG");
    }
    gpu.Clear();
  }
  return right;
}

// Halves and ones. Their products are multiples of a quarter, so sums of 128 of them need ten bits: tensor
// cores keep those. Over all of K a sum needs so many that they lose most of what they add.
std::vector<uint8_t> HalvesAndOnes(size_t count, DType type, uint32_t seed) {
  std::mt19937 random(seed);
  const uint8_t half = type == DType::kF8E4M3 ? FloatToE4M3(0.5f) : FloatToE5M2(0.5f);
  const uint8_t one = type == DType::kF8E4M3 ? FloatToE4M3(1.0f) : FloatToE5M2(1.0f);
  std::vector<uint8_t> values(count);
  for (uint8_t& value : values) value = (random() >> 16 & 1) != 0 ? one : half;
  return values;
}

// Exact sums, in quarters, and what they are in `type`.
struct LongSums {
  static constexpr Shape kShape{160, 328, 16384};
  std::vector<uint8_t> a, b;
  std::vector<double> sum;

  explicit LongSums(const GemmTypes& types)
      : a(HalvesAndOnes(types.BytesOfA(kShape), types.a, 1)),
        b(HalvesAndOnes(types.BytesOfB(kShape), types.b, 2)) {
    const auto k = static_cast<size_t>(kShape.k);
    const std::vector<int> x = Doubled(a, types.a), y = Doubled(b, types.b);
    for (size_t row = 0; row < static_cast<size_t>(kShape.m); ++row) {
      for (size_t column = 0; column < static_cast<size_t>(kShape.n); ++column) {
        int quarters = 0;
        for (size_t i = 0; i < k; ++i) quarters += x[row * k + i] * y[column * k + i];
        sum.push_back(quarters / 4.0);
      }
    }
  }
  static std::vector<int> Doubled(const std::vector<uint8_t>& values, DType type) {
    std::vector<int> doubled;
    for (size_t i = 0; i < values.size(); ++i) {
      doubled.push_back(static_cast<int>(2 * LoadAsFloat(values.data(), type, i)));
    }
    return doubled;
  }
  static float Rounded(double value, DType type) {
    const auto single = static_cast<float>(value);  // exact: 18 bits
    if (type == DType::kF32) return single;
    const uint16_t bits = type == DType::kF16 ? FloatToF16(single) : FloatToBf16(single);
    return LoadAsFloat(&bits, type, 0);
  }
};

struct LongResult {
  size_t wrong = 0;  // elements that are not the exact sum, rounded
  double worst = 0;  // relative error
};

LongResult RunLong(Gpu& gpu, const cuda::FusedMemory& memory, const cuda::FusedVariant& variant,
                   const LongSums& sums) {
  const GemmTypes types(variant);
  const Shape& s = LongSums::kShape;
  Operands o = {};
  o.a = gpu.Zero(sums.a.size());
  o.b = gpu.Zero(sums.b.size());
  o.c = gpu.Zero(types.BytesOfC(s));
  gpu.Upload(o.a, sums.a.data(), sums.a.size());
  gpu.Upload(o.b, sums.b.data(), sums.b.size());
  const std::vector<float> ones(std::max(types.BytesOfScaleA(s), types.BytesOfScaleB(s)) / sizeof(float),
                                1.0f);
  if (types.blocks) {
    o.scale_a = gpu.Zero(types.BytesOfScaleA(s));
    o.scale_b = gpu.Zero(types.BytesOfScaleB(s));
    gpu.Upload(o.scale_a, ones.data(), types.BytesOfScaleA(s));
    gpu.Upload(o.scale_b, ones.data(), types.BytesOfScaleB(s));
  }
  Launch(gpu, FusedArgs(types, s, o, 1, memory), variant);
  std::vector<std::byte> got(types.BytesOfC(s));
  gpu.Download(got.data(), o.c, got.size());
  gpu.Clear();
  LongResult result;
  for (size_t i = 0; i < sums.sum.size(); ++i) {
    const double value = LoadAsFloat(got.data(), types.c, i), want = LongSums::Rounded(sums.sum[i], types.c);
    result.wrong += value != want ? 1 : 0;
    result.worst = std::max(result.worst, std::abs(value - sums.sum[i]) / sums.sum[i]);
  }
  return result;
}

bool CheckLongSums(Gpu& gpu, const cuda::FusedMemory& memory, const cuda::FusedVariant& variant) {
  const LongSums sums{GemmTypes(variant)};
  const LongResult own = RunLong(gpu, memory, variant, sums);
  std::printf("check sums over K %ld: %zu of %zu elements differ, relative error %.2e %s\n",
              LongSums::kShape.k, own.wrong, sums.sum.size(), own.worst, own.wrong == 0 ? "ok" : "WRONG");
  bool reported = true;
  for (const cuda::FusedVariant& other : cuda::FusedVariants()) {
    if (other.exact || other.type != variant.type || other.b_type != variant.b_type ||
        other.out_type != variant.out_type || other.b_along_n != variant.b_along_n) {
      continue;
    }
    // Not by clusters that share the few tiles along K: their sums are short.
    const LongResult fast = RunLong(gpu, {.state = memory.state}, other, sums);
    reported = fast.worst > 0.01;
    std::printf("check of the check, fast accumulation: %zu elements differ, relative error %.2e %s\n",
                fast.wrong, fast.worst, reported ? "ok" : "WRONG: the check cannot tell them apart");
    break;
  }
  return own.wrong == 0 && reported;
}

}  // namespace

std::vector<Operands> OperandSets(Gpu& gpu, const GemmTypes& types, const Shape& s, size_t count) {
  std::vector<Operands> sets(count);
  for (Operands& o : sets) {
    o.a = gpu.Random(types.BytesOfA(s), types.a);
    o.b = gpu.Random(types.BytesOfB(s), types.b);
    o.c = gpu.Zero(types.BytesOfC(s));
    o.reference = o.c;
    AddScales(gpu, types, s, &o);
  }
  return sets;
}

MatmulArgs LtArgs(const GemmTypes& types, const Shape& s, const Operands& o) {
  MatmulArgs args;
  args.a = Dense(o.a, types.a, {s.m, s.k});
  args.b = Dense(o.b, types.b, {s.k, s.n});
  if (!types.along_n) args.b.stride = {1, s.k};
  args.c = Dense(o.reference, types.c, {s.m, s.n});
  args.fast_accumulation = types.fast;
  if (types.blocks) {
    args.has_scale_a = args.has_scale_b = args.block_scales = true;
    args.scale_a = Dense(o.scale_a, DType::kF32, {s.m, types.Blocks(s.k)});
    args.scale_a.stride = {1, s.m};
    args.scale_b = Dense(o.scale_b, DType::kF32, {types.Blocks(s.k), types.Blocks(s.n)});
    args.scale_b.stride = {1, types.PitchOfScaleB(s)};
  }
  return args;
}

void AddScales(Gpu& gpu, const GemmTypes& types, const Shape& s, Operands* o) {
  if (!types.blocks) return;
  o->scale_a = gpu.Random(types.BytesOfScaleA(s), DType::kF32);
  o->scale_b = gpu.Random(types.BytesOfScaleB(s), DType::kF32);
}

cuda::FusedMatmul FusedArgs(const GemmTypes& types, const Shape& s, const Operands& o, int pieces,
                            const cuda::FusedMemory& memory) {
  cuda::FusedMatmul matmul;
  matmul.type = types.a;
  matmul.b_type = types.b;
  matmul.out_type = types.c;
  matmul.exact = !types.fast;
  matmul.b_along_n = types.along_n;
  matmul.rows = s.m / pieces;
  matmul.n = s.n;
  matmul.k = s.k;
  matmul.a[0] = {o.a, s.k, pieces, matmul.rows * s.k};
  matmul.out[0] = {o.c, s.n, pieces, matmul.rows * s.n};
  matmul.b = {o.b, types.along_n ? s.n : s.k, 1, 0};
  for (int i = 0; i < pieces; ++i) {
    cuda::MatmulPiece piece = {};
    piece.a_slice = piece.out_slice = static_cast<int16_t>(i);
    piece.first_slot = -1;
    if (types.blocks) piece.row_scale = reinterpret_cast<const float*>(o.scale_a) + i * matmul.rows;
    matmul.pieces.push_back(piece);
  }
  if (types.blocks) {
    matmul.blocks = true;
    matmul.row_scale_step = 1;
    matmul.row_scale_block_step = static_cast<int32_t>(s.m);
    matmul.column_scale = reinterpret_cast<const float*>(o.scale_b);
    matmul.column_scale_block_step = 1;
    matmul.column_scale_step = static_cast<int32_t>(types.PitchOfScaleB(s));
  }
  matmul.runs = {{0, pieces}};
  matmul.memory = memory;
  return matmul;
}

bool CheckVariant(Gpu& gpu, const cuda::FusedMemory& memory, const cuda::FusedVariant& variant) {
  const bool right = CheckBesideLt(gpu, memory, variant);
  if (!variant.exact) return right;
  return CheckLongSums(gpu, memory, variant) && right;
}

}  // namespace tandem::bench
