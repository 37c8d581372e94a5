// matmul→all-reduce, two-shot: a rank owns M / W rows. Its kernel computes the peers' rows of a band of
// columns first. Then it computes its own rows of the band before, and adds the peers' partial sums. The
// kernel itself delivers partial sums to owners and sums to all ranks' C: by store warps, and directly from
// the last waves. It ends when the peers' sums have arrived.
#include "bench/gpu/fused_collective.h"

namespace tandem::bench {
namespace {

constexpr int kPart = 0, kSum = cuda::kMaxWordBands;  // words of World::word, the first one for each band

struct Way {
  Tuning tuning;
  int bands;         // of columns, signalled one by one
  int direct_waves;  // the last ones, whose tiles go directly; 0: all are carried, -1: none
};

class AllReduce : public Bench {
 public:
  AllReduce(World* world, const Case& test) : Bench(world, test) {
    c_all_ = world_.Share(Bytes(c_.m, c_.n));
    inbox_ = world_.Share(Bytes(rows_, c_.n) * At(w_ - 1));
    for (int rank = 0; rank < w_; ++rank) {
      Gpu& gpu = world_.gpu(rank);
      a_.emplace_back();
      for (int set = 0; set < kSets; ++set) a_.back().push_back(gpu.Random(Bytes(c_.m, c_.k), kType));
      staging_.push_back(gpu.Zero(Bytes(c_.m, c_.n)));
      reference_.push_back(gpu.Zero(Bytes(c_.m, c_.n)));
      MakeB(rank);
    }
    world_.Each([&](int rank) { PrepareLt(rank); });
    world_.WarmUp([&](int rank, int set, uint64_t) { Unfused(rank, set); });
  }

  void Run() {
    const auto ways = Ways();
    for (const Way& way : ways) {
      if (way.tuning.ctas == 132 && (c_.m <= 2048 || way.direct_waves == 1)) Check(way);
    }
    std::vector<Arm> arms;
    auto add = [&](const std::string& name, Enqueue enqueue) {
      arms.push_back({name, [this, enqueue] { return world_.Time(2 * kSets, enqueue); }, {}});
    };
    add("gemm, cuBLASLt's best", [&](int rank, int set, uint64_t) {
      Lt(rank, a_[At(rank)][At(set % kSets)], reference_[At(rank)], set, c_.m);
    });
    add("cuBLASLt + NCCL all-reduce", [&](int rank, int set, uint64_t) { Unfused(rank, set); });
    for (const Way& way : ways) {
      add(way.tuning.name,
          [&, way](int rank, int set, uint64_t launch_number) { Fused(rank, set, launch_number, way); });
    }
    Report("matmul+all-reduce", arms, 1);
  }

 private:
  std::vector<Way> Ways() const {
    std::vector<Way> ways;
    const int64_t tiles_n = (c_.n + 255) / 256;
    for (int bands : {1, 2, 4, 8, 16}) {
      if (bands > tiles_n) continue;
      for (int ctas : {132, 128}) {
        for (int waves : {-1, 0, 1, 2}) {
          if (waves != 1 && ctas != 132) continue;
          std::string name = "fused, " + std::to_string(bands) + " bands, ";
          name += waves < 0 ? "direct" : "carried, last " + std::to_string(waves);
          ways.push_back({{name + ", ctas " + std::to_string(ctas), ctas, 16, {}, 256}, bands, waves});
        }
      }
    }
    return ways;
  }
  int Slot(int owner, int source) const { return source < owner ? source : source - 1; }
  static uint64_t* Writable(Word* word) { return reinterpret_cast<uint64_t*>(word); }
  // Index of C's map for partial sums in `peer`'s inbox; the next map is the peer's C.
  static int PartMap(int rank, int peer) { return 2 + 2 * (peer < rank ? peer : peer - 1); }

