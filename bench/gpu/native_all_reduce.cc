// matmul→all-reduce, two-shot on tiles: owners interleave, the kernel computes a tile of its own one group after the peers'
// and sums it. Partial sums go to owners, and sums to all ranks' C, by a copy lane (pushed), by the kernel's couriers, its last
// wave directly (carried), or by the kernel directly (direct).
#include "bench/gpu/native_fused.h"

namespace tandem::bench {
namespace {

constexpr int kMostGroups = 8;
constexpr int kMostPushedGroups = 4;  // more pushes than that behind the gate fill the stream
constexpr int kPart = 0, kSum = kMostGroups, kComplete = 2 * kMostGroups;  // words of World::word, one a group each

enum class By { kPushes, kCouriers, kKernel };

struct Way {
  Tuning tuning;
  int groups;  // tiles that a rank owns
  By by = By::kPushes;
  bool merged = false;    // the peers' tiles of a group are walked together
  int direct_waves = 1;   // with couriers: the last ones, which go directly
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
      if (way.direct_waves == 1 && (c_.m <= 2048 || way.groups == 4)) Check(way);
    }
    std::vector<Arm> arms;
    auto add = [&](const std::string& name, Enqueue enqueue) {
      arms.push_back({name, [this, enqueue] { return world_.Time(2 * kSets, enqueue); }, {}});
    };
    add("gemm, cuBLASLt's best", [&](int rank, int set, uint64_t) {
      Lt(rank, a_[At(rank)][At(set % kSets)], reference_[At(rank)], set, c_.m);
    });
    add("cuBLASLt + NCCL all-reduce", [&](int rank, int set, uint64_t) { Unfused(rank, set); });
    add("pushes alone", [this](int rank, int, uint64_t epoch) {
      Push(rank, epoch, {{}, rows_ % (4 * int64_t{cuda::kTileRows}) == 0 ? 4 : 1}, false);
      world_.Join(rank);
    });
    for (const Way& way : ways) {
      add(way.tuning.name, [&, way](int rank, int set, uint64_t epoch) { Fused(rank, set, epoch, way); });
    }
    Report("matmul+all-reduce", arms, 1);
  }

 private:
  std::vector<Way> Ways() const {
    std::vector<Way> ways;
    const auto add = [&](int groups, By by, bool merged, int direct_waves, int ctas, int tile_n) {
      const bool pushed = by == By::kPushes;
      if (rows_ % (groups * int64_t{cuda::kTileRows}) != 0 || (pushed && groups > kMostPushedGroups)) return;
      if (groups * w_ > cuda::kMostPieces) return;
      std::string name = pushed ? "pushed" : by == By::kKernel ? "direct" : "carried, last " + std::to_string(direct_waves);
      name += ", " + std::to_string(groups) + " tiles an owner" + (merged ? ", merged" : "") + ", ctas " + std::to_string(ctas);
      if (tile_n != 256) name += ", columns " + std::to_string(tile_n);
      ways.push_back({{name, ctas, 16, {}, tile_n}, groups, by, merged, direct_waves});
    };
    for (int groups : {8, 4, 2, 1}) {
      add(groups, By::kPushes, false, 1, 128, 256);
      add(groups, By::kKernel, false, 1, 132, 256);
      for (bool merged : {false, true}) {
        for (int ctas : {132, 128}) {
          for (int waves : {0, 1, 2}) add(groups, By::kCouriers, merged, waves, ctas, 256);
        }
      }
    }
    return ways;
  }
  int64_t TileRows(int groups) const { return rows_ / groups; }
  size_t TileBytes(int groups) const { return Bytes(TileRows(groups), c_.n); }
  // Of a tile in C, in staging, and of `source`'s part among the owner's inbox.
  int Tile(int owner, int group) const { return group * w_ + owner; }
  int Slot(int owner, int source, int group) const {
    return group * (w_ - 1) + (source < owner ? source : source - 1);
  }

  // Behind `wait`: each tile once the kernel says that it is complete.
  void Push(int rank, uint64_t epoch, const Way& way, bool wait) {
    world_.Fork(rank);
    const int groups = way.groups;
    const auto elements = TileRows(groups) * c_.n;
    Lane& lane = world_.copy_lane(rank);
    auto copy = [&](std::byte* from, std::byte* to) {
      Must(lane.Copy({Dense(from, kType, {elements}), Dense(to, kType, {elements}), true}), "push");
    };
    for (int group = 0; group <= groups && way.by == By::kPushes; ++group) {
      for (int i = 1; i < w_ && group < groups; ++i) {
        const int owner = (rank + i) % w_;
        if (wait) Must(lane.WaitWord(world_.word(rank, rank, owner, kComplete + group), epoch), "complete");
        copy(staging_[At(rank)] + At(Tile(owner, group)) * TileBytes(groups),
             inbox_.at(rank, owner) + At(Slot(owner, rank, group)) * TileBytes(groups));
        Must(lane.WriteWord(world_.word(rank, owner, rank, kPart + group), epoch), "signal");
      }
      if (group == 0) continue;
      const int own = group - 1;
      const size_t at = At(Tile(rank, own)) * TileBytes(groups);
      for (int i = 1; i < w_; ++i) {
        const int peer = (rank + i) % w_;
        if (wait && i == 1) Must(lane.WaitWord(world_.word(rank, rank, rank, kComplete + own), epoch), "the own sum");
        copy(c_all_.at(rank, rank) + at, c_all_.at(rank, peer) + at);
        Must(lane.WriteWord(world_.word(rank, peer, rank, kSum + own), epoch), "signal");
      }
    }
    for (int group = 0; group < groups; ++group) {
      for (int i = 1; i < w_; ++i) {
        Must(lane.WaitWord(world_.word(rank, rank, (rank + i) % w_, kSum + group), epoch), "sums");
      }
    }
  }

