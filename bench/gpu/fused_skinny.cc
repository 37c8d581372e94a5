// Products of few rows with their collective by the skinny kernel, on the GPUs of this node, beside the
// product alone and NCCL + cuBLASLt's best candidate.
//   fused_skinny check WORLD        odd shapes, aligned and not, against NCCL + cuBLASLt
//   fused_skinny gather|scatter|reduce WORLD ROUNDS M N K [k|n]
//                                 results, then times: launches one at a time, then one behind another in a
//                                 CUDA graph
#include <cstdlib>
#include <cstring>
#include <string>

#include "bench/gpu/fused_collective.h"
#include "kernels/cuda/skinny/skinny_matmul.h"
#include "program/program.h"

namespace tandem::bench {
namespace {

constexpr int kWordsOfWriter = plan::kSignalsPerWriter;
constexpr const char* kNames[] = {"all-gather+matmul", "matmul+reduce-scatter", "matmul+all-reduce"};

class SkinnyBench : public Bench {
 public:
  SkinnyBench(World* world, SkinnyKind kind, const Case& test, const SkinnyLayout& layout)
      : Bench(world, test), kind_(kind), gathers_(kind == SkinnyKind::kGather), layout_(layout) {
    for (SharedArea& area : area_) area = world_.Share(static_cast<size_t>(layout.area_bytes()));
    words_ = world_.Share(At(w_) * kWordsOfWriter * sizeof(uint64_t));
    for (int rank = 0; rank < w_; ++rank) {
      Gpu& gpu = world_.gpu(rank);
      a_.emplace_back();
      for (int set = 0; set < kSets; ++set) {
        a_.back().push_back(gpu.Random(Bytes(gathers_ ? rows_ : c_.m, c_.k) + kSlack, kType));
      }
      full_.push_back(gpu.Zero(Bytes(c_.m, std::max(c_.k, c_.n))));
      out_.push_back(gpu.Zero(Bytes(c_.m, c_.n) + kSlack));
      reference_.push_back(gpu.Zero(Bytes(c_.m, c_.n)));
      MakeB(rank);
    }
    world_.Each([&](int rank) { PrepareLt(rank); });
    world_.WarmUp([&](int rank, int set, uint64_t) { Unfused(rank, set); });
  }

  // `shift`: of the own rows of A and of C, in elements.
  void Fused(int rank, int set, uint64_t launch_number, int shift = 0) {
    cuda::SkinnyMatmul matmul;
    matmul.layout = layout_;
    matmul.b_along_n = c_.along_n;
    matmul.rank = rank;
    matmul.a = a_[At(rank)][At(set % kSets)] + 2 * shift;
    matmul.b = b_[At(rank)][At(set % kSets)];
    matmul.c = out_[At(rank)] + 2 * shift;
    matmul.a_pitch = c_.k;
    matmul.b_pitch = c_.along_n ? c_.n : c_.k;
    matmul.c_pitch = c_.n;
    for (int peer = 0; peer < w_; ++peer) {
      matmul.area[At(peer)] = area_[launch_number & 1].at(rank, peer);
      matmul.words[At(peer)] = reinterpret_cast<uint64_t*>(words_.at(rank, peer)) + rank * kWordsOfWriter;
      matmul.arrived[At(peer)] =
          reinterpret_cast<const uint64_t*>(words_.at(rank, rank)) + peer * kWordsOfWriter;
    }
    matmul.launch_number = launch_number;
    matmul.timeout_ns = 2'000'000'000;
    matmul.state = memory_[At(rank)].state;
    const cuda::SkinnyVariant* variant = Must(cuda::FindSkinnyVariant(matmul), "variant");
    auto params = Must(cuda::MakeSkinnyParams(matmul), "parameters");
    Must(cuda::LaunchSkinny(params, *variant, layout_.ctas(), world_.gpu(rank).stream()), "launch");
  }
  void Unfused(int rank, int set, int shift = 0) {
    std::byte* a = a_[At(rank)][At(set % kSets)] + 2 * shift;
    std::byte *full = full_[At(rank)], *reference = reference_[At(rank)];
    if (gathers_) {
      Nccl(rank, plan::NcclKind::kAllGather, Dense(a, kType, {rows_ * c_.k}),
           Dense(full, kType, {c_.m * c_.k}));
      Lt(rank, full, reference, set, c_.m);
      return;
    }
    Lt(rank, a, full, set, c_.m);
    const bool scatters = kind_ == SkinnyKind::kScatter;
    Nccl(rank, scatters ? plan::NcclKind::kReduceScatter : plan::NcclKind::kAllReduce,
         Dense(full, kType, {c_.m * c_.n}), Dense(reference, kType, {(scatters ? rows_ : c_.m) * c_.n}));
  }

