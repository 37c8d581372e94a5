// The stand-in for NCCL: every collective over world sizes, sizes and scratch areas, and its ends.
#include "kernels/host/nccl_standin.h"

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <thread>
#include <vector>

#include "kernels/host/random_delay.h"
#include "kernels/host/strided.h"
#include "program/program.h"

namespace tandem::host {
namespace {

using plan::NcclKind;

// A group of communicators in one process.
struct Group {
  std::vector<std::vector<uint64_t>> memory;
  std::vector<std::unique_ptr<HostCommunicator>> ranks;
  Word abort_word{0};
  std::atomic<bool> abandoned{false};

  Group(int world_size, size_t scratch_bytes) {
    CommunicatorOptions options;
    options.world_size = world_size;
    options.scratch_bytes = scratch_bytes;
    options.abort_word = &abort_word;
    for (int r = 0; r < world_size; ++r) {
      memory.emplace_back(scratch_bytes / 8 + 8);
      auto address = reinterpret_cast<uintptr_t>(memory.back().data());
      options.scratch.push_back(reinterpret_cast<std::byte*>((address + 63) / 64 * 64));
    }
    for (int r = 0; r < world_size; ++r) {
      options.rank = r;
      ranks.push_back(std::move(*HostCommunicator::Create(options)));
    }
  }
  void Run(const std::function<NcclArgs(int)>& args, int times = 1, bool delays = false) {
    std::vector<std::thread> threads;
    for (int r = 0; r < static_cast<int>(ranks.size()); ++r) {
      threads.emplace_back([&, r] {
        RandomDelay delay(30, static_cast<uint64_t>(r));
        NcclArgs rank_args = args(r);
        rank_args.communicator = ranks[static_cast<size_t>(r)].get();
        for (int i = 0; i < times; ++i) {
          ranks[static_cast<size_t>(r)]->Run(rank_args, TaskContext{&abandoned, delays ? &delay : nullptr});
        }
      });
    }
    for (auto& thread : threads) thread.join();
  }
};

DeviceView View(std::vector<float>& data) {
  auto count = static_cast<int64_t>(data.size());
  return {reinterpret_cast<std::byte*>(data.data()), DType::kF32, {count}, {1}};
}

float Value(int rank, size_t i) { return static_cast<float>(rank + 1) + 0.25f * static_cast<float>(i % 97); }

struct Case {
  int world_size;
  size_t count;  // elements of the smaller side
  bool delays;
};

class NcclStandinTest : public testing::TestWithParam<Case> {
 protected:
  void Prepare(size_t in_factor, size_t out_factor) {
    Case test = GetParam();
    in.assign(static_cast<size_t>(test.world_size), std::vector<float>(test.count * in_factor));
    out.assign(in.size(), std::vector<float>(test.count * out_factor, -1));
    for (size_t r = 0; r < in.size(); ++r) {
      for (size_t i = 0; i < in[r].size(); ++i) in[r][i] = Value(static_cast<int>(r), i);
    }
  }
  void Run(NcclKind kind, int root = 0, ReduceOp op = ReduceOp::kSum) {
    Case test = GetParam();
    // Areas just large enough for several rounds a collective.
    Group group(test.world_size, kMinScratchBytes);
    auto args = [&](int r) {
      NcclArgs result;
      result.kind = kind;
      result.in = View(in[static_cast<size_t>(r)]);
      result.out = View(out[static_cast<size_t>(r)]);
      result.root = root;
      result.reduce_op = op;
      EXPECT_TRUE(group.ranks[static_cast<size_t>(r)]->Check(result).ok());
      return result;
    };
    // Back to back, so that the halves are reused.
    group.Run(args, 3, test.delays);
  }
  // The sum of element i over ranks, in rank order.
  float Sum(size_t i) const {
    float sum = in[0][i];
    for (size_t r = 1; r < in.size(); ++r) sum += in[r][i];
    return sum;
  }
  size_t count() const { return GetParam().count; }
  size_t world_size() const { return in.size(); }