  void Fused(int rank, int set, uint64_t epoch, const Way& way) {
    Tuning tuning = way.tuning;
    for (int group = 0; group <= way.groups; ++group) {
      if (group < way.groups && way.merged) tuning.runs.push_back(w_ - 1);
      if (group < way.groups && !way.merged) tuning.runs.insert(tuning.runs.end(), At(w_ - 1), 1);
      if (group > 0) tuning.runs.push_back(1);
    }
    cuda::FusedMatmul matmul = Native(rank, set, epoch, tuning);
    const int64_t rows = TileRows(way.groups);
    matmul.rows = rows;
    matmul.tiling.cluster_m = rows % 256 == 0 ? 2 : 1;
    const int64_t tiles = w_ * way.groups;
    matmul.a[0] = {a_[At(rank)][At(set % kSets)], c_.k, tiles, rows * c_.k};
    matmul.out[0] = {c_all_.at(rank, rank), c_.n, tiles, rows * c_.n};
    matmul.out[1] = {staging_[At(rank)], c_.n, tiles, rows * c_.n};
    const bool pushed = way.by == By::kPushes;
    for (int peer = 0; peer < w_ && !pushed; ++peer) {
      if (peer == rank) continue;
      matmul.out[PartMap(rank, peer)] = {inbox_.at(rank, peer), c_.n, (w_ - 1) * way.groups, rows * c_.n};
      matmul.out[PartMap(rank, peer) + 1] = {c_all_.at(rank, peer), c_.n, tiles, rows * c_.n};
    }
    const int64_t clusters = way.tuning.ctas / matmul.tiling.cluster_m;
    if (way.by == By::kCouriers) matmul.tiling.direct_tiles = static_cast<int>(clusters * way.direct_waves);
    matmul.slots = {inbox_.at(rank, rank), c_.n, (w_ - 1) * way.groups, rows * c_.n};
    matmul.position = rank;
    auto add = [&](int owner, int group) {
      cuda::MatmulPiece piece = {};
      piece.first_slot = -1;
      piece.a_slice = piece.out_slice = static_cast<int16_t>(Tile(owner, group));
      piece.out_map = owner == rank ? 0 : 1;
      if (pushed) piece.done = Writable(world_.word(rank, rank, owner, kComplete + group));
      piece.on_the_way = !pushed && owner != rank ? 1 : 0;
      piece.first_copy = static_cast<int16_t>(matmul.copies.size());
      const auto deliver = [&](int to, int word, int map, int slice) {
        cuda::MatmulCopy copy = {};
        copy.done = Writable(world_.word(rank, to, rank, word));
        copy.map = static_cast<int16_t>(map);
        copy.slice = static_cast<int16_t>(slice);
        matmul.copies.push_back(copy);
        ++piece.copies;
      };
      if (!pushed && owner != rank) deliver(owner, kPart + group, PartMap(rank, owner), Slot(owner, rank, group));
      for (int i = 1; i < w_ && !pushed && owner == rank; ++i) {
        const int peer = (rank + i) % w_;
        deliver(peer, kSum + group, PartMap(rank, peer) + 1, Tile(rank, group));
      }
      if (owner == rank) {
        piece.first_slot = static_cast<int16_t>(group * (w_ - 1));
        piece.arrived_offset = static_cast<int16_t>(group * World::kWordStep);
      }
      matmul.pieces.push_back(piece);
    };
    for (int group = 0; group <= way.groups; ++group) {
      for (int i = 1; i < w_ && group < way.groups; ++i) add((rank + i) % w_, group);
      if (group > 0) add(rank, group - 1);
    }
    for (int source = 0; source < w_; ++source) {
      if (source == rank) continue;
      matmul.slot_of.push_back(static_cast<int16_t>(Slot(rank, source, 0)));
      matmul.arrived.push_back(Plain(world_.word(rank, rank, source, kPart)));
    }
    Push(rank, epoch, way, true);
    Launch(rank, matmul);
    world_.Join(rank);
  }
  static uint64_t* Writable(Word* word) { return reinterpret_cast<uint64_t*>(word); }
  // Of C's maps that for partial sums in `peer`'s inbox; the next is its C.
  static int PartMap(int rank, int peer) { return 2 + 2 * (peer < rank ? peer : peer - 1); }

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
        world_.Time(1, [&](int rank, int, uint64_t epoch) { Fused(rank, set, epoch, way); });
        for (int rank = 0; rank < w_; ++rank) {
          auto got = Output(rank, c_all_.at(rank, rank), c_.m);
          const bool same = first.empty() || got == first;
          if (same && !first.empty() && (rank > 0 || set + repeat < sets)) continue;
          const double error = RelativeError(got, Output(rank, reference_[At(rank)], c_.m), kType);
          if (first.empty()) first = std::move(got);
          const bool right = error < 6e-3 && same;  // the reference rounds its partial sums too
          if (right && set + repeat < sets) continue;
          std::printf("check reduce set %d rank %d %s: error %.2e %s %s\n", set, rank, way.tuning.name.c_str(), error,
                      same ? "same bits" : "OTHER BITS", right ? "ok" : "WRONG");
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
