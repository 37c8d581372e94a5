// File: fused_race_fixture.h
//
// The fused kernel on one GPU, its peers played by lanes, in launches whose results are known to the bit.
#pragma once

#include <array>
#include <map>
#include <random>
#include <tuple>
#include <utility>
#include <vector>

#include "kernels/cuda/fused/fused_launch.h"
#include "tests/gpu/fused/hooked_gpu_test.h"

namespace tandem::cuda {

inline constexpr int64_t kRows = 256, kN = 512;  // of a piece: two tiles by two, three pieces
inline constexpr size_t kCBytes = kRows * kN * 2;
inline constexpr int kTiles = 12;
inline constexpr int kLaunches = 16;
inline constexpr int kBandStep = 16;

// The kernel's parameters of a launch. One stage of K and a CTA a tile, or stages and tiles that follow
// one another: rings that wrap, tickets taken ahead, store warps beside the next products.
struct Extent {
  int64_t k = 64;
  int ctas = 0;         // 0: as many as there are tiles
  bool splits = false;  // CTAs share the last tiles
};

// Where the kernel's pieces are read: where it stores them, or in copies that its store warps make, or it
// stores itself, or both.
enum class Delivery { kNone, kCarried, kDirect, kBoth };

// Three pieces. The rank's own rows are signalled to a peer, and so are rows that a peer delivers. Rows that
// the rank owns, to which it adds the sums of two peers, are signalled to all.
struct Launch {
  std::vector<float> a, b, sums;
  std::vector<std::vector<float>> expected;  // by piece
};

inline float Small(std::mt19937& random) { return static_cast<float>(random() % 3) - 1; }

// Sums in fp32 in rank order, which differ in some elements from any other order: 2^25 + own - 2^25 is own to
// the next multiple of 4.
inline Launch Draw(uint32_t seed, int64_t k_extent) {
  std::mt19937 random(seed);
  Launch launch;
  for (int64_t i = 0; i < 3 * kRows * k_extent; ++i) launch.a.push_back(Small(random));
  for (int64_t i = 0; i < k_extent * kN; ++i) launch.b.push_back(Small(random));
  for (int64_t i = 0; i < 2 * kRows * kN; ++i) launch.sums.push_back(Small(random));
  constexpr float kLarge = 1 << 25;
  for (int64_t i = 0; i < kRows * kN; i += 5) {
    launch.sums[static_cast<size_t>(i)] = kLarge;
    launch.sums[static_cast<size_t>(kRows * kN + i)] = -kLarge;
  }
  for (int piece = 0; piece < 3; ++piece) {
    std::vector<float> c(kRows * kN);
    for (int64_t m = 0; m < kRows; ++m) {
      const float* a = &launch.a[static_cast<size_t>((piece * kRows + m) * k_extent)];
      for (int64_t n = 0; n < kN; ++n) {
        const float* b = &launch.b[static_cast<size_t>(n * k_extent)];
        float sum = 0;
        for (int64_t k = 0; k < k_extent; ++k) sum += a[k] * b[k];
        const auto at = static_cast<size_t>(m * kN + n);
        // The first of two peers precedes this rank, the second follows it.
        c[at] = piece < 2 ? sum : (launch.sums[at] + sum) + launch.sums[static_cast<size_t>(kRows * kN) + at];
      }
    }
    launch.expected.push_back(std::move(c));
  }
  return launch;
}

class FusedRaceTest : public HookedGpuTest {
 protected:
  explicit FusedRaceTest(Delivery delivery = Delivery::kNone, Extent extent = {})
      : delivery_(delivery), extent_(extent) {}

  void SetUp() override {
    HookedGpuTest::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    for (auto* lane : {&main_, &peer_, &reader_}) *lane = std::move(*backend_->MakeLane(0));
    ended_ = std::move(*backend_->MakeEvent());
    a_ = Take(3 * a_bytes());
    landing_ = Take(a_bytes());
    b_ = Take(b_bytes());
    sums_ = Take(2 * kCBytes);
    slots_ = Take(2 * kCBytes);
    c_ = Take(3 * kCBytes);
    sent_ = Take(3 * kCBytes);
    seen_ = Take(3 * kCBytes);
    state_ = Take(kFusedStateBytes);
    if (extent_.splits) partials_ = Take(static_cast<size_t>(extent_.ctas) * kTileRows * 256 * sizeof(float));
    words_ = reinterpret_cast<Word*>(Take(4096));
    ASSERT_NE(words_, nullptr);
  }

  size_t a_bytes() const { return static_cast<size_t>(kRows * extent_.k) * 2; }
  size_t b_bytes() const { return static_cast<size_t>(extent_.k * kN) * 2; }
  // Once for all tests: the expected sums take the CPU longer than the GPU takes for the test.
  Launch Draw(uint32_t seed) const {
    static auto& drawn = *new std::map<std::pair<uint32_t, int64_t>, Launch>();
    const auto [at, is_new] = drawn.try_emplace({seed, extent_.k});
    if (is_new) at->second = cuda::Draw(seed, extent_.k);
    return at->second;
  }

