// All-gather→matmul, matmul→reduce-scatter and matmul→all-reduce by the fused kernel with pushes by copy
// engine, on the GPUs of this node. First the results are checked; then it is timed beside the product alone,
// the transfers alone, and NCCL + cuBLASLt's best candidate.
//   fused_collective gather|scatter|reduce WORLD ROUNDS M N K [k|n] [bf16|fp8|fp8-exact] [rows]
// k, n: which extent of B is contiguous, its columns (as fp8 needs it) or its rows. fp8: e4m3 operands with
// fast accumulation. fp8-exact: the same without. Both are to bf16, with a scale for each operand. `rows`: a
// scale for each row of A and column of B, which in a gather every rank has already. All-reduce is of bf16
// only.
#include "bench/gpu/fused_collective.h"

#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>

namespace tandem::bench {
namespace {

class Gather : public Bench {
 public:
  Gather(World* world, const Case& test) : Bench(world, test) {
    gathered_ = world_.Share(BytesOfA(c_.m));
    for (int rank = 0; rank < w_; ++rank) {
      Gpu& gpu = world_.gpu(rank);
      a_.emplace_back();
      for (int set = 0; set < kSets; ++set) a_.back().push_back(gpu.Random(BytesOfA(rows_), c_.type));
      full_.push_back(gpu.Random(BytesOfA(c_.m), c_.type));
      out_.push_back(gpu.Zero(Bytes(c_.m, c_.n)));
      reference_.push_back(gpu.Zero(Bytes(c_.m, c_.n)));
      MakeB(rank);
      MakeScales(rank, 0);
    }
    world_.Each([&](int rank) { PrepareLt(rank); });
    world_.WarmUp([&](int rank, int set, uint64_t) { Unfused(rank, set); });
  }

  void Push(int rank, int set, uint64_t launch_number) {
    world_.Fork(rank);
    for (int i = 1; i < w_; ++i) {  // first to the rank that computes with this shard first
      int peer = (rank - i + w_) % w_;
      Lane& lane = world_.copy_lane(rank);
      std::byte* to = gathered_.at(rank, peer) + static_cast<size_t>(rank) * BytesOfA(rows_);
      Must(lane.Copy({Dense(a_[At(rank)][At(set % kSets)], c_.type, {rows_ * c_.k}),
                      Dense(to, c_.type, {rows_ * c_.k}), true}),
           "push");
      Must(lane.WriteWord(world_.word(rank, peer, rank, kReady), launch_number), "signal");
    }
  }
  void Fused(int rank, int set, uint64_t launch_number, const Tuning& tuning, bool wait) {
    cuda::FusedMatmul matmul = MatmulOf(rank, set, launch_number, tuning);
    matmul.a[0] = {a_[At(rank)][At(set % kSets)], c_.k, 1, 0};
    matmul.a[1] = {gathered_.at(rank, rank), c_.k, w_, rows_ * c_.k};
    matmul.out[0] = {out_[At(rank)], c_.n, w_, rows_ * c_.n};
    for (int i = 0; i < w_; ++i) {
      int source = (rank + i) % w_;
      cuda::MatmulPiece piece = {};
      piece.first_slot = -1;
      piece.a_map = i == 0 ? 0 : 1;
      piece.a_slice = static_cast<int16_t>(i == 0 ? 0 : source);
      piece.out_slice = static_cast<int16_t>(source);
      piece.row_scale = RowScale(rank, set, source);
      if (i > 0 && wait) piece.ready = Plain(world_.word(rank, rank, source, kReady));
      matmul.pieces.push_back(piece);
    }
    if (wait) Push(rank, set, launch_number);
    Launch(rank, matmul);
    if (wait) world_.Join(rank);
  }
  void Unfused(int rank, int set) {
    Nccl(rank, plan::NcclKind::kAllGather, Dense(a_[At(rank)][At(set % kSets)], c_.type, {rows_ * c_.k}),
         Dense(full_[At(rank)], c_.type, {c_.m * c_.k}));
    Lt(rank, full_[At(rank)], reference_[At(rank)], set, c_.m);
  }
  void Check(const Tuning& tuning) {
    const int sets = c_.m > 1024 ? 1 : 3;
    for (int set = 0; set < sets; ++set) {
      world_.Time(1, [&](int rank, int, uint64_t) { Unfused(rank, set); });
      world_.Time(
          1, [&](int rank, int, uint64_t launch_number) { Fused(rank, set, launch_number, tuning, true); });
      for (int rank = 0; rank < w_; ++rank) {
        const double error =
            WorstError(Output(rank, out_[At(rank)], c_.m), Output(rank, reference_[At(rank)], c_.m));
        const bool right = error < MostError(4e-3);
        if (right && set + 1 < sets) continue;
        std::printf("check gather set %d rank %d %s: error %.2e %s\n", set, rank, tuning.name.c_str(), error,
                    Verdict(right));
      }
    }
    std::fflush(stdout);
  }
  void Run() {
    auto tunings = Tunings();
    for (const Tuning& tuning : tunings) {
      if (tuning.ctas == 132 && (c_.m <= 1024 || tuning.bands > 0 || &tuning == &tunings[0])) Check(tuning);
    }
    std::vector<Arm> arms;
    auto add = [&](const std::string& name, Enqueue enqueue) {
      arms.push_back({name, [this, enqueue] { return world_.Time(2 * kSets, enqueue); }, {}});
    };
    add("gemm, cuBLASLt's best",
        [&](int rank, int set, uint64_t) { Lt(rank, full_[At(rank)], reference_[At(rank)], set, c_.m); });
    add("NCCL all-gather + cuBLASLt", [&](int rank, int set, uint64_t) { Unfused(rank, set); });
    add("pushes alone", [&](int rank, int set, uint64_t launch_number) {
      Push(rank, set, launch_number);
      world_.Join(rank);
      for (int i = 1; i < w_; ++i) {
        Must(
            world_.gpu(rank).lane().WaitWord(world_.word(rank, rank, (rank + i) % w_, kReady), launch_number),
            "wait");
      }
    });
    add("gemm, fused", [&](int rank, int set, uint64_t launch_number) {
      Fused(rank, set, launch_number, {"", 132, 16, {w_}, TileWidth()}, false);
    });
    for (const Tuning& tuning : tunings) {
      if (tuning.runs.size() == 2 && tuning.runs[1] == 1 && w_ > 2) continue;
      add(tuning.name, [&, tuning](int rank, int set, uint64_t launch_number) {
        Fused(rank, set, launch_number, tuning, true);
      });
    }
    Report("all-gather+matmul", arms, 1);
  }

