// File: fused_collective.h
//
// The common parts of the benchmarks of the fused matmuls: operands in sets, with scales for fp8, a full
// product by cuBLASLt, NCCL, and the fused kernel's state. One .cc an operation.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include "bench/gpu/fused_world.h"
#include "kernels/cuda/fused/fused_launch.h"
#include "kernels/cuda/fused/tiling.h"
#include "program/program.h"

namespace tandem::bench {
inline constexpr int kSets = 4;
inline constexpr DType kType = DType::kBf16;  // of C, and of A and B unless a case says otherwise
inline constexpr int kReady = 0, kArrived = 1, kDone = 2,
                     kBands = 4;  // words of World::word; of kBands one for each band

struct Case {
  int64_t m, n, k;
  bool along_n;
  int rounds;
  DType type = kType;       // of A and B
  bool exact = false;       // fp8: without fast accumulation
  bool row_scales = false;  // fp8: a scale for each row of A and column of B; else one for each matrix

  bool Float8() const { return IsFloat8(type); }
  // The properties of a case beside its numbers, as the command's words: " fp8-exact rows"; "" for bf16.
  std::string Suffix() const {
    if (!Float8()) return "";
    return std::string(exact ? " fp8-exact" : " fp8") + (row_scales ? " rows" : "");
  }
};

struct Tuning {
  std::string name;
  int ctas, band;
  std::vector<int> runs;  // pieces of each run
  int tile_n = 256;
  int bands = 0;  // of columns in which store warps deliver what peers own; 0: a lane pushes it
};

inline const uint64_t* Plain(const Word* word) { return reinterpret_cast<const uint64_t*>(word); }

// The parts of every operation: operands in sets, a full product by cuBLASLt, and the fused kernel's state.
class Bench {
 public:
  Bench(World* world, const Case& test) : world_(*world), c_(test), w_(world->size()), rows_(test.m / w_) {
    for (int rank = 0; rank < w_; ++rank) memory_.push_back(MemoryOf(world_.gpu(rank)));
  }