  Word* word(int index) const { return words_ + 16 * index; }
  uint64_t word_value(int index) {
    uint64_t value = 0;
    Move(&value, word(index), sizeof(value));
    return value;
  }
  bool EndsWithin(std::chrono::milliseconds time) { return HookedGpuTest::EndsWithin(*ended_, time); }
  // The number of pieces at `from` that are not as expected.
  int Wrong(const std::byte* from, const Launch& launch) {
    std::vector<std::byte> bytes(3 * kCBytes);
    Move(bytes.data(), from, bytes.size());
    int wrong = 0;
    for (size_t piece = 0; piece < 3; ++piece) {
      bool same = true;
      for (size_t i = 0; i < launch.expected[piece].size() && same; ++i) {
        same = LoadAsFloat(bytes.data(), DType::kBf16, piece * kRows * kN + i) == launch.expected[piece][i];
      }
      wrong += same ? 0 : 1;
    }
    return wrong;
  }

  // Words: 0 the delivered rows, 1 and 2 the peers' sums, 3 to 5 the kernel's for its pieces. Then 6 the
  // guard, 7 copies may be written, 8 the kernel may end. All deliveries but the last piece are signalled,
  // and the sums, in two word bands; the second band's words lie kBandStep further.
  void EnqueueKernel(const FusedVariant& variant, uint64_t launch_number,
                     uint64_t timeout_ns = 20'000'000'000, bool guarded = false) {
    FusedMatmul matmul;
    matmul.b_along_n = false;
    matmul.rows = kRows;
    matmul.n = kN;
    matmul.k = extent_.k;
    matmul.a[0] = {a_, extent_.k, 3, kRows * extent_.k};
    matmul.a[1] = {landing_, extent_.k, 1, 0};
    matmul.b = {b_, extent_.k, 1, 0};
    matmul.out[0] = {c_, kN, 3, kRows * kN};
    if (delivery_ != Delivery::kNone) {
      matmul.out[1] = {sent_, kN, 3, kRows * kN};
      matmul.entered = reinterpret_cast<const uint64_t*>(word(7));
      matmul.closing = {reinterpret_cast<const uint64_t*>(word(8))};
      matmul.word_bands = 2;
      matmul.word_step = 16 * kBandStep;
      if (delivery_ == Delivery::kCarried) matmul.tiling.direct_tiles = 0;
      if (delivery_ == Delivery::kBoth) matmul.tiling.direct_tiles = 5;
    }
    matmul.slots = {slots_, kN, 2, kRows * kN};
    for (int i = 0; i < 3; ++i) {
      MatmulPiece piece = {};
      piece.a_map = i == 1 ? 1 : 0;
      piece.a_slice = static_cast<int16_t>(i == 1 ? 0 : i);
      piece.out_slice = static_cast<int16_t>(i);
      piece.first_slot = static_cast<int16_t>(i == 2 ? 0 : -1);
      if (i == 1) piece.ready = reinterpret_cast<const uint64_t*>(word(0));
      auto* done = reinterpret_cast<uint64_t*>(word(3 + i));
      if (delivery_ == Delivery::kNone) {
        piece.done = done;
      } else {
        MatmulCopy copy = {};
        copy.done = done;
        copy.map = 1;
        copy.slice = static_cast<int16_t>(i);
        piece.first_copy = static_cast<int16_t>(matmul.copies.size());
        piece.copies = 1;
        piece.words = i < 2 ? 2 : 1;
        piece.on_the_way = i == 0 ? 1 : 0;
        matmul.copies.push_back(copy);
      }
      matmul.pieces.push_back(piece);
      matmul.runs.push_back({i, 1});
    }
    for (int source = 0; source < 2; ++source) {
      matmul.arrived.push_back(reinterpret_cast<const uint64_t*>(word(1 + source)));
      matmul.slot_of.push_back(static_cast<int16_t>(source));
    }
    matmul.position = 1;
    matmul.launch_number = launch_number;
    matmul.timeout_ns = timeout_ns;
    matmul.abort_word = reinterpret_cast<const uint64_t*>(const_cast<uint32_t*>(HostWord(2)));
    matmul.memory.state = state_;
    if (extent_.splits) {
      matmul.memory.partials = partials_;
      matmul.tiling.ctas = extent_.ctas;
      matmul.tiling.part_cost = 0;
    }
    matmul.tiling.cluster_m = variant.cluster_m;
    if (guarded) {
      matmul.guard_word = reinterpret_cast<const uint64_t*>(word(6));
      matmul.guard_value = launch_number;
    }
    ASSERT_TRUE(backend_->MakeEvent().ok());
    auto params = MakeFusedParams(matmul, variant);
    ASSERT_TRUE(params.ok()) << params.status().ToString();
    ASSERT_TRUE(LaunchFused(*params, variant, extent_.ctas, stream(main_)).ok());
    ASSERT_TRUE(main_->Record(ended_.get()).ok());
  }
  // All memory that a kernel could reach.
  std::vector<std::byte> Everything() {
    std::vector<std::byte> bytes(static_cast<size_t>(next_ - segment_->data()));
    Move(bytes.data(), segment_->data(), bytes.size());
    return bytes;
  }
  // A launch with its peers; the pieces that went wrong.
  int RunOnce(const FusedVariant& variant, uint64_t launch_number, const Launch& launch, bool guarded) {
    EnqueueKernel(variant, launch_number, 20'000'000'000, guarded);
    EnqueueReader(launch_number);
    EnqueuePeers(launch_number);
    for (auto* lane : {&main_, &peer_, &reader_}) Sync(*lane);
    return Wrong(made(), launch) + Wrong(seen_, launch);
  }
  // Where the kernel leaves what it has made.
  std::byte* made() const { return delivery_ == Delivery::kNone ? c_ : sent_; }
  // Each piece as a peer sees it that waits for its word.
  void EnqueueReader(uint64_t launch_number) {
    for (int i = 0; i < 3; ++i) {
      ASSERT_TRUE(reader_->WaitWord(word(3 + i), launch_number).ok());
      if (delivery_ != Delivery::kNone && i < 2) {
        ASSERT_TRUE(reader_->WaitWord(word(3 + i + kBandStep), launch_number).ok());
      }
      Copy(*reader_, made() + static_cast<size_t>(i) * kCBytes, seen_ + static_cast<size_t>(i) * kCBytes,
           kCBytes);
    }
  }
  void EnqueuePeers(uint64_t launch_number, bool enter = true) {
    EnqueuePeersFrom(a_ + a_bytes(), sums_, launch_number, enter);
  }
  // The rows of the second piece, and the sums of two peers for the third.
  void EnqueuePeersFrom(std::byte* rows, std::byte* sums, uint64_t launch_number, bool enter) {
    Copy(*peer_, rows, landing_, a_bytes());
    ASSERT_TRUE(peer_->WriteWord(word(0), launch_number).ok());
    for (int source = 0; source < 2; ++source) {
      const size_t at = static_cast<size_t>(source) * kCBytes;
      Copy(*peer_, sums + at, slots_ + at, kCBytes);
      ASSERT_TRUE(peer_->WriteWord(word(1 + source), launch_number).ok());
      if (delivery_ != Delivery::kNone) {
        ASSERT_TRUE(peer_->WriteWord(word(1 + source + kBandStep), launch_number).ok());
      }
    }
    if (delivery_ != Delivery::kNone) {
      ASSERT_TRUE(peer_->WriteWord(word(8), launch_number).ok());
    }
    if (delivery_ != Delivery::kNone && enter) {
      ASSERT_TRUE(peer_->WriteWord(word(7), launch_number).ok());
    }
  }
  void Copy(Lane& lane, std::byte* from, std::byte* to, size_t bytes) {
    const auto count = static_cast<int64_t>(bytes / 2);
    CopyArgs copy;
    copy.src = {from, DType::kBf16, {count}, {1}};
    copy.dst = {to, DType::kBf16, {count}, {1}};
    ASSERT_TRUE(lane.Copy(copy).ok());
  }
  void UploadLaunch(const Launch& launch) {
    Upload(a_, launch.a);
    Upload(b_, launch.b);
    Upload(sums_, launch.sums);
  }

  // Launches with data of their own, whose peers come late: the pieces that went wrong in all.
  int CountWrong(FusedFault fault) {
    const FusedVariant variant = HookedVariant(fault);
    int wrong = 0;
    for (int i = 0; i < kLaunches && !HasFatalFailure(); ++i) {
      const Launch launch = Draw(static_cast<uint32_t>(i) + 1);
      const uint64_t launch_number = ++launch_number_;
      UploadLaunch(launch);
      EnqueueKernel(variant, launch_number);
      EnqueueReader(launch_number);
      // A kernel that does not wait ends by itself now; one that does must not.
      const bool early = EndsWithin(std::chrono::milliseconds(i % 4 == 0 ? 20 : 2));
      EXPECT_FALSE(early && fault == FusedFault::kNone) << "launch " << i << " ended before its peers came";
      EnqueuePeers(launch_number);
      for (auto* lane : {&main_, &peer_, &reader_}) Sync(*lane);
      wrong += Wrong(made(), launch) + Wrong(seen_, launch);
    }
    return wrong;
  }

  std::unique_ptr<Lane> main_, peer_, reader_;
  std::unique_ptr<Event> ended_;
  std::byte *a_ = nullptr, *landing_ = nullptr, *b_ = nullptr, *sums_ = nullptr, *slots_ = nullptr,
            *c_ = nullptr, *sent_ = nullptr, *seen_ = nullptr, *state_ = nullptr, *partials_ = nullptr;
  Word* words_ = nullptr;
  uint64_t launch_number_ = 0;
  const Delivery delivery_;
  const Extent extent_;
};

}  // namespace tandem::cuda