 private:
  bool SumsPeers() const override { return false; }

  SharedArea gathered_;
  std::vector<std::vector<std::byte*>> a_;
  std::vector<std::byte*> full_, out_, reference_;
};

class Scatter : public Bench {
 public:
  Scatter(World* world, const Case& test) : Bench(world, test) {
    slots_ = world_.Share(Bytes(rows_, c_.n) * At(w_ - 1));
    for (int rank = 0; rank < w_; ++rank) {
      Gpu& gpu = world_.gpu(rank);
      a_.emplace_back();
      for (int set = 0; set < kSets; ++set) a_.back().push_back(gpu.Random(BytesOfA(c_.m), c_.type));
      full_.push_back(gpu.Zero(Bytes(c_.m, c_.n)));
      staging_.push_back(gpu.Zero(Bytes(c_.m, c_.n)));
      out_.push_back(gpu.Zero(Bytes(rows_, c_.n)));
      reference_.push_back(gpu.Zero(Bytes(rows_, c_.n)));
      MakeB(rank);
      MakeScales(rank, rank);
    }
    world_.Each([&](int rank) { PrepareLt(rank); });
    world_.WarmUp([&](int rank, int set, uint64_t) { Unfused(rank, set); });
  }

  // Behind `wait`: each rank's rows once they are computed.
  void Push(int rank, uint64_t launch_number, bool wait) {
    world_.Fork(rank);
    for (int i = 1; i < w_; ++i) {
      int owner = (rank + i) % w_;
      Lane& lane = world_.copy_lane(rank);
      int slot = rank < owner ? rank : rank - 1;  // among the owner's sources
      std::byte* to = slots_.at(rank, owner) + At(slot) * Bytes(rows_, c_.n);
      if (wait) Must(lane.WaitWord(world_.word(rank, rank, owner, kDone), launch_number), "done");
      Must(lane.Copy({Dense(staging_[At(rank)] + At(owner) * Bytes(rows_, c_.n), kType, {rows_ * c_.n}),
                      Dense(to, kType, {rows_ * c_.n}), true}),
           "push");
      Must(lane.WriteWord(world_.word(rank, owner, rank, kArrived), launch_number), "signal");
    }
  }
  void Fused(int rank, int set, uint64_t launch_number, const Tuning& tuning, bool push) {
    cuda::FusedMatmul matmul = MatmulOf(rank, set, launch_number, tuning);
    matmul.a[0] = {a_[At(rank)][At(set % kSets)], c_.k, w_, rows_ * c_.k};
    matmul.out[0] = {out_[At(rank)], c_.n, 1, 0};
    matmul.out[1] = {staging_[At(rank)], c_.n, w_, rows_ * c_.n};
    matmul.slots = {slots_.at(rank, rank), c_.n, w_ - 1, rows_ * c_.n};
    matmul.position = rank;
    for (int i = 1; i <= w_; ++i) {
      int owner = (rank + i) % w_;
      cuda::MatmulPiece piece = {};
      piece.first_slot = -1;
      piece.a_slice = piece.out_slice = static_cast<int16_t>(owner);
      piece.row_scale = RowScale(rank, set, owner);
      piece.out_map = 1;
      if (owner == rank) {
        piece.out_map = 0;
        piece.out_slice = 0;
        if (push) piece.first_slot = 0;
      } else if (push && tuning.bands > 0) {
        cuda::MatmulCopy copy = {};
        copy.done = reinterpret_cast<uint64_t*>(world_.word(rank, owner, rank, kBands));
        copy.map = static_cast<int16_t>(2 + owner);
        copy.slice = static_cast<int16_t>(rank < owner ? rank : rank - 1);
        matmul.out[copy.map] = {slots_.at(rank, owner), c_.n, w_ - 1, rows_ * c_.n};
        piece.on_the_way = 1;
        piece.words = static_cast<int16_t>(tuning.bands);
        piece.first_copy = static_cast<int16_t>(matmul.copies.size());
        piece.copies = 1;
        matmul.copies.push_back(copy);
      } else if (push) {
        piece.done = reinterpret_cast<uint64_t*>(world_.word(rank, rank, owner, kDone));
      }
      matmul.pieces.push_back(piece);
    }
    for (int source = 0; source < w_; ++source) {
      if (source == rank) continue;
      matmul.slot_of.push_back(static_cast<int16_t>(matmul.arrived.size()));
      matmul.arrived.push_back(Plain(world_.word(rank, rank, source, tuning.bands > 0 ? kBands : kArrived)));
    }
    const bool lane = push && tuning.bands == 0;
    if (tuning.bands > 0) {
      matmul.word_bands = tuning.bands;
      matmul.word_step = World::kWordStep;
      matmul.tiling.direct_tiles = tuning.ctas / matmul.tiling.cluster_m;
      matmul.runs = cuda::ChooseRuns(matmul);
    }
    if (lane) Push(rank, launch_number, true);
    Launch(rank, matmul);
    if (lane) world_.Join(rank);
  }
  void Unfused(int rank, int set) {
    Lt(rank, a_[At(rank)][At(set % kSets)], full_[At(rank)], set, c_.m);
    Nccl(rank, plan::NcclKind::kReduceScatter, Dense(full_[At(rank)], kType, {c_.m * c_.n}),
         Dense(reference_[At(rank)], kType, {rows_ * c_.n}));
  }
  void Check(const Tuning& tuning) {
    std::vector<std::vector<uint16_t>> before(At(w_));
    const int sets = c_.m > 1024 ? 1 : 3;
    for (int set = 0; set < sets; ++set) {
      world_.Time(1, [&](int rank, int, uint64_t) { Unfused(rank, set); });
      for (int repeat = 0; repeat < 2; ++repeat) {
        world_.Time(
            1, [&](int rank, int, uint64_t launch_number) { Fused(rank, set, launch_number, tuning, true); });
        for (int rank = 0; rank < w_; ++rank) {
          auto got = Output(rank, out_[At(rank)], rows_);
          const double error = WorstError(got, Output(rank, reference_[At(rank)], rows_));
          bool same = repeat == 0 || got == before[At(rank)];
          before[At(rank)] = std::move(got);
          bool right = error < MostError(6e-3) && same;  // the reference rounds its partial sums too
          if (right && set + repeat < sets) continue;
          std::printf("check scatter set %d rank %d %s: error %.2e %s %s\n", set, rank, tuning.name.c_str(),
                      error, same ? "same bits again" : "OTHER BITS", Verdict(right));
        }
      }
    }
    std::fflush(stdout);
  }
  std::vector<Tuning> Orders() const {
    auto tunings = Tunings();
    for (Tuning& tuning : tunings) std::reverse(tuning.runs.begin(), tuning.runs.end());
    // The own piece comes last, alone: it waits for what peers compute as late.
    std::erase_if(tunings, [](const Tuning& tuning) { return tuning.runs.back() != 1; });
    for (int bands : {1, 4}) {
      for (int ctas : {132, 128}) {
        tunings.push_back(
            {"fused, carried, " + std::to_string(bands) + " bands, ctas " + std::to_string(ctas),
             ctas,
             16,
             {},
             256,
             bands});
      }
    }
    return tunings;
  }
  void Run() {
    auto tunings = Orders();
    for (const Tuning& tuning : tunings) {
      if (tuning.ctas == 132 && (c_.m <= 1024 || tuning.bands > 0 || &tuning == &tunings[0])) Check(tuning);
    }
    std::vector<Arm> arms;
    auto add = [&](const std::string& name, Enqueue enqueue) {
      arms.push_back({name, [this, enqueue] { return world_.Time(2 * kSets, enqueue); }, {}});
    };
    add("gemm, cuBLASLt's best", [&](int rank, int set, uint64_t) {
      Lt(rank, a_[At(rank)][At(set % kSets)], full_[At(rank)], set, c_.m);
    });
    add("cuBLASLt + NCCL reduce-scatter", [&](int rank, int set, uint64_t) { Unfused(rank, set); });
    add("pushes alone", [&](int rank, int, uint64_t launch_number) {
      Push(rank, launch_number, false);
      world_.Join(rank);
      for (int i = 1; i < w_; ++i) {
        Must(world_.gpu(rank).lane().WaitWord(world_.word(rank, rank, (rank + i) % w_, kArrived),
                                              launch_number),
             "wait");
      }
    });
    add("gemm, fused", [&](int rank, int set, uint64_t launch_number) {
      Fused(rank, set, launch_number, {"", 132, 16, {w_}, TileWidth()}, false);
    });
    for (const Tuning& tuning : tunings) {
      add(tuning.name, [&, tuning](int rank, int set, uint64_t launch_number) {
        Fused(rank, set, launch_number, tuning, true);
      });
    }
    Report("matmul+reduce-scatter", arms, 1);
  }