 protected:
  // Bytes of C, and of bf16 operands.
  static size_t Bytes(int64_t rows, int64_t columns) { return static_cast<size_t>(rows * columns) * 2; }
  size_t BytesOfA(int64_t rows) const { return static_cast<size_t>(rows * c_.k) * DTypeBytes(c_.type); }
  static size_t At(int rank) { return static_cast<size_t>(rank); }
  DeviceView B(int rank, int set) const {
    DeviceView view = Dense(b_[At(rank)][At(set % kSets)], c_.type, {c_.k, c_.n});
    if (!c_.along_n) view.stride = {1, c_.k};
    return view;
  }
  void MakeB(int rank) {
    b_.resize(At(w_));
    for (int set = 0; set < kSets; ++set) {
      b_[At(rank)].push_back(
          world_.gpu(rank).Random(static_cast<size_t>(c_.n * c_.k) * DTypeBytes(c_.type), c_.type));
    }
  }
  // The scales of a rank's sets, if they have any: of all m rows of A, and of B. A's are the same on
  // ranks of one `seed`.
  void MakeScales(int rank, int seed) {
    row_scale_.resize(At(w_));
    column_scale_.resize(At(w_));
    for (int set = 0; c_.Float8() && set < kSets; ++set) {
      row_scale_[At(rank)].push_back(Scales(rank, c_.row_scales ? c_.m : 1, seed * kSets + set));
      column_scale_[At(rank)].push_back(Scales(rank, c_.row_scales ? c_.n : 1, (w_ + rank) * kSets + set));
    }
  }
  // The scales of A's rows from piece `piece` on; null: none.
  const float* RowScale(int rank, int set, int piece) const {
    if (!c_.Float8()) return nullptr;
    const auto* scales = reinterpret_cast<const float*>(row_scale_[At(rank)][At(set % kSets)]);
    return c_.row_scales ? scales + piece * rows_ : scales;
  }
  // The product of the first `rows` rows.
  void Lt(int rank, std::byte* a, std::byte* c, int set, int64_t rows) {
    Must(world_.gpu(rank).lane().Matmul(LtArgs(rank, a, c, set, rows)), "matmul");
  }
  void PrepareLt(int rank) {
    Must(world_.gpu(rank).backend().PrepareMatmul(LtArgs(rank, nullptr, nullptr, 0, c_.m)), "prepare");
  }
  void Nccl(int rank, plan::NcclKind kind, DeviceView in, DeviceView out) {
    NcclArgs args;
    args.kind = kind;
    args.in = std::move(in);
    args.out = std::move(out);
    args.communicator = world_.communicator(rank);
    Must(world_.gpu(rank).lane().Nccl(args), "nccl");
  }
  cuda::FusedMatmul MatmulOf(int rank, int set, uint64_t launch_number, const Tuning& tuning) {
    cuda::FusedMatmul matmul;
    SetTypes(&matmul);
    matmul.rows = rows_;
    matmul.n = c_.n;
    matmul.k = c_.k;
    matmul.b = {b_[At(rank)][At(set % kSets)], c_.along_n ? c_.n : c_.k, 1, 0};
    if (c_.Float8()) {
      matmul.column_scale = reinterpret_cast<const float*>(column_scale_[At(rank)][At(set % kSets)]);
      matmul.row_scales = matmul.column_scales = c_.row_scales;
    }
    matmul.launch_number = launch_number;
    matmul.timeout_ns = 2'000'000'000;
    matmul.memory = memory_[At(rank)];
    matmul.tiling.ctas = tuning.ctas;
    matmul.tiling.band_tiles = tuning.band;
    matmul.tiling.tile_n = tuning.tile_n;
    matmul.tiling.cluster_m = std::max(1, ClusterOf(tuning.tile_n));
    int first = 0;
    for (int count : tuning.runs) {
      matmul.runs.push_back({first, count});
      first += count;
    }
    return matmul;
  }
  void Launch(int rank, const cuda::FusedMatmul& matmul) {
    const cuda::FusedVariant* variant = Must(cuda::FindFusedVariant(matmul), "variant");
    auto params = Must(cuda::MakeFusedParams(matmul, *variant), "parameters");
    Must(cuda::LaunchFused(params, *variant, matmul.tiling.ctas, world_.gpu(rank).stream()), "launch");
  }
  // The width of tiles that loses nothing for the case's types: see kernels/cuda/fused/tiling.cc.
  int TileWidth() const { return c_.exact && ClusterOf(192) != 0 ? 192 : 256; }
  std::vector<Tuning> Tunings() const {
    const int wide = TileWidth(), other = !c_.exact ? 224 : wide == 192 ? 256 : 192;
    std::vector<int> single(At(w_), 1), split = {1, w_ - 1};
    std::vector<Tuning> tunings;
    for (int ctas : {132, 128}) {
      tunings.push_back({"one by one, band 16", ctas, 16, single, wide});
      tunings.push_back({"one by one, band 16", ctas, 16, single, other});
      tunings.push_back({"own + rest, band 16", ctas, 16, split, other});
      tunings.push_back({"own + rest, band 16", ctas, 16, split, wide});
      if (w_ > 2) {
        tunings.push_back({"own + 1 + rest, band 16", ctas, 16, {1, 1, w_ - 2}, wide});
        std::vector<int> last = {w_ - 1, 1};
        tunings.push_back({"rest + last, band 16", ctas, 16, last, wide});
      }
    }
    std::erase_if(tunings, [this](const Tuning& tuning) { return ClusterOf(tuning.tile_n) == 0; });
    for (Tuning& tuning : tunings) {
      if (tuning.tile_n != 256) tuning.name += ", columns " + std::to_string(tuning.tile_n);
      tuning.name = "fused " + tuning.name + ", ctas " + std::to_string(tuning.ctas);
    }
    return tunings;
  }
  std::vector<uint16_t> Output(int rank, const std::byte* data, int64_t rows) {
    std::vector<uint16_t> values(Bytes(rows, c_.n) / 2);
    world_.gpu(rank).Download(values.data(), data, Bytes(rows, c_.n));
    return values;
  }
  // The largest relative error of a stripe of as many rows as a tile has: in the norm of a large product one
  // wrong tile would be as small as the roundings are.
  double WorstError(const std::vector<uint16_t>& got, const std::vector<uint16_t>& want) const {
    const size_t stripe = static_cast<size_t>(cuda::kTileRows * c_.n);
    const size_t step = want.size() > (size_t{1} << 24) ? 13 : 1;  // a sample of large ones
    double worst = 0;
    for (size_t first = 0; first < want.size(); first += stripe) {
      double difference = 0, norm = 0;
      for (size_t i = first; i < std::min(want.size(), first + stripe); i += step) {
        const double w = LoadAsFloat(want.data(), kType, i), g = LoadAsFloat(got.data(), kType, i);
        difference += (g - w) * (g - w);
        norm += w * w;
      }
      const double error = std::sqrt(difference / norm);
      if (std::isnan(error)) return error;
      worst = std::max(worst, error);
    }
    return worst;
  }
  // The largest error that is right, where bf16 is right up to `roundings`. Both sides multiply fp8 exactly
  // and round sums to bf16 alike. Without fast accumulation fp8 sums are as good as bf16's. With it the
  // tensor cores cut the running sum to 13 bits of fraction with each 32 terms (see FastAccumulation in
  // tests/conformance/compare.cc). A cut is half a unit on average, always towards zero, and two orders of
  // summing may differ by all cuts.
  double MostError(double roundings) const {
    if (!c_.Float8() || c_.exact) return roundings;
    return roundings + 0x1p-14 * static_cast<double>((c_.k + 31) / 32);
  }
  // Times the arms and prints them beside the first, the product alone.
  void Report(const std::string& what, std::vector<Arm>& arms, size_t rival) {
    Alternate(arms, c_.rounds);
    std::printf("%s W %d M %ld N %ld K %ld %s%s\n", what.c_str(), w_, c_.m, c_.n, c_.k,
                c_.along_n ? "n" : "k", c_.Suffix().c_str());
    for (Arm& arm : arms) {
      std::printf("   %-52s %8.1f us  %.3f x gemm  rival/this %.3f\n", arm.name.c_str(), Median(arm.times),
                  MedianRatio(arm, arms[0]), MedianRatio(arms[rival], arm));
    }
    std::fflush(stdout);
  }