  std::vector<std::vector<float>> in, out;
};

TEST_P(NcclStandinTest, AllReduce) {
  Prepare(1, 1);
  Run(NcclKind::kAllReduce);
  for (auto& result : out) {
    for (size_t i = 0; i < count(); ++i) ASSERT_EQ(result[i], Sum(i));
  }
  Run(NcclKind::kAllReduce, 0, ReduceOp::kAvg);
  for (size_t i = 0; i < count(); ++i)
    ASSERT_EQ(out[0][i], Sum(i) * (1.0f / static_cast<float>(world_size())));
  Run(NcclKind::kAllReduce, 0, ReduceOp::kMax);
  for (size_t i = 0; i < count(); ++i) {
    float most = in[0][i];
    for (const auto& values : in) most = std::max(most, values[i]);
    ASSERT_EQ(out[0][i], most);
  }
}

TEST_P(NcclStandinTest, Reduce) {
  Prepare(1, 1);
  int root = static_cast<int>(world_size()) - 1;
  Run(NcclKind::kReduce, root);
  for (size_t r = 0; r < world_size(); ++r) {
    for (size_t i = 0; i < count(); ++i) ASSERT_EQ(out[r][i], static_cast<int>(r) == root ? Sum(i) : -1);
  }
}

TEST_P(NcclStandinTest, ReduceScatter) {
  Prepare(static_cast<size_t>(GetParam().world_size), 1);
  Run(NcclKind::kReduceScatter);
  for (size_t r = 0; r < world_size(); ++r) {
    for (size_t i = 0; i < count(); ++i) ASSERT_EQ(out[r][i], Sum(r * count() + i));
  }
}

TEST_P(NcclStandinTest, AllGather) {
  Prepare(1, static_cast<size_t>(GetParam().world_size));
  Run(NcclKind::kAllGather);
  for (auto& result : out) {
    for (size_t r = 0; r < world_size(); ++r) {
      for (size_t i = 0; i < count(); ++i) ASSERT_EQ(result[r * count() + i], in[r][i]);
    }
  }
}

TEST_P(NcclStandinTest, Broadcast) {
  Prepare(1, 1);
  size_t root = world_size() / 2;
  Run(NcclKind::kBroadcast, static_cast<int>(root));
  for (auto& result : out) EXPECT_EQ(result, in[root]);
}

TEST_P(NcclStandinTest, AllToAll) {
  auto factor = static_cast<size_t>(GetParam().world_size);
  Prepare(factor, factor);
  Run(NcclKind::kAllToAll);
  for (size_t r = 0; r < world_size(); ++r) {
    for (size_t peer = 0; peer < world_size(); ++peer) {
      for (size_t i = 0; i < count(); ++i) ASSERT_EQ(out[r][peer * count() + i], in[peer][r * count() + i]);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, NcclStandinTest,
                         testing::Values(Case{1, 5, false}, Case{2, 0, false}, Case{2, 1, false},
                                         Case{2, 5000, true}, Case{3, 1777, false}, Case{5, 33, true},
                                         Case{8, 1300, false}),
                         [](const auto& info) {
                           return "W" + std::to_string(info.param.world_size) + "n" +
                                  std::to_string(info.param.count);
                         });

TEST(NcclStandinEndTest, BarrierHoldsUntilEveryRankHasCome) {
  Group group(3, kMinScratchBytes);
  NcclArgs args;
  args.kind = NcclKind::kBarrier;
  std::atomic<int> passed{0};
  std::vector<std::thread> threads;
  for (size_t r = 0; r < 2; ++r) {
    threads.emplace_back([&, r] {
      group.ranks[r]->Run(args, TaskContext{&group.abandoned, nullptr});
      ++passed;
    });
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(passed.load(), 0);
  group.ranks[2]->Run(args, TaskContext{&group.abandoned, nullptr});
  for (auto& thread : threads) thread.join();
}

// A rank that never comes: the others' collectives end by the abort word, by a peer's Abort, or by the
// queue's end.
TEST(NcclStandinEndTest, WaitsEnd) {
  for (int way = 0; way < 3; ++way) {
    Group group(3, kMinScratchBytes);
    NcclArgs args;
    args.kind = NcclKind::kBarrier;
    std::vector<std::thread> threads;
    for (size_t r = 0; r < 2; ++r) {
      threads.emplace_back([&, r] { group.ranks[r]->Run(args, TaskContext{&group.abandoned, nullptr}); });
    }
    if (way == 0) group.abort_word.store(1);
    if (way == 1) group.ranks[2]->Abort();
    if (way == 2) group.abandoned.store(true);
    for (auto& thread : threads) thread.join();
    // An aborted communicator stays aborted.
    if (way < 2) group.ranks[0]->Run(args, TaskContext{&group.abandoned, nullptr});
  }
}

TEST(NcclStandinEndTest, RefusesOptionsThatNcclDoesNotHave) {
  std::vector<uint64_t> memory(kMinScratchBytes);
  CommunicatorOptions options;
  options.scratch = {
      reinterpret_cast<std::byte*>((reinterpret_cast<uintptr_t>(memory.data()) + 63) / 64 * 64)};
  options.scratch_bytes = kMinScratchBytes;
  struct Case {
    const char* key;
    const char* value;
    const char* refusal;
  };
  for (const Case& c :
       {Case{"nccl.min_ctas", "2", ""}, Case{"nccl.blocking", "0", ""}, Case{"another", "auto", ""},
        Case{"nccl.min_cta", "2", "no group option 'nccl.min_cta'"},
        Case{"nccl.max_ctas", "many", "'nccl.max_ctas' is no number: 'many'"},
        Case{"nccl.max_ctas", "", "'nccl.max_ctas' is no number: ''"},
        Case{"nccl.cga_cluster_size", "-1", "'nccl.cga_cluster_size' is no number: '-1'"},
        Case{"nccl.blocking", "2", "'nccl.blocking' is 0 or 1"}}) {
    options.config = {{c.key, c.value}};
    const Status status = HostCommunicator::Create(options).status();
    EXPECT_EQ(status.code(), *c.refusal == 0 ? Code::kOk : Code::kInvalidArgument) << c.key << "=" << c.value;
    EXPECT_NE(status.message().find(c.refusal), std::string::npos) << status.message();
  }
}

TEST(NcclStandinEndTest, RefusesWhatDoesNotFit) {
  CommunicatorOptions options;
  options.world_size = 2;
  EXPECT_FALSE(HostCommunicator::Create(options).ok());
  std::vector<uint64_t> memory(kMinScratchBytes);
  auto* area = reinterpret_cast<std::byte*>((reinterpret_cast<uintptr_t>(memory.data()) + 63) / 64 * 64);
  options.scratch = {area, area};
  options.scratch_bytes = kMinScratchBytes - 1;
  EXPECT_FALSE(HostCommunicator::Create(options).ok());
  options.scratch_bytes = kMinScratchBytes;
  auto communicator = HostCommunicator::Create(options);
  ASSERT_TRUE(communicator.ok());
  std::vector<float> four(4), eight(8);
  NcclArgs args;
  args.kind = NcclKind::kAllGather;
  args.in = View(four);
  args.out = View(four);
  EXPECT_FALSE((*communicator)->Check(args).ok());
  args.out = View(eight);
  EXPECT_TRUE((*communicator)->Check(args).ok());
  args.kind = static_cast<NcclKind>(99);
  EXPECT_FALSE((*communicator)->Check(args).ok());
  args.kind = NcclKind::kAllReduce;
  args.out = View(four);
  args.in.dtype = args.out.dtype = DType::kI32;
  EXPECT_TRUE((*communicator)->Check(args).ok());
  args.reduce_op = ReduceOp::kAvg;
  EXPECT_FALSE((*communicator)->Check(args).ok());
}

}  // namespace
}  // namespace tandem::host
