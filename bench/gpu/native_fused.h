// File: native_fused.h
//
// What the benchmarks of the fused matmuls have in common: operands in sets, a full product by cuBLASLt, NCCL, and the
// native kernel's state. One .cc an operation.
#pragma once

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "bench/gpu/native_world.h"
#include "daemon/planner/program.h"
#include "kernels/cuda/native/native_matmul.h"

namespace tandem::bench {
inline constexpr int kSets = 4;
inline constexpr DType kType = DType::kBf16;
inline constexpr int kReady = 0, kArrived = 1, kDone = 2;  // words of World::word

struct Case {
  int64_t m, n, k;
  bool along_n;
  int rounds;
};

struct Tuning {
  std::string name;
  int ctas, band;
  std::vector<int> runs;  // pieces of each run
  int tile_n = 256;
};

inline const uint64_t* Plain(const Word* word) { return reinterpret_cast<const uint64_t*>(word); }

// What both operations have: operands in sets, a full product by cuBLASLt, and the native kernel's state.
class Bench {
 public:
  Bench(World* world, const Case& test) : world_(*world), c_(test), w_(world->size()), rows_(test.m / w_) {
    for (int rank = 0; rank < w_; ++rank) state_.push_back(world_.gpu(rank).Zero(cuda::kFusedStateBytes));
  }

 protected:
  static size_t Bytes(int64_t rows, int64_t columns) { return static_cast<size_t>(rows * columns) * 2; }
  static size_t At(int rank) { return static_cast<size_t>(rank); }
  DeviceView B(int rank, int set) const {
    DeviceView view = Dense(b_[At(rank)][At(set % kSets)], kType, {c_.k, c_.n});
    if (!c_.along_n) view.stride = {1, c_.k};
    return view;
  }
  void MakeB(int rank) {
    b_.resize(At(w_));
    for (int set = 0; set < kSets; ++set)
      b_[At(rank)].push_back(world_.gpu(rank).Random(Bytes(c_.n, c_.k), kType));
  }
  void Lt(int rank, std::byte* a, std::byte* c, int set, int64_t rows) {
    MatmulArgs args;
    args.a = Dense(a, kType, {rows, c_.k});
    args.b = B(rank, set);
    args.c = Dense(c, kType, {rows, c_.n});
    Must(world_.gpu(rank).lane().Matmul(args), "matmul");
  }
  void PrepareLt(int rank) {
    MatmulArgs args;
    args.a = Dense(nullptr, kType, {c_.m, c_.k});
    args.b = B(rank, 0);
    args.c = Dense(nullptr, kType, {c_.m, c_.n});
    Must(world_.gpu(rank).backend().PrepareMatmul(args), "prepare");
  }
  void Nccl(int rank, plan::NcclKind kind, DeviceView in, DeviceView out) {
    NcclArgs args;
    args.kind = static_cast<int>(kind);
    args.in = std::move(in);
    args.out = std::move(out);
    args.communicator = world_.communicator(rank);
    Must(world_.gpu(rank).lane().Nccl(args), "nccl");
  }
  cuda::FusedMatmul Native(int rank, int set, uint64_t epoch, const Tuning& tuning) {
    cuda::FusedMatmul matmul;
    matmul.type = matmul.out_type = kType;
    matmul.b_along_n = c_.along_n;
    matmul.rows = rows_;
    matmul.n = c_.n;
    matmul.k = c_.k;
    matmul.b = {b_[At(rank)][At(set % kSets)], c_.along_n ? c_.n : c_.k, 1, 0};
    matmul.epoch = epoch;
    matmul.timeout_ns = 2'000'000'000;
    matmul.state = state_[At(rank)];
    matmul.tiling.ctas = tuning.ctas;
    matmul.tiling.band_tiles = tuning.band;
    matmul.tiling.tile_n = tuning.tile_n;
    if (rows_ % 256 != 0) matmul.tiling.cluster_m = 1;
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
  std::vector<Tuning> Tunings() const {
    std::vector<int> single(At(w_), 1), split = {1, w_ - 1};
    std::vector<Tuning> tunings;
    for (int ctas : {132, 128}) {
      tunings.push_back({"one by one, band 16", ctas, 16, single});
      if (!c_.along_n) tunings.push_back({"one by one, band 16, columns 224", ctas, 16, single, 224});
      if (!c_.along_n) tunings.push_back({"own + rest, band 16, columns 224", ctas, 16, split, 224});
      tunings.push_back({"own + rest, band 16", ctas, 16, split});
      if (w_ > 2) {
        tunings.push_back({"own + 1 + rest, band 16", ctas, 16, {1, 1, w_ - 2}});
        std::vector<int> last = {w_ - 1, 1};
        tunings.push_back({"rest + last, band 16", ctas, 16, last});
      }
    }
    for (Tuning& tuning : tunings)
      tuning.name = "fused " + tuning.name + ", ctas " + std::to_string(tuning.ctas);
    return tunings;
  }
  std::vector<uint16_t> Output(int rank, const std::byte* data, int64_t rows) {
    std::vector<uint16_t> values(Bytes(rows, c_.n) / 2);
    world_.gpu(rank).Download(values.data(), data, Bytes(rows, c_.n));
    return values;
  }
  // Times the arms and prints them beside the first, the product alone.
  void Report(const char* what, std::vector<Arm>& arms, size_t rival) {
    Alternate(arms, c_.rounds);
    std::printf("%s W %d M %ld N %ld K %ld %s\n", what, w_, c_.m, c_.n, c_.k, c_.along_n ? "n" : "k");
    for (Arm& arm : arms) {
      std::printf("   %-52s %8.1f us  %.3f x gemm  rival/this %.3f\n", arm.name.c_str(), Median(arm.times),
                  MedianRatio(arm, arms[0]), MedianRatio(arms[rival], arm));
    }
    std::fflush(stdout);
  }

  World& world_;
  const Case c_;
  const int w_;
  const int64_t rows_;
  std::vector<std::vector<std::byte*>> b_;
  std::vector<std::byte*> state_;
};

// matmul→all-reduce by the native kernel beside cuBLASLt and NCCL; see native_fused.cc.
void RunAllReduce(World* world, const Case& test);

}  // namespace tandem::bench