 private:
  SharedArea slots_;
  std::vector<std::vector<std::byte*>> a_;
  std::vector<std::byte*> full_, staging_, out_, reference_;
};

// The case of the command's words behind its operation, world and rounds; nothing where one is not understood
// or does not fit.
std::optional<Case> ParseCase(int argc, char** argv) {
  if (argc < 7) return std::nullopt;
  Case test{std::atoll(argv[4]), std::atoll(argv[5]), std::atoll(argv[6]), false,
            std::max(2, std::atoi(argv[3]))};
  for (int i = 7; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "k" || word == "n") {
      test.along_n = word == "n";
    } else if (word == "fp8" || word == "fp8-exact") {
      test.type = DType::kF8E4M3;
      test.exact = word == "fp8-exact";
    } else if (word == "rows") {
      test.row_scales = true;
    } else if (word != "bf16") {
      return std::nullopt;
    }
  }
  const bool fits = test.Float8() ? !test.along_n && std::strcmp(argv[1], "reduce") != 0 : !test.row_scales;
  return fits ? std::optional(test) : std::nullopt;
}

}  // namespace
}  // namespace tandem::bench

int main(int argc, char** argv) {
  using namespace tandem::bench;
  const std::optional<Case> test = ParseCase(argc, argv);
  if (!test) {
    std::fprintf(
        stderr,
        "usage: fused_collective gather|scatter|reduce WORLD ROUNDS M N K [k|n] [bf16|fp8|fp8-exact] [rows]\n"
        "fp8 needs k, and is for gather and scatter; rows is for fp8\n");
    return 2;
  }
  World world(std::atoi(argv[2]));
  if (std::strcmp(argv[1], "gather") == 0) {
    Gather(&world, *test).Run();
  } else if (std::strcmp(argv[1], "reduce") == 0) {
    RunAllReduce(&world, *test);
  } else {
    Scatter(&world, *test).Run();
  }
  std::fflush(stdout);
  std::_Exit(ExitStatus());  // the driver's threads need no orderly end
}