  bool Check(int shift) {
    const int64_t rows = kind_ == SkinnyKind::kScatter ? rows_ : c_.m;
    bool all = true;
    double worst = 0;
    for (int set = 0; set < 3; ++set) {
      world_.Time(1, [&](int rank, int, uint64_t) { Unfused(rank, set, shift); });
      std::vector<std::vector<uint16_t>> before(At(w_));
      for (int repeat = 0; repeat < 2; ++repeat) {
        world_.Time(1,
                    [&](int rank, int, uint64_t launch_number) { Fused(rank, set, launch_number, shift); });
        for (int rank = 0; rank < w_; ++rank) {
          auto got = Output(rank, out_[At(rank)] + 2 * shift, rows);
          const double error = RelativeError(got, Output(rank, reference_[At(rank)], rows), kType);
          worst = std::max(worst, error);
          bool same = repeat == 0 || got == before[At(rank)];
          before[At(rank)] = std::move(got);
          if (kind_ == SkinnyKind::kAllReduce) same = same && before[At(rank)] == before[0];
          if (!same) std::printf("rank %d set %d repeat %d: OTHER BITS\n", rank, set, repeat);
          all = all && same && error < 6e-3;  // the reference rounds its partial sums too
        }
      }
    }
    std::printf("check %s W %d M %ld N %ld K %ld %s shift %d: tiles %dx%d of %dx%d, error %.2e %s\n",
                kNames[static_cast<int>(kind_)], w_, c_.m, c_.n, c_.k, c_.along_n ? "n" : "k", shift,
                layout_.tiles_m, layout_.tiles_n, layout_.segment * w_, layout_.tile_n, worst, Verdict(all));
    std::fflush(stdout);
    return all;
  }

  void Run() {
    Check(0);
    constexpr int kInGraph = 20;
    for (const bool in_graph : {false, true}) {
      std::vector<Arm> arms = Arms([this, in_graph](const Enqueue& enqueue) {
        return in_graph ? world_.TimeInGraph(kInGraph, enqueue) : world_.Time(2 * kSets, enqueue);
      });
      Report(std::string(kNames[static_cast<int>(kind_)]) +
                 (in_graph ? ", " + std::to_string(kInGraph) + " in a graph," : ""),
             arms, 1);
    }
  }

 private:
  std::vector<Arm> Arms(const std::function<double(const Enqueue&)>& time) {
    std::vector<Arm> arms;
    auto add = [&](const std::string& name, Enqueue enqueue) {
      arms.push_back({name, [time, enqueue] { return time(enqueue); }, {}});
    };
    add("gemm, cuBLASLt's best", [&](int rank, int set, uint64_t) {
      if (gathers_) {
        Lt(rank, full_[At(rank)], reference_[At(rank)], set, c_.m);
      } else {
        Lt(rank, a_[At(rank)][At(set % kSets)], full_[At(rank)], set, c_.m);
      }
    });
    add("NCCL + cuBLASLt", [&](int rank, int set, uint64_t) { Unfused(rank, set); });
    add("skinny", [&](int rank, int set, uint64_t launch_number) { Fused(rank, set, launch_number); });
    return arms;
  }

  static constexpr size_t kSlack = 256;
  const SkinnyKind kind_;
  const bool gathers_;
  const SkinnyLayout layout_;
  SharedArea area_[2],
      words_;  // by the launch number's parity, as in plans: a launch may begin while a peer still
               // reads the last one's
  std::vector<std::vector<std::byte*>> a_;
  std::vector<std::byte*> full_, out_, reference_;
};

std::optional<SkinnyLayout> LayoutOf(SkinnyKind kind, int world, const Case& test) {
  return MakeSkinnyLayout(kind, world, test.m, test.n, test.k, 2, 2, test.along_n);
}

int CheckAll(int size) {
  bool all = true;
  World world(size);
  for (SkinnyKind kind : {SkinnyKind::kGather, SkinnyKind::kScatter, SkinnyKind::kAllReduce}) {
    for (const auto& [rows, n, k] : {std::tuple{32, 8192, 1024},
                                     {1, 64, 8},
                                     {5, 200, 72},
                                     {16, 1000, 136},
                                     {33, 264, 2048},
                                     {64, 7168, 512},
                                     {100, 4096, 264},
                                     {128, 14336, 256},
                                     {256, 8192, 192},
                                     {300, 1032, 640},
                                     {20, 14328, 328},
                                     {24, 16200, 136},
                                     {16, 28000, 192},
                                     {8, 32000, 72}}) {
      // An all-reduce of a row more has short parts, and ranks that own none.
      for (const auto& [along_n, more] : {std::pair{false, 0}, {true, 0}, {false, 1}, {true, 1}}) {
        const Case test{int64_t{rows} * size + more, n, k, along_n, 2};
        const auto layout = LayoutOf(kind, size, test);
        if (!layout) continue;
        SkinnyBench bench(&world, kind, test, *layout);
        for (int shift : {0, 1}) all = bench.Check(shift) && all;
        world.Clear();
      }
    }
  }
  std::printf("%s\n", all ? "all ok" : "SOME WRONG");
  return all ? 0 : 1;
}

}  // namespace
}  // namespace tandem::bench

int main(int argc, char** argv) {
  using namespace tandem;
  using namespace tandem::bench;
  if (argc == 3 && std::strcmp(argv[1], "check") == 0) {
    const int code = CheckAll(std::atoi(argv[2]));
    std::fflush(stdout);
    std::_Exit(code);
  }
  if (argc < 7) return 2;
  const SkinnyKind kind = std::strcmp(argv[1], "gather") == 0    ? SkinnyKind::kGather
                          : std::strcmp(argv[1], "scatter") == 0 ? SkinnyKind::kScatter
                                                                 : SkinnyKind::kAllReduce;
  World world(std::atoi(argv[2]));
  const Case test{std::atoll(argv[4]), std::atoll(argv[5]), std::atoll(argv[6]),
                  argc > 7 && argv[7][0] == 'n', std::max(2, std::atoi(argv[3]))};
  const auto layout = LayoutOf(kind, world.size(), test);
  if (!layout) {
    std::printf("no skinny layout for this shape\n");
    return 0;
  }
  SkinnyBench(&world, kind, test, *layout).Run();
  std::fflush(stdout);
  std::_Exit(ExitStatus());  // the driver's threads need no orderly end
}