  void SetTypes(cuda::FusedMatmul* matmul) const {
    matmul->type = matmul->b_type = c_.type;
    matmul->out_type = kType;
    matmul->exact = c_.exact;
    matmul->b_along_n = c_.along_n;
  }
  // Whether tiles add what peers computed of them.
  virtual bool SumsPeers() const { return true; }
  // CTAs along M of a cluster for tiles of `tile_n` columns; 0 if there is no kernel that sums as the case
  // says.
  int ClusterOf(int tile_n) const {
    cuda::FusedMatmul probe;
    SetTypes(&probe);
    probe.pieces.push_back({});
    probe.pieces[0].first_slot = static_cast<int16_t>(SumsPeers() ? 0 : -1);
    for (int cluster_m : {2, 1}) {
      if (rows_ % (cluster_m * int64_t{cuda::kTileRows}) != 0 && cluster_m > 1) continue;
      cuda::FusedTiling tiling;
      tiling.tile_n = tile_n;
      tiling.cluster_m = cluster_m;
      const cuda::FusedVariant* variant = cuda::FusedVariantFor(probe, tiling);
      if (variant != nullptr && variant->exact == c_.exact) return cluster_m;
    }
    return 0;
  }

  World& world_;
  const Case c_;
  const int w_;
  const int64_t rows_;
  std::vector<std::vector<std::byte*>> b_;
  std::vector<cuda::FusedMemory> memory_;

 private:
  // Positive, not all the same, near one.
  std::byte* Scales(int rank, int64_t count, int seed) {
    std::mt19937 random(static_cast<uint32_t>(seed));
    std::vector<float> values(static_cast<size_t>(count));
    for (float& value : values) value = 0.5f + static_cast<float>(random() >> 8) * 0x1p-24f;
    const size_t bytes = values.size() * sizeof(float);
    std::byte* data = world_.gpu(rank).Zero(bytes);
    world_.gpu(rank).Upload(data, values.data(), bytes);
    return data;
  }
  MatmulArgs LtArgs(int rank, std::byte* a, std::byte* c, int set, int64_t rows) const {
    MatmulArgs args;
    args.a = Dense(a, c_.type, {rows, c_.k});
    args.b = B(rank, set);
    args.c = Dense(c, kType, {rows, c_.n});
    if (!c_.Float8()) return args;
    args.fast_accumulation = !c_.exact;
    args.has_scale_a = args.has_scale_b = true;
    args.scale_a = Dense(row_scale_[At(rank)][At(set % kSets)], DType::kF32, {c_.row_scales ? rows : 1, 1});
    args.scale_b =
        Dense(column_scale_[At(rank)][At(set % kSets)], DType::kF32, {1, c_.row_scales ? c_.n : 1});
    return args;
  }

  std::vector<std::vector<std::byte*>> row_scale_, column_scale_;
};

// matmul→all-reduce by the fused kernel beside cuBLASLt and NCCL; see fused_collective.cc.
void RunAllReduce(World* world, const Case& test);

}  // namespace tandem::bench