  void Fused(int rank, int set, uint64_t launch_number, const Way& way) {
    cuda::FusedMatmul matmul = MatmulOf(rank, set, launch_number, way.tuning);
    const int64_t slice = rows_ * c_.n;
    matmul.tiling.cluster_m = rows_ % 256 == 0 ? 2 : 1;
    matmul.a[0] = {a_[At(rank)][At(set % kSets)], c_.k, w_, rows_ * c_.k};
    matmul.out[0] = {c_all_.at(rank, rank), c_.n, w_, slice};
    matmul.out[1] = {staging_[At(rank)], c_.n, w_, slice};
    for (int peer = 0; peer < w_; ++peer) {
      if (peer == rank) continue;
      matmul.out[PartMap(rank, peer)] = {inbox_.at(rank, peer), c_.n, w_ - 1, slice};
      matmul.out[PartMap(rank, peer) + 1] = {c_all_.at(rank, peer), c_.n, w_, slice};
    }
    matmul.slots = {inbox_.at(rank, rank), c_.n, w_ - 1, slice};
    matmul.position = rank;
    matmul.word_bands = way.bands;
    matmul.word_step = World::kWordStep;
    if (way.direct_waves >= 0)
      matmul.tiling.direct_tiles = way.tuning.ctas / matmul.tiling.cluster_m * way.direct_waves;
    for (int i = 1; i <= w_; ++i) {
      const int owner = (rank + i) % w_;
      cuda::MatmulPiece piece = {};
      piece.first_slot = static_cast<int16_t>(owner == rank ? 0 : -1);
      piece.a_slice = piece.out_slice = static_cast<int16_t>(owner);
      piece.out_map = owner == rank ? 0 : 1;
      piece.on_the_way = owner == rank ? 0 : 1;
      piece.words = static_cast<int16_t>(owner == rank ? 1 : way.bands);
      piece.first_copy = static_cast<int16_t>(matmul.copies.size());
      const auto deliver = [&](int to, int word, int map, int of) {
        cuda::MatmulCopy copy = {};
        copy.done = Writable(world_.word(rank, to, rank, word));
        copy.map = static_cast<int16_t>(map);
        copy.slice = static_cast<int16_t>(of);
        matmul.copies.push_back(copy);
        ++piece.copies;
      };
      if (owner != rank) deliver(owner, kPart, PartMap(rank, owner), Slot(owner, rank));
      for (int j = 1; j < w_ && owner == rank; ++j) {
        deliver((rank + j) % w_, kSum, PartMap(rank, (rank + j) % w_) + 1, rank);
      }
      matmul.pieces.push_back(piece);
    }
    for (int source = 0; source < w_; ++source) {
      if (source == rank) continue;
      matmul.slot_of.push_back(static_cast<int16_t>(Slot(rank, source)));
      matmul.arrived.push_back(Plain(world_.word(rank, rank, source, kPart)));
      matmul.closing.push_back(Plain(world_.word(rank, rank, source, kSum)));
    }
    matmul.runs = cuda::ChooseRuns(matmul);
    Launch(rank, matmul);
  }

  void Unfused(int rank, int set) {
    Lt(rank, a_[At(rank)][At(set % kSets)], reference_[At(rank)], set, c_.m);
    const DeviceView all = Dense(reference_[At(rank)], kType, {c_.m * c_.n});
    Nccl(rank, plan::NcclKind::kAllReduce, all, all);
  }

  // Right, the same bits on all ranks and in both runs.
  void Check(const Way& way) {
    const int sets = c_.m > 1024 ? 1 : 3;
    for (int set = 0; set < sets; ++set) {
      world_.Time(1, [&](int rank, int, uint64_t) { Unfused(rank, set); });
      std::vector<uint16_t> first;
      for (int repeat = 0; repeat < 2; ++repeat) {
        world_.Time(1, [&](int rank, int, uint64_t launch_number) { Fused(rank, set, launch_number, way); });
        for (int rank = 0; rank < w_; ++rank) {
          auto got = Output(rank, c_all_.at(rank, rank), c_.m);
          const bool same = first.empty() || got == first;
          if (same && !first.empty() && (rank > 0 || set + repeat < sets)) continue;
          const double error = RelativeError(got, Output(rank, reference_[At(rank)], c_.m), kType);
          if (first.empty()) first = std::move(got);
          const bool right = error < 6e-3 && same;  // the reference rounds its partial sums too
          if (right && set + repeat < sets) continue;
          std::printf("check reduce set %d rank %d %s: error %.2e %s %s\n", set, rank,
                      way.tuning.name.c_str(), error, same ? "same bits" : "OTHER BITS", Verdict(right));
        }
      }
    }
    std::fflush(stdout);
  }

  SharedArea c_all_, inbox_;
  std::vector<std::vector<std::byte*>> a_;
  std::vector<std::byte*> staging_, reference_;
};

}  // namespace

void RunAllReduce(World* world, const Case& test) { AllReduce(world, test).Run(); }

}  // namespace tandem::bench
